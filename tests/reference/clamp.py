"""y = min(max(x, -limit), limit): clip_qkv of OLMo, arXiv:2402.00838."""

import numpy as np


def clamp(x: np.ndarray, limit: float) -> np.ndarray:
    return np.clip(x, -limit, limit)
