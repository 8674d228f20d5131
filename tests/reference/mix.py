"""y_i = sum_j weights_ij x_j for the vectors of each token: AltUp, arXiv:2301.13310."""

import numpy as np


def mix(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x [n, j, m], weights [n, i, j] -> [n, i, m]."""
    return np.einsum("nij,njm->nim", weights, x)
