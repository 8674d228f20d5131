"""Helpers for common operations on a context."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import plait

UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")  # ./dev asan


def tokens(n: int, seed: int = 0, n_vocab: int = 288) -> list[int]:
    """Return ids of ordinary tokens."""
    return np.random.default_rng(seed).integers(3, n_vocab, n).tolist()


def batch(*parts: tuple[Sequence[int], Any], logits: Any = "all") -> plait.Batch:
    """Return a batch of (tokens, sequence) pairs; each continues its sequence."""
    made = plait.Batch()
    for ids, seq in parts:
        made.add_sequence(ids, seq=seq, logits=logits)
    return made


def feed(ctx: plait.Context, ids: Sequence[int], seq: Any = 0, logits: Any = "all") -> np.ndarray:
    """Return the logits of these tokens, decoded after the content of the sequence."""
    return ctx.decode(batch((ids, seq), logits=logits)).logits


def contents(ctx: plait.Context) -> dict[tuple[int, int], bytes]:
    """Return the bits of all keys and values of a context, by (layer, sequence)."""
    held = {}
    for seq in range(ctx.n_seq_max):
        if ctx.kv.seq_pos_max(seq) < 0:
            continue
        positions = ctx.kv.cells()["pos"][ctx.kv.cells()["seqs"][:, seq]]
        for layer in range(ctx.model.n_layer):
            rows = ctx.kv.keys(layer, seq).tobytes() + ctx.kv.values(layer, seq).tobytes()
            held[layer, seq] = rows + np.sort(positions, axis=0).tobytes()
    return held


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
