"""A full cache: the whole batch is refused and the cache is unchanged. Goal G11."""

from __future__ import annotations

import numpy as np
import plait
import pytest
from python.drive import feed, same_bits, tokens


def fragmented(model: plait.Model, rng: np.random.Generator, kv: str) -> plait.Context:
    """A context of 96 cells that sequences came and went in."""
    cells = 96 if kv == "unified" else None
    ctx = plait.Context(model, n_ctx=32, n_seq_max=6, kv=kv, kv_cells=cells, n_ubatch=8, threads=1)
    for _ in range(12):
        seq = int(rng.integers(6))
        if ctx.kv.seq_len(seq) > 10:
            p0 = int(rng.integers(10))
            ctx.kv.seq_rm(seq, p0, p0 + int(rng.integers(1, 9)))
        n = min(int(rng.integers(1, 12)), 31 - ctx.kv.seq_pos_max(seq), ctx.kv.n_free)
        if n > 0 and ctx.kv.seq_len(seq) + n <= 32:
            feed(ctx, tokens(n, int(rng.integers(1 << 30))), seq)
    return ctx


def without_room(model: plait.Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv = ["unified", "streams"][seed % 2]
    with fragmented(model, rng, kv) as ctx:
        before = ctx.kv.to_bytes()
        batch = plait.Batch()
        for seq in range(6):  # more than the cache holds, although the first microbatches would fit
            batch.add_sequence(tokens(33, seq), seq=seq)
        with pytest.raises(plait.CacheFull) as error:
            ctx.decode(batch)
        assert error.value.needed > error.value.free
        assert ctx.kv.to_bytes() == before
        with plait.Context(model, n_ctx=32, n_seq_max=6, n_ubatch=8, threads=1) as other:
            other.kv.from_bytes(before)
            for seq in range(6):
                if ctx.kv.n_free > 0 and ctx.kv.seq_len(seq) < 32:
                    assert same_bits(feed(ctx, [5], seq), feed(other, [5], seq))


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_without_room_changes_nothing(tiny, seed):  # G11
    without_room(tiny, seed)


@pytest.mark.slow
@pytest.mark.goal("G11")
def test_two_hundred_batches_without_room_change_nothing(tiny, record_property):  # G11
    for seed in range(200):
        without_room(tiny, seed)
    record_property("figure", "200 of 200 fragmented caches byte-equal, next logits bit-equal")
