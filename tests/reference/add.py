"""y = a + b; b of the last axis alone serves every row."""

import numpy as np


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b
