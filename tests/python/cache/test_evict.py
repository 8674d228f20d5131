"""kv.evict(): single positions, against a model of the cache, for every kind of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait
import pytest
from python.reference_data import model_path

N = 24


def filled(ctx: plait.Context, seq: plait.Sequence, n: int = N) -> None:
    batch = plait.Batch()
    batch.add_sequence((5 + np.arange(n)) % 200 + 3, seq=seq)
    ctx.decode(batch)


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("seed", range(6))
def test_random_positions(tiny: plait.Model, kv: str, seed: int) -> None:
    """What is left is read as if only it had ever been in the cache."""
    rng = np.random.default_rng(seed)
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, kv=kv) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq)
        keys = ctx.kv.keys(1, seq)
        left = set(range(N))
        for _ in range(4):
            gone = rng.integers(0, N + 4, rng.integers(0, 8))
            assert ctx.kv.evict(seq, gone.tolist()) == len(left & set(gone.tolist()))
            left -= set(gone.tolist())
            assert ctx.kv.seq_len(seq) == len(left)
            assert np.array_equal(ctx.kv.keys(1, seq), keys[sorted(left)])


def test_shared_cells_stay(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq)
        fork = seq.fork()
        assert ctx.kv.evict(seq, range(0, N, 2)) == N // 2
        assert ctx.kv.seq_len(fork) == N
        assert ctx.kv.n_used == N
        assert ctx.kv.evict(fork, range(0, N, 2)) == N // 2
        assert ctx.kv.n_used == N // 2


def test_a_masked_position_is_not_seen(tiny: plait.Model) -> None:
    """Evicting positions equals decoding with the same keys and values and without those positions."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq)
        fork = seq.fork()
        gone = [3, 4, 9, 17]
        assert ctx.kv.evict(seq, gone) == 4
        for begin, end in ((3, 5), (9, 10), (17, 18)):
            assert ctx.kv.seq_rm(fork, begin, end)
        batch = plait.Batch()
        batch.add(7, seq=seq, pos=N, logits=True)
        batch.add(7, seq=fork, pos=N, logits=True)
        rows = ctx.decode(batch).logits
        assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("name", ["mamba", "rwkv6", "falcon-h1"])
def test_memories_that_cannot(data_dir: Path, name: str) -> None:
    with plait.Context(plait.Model(model_path(data_dir, name)), n_ctx=64, n_seq_max=2) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq, 12)
        before = ctx.kv.to_bytes()
        with pytest.raises(plait.UnsupportedError, match="cache cannot remove positions 2 to 2 of"):
            ctx.kv.evict(seq, [2, 5, 11])
        assert ctx.kv.to_bytes() == before


def test_positions_that_are_not_held_are_ignored(data_dir: Path) -> None:
    with plait.Context(plait.Model(model_path(data_dir, "mamba")), n_ctx=64) as ctx:
        batch = plait.Batch()
        batch.add_sequence(range(5, 10), pos=100)
        ctx.decode(batch)
        assert ctx.kv.evict(0, range(50)) == 0
        assert ctx.kv.seq_pos_max(0) == 104
        with pytest.raises(plait.UnsupportedError, match="cannot remove positions 50 to 101"):
            ctx.kv.evict(0, range(50, 102))
        ctx.kv.evict(0, range(50, 105))
        assert ctx.kv.seq_pos_max(0) == -1


def test_all_of_a_window(data_dir: Path) -> None:
    """Whose first positions have been freed."""
    model = plait.Model(model_path(data_dir, "gemma3"))
    with plait.Context(model, n_ctx=64, layers=range(2)) as ctx:
        filled(ctx, 0, 40)
        assert ctx.kv.seq_pos_min(0) > 0
        with pytest.raises(plait.UnsupportedError, match="cannot remove positions 5 to 39"):
            ctx.kv.evict(0, range(5, 40))
        assert ctx.kv.evict(0, range(40)) > 0
        assert ctx.kv.seq_pos_max(0) == -1


def test_misuse(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq)
        assert ctx.kv.evict(seq, []) == 0
        assert ctx.kv.evict(seq, 5) == 1
        assert ctx.kv.evict(seq, np.array([5, 6, 6], np.uint8)) == 1
        for wrong in (1.5, "3", [[1, 2]], [1.0], None):
            with pytest.raises(TypeError, match="evict: positions: expected an integer"):
                ctx.kv.evict(seq, wrong)
        for wrong in (-1, [0, 1 << 31]):
            with pytest.raises(ValueError, match="evict: positions: expected 0 to"):
                ctx.kv.evict(seq, wrong)
        with (
            plait.Context(tiny, n_ctx=64, n_seq_max=2) as other,
            other.sequence() as foreign,
            pytest.raises(ValueError, match="another context"),
        ):
            ctx.kv.evict(foreign, 3)
        assert ctx.kv.seq_len(seq) == N - 2


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "cohere2"])
def test_windows_refuse_all_or_nothing(data_dir: Path, name: str) -> None:
    """The end of a sequence may need cells that have left the window; then the other positions stay too."""
    path = data_dir / "conformance" / name / "model.gguf"
    with plait.Context(plait.Model(path), n_ctx=64, n_seq_max=2) as ctx:
        seq = ctx.sequence()
        filled(ctx, seq, 48)
        before = ctx.kv.to_bytes()
        with pytest.raises(
            plait.UnsupportedError, match="positions 47 to 47 of a sequence that ends at 47"
        ):
            ctx.kv.evict(seq, [1, 30, 45, 47])
        assert ctx.kv.to_bytes() == before
        assert ctx.kv.evict(seq, [30, 45]) == 2
        assert ctx.kv.evict(seq, range(64)) == 46
        assert ctx.kv.seq_len(seq) == 0
