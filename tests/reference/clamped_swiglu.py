"""g' sigmoid(alpha g') (up' + 1), both clamped: the gate of gpt-oss, arXiv:2508.10925."""

import numpy as np

from .activate import sigmoid


def clamped_swiglu(g: np.ndarray, up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    g = np.minimum(np.asarray(g, np.float64), limit)
    up = np.clip(np.asarray(up, np.float64), -limit, limit)
    return g * sigmoid(alpha * g) * (up + 1)
