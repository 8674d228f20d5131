"""Numerical functions that several packages share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Compute the natural logarithms of softmax probabilities over the last axis.

    log p_i = x_i - m - log(sum_j exp(x_j - m)) with m = max(x). An entry of -inf stays -inf.

    Args:
        logits: Real numbers, shape (..., n) with n at least 1.

    Returns:
        float64 array of the same shape.

    Raises:
        ValueError: The last axis is empty, holds NaN or +inf, or holds only -inf.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"log_softmax: expected at least one logit along the last axis, got shape {values.shape}"
        )
    highest = values.max(axis=-1, keepdims=True)
    if not np.isfinite(highest).all():
        raise ValueError("log_softmax: a row of logits holds NaN or +inf, or only -inf")
    shifted: Floats = values - highest
    normaliser: Floats = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - normaliser
