"""kv.write(): keys and values of chosen positions, for every kind of memory and cache type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait
import pytest
from python.reference_data import model_path

N = 16
RNG = np.random.default_rng(11)


def filled(ctx: plait.Context, seq: object, n: int = N, first: int = 5) -> None:
    batch = plait.Batch()
    batch.add_sequence((first + 3 * np.arange(n)) % 200 + 3, seq=seq)
    ctx.decode(batch)


def next_logits(ctx: plait.Context, *seqs: object) -> np.ndarray:
    batch = plait.Batch()
    for seq in seqs:
        batch.add(9, seq=seq, logits=True)
    return ctx.decode(batch).logits.copy()


def rows_like(rows: np.ndarray, n: int) -> np.ndarray:
    return RNG.normal(size=(n, *rows.shape[1:])).astype(np.float32)


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "iq4_nl"])
def test_written_rows_are_read_back(tiny: plait.Model, kv: str, kind: str) -> None:
    """keys() and values() return what was written, rounded to the type; all else keeps its bits."""
    tolerance = {"f32": 0, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.05, "q4_0": 0.6, "iq4_nl": 0.6}[
        kind
    ]
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv=kv, type_k=kind, type_v=kind) as ctx:
        filled(ctx, 0)
        ctx.kv.seq_cp(0, 1)
        before = [ctx.kv.keys(i, 0) for i in (0, 1)], [ctx.kv.values(i, 0) for i in (0, 1)]
        at = np.array([13, 2, 3, 8])
        keys, values = rows_like(before[0][1], 4), rows_like(before[1][1], 4)
        ctx.kv.write(0, 1, at, keys=keys, values=values)
        others = np.setdiff1d(np.arange(N), at)
        for got, given, old in (
            (ctx.kv.keys(1, 0), keys, before[0][1]),
            (ctx.kv.values(1, 0), values, before[1][1]),
        ):
            assert np.abs(got[at] - given).max() <= tolerance
            assert np.array_equal(got[others], old[others])
        for i in (0, 1):  # the other layer and the fork
            assert np.array_equal(ctx.kv.keys(i, 1), before[0][i])
            assert np.array_equal(ctx.kv.values(i, 1), before[1][i])
        assert np.array_equal(ctx.kv.keys(0, 0), before[0][0])
        # What is read is what is stored: saved, loaded and written again, it stays the same.
        data = ctx.kv.to_bytes(seq=0)
        again = ctx.kv.keys(1, 0)
        ctx.kv.from_bytes(data, seq=2)
        assert np.array_equal(ctx.kv.keys(1, 2), again)
        if kind in ("f32", "f16", "bf16"):
            ctx.kv.write(0, 1, range(N), again, ctx.kv.values(1, 0))
            assert ctx.kv.to_bytes(seq=0) == data


MODELS = [
    "gemma3",
    "cohere2",
    "deepseek2",
    "jamba",
    "falcon-h1",
    "llama4-a",
    "qwen2vl",
    "gemma4-a",
    "t5",
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "f32") for name in MODELS] + [(name, "q8_0") for name in MODELS if name != "t5"],
)
def test_a_sequence_can_be_rebuilt_from_its_rows(data_dir: Path, name: str, kind: str) -> None:
    """A sequence that gets the rows of another in every layer has the same rows, for every kind of memory."""
    model = plait.Model(model_path(data_dir, name))
    with plait.Context(model, n_ctx=64, n_seq_max=2, type_k=kind, type_v=kind) as ctx:
        if ctx.kv.kind == "cross":
            source = plait.Batch()
            for seq in (0, 1):
                source.add_sequence([5, 6, 7], seq=seq, logits="none")
            ctx.encode(source)
        filled(ctx, 0)
        filled(ctx, 1, first=90)
        written = 0
        for layer in range(model.n_layer):
            try:
                keys, values = ctx.kv.keys(layer, 1), ctx.kv.values(layer, 1)
            except plait.UnsupportedError:
                with pytest.raises(plait.UnsupportedError, match=f"layer {layer} "):
                    ctx.kv.write(0, layer, 0, np.zeros((1, 1, 1), np.float32))
                continue
            at = np.arange(N - len(keys), N)  # a window has freed the others
            dim = values.shape[-1]
            if keys.shape[-1] > dim and np.array_equal(keys[..., :dim], values):
                with pytest.raises(plait.UnsupportedError, match="elements of each key"):
                    ctx.kv.write(0, layer, at, keys, values)
                ctx.kv.write(0, layer, at, keys)
            else:
                ctx.kv.write(0, layer, at, keys, values)
            written += 1
            error = (
                np.abs(ctx.kv.keys(layer, 0) - keys).max(),
                np.abs(ctx.kv.values(layer, 0) - values).max(),
            )
            assert max(error) <= (
                0 if kind == "f32" else 0.05 * max(np.abs(keys).max(), np.abs(values).max())
            )
        assert written
        if kind == "f32" and ctx.kv.kind in ("unified", "sliding", "latent"):
            logits = next_logits(ctx, 0, 1)
            assert np.array_equal(logits[0], logits[1])


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_against_plain_arrays(tiny: plait.Model, kv: str) -> None:
    """Random writes, forks, shifts and removals beside arrays of the rows of each sequence."""
    rng = np.random.default_rng(3)
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv=kv, type_k="f32", type_v="f32") as ctx:
        filled(ctx, 0)
        rows: dict[int, np.ndarray] = {0: ctx.kv.values(1, 0)}
        first = {0: 0}
        for _ in range(120):
            seq = int(rng.choice(list(rows)))
            what = rng.choice(["write", "fork", "shift", "cut"], p=[0.6, 0.25, 0.1, 0.05])
            if what == "write" and len(rows[seq]):
                at = rng.permutation(len(rows[seq]))[: rng.integers(1, 6)]
                new = rng.normal(size=(len(at), *rows[seq].shape[1:])).astype(np.float32)
                ctx.kv.write(seq, 1, (at + first[seq]).tolist(), values=new)
                rows[seq][at] = new
            elif what == "fork":
                to = int(rng.integers(4))
                if to != seq:
                    ctx.kv.seq_cp(seq, to)
                    rows[to], first[to] = rows[seq].copy(), first[seq]
            elif what == "shift":
                ctx.kv.seq_add(seq, 0, None, 2)
                first[seq] += 2
            elif what == "cut" and len(rows[seq]) > 4:
                rows[seq] = rows[seq][:-1]
                ctx.kv.seq_rm(seq, first[seq] + len(rows[seq]))
            for s, want in rows.items():
                assert np.array_equal(ctx.kv.values(1, s), want)


def test_pending_shifts_are_applied_first(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, type_k="f32") as ctx:
        filled(ctx, 0)
        ctx.kv.seq_add(0, 0, None, 7)
        keys = rows_like(ctx.kv.keys(0, 0), N)
        ctx.kv.seq_add(0, 0, None, 1)
        ctx.kv.write(0, 0, range(8, 8 + N), keys)
        assert np.array_equal(ctx.kv.keys(0, 0), keys)
        assert not ctx.kv.cells()["shift"].any()


def test_a_fork_that_was_written_is_no_checkpoint_of_it(data_dir: Path) -> None:
    """A rewind never takes rows from a sequence in which they were replaced."""
    model = plait.Model(model_path(data_dir, "gemma3"))
    with plait.Context(model, n_ctx=64, n_seq_max=2, type_v="f32") as ctx:
        seq = ctx.sequence()
        filled(ctx, seq, 6)
        fork = seq.fork()
        values = ctx.kv.values(0, fork)
        ctx.kv.write(fork, 0, 4, values=0 * values[:1])
        filled(ctx, seq, 30)
        assert seq.rewind(6) == 2
        assert seq.pos == 4


def test_no_room(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=32, n_seq_max=2, kv_cells=N + 3) as ctx:
        filled(ctx, 0)
        ctx.kv.seq_cp(0, 1)
        rows = rows_like(ctx.kv.values(1, 0), N)
        before = ctx.kv.to_bytes()
        with pytest.raises(plait.CacheFull, match="shares 16 of the cells to write") as full:
            ctx.kv.write(1, 1, range(N), values=rows)
        assert (full.value.needed, full.value.free) == (N, 3)
        assert ctx.kv.to_bytes() == before
        ctx.kv.write(1, 1, range(3), values=rows[:3])
        assert ctx.kv.n_used == N + 3


def test_later_tokens_attend_to_the_new_rows(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        filled(ctx, 0)
        ctx.kv.seq_cp(0, 1)
        ctx.kv.write(1, 0, 3, values=4 + ctx.kv.values(0, 1)[3:4])
        logits = next_logits(ctx, 0, 1)
        assert not np.array_equal(logits[0], logits[1])


def test_a_recurrent_layer_is_refused_by_name(data_dir: Path) -> None:
    with plait.Context(plait.Model(model_path(data_dir, "mamba")), n_ctx=64) as ctx:
        filled(ctx, 0)
        with pytest.raises(plait.UnsupportedError, match="layer 0 is recurrent"):
            ctx.kv.write(0, 0, [0], np.zeros((1, 1, 1), np.float32))


def test_misuse(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, type_v="q8_0") as ctx:
        seq = ctx.sequence()
        filled(ctx, seq)
        before = ctx.kv.to_bytes()
        row = np.ones((1, *ctx.kv.keys(0, seq).shape[1:]), np.float32)
        two = np.concatenate([row, row])
        shape = r"\(1, \d+, \d+\)"
        for error, message, arguments in (
            (ValueError, "at least one of them", (seq, 0, 3)),
            (ValueError, rf"keys: expected shape {shape}, got \(2, ", (seq, 0, 3, two)),
            (ValueError, rf"values: expected shape {shape}, got \(\d+, \d+\)", (seq, 0, 3, None, row[0])),
            (ValueError, "has no position 16 in layer 0; it stores 16 positions between 0 and 15", (seq, 0, 16, row)),
            (ValueError, "has no position -1", (seq, 0, -1, row)),
            (ValueError, "stores no position of the sequence", (2, 0, 0, row)),
            (ValueError, "position 3 is given twice", (seq, 0, [3, 3], two)),
            (ValueError, "keys: row 1 has the element nan", (seq, 0, [4, 3], two * [[[1]], [[np.nan]]])),
            (ValueError, "values: row 0 has the element -inf", (seq, 0, 4, None, row * -np.inf)),
            (ValueError, "type F16 cannot store", (seq, 0, 4, row * 1e6)),
            (ValueError, "type Q8_0 cannot store", (seq, 0, 4, None, row * 1e30)),
            (ValueError, "belongs to an open Sequence", (seq.id, 0, 4, row)),
            (IndexError, "layer 9 does not exist", (seq, 9, 3, row)),
            (IndexError, "layer -1 does not exist", (seq, -1, 3, row)),
            (TypeError, "positions: expected", (seq, 0, [1.5], row)),
            (TypeError, "positions: expected", (seq, 0, "3", row)),
            (TypeError, "keys: expected an array of float32", (seq, 0, 3, row.astype(int))),
            (TypeError, "keys: expected an array of float32", (seq, 0, 3, "row")),
            (TypeError, "layer: expected an integer", (seq, "0", 3, row)),
        ):  # fmt: skip
            with pytest.raises(error, match=message):
                ctx.kv.write(*arguments)
            assert ctx.kv.to_bytes() == before, message
        ctx.kv.write(seq, 0, [], row[:0], row[:0])
        assert ctx.kv.to_bytes() == before
        ctx.kv.write(seq, 0, np.uint8(4), row.astype(np.float64))
        assert np.array_equal(ctx.kv.keys(0, seq)[4], row[0])
    with pytest.raises(ValueError, match="closed"):
        ctx.kv.write(2, 0, 4, row)
