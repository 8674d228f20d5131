"""The orthonormal Walsh-Hadamard transform of blocks: QuaRot, arXiv:2404.00456."""

import numpy as np


def hadamard(x: np.ndarray, block: int) -> np.ndarray:
    """x [..., d] -> [..., d]; each block of elements times H[i, j] = (-1)^popcount(i & j) / sqrt(block)."""
    matrix = np.array([[(-1.0) ** (i & j).bit_count() for j in range(block)] for i in range(block)])
    blocks = x.astype(np.float64).reshape(-1, block) @ (matrix / np.sqrt(block))
    return blocks.reshape(x.shape)
