"""y = factor * x + offset."""

import numpy as np


def scale(x: np.ndarray, factor: float, offset: float = 0.0) -> np.ndarray:
    return x * factor + offset
