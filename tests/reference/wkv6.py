"""y = r (S + diag(u) k^T v), S = diag(w) S + k^T v by head, over one sequence. RWKV-6,
arXiv:2404.05892; w in (0, 1)."""

import numpy as np


def wkv6(
    r: np.ndarray, k: np.ndarray, v: np.ndarray, w: np.ndarray, u: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """r, k, v, w [n, h, d]; u [h, d]; state [h, d, d]: keys, values -> y [n, h, d], the new state."""
    s = np.array(state, np.float64)
    y = np.zeros(r.shape)
    for t in range(len(r)):
        kv = np.einsum("hi,hj->hij", k[t], v[t])
        y[t] = np.einsum("hi,hij->hj", r[t], s + u[:, :, None] * kv)
        s = w[t, :, :, None] * s + kv
    return y, s
