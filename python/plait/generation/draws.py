"""From rows of logits to tokens: the sampling of a step, in which one failing sampler ends only its own request."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.generation.sampler import Sampler
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.generation.request import Request

Row = npt.NDArray[np.float32]


class Failure:
    """The exception of a sampler. See Request.raise_error() for why nobody else holds it."""

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def take(self) -> Exception:
        """Return the exception and forget it. May be called once."""
        return self._errors.pop()


Drawn = tuple[int, float] | Failure  # the token and its log-probability


def draw(requests: list[Request], rows: Row) -> list[Drawn]:
    """Sample for requests that share a sampler.

    If a Sampler raises, nothing was drawn, and the requests are drawn one by one to find those at fault. A sampler that
    calls Python is called for one request at a time, because its functions may have a state.

    Returns:
        For each request what was drawn.
    """
    if len(requests) > 1 and _calls_python(requests[0].sampler):
        return _one_by_one(requests, rows)
    try:
        tokens = _sampled(requests, rows)
        logprobs = _core.token_logprobs(rows, tokens)
        return list(zip(tokens, logprobs.tolist(), strict=True))
    except Exception as error:
        if len(requests) == 1:
            return [Failure(error)]
    return _one_by_one(requests, rows)


def _one_by_one(requests: list[Request], rows: Row) -> list[Drawn]:
    return [draw([request], rows[i : i + 1])[0] for i, request in enumerate(requests)]


def _calls_python(sampler: Callable[..., int] | None) -> bool:
    if isinstance(sampler, Sampler):
        return any(map(callable, sampler.order))
    return sampler is not None


def _sampled(requests: list[Request], rows: Row) -> list[int]:
    sampler = requests[0].sampler
    if sampler is None:
        tokens: list[int] = rows.argmax(axis=1).tolist()
        return tokens
    if isinstance(sampler, Sampler):
        drawn: list[int] = sampler.sample(rows, [request.key for request in requests]).tolist()
        return drawn
    (request,), (row,) = requests, rows
    return [token_id(sampler(row, seq=request.key), len(row))]


def token_id(token: object, n_vocab: int, source: str = "sampler") -> int:
    """Return what a sampler or a drafter returned as an int.

    Args:
        token: What it returned.
        n_vocab: Size of the vocabulary.
        source: Names it in messages.

    Raises:
        TypeError: It is no integer.
        IndexError: It is outside the vocabulary.
    """
    try:
        result = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"generate: the {source} returned {token!r:.80}; expected an int") from None
    if not 0 <= result < n_vocab:
        raise IndexError(
            f"generate: the {source} returned token {result}; the vocabulary has {n_vocab} tokens"
        )
    return result


def top_logprobs(row: Row, n: int) -> tuple[tuple[int, float], ...]:
    """Return the `n` most likely tokens of a row of logits with their log-probabilities, highest first."""
    logprobs = log_softmax(row)
    best = np.argsort(-row, kind="stable")[:n]
    return tuple((int(token), float(logprobs[token])) for token in best)
