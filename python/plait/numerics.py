"""Numerics shared by several packages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Natural logarithms of the probabilities, float64, over the last axis of `logits`.

    log p_i = x_i - m - log sum_j exp(x_j - m), m = max x. -inf stays -inf. Raises ValueError for NaN, +inf, a last axis
    that is empty and one that holds -inf alone.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"log_softmax: expected logits along the last axis, got shape {values.shape}"
        )
    highest = values.max(axis=-1, keepdims=True)
    if not np.isfinite(highest).all():
        raise ValueError("log_softmax: logits hold NaN or +inf, or nothing but -inf")
    shifted: Floats = values - highest
    normaliser: Floats = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - normaliser
