"""Rotation of stored keys by a number of positions, including the magnitude."""

import numpy as np

from .rope import rope as turn
from .rope_table import Rope, rope_table


def rotate_rows(
    storage: np.ndarray,
    rows: np.ndarray,
    deltas: np.ndarray,
    rope: Rope,
    factors: np.ndarray | None = None,
    begin: int = 0,
) -> np.ndarray:
    """storage [rows, heads, d] -> a new one; elements before `begin` stay."""
    result = np.array(storage, np.float64)
    for row, delta in zip(rows, deltas, strict=True):
        table = rope_table(np.array([delta]), rope, factors)
        result[row, :, begin:] = turn(result[None, row, :, begin:], table, rope.interleaved)[0]
    return result
