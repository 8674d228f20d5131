"""Each vector of a, then the one of b; a single head of b serves all heads of a."""

import numpy as np


def concat(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate([a, np.broadcast_to(b, (*a.shape[:-1], b.shape[-1]))], axis=-1)
