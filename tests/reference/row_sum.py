"""The sum of each vector of the last axis."""

import numpy as np


def row_sum(x: np.ndarray) -> np.ndarray:
    return np.sum(x, axis=-1, keepdims=True, dtype=np.float64)
