"""The experts of largest score, ties go to the lower index, and their weights. arXiv:1701.06538; a
bias that affects only the selection, and groups of experts: arXiv:2405.04434 and arXiv:2412.19437."""

import numpy as np

MIN_SUM = 2.0**-14  # lower bound of the divisor of the selected weights


def softmax(x: np.ndarray) -> np.ndarray:
    y = np.exp(x - x.max(axis=-1, keepdims=True), dtype=np.float64)
    return y / y.sum(axis=-1, keepdims=True)


def largest(scores: np.ndarray, n: int) -> np.ndarray:
    return np.argsort(-scores, axis=-1, kind="stable")[..., :n]


def in_best_groups(scores: np.ndarray, n_groups: int, n_used: int, n_best: int) -> np.ndarray:
    """Set the experts to -inf except in the groups whose n_best best have the largest sums."""
    groups = scores.reshape(len(scores), n_groups, -1)
    sums = np.sort(groups, axis=-1)[..., -n_best:].sum(axis=-1)
    kept = np.full(groups.shape, -np.inf)
    for token, best in enumerate(largest(sums, n_used)):
        kept[token, best] = groups[token, best]
    return kept.reshape(scores.shape)


def route(
    logits: np.ndarray,
    n_used: int,
    renormalize: bool,
    scale: float,
    gating: str = "softmax",
    bias: np.ndarray | None = None,
    n_groups: int = 1,
    n_groups_used: int = 1,
    group_best: int = 2,
) -> tuple[np.ndarray, np.ndarray]:
    """logits [n, e], bias [e] -> experts [n, n_used], weights [n, n_used]."""
    gates = {
        "softmax": softmax,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "softmax_chosen": np.array,
    }
    weights = gates[gating](np.asarray(logits, np.float64))
    scores = weights if bias is None else weights + bias
    experts = largest(in_best_groups(scores, n_groups, n_groups_used, group_best), n_used)
    chosen = np.take_along_axis(weights, experts, axis=-1)
    if gating == "softmax_chosen":
        chosen = softmax(chosen)
    if renormalize:
        chosen /= np.maximum(chosen.sum(axis=-1, keepdims=True), MIN_SUM)
    return experts, chosen * scale
