"""y = a - b; b of the last axis or of a row serves every row, b [..., 1] a whole vector."""

import numpy as np


def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - b
