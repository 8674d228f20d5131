"""softmax(cap(scale * q k^T) + bias) v over an interval of keys for each token. arXiv:1706.03762;
grouped heads: arXiv:2305.13245; sinks: arXiv:2309.17453 as logits without values; ALiBi:
arXiv:2108.12409; buckets: arXiv:1910.10683."""

import numpy as np


def alibi(relative: np.ndarray, heads: int, max_bias: float) -> np.ndarray:
    """The bias of each head at (key position - position): [k] -> [h, k]."""
    m = 2 ** int(np.log2(heads))
    h = np.arange(heads)
    turns = np.where(h < m, h + 1, h - m + 0.5)
    return -(2.0 ** (-max_bias * turns / m))[:, None] * np.abs(relative)


def bucket(relative: np.ndarray, n: int, max_distance: int, both_directions: bool) -> np.ndarray:
    """The bucket, of n, of (key position - position): one each for near distances, then increasingly
    wide ones."""
    later = both_directions * (relative > 0)
    if both_directions:
        n //= 2
    distance = np.abs(relative) if both_directions else np.maximum(-relative, 0)
    exact = n // 2
    turns = np.log(np.maximum(distance, 1) / exact) / np.log(max_distance / exact)
    far = np.minimum(exact + (turns * (n - exact) + 1e-6).astype(int), n - 1)
    return later * n + np.where(distance < exact, distance, far)


def attend(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray | int,
    first: np.ndarray,
    last: np.ndarray,
    scale: float,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """q [n, h, d], keys [k, h_kv, d], values [k, h_kv, d_v] of one sequence, or the number of leading elements
    of a key that are its value; bias [n, h, k] -> [n, h, d_v]."""
    n, heads, _ = q.shape
    group = heads // keys.shape[1]
    if isinstance(values, int):
        values = keys[..., :values]
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
            if bias is not None:
                scores = scores + bias[t, h, first[t] : last[t]]
            most = max(scores.max(), -np.inf if sinks is None else sinks[h])
            weights = np.exp(scores - most)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - most))
            result[t, h] = weights @ v / total
    return result
