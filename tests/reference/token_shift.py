"""y_t = x_(t-1) over one sequence. RWKV, arXiv:2305.13048."""

import numpy as np


def token_shift(x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [n, m], state [m]: the row before x -> y [n, m], the new state."""
    rows = np.concatenate([state[None], x])
    return rows[:-1], rows[-1]
