"""Row rows[i] of a cache = row i of x, as the cache rounds it."""

from collections.abc import Callable

import numpy as np


def store_rows(
    storage: np.ndarray,
    x: np.ndarray,
    rows: np.ndarray,
    rounded: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> np.ndarray:
    """storage [rows, heads, d'], x [n, heads, d] -> a new storage; heads end in zeros."""
    result = np.array(storage)
    padded = np.zeros((len(x), *storage.shape[1:]), storage.dtype)
    padded[..., : x.shape[-1]] = x
    for row, values in zip(rows, padded, strict=True):
        result[row] = rounded(values)
    return result
