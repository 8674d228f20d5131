"""softmax(cap(scale * q k^T)) v over an interval of keys for each token. arXiv:1706.03762;
grouped heads: arXiv:2305.13245; sinks: arXiv:2309.17453 as logits without values."""

import numpy as np


def attend(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    scale: float,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """q [n, h, d], keys [k, h_kv, d], values [k, h_kv, d_v] of one sequence -> [n, h, d_v]."""
    n, heads, _ = q.shape
    group = heads // keys.shape[1]
    result = np.zeros((n, heads, values.shape[2]))
    for t in range(n):
        if first[t] >= last[t]:
            continue
        for h in range(heads):
            k = np.asarray(keys[first[t] : last[t], h // group], np.float64)
            v = np.asarray(values[first[t] : last[t], h // group], np.float64)
            scores = scale * (k @ q[t, h])
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            most = max(scores.max(), -np.inf if sinks is None else sinks[h])
            weights = np.exp(scores - most)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - most))
            result[t, h] = weights @ v / total
    return result
