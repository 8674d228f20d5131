"""Results of generation: events and completions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One generated token.

    Attributes:
        index: Index of the prompt.
        token: The token id.
        text: Text that the token completes. Often empty in the middle of a character of several tokens, or of a
            possible stop string. For a token that ends the generation, only the text withheld until then.
        logprob: Natural logarithm of the token's probability according to the model, before the sampler.
        finish_reason: None except for the last token of a generation: then "stop" (a token or a string that ends a
            generation) or "length".
        sample: Index among the generations of the same prompt.
        top: The most likely tokens at this place with their log-probabilities, highest first, as many as requested.
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
    """A whole generation: the events of one prompt and sample, joined.

    Attributes:
        index: Index of the prompt.
        sample: Index among the generations of the same prompt.
        tokens: The generated token ids.
        text: The generated text.
        logprobs: Log-probability of each token.
        finish_reason: "stop" or "length"; None if the generation has not finished.
    """

    index: int
    sample: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str | None

    @property
    def logprob(self) -> float:
        """Log-probability of the whole generation."""
        return math.fsum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token, which compares generations of different lengths."""
        return self.logprob / len(self.logprobs)

    def _repr_html_(self) -> str:
        from plait.display.tables import completion_html

        facts = [
            ("prompt, sample", f"{self.index}, {self.sample}"),
            ("tokens", f"{len(self.tokens):,}"),
            ("finish reason", str(self.finish_reason)),
            ("log-probability", f"{self.logprob:.4f}"),
            ("per token", f"{self.mean_logprob:.4f}" if self.tokens else ""),
        ]
        return completion_html(self.text, facts)


def completions(events: Iterable[Event]) -> list[Completion]:
    """Join events into completions, ordered by prompt and then by sample."""
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
