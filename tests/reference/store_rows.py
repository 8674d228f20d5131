"""Row rows[i] of a cache = row i of x, as the cache rounds it. 4-bit and 5-bit types: cpp/tensor/blocks/closest.h."""

from collections.abc import Callable

import numpy as np

LEVELS = {
    "Q4_0": np.arange(-8, 8),
    "Q5_0": np.arange(-16, 16),
    "IQ4_NL": np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]),
}
REACHES = {
    "Q4_0": (-8.6, -8.2, -7.8, -7.0),
    "Q5_0": (-16.6, -16.2, -15.8, -15.0),
    "IQ4_NL": (-135, -127, -119, -111, 113),
}
SPANS = {"Q4_1": (14.4, 15.0, 15.3, 15.9), "Q5_1": (30.4, 31.0, 31.3, 31.9)}


def total(terms: np.ndarray) -> np.ndarray:
    """Sum rows of 32 terms in float32: eight partial sums, then their sum."""
    parts = np.zeros((len(terms), 8), np.float32)
    for first in range(0, 32, 8):
        parts += terms[:, first : first + 8]
    result = np.zeros(len(terms), np.float32)
    for part in parts.T:
        result += part
    return result


def halves(x: np.ndarray) -> np.ndarray:
    """Round to float16."""
    return x.astype(np.float16).astype(np.float32)


def nearest(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round to the nearest level."""
    levels = LEVELS[dtype].astype(np.float32)
    if dtype != "IQ4_NL":
        return np.rint(np.clip(x, levels[0], levels[-1]))
    return levels[np.searchsorted(levels[1:] + levels[:-1], 2 * x, side="right")]


def with_scale(x: np.ndarray, dtype: str) -> np.ndarray:
    largest = x[np.arange(len(x)), np.abs(x).argmax(1)]
    best, explained = np.zeros_like(x), np.zeros(len(x), np.float32)
    for reach in REACHES[dtype]:
        levels = nearest(x * (1 / (largest / np.float32(reach)))[:, None], dtype)
        product, square = total(levels * x), total(levels * levels)
        now = product * product / square
        better = now > explained
        best[better] = (levels * halves(product / square)[:, None])[better]
        explained[better] = now[better]
    return best


def with_minimum(x: np.ndarray, dtype: str) -> np.ndarray:
    max_code, f = 15 if dtype == "Q4_1" else 31, np.float32
    low, high = x.min(1), x.max(1)
    centre = f(0.5) * low + f(0.5) * high
    best, explained = np.zeros_like(x), np.zeros(len(x), np.float32)
    values = x - centre[:, None]
    for span in SPANS[dtype]:
        inverse = 1 / ((high - low) / f(span))
        codes = np.rint(np.clip(values * inverse[:, None] + f(0.5 * max_code), 0, max_code))
        sum_x, sum_q = total(values), total(codes)
        covariance = f(32) * total(values * codes) - sum_x * sum_q
        variance = f(32) * total(codes * codes) - sum_q * sum_q
        scale = covariance / variance
        minimum = centre + (sum_x - scale * sum_q) / f(32)
        now = covariance * covariance / variance
        better = now > explained
        best[better] = (codes * halves(scale)[:, None] + halves(minimum)[:, None])[better]
        explained[better] = now[better]
    return best


def closest(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return finite float32 values [..., 32 k] as a cache of this type returns them."""
    rows = np.asarray(x, np.float32).reshape(-1, 32)
    used = np.abs(rows).max(1) > 0
    result = np.zeros_like(rows)
    result[used] = (with_minimum if dtype in SPANS else with_scale)(rows[used], dtype)
    return result.reshape(x.shape)


def store_rows(
    storage: np.ndarray,
    x: np.ndarray,
    rows: np.ndarray,
    rounded: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> np.ndarray:
    """storage [rows, heads, d'], x [n, heads, d] -> a new storage; heads end in zeros."""
    result = np.array(storage)
    padded = np.zeros((len(x), *storage.shape[1:]), storage.dtype)
    padded[..., : x.shape[-1]] = x
    for row, values in zip(rows, padded, strict=True):
        result[row] = rounded(values)
    return result
