"""y = cap * tanh(x / cap): Gemma 2, arXiv:2408.00118."""

import numpy as np


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    return cap * np.tanh(x / cap)
