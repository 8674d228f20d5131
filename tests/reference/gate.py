"""y = how(g) * up: the gated linear units of arXiv:2002.05202."""

import numpy as np

from .activate import activate


def gate(g: np.ndarray, up: np.ndarray, how: str) -> np.ndarray:
    return activate(g, how) * up
