"""y = x / sqrt(mean(x^2) + epsilon) * w over the last axis; w [m], or
[h, m] for x [n, h, m]. arXiv:1910.07467"""

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    x = np.asarray(x, np.float64)
    y = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)
    return y if weight is None else y * weight
