"""y = x / max(sqrt(sum(x^2)), epsilon) over the last axis."""

import numpy as np


def l2_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x / np.maximum(np.sqrt(np.sum(x**2, axis=-1, keepdims=True)), epsilon)
