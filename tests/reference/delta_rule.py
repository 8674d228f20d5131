"""S = exp(g) S, then S += k^T beta (v - k S), y = q S by head, over one sequence. Gated DeltaNet,
arXiv:2412.06464; q and k are already normalised and scaled."""

import numpy as np


def delta_rule(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """q, k [n, hk, dk]; v [n, h, dv]; g, beta [n, h]; state [h, dk, dv] -> y [n, h, dv], the new
    state. Neighbouring h / hk heads share q and k."""
    s = np.array(state, np.float64)
    q, k = (np.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
    y = np.zeros(v.shape)
    for t in range(len(v)):
        s *= np.exp(g[t])[:, None, None]
        delta = beta[t][:, None] * (v[t] - np.einsum("hi,hij->hj", k[t], s))
        s += np.einsum("hi,hj->hij", k[t], delta)
        y[t] = np.einsum("hi,hij->hj", q[t], s)
    return y, s
