"""The activation functions. GELU: arXiv:1606.08415; SiLU: arXiv:1702.03118."""

from collections.abc import Callable
from math import erf

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(x, 0),
    "exp": np.exp,
}


def activate(x: np.ndarray, how: str) -> np.ndarray:
    return FUNCTIONS[how](np.asarray(x, np.float64))
