"""y = x with some rows changed: row i is combined with elements from picks[i, 0] of `rows`, or with row i of `rows` if
that has the shape of x. A negative number leaves the row as it is. picks[i, 1] is 0 to add, 1 to replace, 2 to scale.
"""

import numpy as np


def edit_rows(x: np.ndarray, rows: np.ndarray, picks: np.ndarray) -> np.ndarray:
    y = x.copy()
    for i, (first, change) in enumerate(picks):
        if first < 0:
            continue
        row = (
            rows[i]
            if rows.shape == x.shape
            else rows[first : first + x[i].size].reshape(x[i].shape)
        )
        with np.errstate(all="ignore"):
            y[i] = (x[i] + row, row, x[i] * row)[change]
    return y
