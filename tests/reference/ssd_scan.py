"""h = exp(dt a) h + (dt x) b^T, y = h c + d x by head, over one sequence.
Mamba-2, arXiv:2405.21060; dt is what softplus gave."""

import numpy as np


def ssd_scan(
    x: np.ndarray,
    dt: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """x [n, h, p]; dt [n, h]; a, d [h]; b, c [n, g, k]; state [h, p, k] -> y [n, h, p], the new
    state. Neighbouring h / g heads share b and c."""
    h = np.array(state, np.float64)
    b, c = (np.repeat(v, x.shape[1] // v.shape[1], axis=1) for v in (b, c))
    y = np.zeros(x.shape)
    for t in range(len(x)):
        decay = np.exp(dt[t] * a)[:, None, None]
        h = decay * h + np.einsum("h,hp,hk->hpk", dt[t], x[t], b[t])
        y[t] = np.einsum("hpk,hk->hp", h, c[t]) + d[:, None] * x[t]
    return y, h
