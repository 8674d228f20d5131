"""h = exp(dt a) h + (dt x) b, y = c h + d x by channel, over one sequence.
Mamba, arXiv:2312.00752, algorithm 2; dt is the result of softplus."""

import numpy as np


def selective_scan(
    x: np.ndarray,
    dt: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """x, dt [n, c]; a, state [c, k]; b, c [n, k]; d [c] -> y [n, c], the new state."""
    h = np.array(state, np.float64)
    y = np.zeros(x.shape)
    for t in range(len(x)):
        h = np.exp(dt[t, :, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        y[t] = h @ c[t] + d * x[t]
    return y, h
