"""What a generation tells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One token of a generation.

    `index`: which prompt. `token`: its id. `text`: what it completes, often nothing inside a character of several
    tokens or inside what may become a stop string; of a token that ends the generation only what was left. `logprob`:
    natural logarithm of the probability that the model gave it, before the sampler changed anything. `finish_reason`:
    None until the last token of a prompt, then "stop" (a token that ends a generation, or a stop string) or "length".
    `sample`: which of the n generations of the prompt. `top`: the likeliest tokens there and their log-probabilities,
    the highest first, as many as were asked for.
    """

    index: int
    token: int
    text: str
    logprob: float
    finish_reason: str | None
    sample: int = 0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation: the events of one prompt and sample together."""

    index: int
    sample: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str | None

    @property
    def logprob(self) -> float:
        """The log-probability of all tokens together."""
        return math.fsum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """The same for a token; of longer and shorter generations the better is the likelier by this."""
        return self.logprob / len(self.logprobs)


def completions(events: Iterable[Event]) -> list[Completion]:
    """Events gathered by prompt and sample, in this order."""
    gathered: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        gathered.setdefault((event.index, event.sample), []).append(event)
    return [
        Completion(
            index,
            sample,
            tuple(event.token for event in group),
            "".join(event.text for event in group),
            tuple(event.logprob for event in group),
            group[-1].finish_reason,
        )
        for (index, sample), group in sorted(gathered.items())
    ]
