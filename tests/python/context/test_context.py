"""Results of decode() and encode(), and the guarantees of a context."""

import gc
import logging
import time
import weakref

import numpy as np
import plait
import pytest
from python.drive import batch, contents, feed, same_bits, tokens
from reference.models import llama

from python import gguf_writer

EXACT = {"type_k": "f32", "type_v": "f32"}


def reference_hidden(ids):
    weights = gguf_writer.llama_weights()
    return llama.hidden(
        weights, weights["token_embd.weight"][ids].astype(np.float64), gguf_writer.N_LAYERS, gguf_writer.HEAD,
        gguf_writer.EPSILON, gguf_writer.ROPE_BASE,
    )  # fmt: skip


def reference_logits(ids):
    return reference_hidden(ids) @ gguf_writer.llama_weights()["output.weight"].T


@pytest.mark.parametrize("flash", [True, False])
def test_logits_equal_those_of_the_paper(tiny, isa, flash):
    ids = tokens(50)
    with plait.Context(tiny, n_ctx=64, isa=isa, flash_attention=flash, **EXACT) as ctx:
        got = feed(ctx, ids)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference_logits(ids), atol=2e-4)


def test_instruction_sets_agree(tiny, isa):
    with plait.Context(tiny, n_ctx=64, isa="scalar", **EXACT) as ctx:
        want = np.array(feed(ctx, tokens(40)))
    with plait.Context(tiny, n_ctx=64, isa=isa, **EXACT) as ctx:
        np.testing.assert_allclose(feed(ctx, tokens(40)), want, atol=1e-4)


@pytest.mark.parametrize("pieces", [[40], [1] * 40, [1, 2, 3, 5, 8, 13, 8], [39, 1]])
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_a_prompt_cut_anywhere_gives_the_same_bits(tiny, invariant_isa, pieces, kv):
    ids = tokens(40)
    with plait.Context(tiny, n_ctx=64, isa=invariant_isa) as ctx:
        want = np.array(feed(ctx, ids))
    with plait.Context(tiny, n_ctx=64, isa=invariant_isa, kv=kv) as ctx:
        ends = np.cumsum(pieces)
        got = [np.array(feed(ctx, ids[end - n : end])) for n, end in zip(pieces, ends, strict=True)]
    assert same_bits(np.concatenate(got), want)


@pytest.mark.parametrize(
    "options",
    [{"threads": 1}, {"threads": 2}, {"n_ubatch": 7}, {"kv": "streams"}, {"graph_reuse": False}],
)
def test_company_threads_and_settings_change_no_bit(tiny, invariant_isa, options):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, isa=invariant_isa) as ctx:
        want = np.array(feed(ctx, tokens(30)))
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, isa=invariant_isa, **options) as ctx:
        out = ctx.decode(batch((tokens(17, 1), 1), (tokens(30), 0), (tokens(23, 2), 2)))
    assert same_bits(out.logits[17:47], want)


def test_plans_are_built_once_and_then_reused(tiny):  # S0-01
    """256 single tokens: no plan for the number of cached keys, the same bits as without reuse."""
    ids = tokens(256)
    with (
        plait.Context(tiny, n_ctx=256) as ctx,
        plait.Context(tiny, n_ctx=256, graph_reuse=False) as plain,
    ):
        for token in ids:
            assert same_bits(feed(ctx, [token]), feed(plain, [token]))
        assert ctx.stats.plans_built <= 2
        assert ctx.stats.plans_built + ctx.stats.plans_reused == 256
        assert plain.stats.plans_built == 256


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 32, 300])
def test_a_second_batch_of_any_size_finds_its_plan(tiny, n):  # S0-02
    with plait.Context(tiny, n_ctx=1024) as ctx:
        feed(ctx, tokens(n))
        built = ctx.stats.plans_built
        feed(ctx, tokens(n, 1))
        assert ctx.stats.plans_built == built


def test_reuse_is_on_unless_turned_off(tiny):  # S0-11, S1-03, S1-32
    with plait.Context(tiny, n_ctx=64) as ctx:
        assert ctx.graph_reuse
    with plait.Context(tiny, n_ctx=64, graph_reuse=False) as ctx:
        assert not ctx.graph_reuse
        for token in tokens(5):
            feed(ctx, [token])
        assert (ctx.stats.plans_built, ctx.stats.plans_reused) == (5, 0)
        assert ctx.stats.plan_misses == {"reuse off": 5}


def test_every_plan_built_has_a_reason(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        for n in (1, 1, 5, 5, 1, 12):
            feed(ctx, tokens(n))
        assert sum(ctx.stats.plan_misses.values()) == ctx.stats.plans_built > 0
        assert ctx.stats.plans_built + ctx.stats.plans_reused == ctx.stats.microbatches == 6


def test_statistics_count_and_reset(tiny):
    with plait.Context(tiny, n_ctx=64, n_ubatch=8) as ctx:
        stats = ctx.stats
        feed(ctx, tokens(20))
        assert (stats.tokens, stats.microbatches) == (20, 3)
        assert set(stats.seconds) == {"place", "build", "input", "compute", "output"}
        assert stats.seconds["compute"] > 0
        assert list(stats.nodes) == ["cpu"]
        assert stats.nodes["cpu"] > 0
        stats.reset()
        assert (stats.tokens, stats.plans_reused, stats.nodes, sum(stats.seconds.values())) == (
            0,
            0,
            {},
            0,
        )
        feed(ctx, tokens(3))
    assert stats.tokens == 3  # the last values stay


def test_flash_attention_is_chosen_once(tiny):
    for given, chosen in ((True, True), (False, False), ("auto", True)):
        with plait.Context(tiny, n_ctx=64, flash_attention=given) as ctx:
            assert ctx.flash_attention is chosen


def test_with_and_without_flash_attention_the_result_is_the_same_within_rounding(tiny, isa):
    got = []
    for flash in (True, False):
        with plait.Context(tiny, n_ctx=256, isa=isa, flash_attention=flash) as ctx:
            got.append(np.array(feed(ctx, tokens(200))))
    np.testing.assert_allclose(got[0], got[1], atol=2e-3)


@pytest.mark.parametrize("type_k", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_cache_types_have_their_size_and_stay_close(tiny, type_k):
    bits = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}[type_k]
    near = {"f32": 2e-4, "f16": 0.02, "bf16": 0.2, "q8_0": 0.3, "q4_0": 4}[type_k]
    with plait.Context(tiny, n_ctx=64, type_k=type_k, type_v=type_k) as ctx:
        # A head of 16 is padded to a block of 32.
        padded = 2 if type_k.startswith("q") else 1
        assert ctx.kv.nbytes == 64 * 2 * 2 * 2 * 16 * padded * bits / 8
        assert (ctx.type_k, ctx.type_v) == (type_k, type_k)
        np.testing.assert_allclose(feed(ctx, tokens(40)), reference_logits(tokens(40)), atol=near)


def test_automatic_positions_go_on_in_each_sequence_alone(tiny):  # S4-31
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        ctx.decode(batch((tokens(9), 0), (tokens(4), 1)))
        ctx.decode(batch((tokens(2), 1), (tokens(3), 2), (tokens(1), 0)))
        assert [ctx.kv.seq_pos_max(seq) for seq in range(3)] == [9, 5, 2]
        mixed = plait.Batch()
        for seq in (0, 1, 0, 2, 1):
            mixed.add(7, seq=seq)
        ctx.decode(mixed)
        assert [ctx.kv.seq_pos_max(seq) for seq in range(3)] == [11, 7, 3]


def test_sequences_do_not_see_each_other(tiny):
    want = {}
    for seq in range(3):
        with plait.Context(tiny, n_ctx=64) as ctx:
            want[seq] = np.array(feed(ctx, tokens(10 + seq, seq)))
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        mixed = plait.Batch()
        order = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [10, 11, 12]))
        left = {seq: iter(tokens(10 + seq, seq)) for seq in range(3)}
        for seq in order.tolist():
            mixed.add(next(left[seq]), seq=seq, logits=True)
        out = ctx.decode(mixed).logits
    for seq in range(3):
        assert same_bits(out[order == seq], want[seq])


def test_n_ctx_is_the_length_of_one_sequence_in_either_kind(tiny):  # S2-08
    for kv in ("unified", "streams"):
        with plait.Context(tiny, n_ctx=40, n_seq_max=3, kv=kv) as ctx:
            for seq in range(3):
                feed(ctx, tokens(40), seq)
            assert ctx.kv.n_free == 0
            with pytest.raises(plait.CacheFull):
                feed(ctx, tokens(1), 0)


def test_sizes_are_explicit(tiny):  # S2-26
    with plait.Context(tiny, n_ctx=4096, n_seq_max=4, kv="unified") as ctx:
        assert (ctx.n_ctx, ctx.kv.n_cells, ctx.kv.n_streams) == (4096, 16384, 1)
    with plait.Context(tiny, n_ctx=4096, n_seq_max=4, kv_cells=4096) as ctx:
        assert (ctx.n_ctx, ctx.kv.n_cells) == (4096, 4096)
    with plait.Context(tiny, n_ctx=4096, n_seq_max=4, kv="streams") as ctx:
        assert (ctx.n_ctx, ctx.kv.n_cells, ctx.kv.n_streams) == (4096, 16384, 4)
    with pytest.raises(ValueError, match="kv_cells"):
        plait.Context(tiny, n_ctx=4096, n_seq_max=4, kv="streams", kv_cells=4096)


def test_n_ctx_is_never_rounded_and_defaults_to_the_training_length(tiny):  # S2-07
    with plait.Context(tiny, n_ctx=37) as ctx:
        assert ctx.n_ctx == 37
    with plait.Context(tiny) as ctx:
        assert ctx.n_ctx == tiny.n_ctx_train


def test_both_kinds_of_cache_live_on_one_model(data_dir):  # S4-21
    model = plait.Model(data_dir / "conformance" / "qwen2" / "model.gguf")
    with (
        plait.Context(model, n_ctx=64, kv="unified") as one,
        plait.Context(model, n_ctx=64, kv="streams") as other,
    ):
        assert (one.kv.kind, other.kv.kind) == ("unified", "streams")
        said = {one: tokens(5), other: tokens(5)}
        for ctx, ids in said.items():
            logits = feed(ctx, ids)
            for _ in range(32):
                ids.append(int(logits[-1].argmax()))
                logits = feed(ctx, ids[-1:])
        assert said[one] == said[other]


def test_cache_full_reports_cells_and_changes_nothing(tiny):
    with plait.Context(tiny, n_ctx=32, n_seq_max=2, kv_cells=40) as ctx:
        feed(ctx, tokens(30), 0)
        before = contents(ctx)
        with pytest.raises(plait.CacheFull, match="11") as error:
            feed(ctx, tokens(11), 1)
        assert (error.value.needed, error.value.free) == (11, 10)
        assert contents(ctx) == before
        feed(ctx, tokens(10), 1)


def test_encode_is_decode_without_a_past(tiny, isa):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, isa=isa) as ctx:
        parts = (tokens(20), 0), (tokens(9, 1), 1)
        want = np.array(ctx.decode(batch(*parts)).logits)
        before = contents(ctx)
        assert same_bits(ctx.encode(batch(*parts)).logits, want)
        assert contents(ctx) == before


def test_embeddings_come_with_the_logits(tiny):
    ids = tokens(20)
    with plait.Context(tiny, n_ctx=64, embeddings=True, pooling="none", **EXACT) as ctx:
        out = ctx.decode(batch((ids, 0)))
    assert out.embeddings.shape == (20, 64)
    assert out.embeddings.dtype == np.float32
    np.testing.assert_allclose(out.embeddings, reference_hidden(ids), atol=2e-4)
    np.testing.assert_allclose(out.logits, reference_logits(ids), atol=2e-4)


def test_without_embeddings_there_are_none(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        assert ctx.decode(batch((tokens(3), 0))).embeddings is None


@pytest.mark.parametrize("call", ["decode", "encode"])
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("n_ubatch", [512, 5])
def test_pooling_gives_one_embedding_a_sequence_in_ascending_order(tiny, call, pooling, n_ubatch):
    parts = {2: tokens(7), 0: tokens(12, 1), 1: tokens(1, 2)}
    with plait.Context(
        tiny, n_ctx=64, n_seq_max=3, n_ubatch=n_ubatch, embeddings=True, pooling=pooling, **EXACT
    ) as ctx:
        assert ctx.pooling == pooling
        out = getattr(ctx, call)(batch(*((ids, seq) for seq, ids in parts.items())))
    assert out.logits is None
    assert out.embeddings.shape == (3, 64)
    pool = {"mean": lambda h: h.mean(axis=0), "last": lambda h: h[-1], "cls": lambda h: h[0]}[
        pooling
    ]
    want = [pool(reference_hidden(parts[seq])) for seq in range(3)]
    np.testing.assert_allclose(out.embeddings, want, atol=2e-4)


def test_without_causality_every_token_sees_all_of_its_batch(tiny):
    ids = tokens(9)
    with plait.Context(tiny, n_ctx=64, causal=False) as ctx, plait.Context(tiny, n_ctx=64) as usual:
        assert (ctx.causal, usual.causal) == (False, True)
        changed = [*ids[:-1], ids[-1] + 1]
        assert not np.allclose(
            ctx.encode(batch((ids, 0))).logits[0], ctx.encode(batch((changed, 0))).logits[0]
        )
        assert same_bits(
            usual.encode(batch((ids, 0))).logits[0], usual.encode(batch((changed, 0))).logits[0]
        )


def test_trace_records_show_batches_and_plans(tiny, caplog):  # S4-39
    with plait.Context(tiny, n_ctx=64, n_ubatch=8) as ctx:
        with caplog.at_level(5, logger="plait"):
            feed(ctx, tokens(20))
        text = caplog.text
        assert "20 tokens in 3 microbatches, 20 outputs" in text
        assert "plan: built" in text
        assert {record.levelno for record in caplog.records} == {5}
        caplog.clear()
        feed(ctx, tokens(20))
        assert not caplog.records


def test_a_failing_log_handler_changes_nothing(tiny, caplog, monkeypatch):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("no disk")

        def handle(self, record):
            raise RuntimeError("no disk")

    logger = logging.getLogger("plait")
    handler = Broken()
    unraised = []
    monkeypatch.setattr("sys.unraisablehook", unraised.append)
    with plait.Context(tiny, n_ctx=64) as ctx, caplog.at_level(5, logger="plait"):
        logger.addHandler(handler)
        try:
            assert feed(ctx, tokens(3)).shape == (3, 288)
        finally:
            logger.removeHandler(handler)
    assert unraised


def test_calling_a_context_from_its_own_log_handler_is_refused_not_awaited(tiny, caplog):
    class Nosy(logging.Handler):
        def emit(self, record):
            with pytest.raises(ValueError, match="busy"):
                ctx.kv.clear()
            asked.append(record)

    asked = []
    logger = logging.getLogger("plait")
    handler = Nosy()
    with plait.Context(tiny, n_ctx=64) as ctx, caplog.at_level(5, logger="plait"):
        logger.addHandler(handler)
        try:
            feed(ctx, tokens(3))
        finally:
            logger.removeHandler(handler)
        assert asked
        assert ctx.kv.n_used == 3


def test_a_context_can_be_closed_twice_and_is_closed_by_with(tiny):
    with plait.Context(tiny, n_ctx=8) as ctx:
        assert not ctx.closed
    assert ctx.closed
    ctx.close()
    for use in (
        lambda: feed(ctx, [5]),
        lambda: ctx.encode(batch(([5], 0))),
        lambda: ctx.sequence(),
        lambda: ctx.kv.clear(),
        lambda: ctx.kv.n_used,
        lambda: ctx.kv.cells(),
        lambda: ctx.kv.keys(0, 0),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_objects_of_a_context_are_safe_after_it_is_closed(tiny):
    ctx = plait.Context(tiny, n_ctx=8)
    kv, stats, out = ctx.kv, ctx.stats, ctx.decode(batch(([5, 6], 0)))
    gone = weakref.ref(ctx)
    del ctx
    gc.collect()
    assert gone() is None
    assert kv.n_used == 2  # the cache object remains usable
    assert stats.tokens == 2
    assert np.isfinite(out.logits).all()


def test_kv_and_stats_are_one_object_each(tiny):
    with plait.Context(tiny, n_ctx=8) as ctx:
        assert ctx.kv is ctx.kv
        assert ctx.stats is ctx.stats
        assert ctx.model is tiny


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_ctx": 0}, ValueError, "n_ctx.*got 0"),
        ({"n_ctx": 2**40}, ValueError, str(2**40)),
        ({"n_ctx": 2**70}, ValueError, str(2**70)),
        ({"n_ctx": "8"}, TypeError, "n_ctx"),
        ({"n_seq_max": -1}, ValueError, "n_seq_max.*got -1"),
        ({"n_seq_max": 2**31}, ValueError, str(2**31)),
        ({"n_seq_max": None}, TypeError, "n_seq_max"),
        ({"kv": "paged"}, ValueError, r'"auto", "unified" or "streams", got "paged"'),
        ({"kv_cells": 0}, ValueError, "kv_cells.*got 0"),
        ({"type_k": "f8"}, ValueError, r'type_k: .*f32, f16, bf16.*got "f8"'),
        ({"type_v": "q4_k"}, ValueError, "type_v"),
        ({"type_v": 16}, TypeError, "type_v"),
        ({"n_batch": 0}, ValueError, "n_batch.*got 0"),
        ({"n_ubatch": -3}, ValueError, "n_ubatch.*got -3"),
        ({"backend": "tpu"}, ValueError, r'"cpu".*got "tpu"'),
        ({"threads": 0}, ValueError, "threads.*got 0"),
        ({"threads": 2**20}, ValueError, "threads"),
        (
            {"isa": "sse"},
            ValueError,
            r"scalar, blas, neon, neon_i8mm, neon_bf16, avx2, avx512, amx, got \"sse\"",
        ),
        ({"flash_attention": "maybe"}, ValueError, 'got "maybe"'),
        ({"flash_attention": 1}, TypeError, "flash_attention"),
        ({"embeddings": "yes"}, TypeError, "embeddings"),
        ({"pooling": "max"}, ValueError, r'none, mean, cls, last, rank, got "max"'),
        ({"causal": 0}, TypeError, "causal"),
        ({"graph_reuse": None}, TypeError, "graph_reuse"),
    ],
)
def test_invalid_options_are_named(tiny, options, error, message):
    with pytest.raises(error, match=message):
        plait.Context(tiny, **({"n_ctx": 8} | options))


def test_a_context_needs_a_model():
    for wrong in (None, "model.gguf", 3):
        with pytest.raises(TypeError, match="model"):
            plait.Context(wrong)
    with pytest.raises(TypeError):
        plait.Context()


@pytest.mark.timing
def test_a_step_of_one_token_costs_python_little(tiny):
    """Everything outside the C++ phases, Batch and Output included."""
    with plait.Context(tiny, n_ctx=256, threads=1) as ctx:

        def step():
            one = plait.Batch()
            one.add(7, pos=100, seq=0, logits=True)
            row = ctx.decode(one).logits[0]
            ctx.kv.seq_rm(0, 100)
            return row

        feed(ctx, tokens(100))
        outside = []
        for _ in range(30):
            ctx.stats.reset()
            start = time.perf_counter()
            for _ in range(20):
                step()
            elapsed = time.perf_counter() - start
            outside.append((elapsed - sum(ctx.stats.seconds.values())) / 20)
    assert min(outside) < 30e-6  # the target on an idle machine is 8
