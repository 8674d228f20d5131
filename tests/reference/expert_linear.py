"""Row (i, j) of y: x of row i, or of (i, j), times the matrix of row i's j-th expert."""

import numpy as np

from .linear import linear


def expert_linear(x, weight, experts, bias=None, quantized=False):
    """x [n, in] or [n, u, in], weight [e, out, in] dequantised, experts [n, u] -> [n, u, out]."""
    n, used = np.shape(experts)
    y = np.empty((n, used, np.shape(weight)[1]))
    for i, j in np.ndindex(n, used):
        e = experts[i][j]
        row = np.asarray(x)[i] if np.ndim(x) == 2 else np.asarray(x)[i, j]
        y[i, j] = linear(row[None], weight[e], None if bias is None else bias[e], quantized)[0]
    return y
