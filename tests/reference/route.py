"""The experts of largest softmax weight, ties to the lower number. arXiv:1701.06538"""

import numpy as np


def route(
    logits: np.ndarray, n_used: int, renormalize: bool, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """logits [n, e] -> experts [n, n_used], weights [n, n_used]."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
    weights /= weights.sum(axis=-1, keepdims=True)
    experts = np.argsort(-weights, axis=-1, kind="stable")[:, :n_used]
    chosen = np.take_along_axis(weights, experts, axis=-1)
    if renormalize:
        chosen /= chosen.sum(axis=-1, keepdims=True)
    return experts, chosen * scale
