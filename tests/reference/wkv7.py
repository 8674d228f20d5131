"""S = S diag(w) + (S a^T) b + v^T k, y = S r^T by head, over one sequence. RWKV-7,
arXiv:2503.14456; w in (0, 1)."""

import numpy as np


def wkv7(
    r: np.ndarray,
    w: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """All [n, h, d]; state [h, d, d]: values, keys -> y [n, h, d], the new state."""
    s = np.array(state, np.float64)
    y = np.zeros(r.shape)
    for t in range(len(r)):
        s_a = np.einsum("hij,hj->hi", s, a[t])
        s = s * w[t, :, None] + np.einsum("hi,hj->hij", s_a, b[t])
        s += np.einsum("hi,hj->hij", v[t], k[t])
        y[t] = np.einsum("hij,hj->hi", s, r[t])
    return y, s
