"""Row i of y = row rows[i] of x."""

import numpy as np


def select_rows(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return x[rows]
