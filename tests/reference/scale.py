"""y = factor * x."""

import numpy as np


def scale(x: np.ndarray, factor: float) -> np.ndarray:
    return x * factor
