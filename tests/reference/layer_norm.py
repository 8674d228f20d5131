"""y = (x - mean(x)) / sqrt(variance(x) + epsilon) * w + b over the last axis. arXiv:1607.06450"""

import numpy as np


def layer_norm(
    x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, epsilon: float
) -> np.ndarray:
    x = np.asarray(x, np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
