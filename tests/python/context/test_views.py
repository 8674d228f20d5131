"""Logits are views whose contents never change."""

import gc

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens


def test_a_held_view_is_bit_identical_after_a_thousand_decodes(tiny):
    with plait.Context(tiny, n_ctx=256, n_seq_max=2) as ctx:
        out = ctx.decode(batch((tokens(10), 0)))
        view, row, indices = out.logits, out[3], out.indices
        before = view.copy(), row.copy(), indices.copy()
        for i in range(1000):
            feed(ctx, [3 + i % 200], 1)
            if ctx.kv.seq_len(1) == 256:
                ctx.kv.seq_rm(1)
        del out
        assert same_bits(view, before[0])
        assert same_bits(row, before[1])
        assert same_bits(indices, before[2])
    assert same_bits(view, before[0])


def test_views_of_the_same_output_share_its_memory(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        out = ctx.decode(batch((tokens(10), 0)))
        assert np.shares_memory(out.logits, out.logits)
        assert np.shares_memory(out.logits[3], out[3])
        assert not np.shares_memory(out.logits, feed(ctx, [5]))


def test_a_row_alone_keeps_the_output_alive(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        row = ctx.decode(batch((tokens(10), 0)))[9]
        before = row.copy()
        gc.collect()
        for _ in range(40):
            feed(ctx, [5])
        assert same_bits(row, before)
    del ctx
    gc.collect()
    assert same_bits(row, before)


def test_a_dropped_output_gives_its_memory_back(tiny):
    """The next output of the same size lies where the last one did."""
    with plait.Context(tiny, n_ctx=256) as ctx:
        places = {feed(ctx, [5]).__array_interface__["data"][0] for _ in range(100)}
    assert len(places) <= 2


def test_views_are_writable_and_theirs_alone(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        first = feed(ctx, tokens(5), 0)
        want = first.copy()
        first[:] = 0
        assert same_bits(feed(ctx, tokens(5), 1), want)


def test_other_libraries_take_the_view_without_a_copy(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        logits = feed(ctx, tokens(5))
        assert np.shares_memory(np.from_dlpack(logits), logits)
        assert memoryview(logits).nbytes == logits.nbytes
        torch = pytest.importorskip("torch", reason="torch is not installed")
        assert torch.from_dlpack(logits).data_ptr() == logits.__array_interface__["data"][0]


def test_rows_come_in_the_order_of_the_batch_whatever_the_microbatches(tiny):
    order = np.random.default_rng(0).permutation(np.repeat(range(4), 10)).tolist()
    mixed = plait.Batch()
    for i, seq in enumerate(order):
        mixed.add(5 + i, seq=seq, logits=i % 3 != 0)
    for n_ubatch in (512, 7):
        with plait.Context(tiny, n_ctx=64, n_seq_max=4, n_ubatch=n_ubatch) as ctx:
            out = ctx.decode(mixed)
            assert out.indices.tolist() == [i for i in range(40) if i % 3 != 0]
            assert out.indices.dtype == np.int32
            for row, i in zip(out, out.indices.tolist(), strict=True):
                assert same_bits(row, out[i])


def test_a_batch_without_outputs_has_none(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        out = ctx.decode(batch((tokens(5), 0), logits="none"))
        assert out.logits.shape == (0, 288)
        assert out.indices.shape == (0,)
        assert (len(out), list(out)) == (0, [])
