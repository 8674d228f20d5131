"""y_t = sum_j weight[:, j] x_(t-k+1+j) + bias by channel, over one sequence.
The convolution of Mamba, arXiv:2312.00752, section 3.4."""

import numpy as np


def short_conv(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """x [n, c], weight [c, k], state [k - 1, c]: the inputs before x -> y [n, c], the new state."""
    taps = weight.shape[1]
    inputs = np.concatenate([state, x]).astype(np.float64)
    y = np.array([(inputs[t : t + taps].T * weight).sum(axis=1) for t in range(len(x))])
    return (y if bias is None else y + bias), inputs[len(x) :]
