"""Each head of y is the same head of x times the matrix of that head."""

import numpy as np

from .linear import linear


def head_linear(x: np.ndarray, weight: np.ndarray, quantized: bool = False) -> np.ndarray:
    """x [n, h, in], weight [h, out, in] dequantised -> [n, h, out]."""
    heads = [linear(x[:, h], weight[h], quantized=quantized) for h in range(len(weight))]
    return np.stack(heads, axis=1)
