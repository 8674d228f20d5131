"""Misuse raises an exception that names the value, and leaves the context unchanged."""

import copy
import pickle

import numpy as np
import plait
import pytest
from python.drive import batch, contents, feed, same_bits, tokens


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, n_batch=32) as ctx:
        feed(ctx, tokens(10), 0)
        yield ctx


def one(token=5, **entry):
    made = plait.Batch()
    made.add(token, **entry)
    return made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plait.Batch(), "empty"),
        (lambda: plait.Batch.from_arrays([], [], [], []), "empty"),
        (lambda: one(288), r"token 288 .*0\.\.287"),
        (lambda: one(-1), "token -1"),
        (lambda: one(2**31 - 1), str(2**31 - 1)),
        (lambda: one(pos=9), "expects position 10, got 9"),  # taken
        (lambda: one(pos=3), "expects position 10, got 3"),  # backwards
        (lambda: one(pos=11), "expects position 10, got 11"),  # a gap
        (lambda: one(pos=2**31 - 1), str(2**31 - 1)),
        (lambda: one(seq=2), "sequence id 2"),
        (lambda: one(seq=-1), "seq: expected at least 0, got -1"),
        (lambda: one(seq=[0, 0]), "sequence id 0 twice"),
        (lambda: one(seq=[0, 1]), "0, 1.*same cells"),
        (lambda: one(pos=[10, 10, 10, 0]), "4 positions each, the model expects 1"),
        (lambda: batch((tokens(33), 1)), "33 entries.*n_batch = 32"),
        (lambda: batch(([5, 5, 999], 1)), r"token 999.*entry 2"),
        (lambda: plait.Batch.from_arrays([5], None, [[-1, -1]], [True]), "no sequence"),
        (lambda: plait.Batch.from_arrays([5], None, [[0, -3]], [True]), "sequence id -3"),
    ],
)
@pytest.mark.parametrize("call", ["decode", "encode"])
def test_an_invalid_batch_is_refused_and_changes_nothing(ctx, make, message, call):
    if call == "encode" and ("expects" in message or "same cells" in message):
        pytest.skip("encode has no past")
    before, stats = contents(ctx), (ctx.stats.tokens, ctx.stats.microbatches)
    with pytest.raises(plait.BatchError, match=message):
        getattr(ctx, call)(make())
    assert contents(ctx) == before
    assert (ctx.stats.tokens, ctx.stats.microbatches) == stats
    with plait.Context(ctx.model, n_ctx=64) as fresh:
        want = feed(fresh, tokens(15))[10:]
        assert same_bits(feed(ctx, tokens(15)[10:], 0), want)


def test_embeddings_of_another_width_are_refused(ctx):
    made = plait.Batch()
    made.add_embeddings(np.zeros((1, 63), np.float32))
    with pytest.raises(plait.BatchError, match=r"63 elements.*64"):
        ctx.decode(made)


def test_embeddings_may_hold_anything(ctx):
    made = plait.Batch()
    made.add_embeddings(np.full((1, 64), np.nan, np.float32), seq=1)
    ctx.decode(made)
    ctx.kv.seq_rm(1)
    assert np.isfinite(feed(ctx, [5], 0)).all()


@pytest.mark.parametrize("wrong", [None, 5, [5], "batch", np.zeros(3)])
@pytest.mark.parametrize("call", ["decode", "encode"])
def test_arguments_that_are_not_batches_are_type_errors(ctx, wrong, call):
    with pytest.raises(TypeError):
        getattr(ctx, call)(wrong)


INTEGERS = [-1, 2, 2**31, -(2**31) - 1, 2**63, 2**64]
NO_INTEGERS = [None, "0", 0.0, float("nan"), [], [0], {}, object(), np.zeros(2), np.float32(0)]
OPERATIONS = {
    "seq_rm": lambda kv, x: kv.seq_rm(x),
    "seq_rm p0": lambda kv, x: kv.seq_rm(0, x, 1),
    "seq_cp src": lambda kv, x: kv.seq_cp(x, 1),
    "seq_cp dst": lambda kv, x: kv.seq_cp(0, x),
    "seq_keep": lambda kv, x: kv.seq_keep(x),
    "seq_add": lambda kv, x: kv.seq_add(x, 0, None, 1),
    "seq_div": lambda kv, x: kv.seq_div(x, 0, None, 2),
    "seq_pos_min": lambda kv, x: kv.seq_pos_min(x),
    "seq_pos_max": lambda kv, x: kv.seq_pos_max(x),
    "seq_len": lambda kv, x: kv.seq_len(x),
    "keys layer": lambda kv, x: kv.keys(x, 0),
    "keys seq": lambda kv, x: kv.keys(0, x),
    "values layer": lambda kv, x: kv.values(x, 0),
    "values seq": lambda kv, x: kv.values(0, x),
}
AMOUNTS = {
    "seq_add delta": lambda kv, x: kv.seq_add(0, 0, None, x),
    "seq_div divisor": lambda kv, x: kv.seq_div(0, 0, None, x),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("value", INTEGERS)
def test_integers_out_of_range_are_named(ctx, name, value):
    before = contents(ctx)
    with pytest.raises((ValueError, IndexError), match=str(value)):
        OPERATIONS[name](ctx.kv, value)
    assert contents(ctx) == before


@pytest.mark.parametrize("name", AMOUNTS)
@pytest.mark.parametrize("value", [-1, 2**31, -(2**31) - 1, 2**63, 2**64])
def test_amounts_out_of_range_are_named(ctx, name, value):
    before = contents(ctx)
    with pytest.raises(ValueError, match=str(value)):
        AMOUNTS[name](ctx.kv, value)
    assert contents(ctx) == before


@pytest.mark.parametrize("name", [*OPERATIONS, *AMOUNTS])
@pytest.mark.parametrize("value", NO_INTEGERS, ids=str)
def test_arguments_that_are_not_integers_are_type_errors(ctx, name, value):
    before = contents(ctx)
    with pytest.raises(TypeError):
        (OPERATIONS | AMOUNTS)[name](ctx.kv, value)
    assert contents(ctx) == before


@pytest.mark.parametrize("call", ["seq_rm", "seq_cp", "seq_add", "seq_div"])
def test_reversed_ranges_are_refused(ctx, call):
    arguments = {"seq_rm": (0,), "seq_cp": (0, 1), "seq_add": (0,), "seq_div": (0,)}[call]
    last = {"seq_add": (1,), "seq_div": (2,)}.get(call, ())
    before = contents(ctx)
    with pytest.raises(ValueError, match=r"\[5, 2\)"):
        getattr(ctx.kv, call)(*arguments, 5, 2, *last)
    assert contents(ctx) == before


@pytest.mark.parametrize("index", [-4, 3, 99, 2**70])
def test_missing_rows_are_index_errors(ctx, index):
    out = ctx.decode(batch((tokens(3), 1)))
    with pytest.raises((IndexError, ValueError), match=str(index)):
        out[index]


def test_unrequested_rows_are_index_errors(ctx):
    out = ctx.decode(batch((tokens(3), 1), logits="last"))
    assert same_bits(out[2], out.logits[0])
    assert same_bits(out[-1], out.logits[0])
    with pytest.raises(IndexError, match="entry 1"):
        out[1]
    with pytest.raises(TypeError):
        out["0"]


def test_a_missing_instruction_set_is_reported(tiny, monkeypatch):
    missing = [isa for isa in ("avx2", "avx512", "amx") if isa not in plait.build_info()["isas"]]
    for isa in missing:
        with pytest.raises(plait.BackendError, match=isa):
            plait.Context(tiny, n_ctx=8, isa=isa)
    monkeypatch.setenv("PLAIT_ISA", "sse9")
    with pytest.raises(plait.BackendError, match="sse9"):
        plait.Context(tiny, n_ctx=8)


def test_no_vulkan_is_a_backend_error(tiny):
    if plait.build_info()["vulkan"]:
        pytest.skip("this build has Vulkan")
    with pytest.raises(plait.BackendError, match="Vulkan"):
        plait.Context(tiny, n_ctx=8, backend="vulkan")


def test_a_cache_beyond_memory_is_a_memory_error(tiny):
    with pytest.raises((MemoryError, ValueError)):
        plait.Context(
            tiny, n_ctx=2**31 - 1, n_seq_max=65536, kv="streams", type_k="f32", type_v="f32"
        )


@pytest.mark.parametrize("name", ["Model", "Context", "Batch", "KVCache", "Stats", "Sequence"])
def test_uninitialised_objects_raise(ctx, name):
    cls = getattr(plait, name)
    empty = cls.__new__(cls)
    for member in dir(cls):
        if member.startswith("_") and member not in ("__len__", "__repr__", "__index__"):
            continue
        try:
            found = getattr(empty, member)
            if callable(found):
                found()
        except (TypeError, AttributeError, ValueError, ImportError):
            pass
    for use in (
        lambda: ctx.decode(empty),
        lambda: plait.Context(empty),
        lambda: plait.KVCache(empty),
    ):
        with pytest.raises((TypeError, plait.BatchError)):
            use()
    assert np.isfinite(feed(ctx, [5])).all()


@pytest.mark.parametrize("name", ["Output", "Device", "TensorInfo"])
def test_results_cannot_be_made_by_hand(name):
    cls = getattr(plait, name)
    for make in (cls, lambda: cls.__new__(cls)):
        with pytest.raises(TypeError):
            make()


def test_unique_objects_cannot_be_copied(ctx):
    out = ctx.decode(batch((tokens(3), 1)))
    ctx.kv.clear()
    for item in (ctx, ctx.model, ctx.kv, ctx.stats, ctx.sequence(), plait.Batch(), out):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                attempt(item)
