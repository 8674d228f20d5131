"""The weighted sum of the outputs of a token's experts."""

import numpy as np


def combine(y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """y [n, u, m], weights [n, u] -> [n, m]."""
    return np.einsum("num,nu->nm", np.asarray(y, np.float64), weights)
