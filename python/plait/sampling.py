"""Drawing the next token from logits, in NumPy."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable
from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Natural logarithms of the probabilities, float64, over the last axis of `logits`.

    log p_i = x_i - m - log sum_j exp(x_j - m), m = max x. -inf stays -inf. Raises ValueError for NaN, +inf, a last axis
    that is empty and one that holds -inf alone.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"log_softmax: expected logits along the last axis, got shape {values.shape}"
        )
    highest = values.max(axis=-1, keepdims=True)
    if not np.isfinite(highest).all():
        raise ValueError("log_softmax: logits hold NaN or +inf, or nothing but -inf")
    shifted: Floats = values - highest
    normaliser: Floats = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - normaliser


class Sampler:
    """Chooses a token from a row of logits.

    With temperature 0 the token with the highest logit, the lowest id of equals. Otherwise filters narrow the
    candidates in this order, llama.cpp's, each on the probabilities softmax(logits) of those that are left, and the
    token is drawn from softmax(logits / temperature) of the rest:

    1. `top_k`: the k highest logits, lower ids first among equals; 0 keeps all (Fan et al. 2018, arXiv:1805.04833).
    2. `top_p`: the fewest most likely tokens with at least p together; 1 keeps all (Holtzman et al. 2020,
       arXiv:1904.09751).
    3. `min_p`: tokens at least p times as likely as the likeliest; 0 keeps all (Nguyen et al. 2024, arXiv:2407.01082).

    Every sequence has a generator of its own, seeded with (seed, sequence): the tokens of a sequence depend on `seed`
    and its own logits, not on what else is sampled in between. `seed` None draws one; the attribute tells it.

    Raises ValueError for parameters out of range. Sequences may be sampled from several threads.
    """

    def __init__(
        self,
        temperature: SupportsFloat = 0.8,
        top_k: SupportsIndex = 40,
        top_p: SupportsFloat = 0.95,
        min_p: SupportsFloat = 0.05,
        seed: SupportsIndex | None = None,
    ) -> None:
        self.temperature = _number(
            "temperature", temperature, "finite and at least 0", lambda x: 0 <= x < math.inf
        )
        self.top_k = operator.index(top_k)
        self.top_p = _number("top_p", top_p, "in (0, 1]", lambda x: 0 < x <= 1)
        self.min_p = _number("min_p", min_p, "in [0, 1]", lambda x: 0 <= x <= 1)
        self.seed = secrets.randbits(64) if seed is None else operator.index(seed)
        if self.top_k < 0:
            raise ValueError(f"Sampler: top_k is {self.top_k}, expected at least 0")
        if self.seed < 0:
            raise ValueError(f"Sampler: seed is {self.seed}, expected at least 0")
        self._generators: dict[int, np.random.Generator] = {}

    def __call__(self, logits_row: npt.ArrayLike, seq: SupportsIndex = 0) -> int:
        """The next token of sequence `seq`.

        `logits_row`: float32 of shape (n_vocab,), of which -inf forbids a token. Raises TypeError for another dtype,
        ValueError for another shape, NaN, +inf, and a row that forbids every token.
        """
        row = _checked(logits_row)
        sequence = operator.index(seq)
        if sequence < 0:
            raise ValueError(f"Sampler: seq is {sequence}, expected at least 0")
        if self.temperature == 0:
            return int(np.argmax(row))
        tokens, logits = self._candidates(row)
        weights = np.exp((logits - logits[0]) / self.temperature)
        cumulative = np.cumsum(weights)
        drawn = self._generator(sequence).random() * cumulative[-1]
        # The product can round up to the whole sum, which no token owns.
        place = min(
            int(np.searchsorted(cumulative, drawn, side="right")), int(np.flatnonzero(weights)[-1])
        )
        return int(tokens[place])

    def reset(self, seq: SupportsIndex | None = None) -> None:
        """Put the generator of `seq`, of all sequences for None, back to its start."""
        if seq is None:
            self._generators.clear()
        else:
            self._generators.pop(operator.index(seq), None)

    def __repr__(self) -> str:
        return (
            f"Sampler(temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}, min_p={self.min_p}, "
            f"seed={self.seed})"
        )

    def _candidates(self, row: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.intp], Floats]:
        """The tokens that the filters leave and their logits, the highest first, lower ids first among equals."""
        tokens = np.flatnonzero(row > -np.inf)
        if 0 < self.top_k < len(tokens):
            least = np.partition(row[tokens], -self.top_k)[-self.top_k]
            tokens = tokens[row[tokens] >= least]
        tokens = tokens[np.argsort(-row[tokens], kind="stable")]
        if self.top_k > 0:
            tokens = tokens[: self.top_k]
        logits = row[tokens].astype(np.float64)
        weights = np.exp(logits - logits[0])
        kept = len(tokens)
        if self.top_p < 1:
            cumulative = np.cumsum(weights)
            kept = int(np.searchsorted(cumulative, self.top_p * cumulative[-1])) + 1
        kept = min(kept, int(np.count_nonzero(weights >= self.min_p)))
        return tokens[:kept], logits[:kept]

    def _generator(self, sequence: int) -> np.random.Generator:
        found = self._generators.get(sequence)
        if found is None:
            seeds = np.random.SeedSequence(self.seed, spawn_key=(sequence,))
            found = self._generators.setdefault(
                sequence, np.random.Generator(np.random.PCG64(seeds))
            )
        return found


def _number(
    name: str, value: SupportsFloat, expected: str, valid: Callable[[float], bool]
) -> float:
    number = float(value)
    if not valid(number):
        raise ValueError(f"Sampler: {name} is {value}, expected {expected}")
    return number


def _checked(logits_row: npt.ArrayLike) -> npt.NDArray[np.float32]:
    row = np.asarray(logits_row)
    if row.dtype != np.float32:
        raise TypeError(f"Sampler: expected float32 logits, got {row.dtype}")
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"Sampler: expected logits of shape (n_vocab,), got {row.shape}")
    highest = row.max()
    if not np.isfinite(highest):
        what = "NaN" if np.isnan(highest) else "+inf" if highest > 0 else "nothing but -inf"
        raise ValueError(f"Sampler: logits hold {what}")
    return row
