"""y = x W^T (+ bias), and the rounding of x for products with block types."""

import numpy as np


def quantize_rows(x):
    """Codes int8 [n, in] and scales [n, in / 32]: the nearest of 255 levels, 32 values at a time."""
    groups = np.asarray(x, np.float32).reshape(len(x), -1, 32)
    most = np.abs(groups).max(axis=-1)
    finite = np.isfinite(groups).all(axis=-1)
    used = finite & (most >= 1e-30)
    with np.errstate(all="ignore"):
        codes = np.rint(groups * (np.float32(127) / most)[..., None])
        scales = np.where(used, most / np.float32(127), np.where(finite, 0, np.nan))
    codes = np.where(used[..., None], codes, 0).astype(np.int8)
    return codes.reshape(np.shape(x)), scales.astype(np.float32)


def linear(x, weight, bias=None, quantized=False):
    """x [n, in], weight [out, in] dequantised. `quantized`: the weight's type has blocks."""
    x = np.asarray(x, np.float64)
    if quantized:
        codes, scales = quantize_rows(x)
        x = codes * np.repeat(scales.astype(np.float64), 32, axis=-1)
    y = x @ np.asarray(weight, np.float64).T
    return y if bias is None else y + bias
