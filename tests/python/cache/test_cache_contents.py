"""Keys, values and logits after shifts, divisions and removals equal those of a NumPy model that does the same to its
own keys and values. Goal G10.

Such a cache holds keys and values that no fresh context would compute: each was computed from what its sequence held
at that time. So the NumPy model keeps a cache of its own, in float64, and random operations are applied to both.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import plait
import pytest
from python.cache.test_cache_machine import N_SEQ, Machine, Variant
from reference.cache_model import Cell, Entry
from reference.models.llama import rms_norm, rope

from python import gguf_writer as gguf

TOLERANCE = 1e-4
VARIANTS = {
    "unified": Variant("unified", None, coupled=False),
    "shared tokens": Variant("shared tokens", None),
    "few cells": Variant("few cells", None, cells=70),
    "streams": Variant("streams", None, kv="streams", coupled=False),
}


@dataclass
class Rows:
    """What a token left in each layer: its key before rotation and its value, [n_layers, n_kv_heads, head_dim]."""

    keys: np.ndarray
    values: np.ndarray


class Llama:
    """The tiny llama, one token at a time, over cells of the plain lists."""

    def __init__(self) -> None:
        self.weights = {n: w.astype(np.float64) for n, w in gguf.llama_weights().items()}

    def keys(self, layer: int, cells: list[Cell]) -> np.ndarray:
        """Return the keys of cells, rotated for their positions now: [n, n_kv_heads, head_dim]."""
        keys = np.array([cell.rows.keys[layer] for cell in cells])
        return rope(keys, np.array([cell.pos for cell in cells]), gguf.ROPE_BASE)

    def values(self, layer: int, cells: list[Cell]) -> np.ndarray:
        """Return the values of cells, [n, n_kv_heads, head_dim]."""
        return np.array([cell.rows.values[layer] for cell in cells])

    def step(self, cell: Cell, cells: list[Cell]) -> np.ndarray:
        """Compute a token that sees `cells`, of which it is the last; store its rows and return its logits."""
        x = self.weights["token_embd.weight"][cell.token]
        shape = (gguf.N_LAYERS, gguf.N_HEADS_KV, gguf.HEAD)
        cell.rows = Rows(np.zeros(shape), np.zeros(shape))
        for layer in range(gguf.N_LAYERS):
            weight = {
                name: self.weights[f"blk.{layer}.{name}.weight"]
                for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
                             "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
            }  # fmt: skip
            h = rms_norm(x, weight["attn_norm"], gguf.EPSILON)
            q, k, v = ((weight[f"attn_{c}"] @ h).reshape(-1, gguf.HEAD) for c in "qkv")
            cell.rows.keys[layer], cell.rows.values[layer] = k, v
            q = rope(q[None], np.array([cell.pos]), gguf.ROPE_BASE)[0]
            group = gguf.N_HEADS // gguf.N_HEADS_KV
            keys = np.repeat(self.keys(layer, cells), group, axis=1)
            values = np.repeat(self.values(layer, cells), group, axis=1)
            scores = np.einsum("hd,khd->hk", q, keys) / np.sqrt(gguf.HEAD)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            x = x + weight["attn_output"] @ np.einsum("hk,khd->hd", shares, values).ravel()
            h = rms_norm(x, weight["ffn_norm"], gguf.EPSILON)
            gate = weight["ffn_gate"] @ h
            x = x + weight["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (weight["ffn_up"] @ h))
        return self.weights["output.weight"] @ rms_norm(
            x, self.weights["output_norm.weight"], gguf.EPSILON
        )


class Contents(Machine):
    """Random operations on a context and on the NumPy model."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.llama = Llama()
        self.n_logits = self.n_rows = self.n_moved = 0
        self.worst = 0.0

    def after_decode(self, entries: list[Entry], logits: np.ndarray, *of_twin: np.ndarray) -> None:
        super().after_decode(entries, logits, *of_twin)
        for entry, row in zip(entries, logits, strict=True):
            cells = self.plain.sequences[entry.seqs[0]]
            n = next(i for i, cell in enumerate(cells) if cell.rows is None)
            moved = any(cell.pos != i for i, cell in enumerate(cells[: n + 1]))
            self.compare(row, self.llama.step(cells[n], cells[: n + 1]))
            self.n_logits += 1
            self.n_moved += moved

    def check_logits(self) -> None:
        """Check keys and values too. Reading them applies pending shifts, so this is not done after each operation."""
        super().check_logits()
        for seq in range(N_SEQ):
            if cells := self.plain.sequences[seq]:
                for layer in range(gguf.N_LAYERS):
                    # Cells that a division left at one position have no order; sums of their rows do not need one.
                    self.compare_rows(
                        cells, self.ctx.kv.keys(layer, seq), self.llama.keys(layer, cells)
                    )
                    self.compare_rows(
                        cells, self.ctx.kv.values(layer, seq), self.llama.values(layer, cells)
                    )
                self.n_rows += len(cells)

    def compare_rows(self, cells: list[Cell], got: np.ndarray, want: np.ndarray) -> None:
        assert got.shape == want.shape
        ends = np.flatnonzero(np.diff([*(cell.pos for cell in cells), -1])) + 1
        begins = [0, *ends[:-1]]
        self.compare(np.add.reduceat(got.astype(np.float64), begins), np.add.reduceat(want, begins))

    def compare(self, got: np.ndarray, want: np.ndarray) -> None:
        """Compare relative to the largest number."""
        error = np.abs(got - want).max() / max(1.0, np.abs(want).max())
        assert error <= TOLERANCE
        self.worst = max(self.worst, error)


def play(tiny: plait.Model, name: str, seeds: range) -> str:
    """Run a program of 100 operations for each seed; return what was compared."""
    n_logits = n_rows = n_moved = 0
    worst = 0.0
    for seed in seeds:
        with ExitStack() as stack:
            machine = Contents(stack, tiny, VARIANTS[name], seed)
            machine.run(100)
            n_logits += machine.n_logits
            n_rows += machine.n_rows
            n_moved += machine.n_moved
            worst = max(worst, machine.worst)
    assert n_moved > n_logits // 50  # tokens that see cells which no fresh context would hold
    return (
        f"logits of {n_logits:,} tokens, {n_moved:,} of them after moves or removals, and {n_rows:,} keys and values: "
        f"at most {worst * 1e6:.3f} millionths beside NumPy"
    )


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.goal("G10")
def test_contents_equal_those_of_numpy(tiny, name, record_property):  # G10
    record_property("figure", play(tiny, name, range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.goal("G10")
def test_contents_of_many_programs_equal_those_of_numpy(tiny, name, record_property):  # G10
    record_property("figure", play(tiny, name, range(100, 350)))
