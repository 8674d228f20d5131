"""Parameters of generation that are given once for all prompts or as a list with one per prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

from plait.arguments import integer, kind
from plait.generation.stops import StopConditions

if TYPE_CHECKING:
    from plait.generation.stops import Stop

Limits = SupportsIndex | Iterable[SupportsIndex]
Samplers = Callable[..., int] | None | Iterable[Callable[..., int] | None]
Seeds = SupportsIndex | None | Iterable[SupportsIndex | None]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of one prompt."""

    max_tokens: int
    sampler: Callable[..., int] | None
    stop: StopConditions
    seed: SupportsIndex | None


def parameters_of(
    n: int, max_tokens: Limits, sampler: Samplers, stop: Stop | Iterable[Stop], seed: Seeds
) -> list[Parameters]:
    """Return the parameters of each of `n` prompts.

    A list of stops is one per prompt if one of its elements is itself a list.

    Raises:
        TypeError: A parameter has the wrong type.
        ValueError: A list does not have one element per prompt, or a number is out of range.
    """
    limits = _each(max_tokens, n, "max_tokens", hasattr(max_tokens, "__index__"))
    samplers = _each(sampler, n, "sampler", sampler is None or callable(sampler))
    seeds = _each(seed, n, "seed", seed is None or hasattr(seed, "__index__"))
    return [
        Parameters(integer(limit, "generate: max_tokens", 1), *rest)
        for limit, *rest in zip(limits, samplers, _stops(stop, n), seeds, strict=True)
    ]


def _stops(stop: Any, n: int) -> list[StopConditions]:
    if not isinstance(stop, str | bytes | bytearray) and isinstance(stop, Iterable):
        stop = list(stop)
        if any(isinstance(one, list | tuple | set | frozenset) for one in stop):
            return [StopConditions.of(one) for one in _each(stop, n, "stop", False)]
    return [StopConditions.of(stop)] * n


def _each(value: Any, n: int, name: str, single: bool) -> list[Any]:
    """Return one value per prompt."""
    if single:
        return [value] * n
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        expected = "a callable" if name == "sampler" else "an integer"
        raise TypeError(
            f"generate: {name}: expected {expected} or a list with one per prompt, got {kind(value)}"
        )
    values = list(value)
    if len(values) != n:
        raise ValueError(
            f"generate: {name} has {len(values)} elements, but there are {n} prompts; pass one value for all "
            f"prompts or one per prompt"
        )
    return values
