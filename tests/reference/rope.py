"""(a, b) -> (a cos - b sin, a sin + b cos) for the pairs of each head. arXiv:2104.09864"""

import numpy as np


def rope(x: np.ndarray, table: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [n, h, d], table [n, n_rot / 2, 2]; elements from n_rot on are unchanged."""
    y = np.array(x, np.float64)
    half = table.shape[1]
    first = np.s_[..., 0 : 2 * half : 2] if interleaved else np.s_[..., :half]
    second = np.s_[..., 1 : 2 * half : 2] if interleaved else np.s_[..., half : 2 * half]
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    a, b = np.array(y[first]), np.array(y[second])
    y[first] = a * cosine - b * sine
    y[second] = a * sine + b * cosine
    return y
