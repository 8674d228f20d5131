"""Stored keys turned by a number of positions; what they were multiplied by stays."""

from dataclasses import replace

import numpy as np

from .rope import rope as turn
from .rope_table import Rope, rope_table


def rotate_rows(
    storage: np.ndarray,
    rows: np.ndarray,
    deltas: np.ndarray,
    rope: Rope,
    factors: np.ndarray | None = None,
) -> np.ndarray:
    """storage [rows, heads, d] -> a new one."""
    result = np.array(storage, np.float64)
    for row, delta in zip(rows, deltas, strict=True):
        table = rope_table(np.array([delta]), replace(rope, magnitude=1.0), factors)
        result[row] = turn(result[None, row], table, rope.interleaved)[0]
    return result
