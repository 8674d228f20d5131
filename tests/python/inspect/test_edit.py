"""ctx.edit() and control vectors: changed intermediate values."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens

from python import gguf_writer

IDS = tokens(17, seed=3)


def context(model, **options):
    return plait.Context(model, **{"n_ctx": 64, **options})


def editable(ctx: plait.Context) -> list[str]:
    return [name for name in ctx.value_names() if ".attn_pattern" not in name]


@pytest.fixture(scope="module")
def plain(tiny) -> np.ndarray:
    with context(tiny) as ctx:
        return feed(ctx, IDS).copy()


@pytest.fixture(scope="module")
def direction(tiny) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal((tiny.n_layer, tiny.n_embd)).astype(np.float32)


def test_an_edit_that_changes_nothing_changes_nothing(tiny, plain):
    seen = []

    def look(rows):
        seen.append(rows)
        return rows

    with context(tiny) as ctx:
        with ctx.edit("l_out.0", look), ctx.capture("l_out.0") as captured:
            assert same_bits(feed(ctx, IDS), plain)
        assert same_bits(seen[0], captured["l_out.0"])
        assert seen[0].dtype == np.float32
        assert seen[0].flags.writeable
        ctx.kv.clear()
        assert same_bits(feed(ctx, IDS), plain)
        assert len(seen) == 1


@pytest.mark.parametrize("options", [{}, {"fuse": False}, {"n_ubatch": 5}, {"threads": 1}])
def test_every_value_can_be_added_to_and_replaced(tiny, plain, options):
    rng = np.random.default_rng(2)
    with context(tiny, **options) as ctx:
        for name in editable(ctx):
            shape = ctx.value_shape(name)
            row = rng.standard_normal(shape).astype(np.float32)
            results = {}
            functions = {
                "add": lambda x, row=row: x + row,
                "replace": lambda x, row=row: x * 0 + row,
            }
            for mode, function in functions.items():
                for what in (row, function):
                    ctx.kv.clear()
                    with ctx.edit(name, what, mode), ctx.capture(name) as seen:
                        logits = feed(ctx, IDS).copy()
                    known = results.setdefault(mode, (logits, seen[name]))
                    assert same_bits(logits, known[0]), (name, mode)  # a function or an array
                    assert same_bits(seen[name], known[1])
                    assert seen[name].shape == (len(IDS), *shape)
            assert not same_bits(results["add"][0], plain), name
            assert (results["replace"][1] == row).all()


def test_a_replaced_value_determines_later_values(tiny, plain):
    """Replacing the output of a layer by one captured elsewhere gives the same logits."""
    last = f"l_out.{tiny.n_layer - 1}"
    with context(tiny) as ctx, ctx.capture(last) as seen:
        feed(ctx, IDS)
    with context(tiny) as ctx, ctx.edit(last, lambda _: seen[last]):
        assert same_bits(feed(ctx, IDS[::-1]), plain)


def test_rows_come_in_the_order_of_the_batch(tiny):
    parts = [tokens(9, 1), tokens(9, 2)]
    mixed = plait.Batch()
    for i in range(9):
        for seq in (0, 1):
            mixed.add(parts[seq][i], seq=seq, logits=i > 6)
    given: dict[str, np.ndarray] = {}

    def keep(name):
        def look(rows):
            given[name] = rows
            return rows

        return look

    with (
        context(tiny, n_seq_max=2) as ctx,
        ctx.edit("l_out.1", keep("l_out.1")),
        ctx.edit("result_norm", keep("result_norm")),
        ctx.capture("l_out.1", "result_norm") as seen,
    ):
        ctx.decode(mixed)
    assert given.keys() == {"l_out.1", "result_norm"}
    for name, rows in given.items():
        assert same_bits(rows, seen[name])


def test_several_of_one_value_follow_each_other(tiny):
    order = []

    def step(name, change):
        def apply(rows):
            order.append(name)
            return change(rows)

        return apply

    with context(tiny) as ctx, ctx.capture("l_out.0") as seen:
        feed(ctx, IDS)
        before = seen["l_out.0"]
    with context(tiny) as ctx:
        double = ctx.edit("l_out.0", step("double", lambda x: 2 * x))
        with double, ctx.edit("blk.0.l_out", step("one more", lambda x: x + 1)):
            with ctx.capture("l_out.0") as seen:
                feed(ctx, IDS)
            assert same_bits(seen["l_out.0"], 2 * before + 1)
            assert order == ["double", "one more"]
            with pytest.raises(ValueError, match="is active"):
                double.__enter__()
        with double, ctx.capture("l_out.0") as seen:  # again, in another context manager
            ctx.kv.clear()
            feed(ctx, IDS)
        assert same_bits(seen["l_out.0"], 2 * before)


class Failure(Exception):
    pass


def fail(_):
    raise Failure("no more")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (fail, Failure), (lambda rows: rows[:-1], ValueError), (lambda rows: rows[0], ValueError),
        (lambda _: None, TypeError), (lambda _: "text", TypeError), (lambda: 0, TypeError),
        (lambda rows: rows * 1j, TypeError),
    ],
)  # fmt: skip
def test_an_exception_in_a_function_ends_the_call_and_changes_nothing(tiny, plain, function, error):
    with context(tiny, n_ubatch=4) as ctx:
        feed(ctx, IDS[:9])
        before, used, built = ctx.kv.to_bytes(), ctx.kv.n_used, ctx.stats.tokens
        calls = 0

        def third(rows):
            nonlocal calls
            calls += 1
            return function(rows) if calls % 2 == 0 else rows

        third = function if function.__code__.co_argcount == 0 else third
        with ctx.edit("ffn_inp.1", third):
            for _ in range(3):
                with pytest.raises(error):
                    feed(ctx, IDS[9:])
                assert (ctx.kv.to_bytes(), ctx.kv.n_used, ctx.stats.tokens) == (before, used, built)
        assert same_bits(feed(ctx, IDS[9:]), plain[9:])


def test_a_function_that_returns_nothing_is_told_what_to_return(tiny):
    def change(rows):
        rows += 1

    message = rf"the function returned None; it must return the rows, an array of shape \(11, {tiny.n_embd}\)"
    with context(tiny) as ctx, ctx.edit("l_out.0", change), pytest.raises(TypeError, match=message):
        feed(ctx, tokens(11))


def test_a_function_may_not_call_its_context(tiny):
    with context(tiny) as ctx, context(tiny) as other:

        def call(rows):
            feed(other, [5])  # another context is allowed
            ctx.kv.clear()
            return rows

        with ctx.edit("l_out.0", call), pytest.raises(ValueError, match="busy"):
            feed(ctx, IDS)
        assert other.kv.n_used == 1


def test_functions_die_with_their_edits(tiny):
    class Function:
        def __call__(self, rows):
            return rows

    with context(tiny) as ctx:
        function = Function()
        gone = weakref.ref(function)
        with ctx.edit("l_out.0", function):
            feed(ctx, IDS)
        del function
        gc.collect()
        assert gone() is None
    function = Function()
    gone = weakref.ref(function)
    ctx = context(tiny)
    ctx.edit("l_out.0", function).__enter__()
    ctx.close()
    del ctx, function
    gc.collect()
    assert gone() is None


def test_an_edit_may_outlive_its_context(tiny):
    with context(tiny) as ctx:
        edit = ctx.edit("l_out.0", lambda x: x).__enter__()
    edit.__exit__(None, None, None)


def test_a_new_set_builds_plans_once_and_calls_without_pay_nothing(tiny):
    with context(tiny) as ctx:
        feed(ctx, [5])
        nodes = len(ctx.graph())
        ctx.stats.reset()
        for _ in range(3):
            with ctx.edit("l_out.0", lambda x: x):
                feed(ctx, [5])
                assert "edit" in {node.op for node in ctx.graph()}
            with ctx.edit("l_out.0", np.float32(1)), ctx.edit("l_out.1", np.zeros(tiny.n_embd)):
                feed(ctx, [5])
            feed(ctx, [5])
        assert ctx.stats.plan_misses == {"new edit set": 2}
        assert len(ctx.graph()) == nodes


def test_values_that_a_call_does_not_need_are_not_computed(tiny):
    with context(tiny) as ctx, ctx.edit("result_norm", fail), ctx.edit("ffn_out.1", fail):
        ctx.decode(batch((IDS, 0), logits="none"))
        with pytest.raises(Failure):
            feed(ctx, [5])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("l_aut.0", 1.0), ValueError, "similar names.*l_out.0"), (("l_out.9", 1.0), ValueError, "similar names"),
        (("l_out.0", np.zeros(3)), ValueError, r"shape \(3,\); it must broadcast to one row of shape \(64,\)"),
        (("l_out.0", np.zeros((2, 64))), ValueError, r"shape \(2, 64\)"),
        (("l_out.0", "text"), TypeError, "function or an array"),
        (("l_out.0", 1.0, "multiply"), ValueError, "mode"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(tiny, arguments, error, message):
    with context(tiny) as ctx, pytest.raises(error, match=message):
        ctx.edit(*arguments)


def test_every_architecture(any_model):
    """Edits of every value that return their input change no bit of the output."""
    ids = tokens(7, 1, min(any_model.n_vocab, 288))

    def run(ctx):
        if any_model.arch == "t5":
            ctx.kv.clear()
            ctx.encode(batch((ids, 0)))
        call = ctx.encode if ctx.kv.kind == "none" else ctx.decode
        out = call(batch((ids, 0)))
        ctx.kv.clear()
        return (out.logits if out.logits is not None else out.embeddings).copy()

    with context(any_model) as ctx:
        want = run(ctx)
        open_edits = [ctx.edit(name, lambda rows: rows) for name in editable(ctx)]
        for edit in open_edits:
            edit.__enter__()
        assert same_bits(run(ctx), want)
        for edit in open_edits:
            edit.__exit__(None, None, None)
        assert same_bits(run(ctx), want)
        # A control vector equals adding it to the output of each layer.
        width, n = any_model.n_embd, any_model.n_layer
        vector = np.random.default_rng(2).standard_normal((n, width)).astype(np.float32)
        ctx.set_control_vector(vector, first_layer=0)
        steered = run(ctx)
        ctx.set_control_vector(None)
        edits = [ctx.edit(f"l_out.{i}", vector[i]) for i in range(n)]
        for edit in edits:
            edit.__enter__()
        assert same_bits(run(ctx), steered)
        assert not same_bits(steered, want)


# ---- Control vectors ----


@pytest.mark.parametrize(("first", "last"), [(0, None), (1, None), (0, 0), (1, 1)])
def test_a_control_vector_is_an_edit_of_each_layer(tiny, plain, direction, first, last, isa):
    with context(tiny, isa=isa) as ctx:
        ctx.set_control_vector(direction, first, last)
        got = feed(ctx, IDS).copy()
        ctx.set_control_vector(None)
        ctx.kv.clear()
        edits = [
            ctx.edit(f"l_out.{i}", direction[i])
            for i in range(first, tiny.n_layer if last is None else last + 1)
        ]
        for edit in edits:
            edit.__enter__()
        assert same_bits(feed(ctx, IDS), got)
        for edit in edits:
            edit.__exit__(None, None, None)
        assert not np.allclose(got, plain, atol=0.1)


def test_the_first_layer_is_omitted_by_default(tiny, plain, direction):
    with context(tiny) as ctx:
        ctx.set_control_vector(direction[:1])
        np.testing.assert_array_equal(feed(ctx, IDS), plain)
        ctx.set_control_vector(direction[:1], first_layer=0)
        ctx.kv.clear()
        assert not np.allclose(feed(ctx, IDS), plain, atol=0.1)


def test_another_vector_builds_no_plan(tiny, plain, direction):
    with context(tiny) as ctx:
        feed(ctx, IDS)
        ctx.stats.reset()
        results = []
        for factor in (1.0, -1.0, 1.0):
            ctx.set_control_vector(factor * direction)
            ctx.kv.clear()
            results.append(feed(ctx, IDS).copy())
        assert ctx.stats.plan_misses == {"new edit set": 1}
        assert same_bits(results[0], results[2])
        assert not same_bits(results[0], results[1])
        ctx.set_control_vector(None)
        ctx.kv.clear()
        assert same_bits(feed(ctx, IDS), plain)
        assert ctx.stats.plans_built == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((np.zeros((2, 63)),), ValueError), ((np.zeros((3, 64)),), ValueError),
        ((np.zeros(64),), ValueError), ((np.zeros((0, 64)),), ValueError),
        ((np.full((2, 64), np.nan),), ValueError), ((np.zeros((2, 64)), -1), ValueError),
        ((np.zeros((2, 64)), 1, 0), ValueError), ((np.zeros((2, 64)), 0, 2), ValueError),
        (("text",), TypeError), ((np.zeros((2, 64)), 0.5), TypeError),
        ((np.zeros((2, 64), complex),), TypeError),
    ],
)  # fmt: skip
def test_invalid_vectors_are_refused(tiny, arguments, error):
    with context(tiny) as ctx, pytest.raises(error):
        ctx.set_control_vector(*arguments)


def write_vector(path, tensors, arch="controlvector"):
    return gguf_writer.write(path, {"general.architecture": arch}, tensors)


def test_files(tmp_path, tiny, direction):
    path = write_vector(tmp_path / "v.gguf", {"direction.1": direction[1]})
    loaded = plait.load_control_vector(path)
    assert loaded.shape == (2, tiny.n_embd)
    assert loaded.dtype == np.float32
    assert (loaded[0] == 0).all()
    assert same_bits(loaded[1], direction[1])
    with context(tiny) as ctx, context(tiny) as same:
        ctx.set_control_vector(loaded)
        same.set_control_vector(direction)
        assert same_bits(feed(ctx, IDS), feed(same, IDS))


@pytest.mark.parametrize(
    ("tensors", "arch", "message"),
    [
        ({"direction.1": np.zeros(4)}, "llama", "expected 'controlvector', got 'llama'"),
        ({}, "controlvector", "no tensor direction.N"),
        ({"direction.0": np.zeros(4)}, "controlvector", "'direction.0': expected direction.N"),
        ({"direction.x": np.zeros(4)}, "controlvector", "expected direction.N"),
        ({"direction.1x": np.zeros(4)}, "controlvector", "expected direction.N"),
        ({"direction.": np.zeros(4)}, "controlvector", "expected direction.N"),
        ({"direction.99999999999999999999": np.zeros(4)}, "controlvector", "expected direction.N"),
        ({"direction.999999": np.zeros(4)}, "controlvector", "expected direction.N"),
        ({"other.1": np.zeros(4)}, "controlvector", "'other.1'"),
        ({"direction.1": np.zeros(4), "direction.2": np.zeros(5)}, "controlvector", "expected 4 real"),
        ({"direction.1": np.zeros((2, 2))}, "controlvector", "expected 2 real"),
        ({"direction.1": np.zeros(4, np.int32)}, "controlvector", "expected 4 real"),
    ],
)  # fmt: skip
def test_invalid_control_vector_files_are_refused(tmp_path, tensors, arch, message):
    stored = {
        name: value.astype(np.float32) if value.dtype == np.float64 else value
        for name, value in tensors.items()
    }
    path = write_vector(tmp_path / "v.gguf", stored, arch)
    with pytest.raises(plait.ModelError, match=message):
        plait.load_control_vector(path)


def test_a_small_control_vector_file_that_needs_much_memory_is_refused(tmp_path):
    direction = np.ones(65536, np.float32)
    path = write_vector(tmp_path / "v.gguf", {"direction.4095": direction})
    with pytest.raises(
        plait.ModelError, match=r"'direction\.4095' needs 4096 rows of 65536 numbers"
    ):
        plait.load_control_vector(path)
    path = write_vector(tmp_path / "v.gguf", {"direction.255": direction[:16384]})
    assert plait.load_control_vector(path).shape == (256, 16384)


def test_states_know_the_vector_they_were_made_with(tiny, direction):  # S3-27
    with context(tiny) as ctx:
        ctx.set_control_vector(direction)
        feed(ctx, IDS)
        state = ctx.kv.to_bytes()
        ctx.set_control_vector(2 * direction)
        with pytest.raises(
            plait.StateError, match=r"made with 'control vector of digest .*expected 'c"
        ):
            ctx.kv.from_bytes(state)
        ctx.set_control_vector(None)
        with pytest.raises(plait.StateError, match="expected neither"):
            ctx.kv.from_bytes(state)
        ctx.set_control_vector(direction)
        ctx.kv.from_bytes(state)
        # Values that are not added are not included.
        other = direction.copy()
        other[0] = 7
        ctx.set_control_vector(other)
        ctx.kv.from_bytes(state)


GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "steer_a_model.md"


def test_a_direction_from_two_sets_of_prompts():
    """The last example of the guide: a vector computed in a dozen lines steers other texts."""
    first, *_, last = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(list(filter(str.strip, last.splitlines()))) <= 12
    names: dict[str, Any] = {}
    exec(first, names)
    exec(last, names)
    ctx, direction, tokenizer = names["ctx"], names["direction"], names["model"].tokenizer
    she, he = (tokenizer.encode(f"Then {word}")[-1] for word in ("she", "he"))

    def lead(text):  # of "she" over "he"
        ctx.kv.clear()
        row = feed(ctx, tokenizer.encode(text), logits="last")[0]
        return row[she] - row[he]

    for text in ("Sam put the key in the box. Later", "Ravi has a kite. Then"):
        leads = []
        for factor in (-2, 0, 2):
            ctx.set_control_vector(factor * direction)
            leads.append(lead(text))
        assert leads[0] < leads[1] - 2 < leads[2] - 4


@pytest.mark.oracle
def test_logits_equal_those_of_llama_cpp(tiny, tiny_path, direction):
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(
        str(tiny_path), n_ctx=64, n_batch=64, logits_all=True, verbose=False, type_k=0, type_v=0
    )
    from_one = np.ascontiguousarray(direction[1:])
    pointer = from_one.ctypes.data_as(llama_cpp.ctypes.POINTER(llama_cpp.ctypes.c_float))
    width, last = tiny.n_embd, tiny.n_layer - 1
    assert llama_cpp.llama_set_adapter_cvec(theirs.ctx, pointer, from_one.size, width, 1, last) in (
        0,
        None,
    )
    theirs.eval(IDS)
    want = np.array(theirs.scores[: len(IDS)])
    with context(tiny, type_k="f32", type_v="f32") as ctx:
        ctx.set_control_vector(direction)
        np.testing.assert_allclose(feed(ctx, IDS), want, rtol=0, atol=5e-3 * np.abs(want).max())
