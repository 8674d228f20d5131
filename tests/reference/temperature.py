"""The factor of queries at a position, 1 + scale ln(1 + floor((position + offset) / length)): Llama 4."""

import numpy as np


def temperature(positions: np.ndarray, scale: float, length: int, offset: int) -> np.ndarray:
    """positions [n] -> [n, 1]."""
    steps = np.floor((positions.astype(np.float64) + offset) / length)
    return (1 + scale * np.log(1 + steps))[:, None]
