"""Defragmentation, explicit and automatic."""

import math
from pathlib import Path

import numpy as np
import plait
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python.drive import UNDER_ASAN, batch, feed, same_bits, tokens

KINDS = ["unified", "streams"]


def made(model, **options):
    options = {"n_ctx": 64, "n_seq_max": 4, "threads": 1, "defrag_threshold": None} | options
    return plait.Context(model, **options)


def fill(ctx, n, seq=0, seed=0):
    """Decode a sequence of n tokens in several calls."""
    ids = tokens(n, seed)
    for at in range(0, n, 512):
        feed(ctx, ids[at : at + 512], seq, logits="none")


def last_logits(ctx, *seqs):
    """Return the logits of one more token of each sequence, which is then removed."""
    out = ctx.decode(batch(*(([7], seq) for seq in seqs))).logits.copy()
    for seq in seqs:
        ctx.kv.seq_rm(seq, ctx.kv.seq_pos_max(seq))
    return out


def compact(kv):
    """Return whether exactly the first cells of every stream are in use."""  # S3-32
    cells = kv.cells()
    per_stream = kv.n_cells // kv.n_streams
    return all(
        sorted(cells["row"][cells["stream"] == s] - s * per_stream)
        == list(range((cells["stream"] == s).sum()))
        for s in range(kv.n_streams)
    )


@pytest.mark.parametrize("flash", [True, False])  # S3-09, S3-10
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0", "q4_0", "iq4_nl"])  # S3-11
def test_every_second_cell_of_4096_in_rounds_of_eight_moves(tiny, cache_type, flash):  # S3-04
    options = {"type_k": cache_type, "type_v": cache_type, "flash_attention": flash}
    with made(tiny, n_ctx=4096, n_seq_max=2, kv_cells=4097, **options) as ctx:
        fill(ctx, 4096)
        for pos in range(0, 4096, 2):
            ctx.kv.seq_rm(0, pos, pos + 1)
        data, want = ctx.kv.to_bytes(), last_logits(ctx, 0)
        n = ctx.kv.defrag(max_moves=8)
        report = ctx.kv.last_defrag
        assert n == report.cells == report.records["n"].sum() == 1024
        assert report.rounds == math.ceil(report.moves / 8)
        assert report.moves == len(report.records)
        assert compact(ctx.kv)
        assert ctx.kv.to_bytes() == data
        assert same_bits(last_logits(ctx, 0), want)
        # The space becomes available without action by the caller.  S3-01, S3-18
        ctx.kv.seq_cp(0, 1)
        fill(ctx, 2048, 1, seed=1)
        assert ctx.kv.n_used == 4096


def scattered(model, n_seqs=3, n=150, **options):
    """Decode sequences alternately, token by token, and remove some tokens."""
    ctx = made(model, n_ctx=256, n_seq_max=n_seqs + 1, **options)
    fill(ctx, 40, n_seqs, seed=9)
    ids = [tokens(n, seq) for seq in range(n_seqs)]
    for i in range(n):
        ctx.decode(batch(*(([ids[seq][i]], seq) for seq in range(n_seqs)), logits="none"))
    ctx.kv.seq_rm(n_seqs)
    for seq in range(n_seqs):
        ctx.kv.seq_rm(seq, 10 + 20 * seq, 20 + 22 * seq)
    return ctx


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_rounds_changes_nothing_but_their_number(tiny, kind):  # S3-06
    cells = []
    for most in (None, 1, 2, 7, 1000):
        with scattered(tiny, kv=kind) as ctx:
            data, want = ctx.kv.to_bytes(), last_logits(ctx, 0, 1, 2)
            moved = ctx.kv.defrag(max_moves=most)
            assert moved > 0
            assert ctx.kv.last_defrag.rounds >= math.ceil(ctx.kv.last_defrag.moves / (most or 1024))
            assert compact(ctx.kv)
            assert ctx.kv.to_bytes() == data
            assert same_bits(last_logits(ctx, 0, 1, 2), want)
            cells.append(ctx.kv.n_used)
            assert ctx.kv.defrag() == 0  # S3-22
    assert len(set(cells)) == 1


def test_cells_side_by_side_are_one_move(tiny):  # S3-08
    with made(tiny, n_ctx=2048, n_seq_max=2) as ctx:
        fill(ctx, 1024, 0)
        fill(ctx, 1000, 1)
        ctx.kv.seq_rm(0)
        assert ctx.kv.defrag() == 1000
        assert ctx.kv.last_defrag.moves == 1
        assert ctx.kv.last_defrag.records.tolist() == [(0, 1024, 0, 1000)]  # S3-07


def test_the_report_describes_the_moves(tiny):  # S3-28
    with scattered(tiny) as ctx:
        assert ctx.kv.last_defrag is None
        ctx.stats.reset()
        n = ctx.kv.defrag()
        report = ctx.kv.last_defrag
        row_bytes = ctx.kv.nbytes // ctx.kv.n_cells
        assert (report.cells, report.bytes) == (n, n * row_bytes)
        assert report.records.dtype.names == ("group", "from", "to", "n")
        assert report.seconds > 0
        assert not report.automatic
        assert ctx.stats.rows_copied == n
        assert repr(report).startswith(f"<plait.Defrag: {n} cells in {report.moves} moves")
        with pytest.raises(TypeError):
            plait.Defrag()
        # Having nothing to do is not an error, and is reported.  S3-23, S3-24
        assert ctx.kv.defrag() == 0
        assert ctx.kv.last_defrag.rounds == 0


def test_pending_shifts_travel_with_their_cells(tiny):  # S3-30
    with scattered(tiny) as moved, scattered(tiny) as still:
        for ctx in (moved, still):
            ctx.kv.seq_add(1, 60, None, 7)
        assert moved.kv.defrag() > 0
        assert moved.kv.cells()["shift"].any()
        assert same_bits(last_logits(moved, 0, 1, 2), last_logits(still, 0, 1, 2))
        assert moved.kv.to_bytes() == still.kv.to_bytes()


def test_no_later_step_needs_more_memory(tiny):  # S3-13
    with scattered(tiny) as ctx:
        last_logits(ctx, 0)
        built, reserved = ctx.stats.plans_built, ctx.compute_bytes
        ctx.kv.seq_add(0, 0, None, 1)
        assert ctx.kv.defrag() > 0
        last_logits(ctx, 0)
        assert ctx.stats.plans_built == built
        assert ctx.compute_bytes == reserved


@pytest.mark.skipif(UNDER_ASAN, reason="the sanitizer keeps freed memory")
def test_a_thousand_defragmentations_take_no_memory(tiny):  # S3-29
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with made(tiny, n_ctx=256) as ctx:
        for i in range(1000):
            fill(ctx, 100, 0)
            fill(ctx, 100, 1)
            ctx.kv.seq_rm(0)
            assert ctx.kv.defrag(max_moves=3) == 100
            ctx.kv.clear()
            if i == 100:
                before = resident()
        assert resident() - before < 1 << 20


@pytest.mark.parametrize("most", [0, -1, -(2**63)])
def test_rounds_have_at_least_one_move(tiny, most):
    with scattered(tiny) as ctx:
        data = ctx.kv.to_bytes()
        with pytest.raises(ValueError, match="max_moves"):
            ctx.kv.defrag(most)
        with pytest.raises(TypeError, match="max_moves"):
            ctx.kv.defrag("many")
        assert ctx.kv.to_bytes() == data
        assert ctx.kv.last_defrag is None


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("rm"), st.integers(0, 3), st.integers(0, 40), st.integers(1, 9)),
        st.tuples(st.just("cp"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 40)),
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 40), st.integers(1, 3)),
        st.tuples(st.just("defrag"), st.integers(1, 5)),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS)
def test_whatever_happened_the_first_cells_are_used_and_hold_the_same(tiny, kind, operations):
    """Compared with a context that never moves cells."""  # S3-20, S3-21
    with made(tiny, kv=kind) as moved, made(tiny, kv=kind) as still:
        for name, *arguments in operations:
            for ctx in (moved, still):
                match name, arguments:
                    case "feed", (seq, n):
                        if ctx.kv.seq_len(seq) + n <= 60:
                            feed(ctx, tokens(n, n), seq)
                    case "rm", (seq, p0, n):
                        ctx.kv.seq_rm(seq, p0, p0 + n)
                    case "cp", (src, dst, p0):
                        ctx.kv.seq_cp(src, dst, 0, p0) if p0 > ctx.kv.seq_pos_max(dst) else None
                    case "add", (seq, p0, delta):
                        ctx.kv.seq_add(seq, p0, None, delta)
            if name == "defrag":
                moved.kv.defrag(*arguments)
                assert compact(moved.kv)
        moved.kv.defrag()
        assert compact(moved.kv)
        assert moved.kv.to_bytes() == still.kv.to_bytes()


# -- automatic ---------------------------------------------------------------------------------------


def comb(ctx, n=2000):
    """Place sequence 0 in the holes of another sequence."""
    fill(ctx, 2 * n, 1)
    for pos in range(0, 2 * n, 2):
        ctx.kv.seq_rm(1, pos, pos + 1)
    fill(ctx, n, 0)
    ctx.kv.seq_rm(1)


def test_fragmentation_counts_short_runs(tiny):  # S3-31
    with made(tiny, n_ctx=4096, n_seq_max=2, kv_cells=4100) as ctx:
        assert ctx.kv.fragmentation == 0
        fill(ctx, 2000)
        assert ctx.kv.fragmentation == 0
        ctx.kv.clear()
        comb(ctx)
        assert 0.9 < ctx.kv.fragmentation < 1
        ctx.kv.defrag()
        assert ctx.kv.fragmentation == 0


def test_cells_move_by_themselves_when_runs_have_become_short(tiny):  # S3-03, S3-31
    ids = tokens(600, 5)
    options = {"n_ctx": 4096, "n_seq_max": 3, "kv_cells": 4100}
    with (
        made(tiny, defrag_threshold=0.5, **options) as ctx,
        made(tiny, **options) as still,
    ):
        for either in (ctx, still):
            comb(either, 1900)
        assert ctx.kv.last_defrag is None or not compact(ctx.kv)
        assert ctx.kv.fragmentation > 0.9
        for at in range(0, 600, 20):
            assert same_bits(feed(ctx, ids[at : at + 20], 2), feed(still, ids[at : at + 20], 2))
        report = ctx.kv.last_defrag
        assert report.automatic
        assert report.cells > 1000
        assert ctx.kv.fragmentation < 0.5
        assert still.kv.last_defrag is None
        assert still.kv.fragmentation > 0.5
        assert same_bits(last_logits(ctx, 0), last_logits(still, 0))
        assert ctx.kv.to_bytes() == still.kv.to_bytes()


def test_small_contexts_are_never_fragmented(tiny):  # S3-31
    with made(tiny, n_ctx=256, n_seq_max=2, kv_cells=500, defrag_threshold=0.0) as ctx:
        for _ in range(10):
            comb(ctx, 100)
            assert ctx.kv.fragmentation == 0
            ctx.kv.clear()
        assert ctx.kv.last_defrag is None


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
def test_thresholds_are_shares(tiny, value):
    with pytest.raises(ValueError, match="defrag_threshold"):
        made(tiny, defrag_threshold=value)


def test_a_threshold_is_a_number_or_none(tiny):
    for value in (0, 1, np.float32(0.25), None):
        made(tiny, defrag_threshold=value).close()
    for value in ("half", [0.5]):
        with pytest.raises(TypeError, match="defrag_threshold"):
            made(tiny, defrag_threshold=value)


# -- every architecture ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_can_be_defragmented(any_model, kind):  # S3-19
    n_vocab = min(any_model.n_vocab, 288)
    with made(any_model, n_ctx=128, kv=kind) as ctx:
        if ctx.kv.kind in ("none", "recurrent"):
            if ctx.kv.kind == "recurrent":
                feed(ctx, tokens(9, 0, n_vocab))
            assert ctx.kv.defrag() == 0
            assert ctx.kv.fragmentation == 0
            return
        if ctx.kv.kind == "cross":
            ctx.encode(batch(*((tokens(5, seq, n_vocab), seq) for seq in range(3)), logits="none"))
        for seq in (3, 0, 1, 2):
            if seq < 3 or ctx.kv.kind != "cross":
                feed(ctx, tokens(50, seq, n_vocab), seq)
        for _ in range(5):
            ctx.decode(batch(*((tokens(1, 7, n_vocab), seq) for seq in range(3))))
        ctx.kv.seq_rm(3)
        ctx.kv.seq_rm(0)
        data = ctx.kv.to_bytes()
        with made(any_model, n_ctx=128, kv=kind) as still:
            still.kv.from_bytes(data)
            moved = ctx.kv.defrag(max_moves=3)
            assert moved > 0 or kind == "streams"
            assert compact(ctx.kv)
            assert ctx.kv.to_bytes() == data
            more = [(tokens(3, 8, n_vocab), seq) for seq in (1, 2)]
            assert same_bits(ctx.decode(batch(*more)).logits, still.decode(batch(*more)).logits)
