"""A contiguous slice of each vector of the last axis."""

import numpy as np


def slice_(x: np.ndarray, begin: int, count: int) -> np.ndarray:
    return x[..., begin : begin + count].copy()
