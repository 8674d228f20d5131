"""Results of generation: events and completions."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Number of tokens of a generation.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_cached: Tokens of the prompt that were not computed, because another sequence held them.
        n_generated: Generated tokens.
    """

    n_prompt: int
    n_cached: int
    n_generated: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of a generation, in seconds since its request was submitted.

    Attributes:
        queued: Time until the prompt started, or until the request ended if it never started.
        first_token: Time until the first token; None if there is none.
        total: Time until the generation ended.
    """

    queued: float
    first_token: float | None
    total: float


@dataclass(frozen=True, slots=True)
class Event:
    """One generated token, or the end of a generation at its timeout.

    Attributes:
        index: Index of the prompt.
        token: The token id; -1 for a timeout.
        text: Text that the token completes. Often empty in the middle of a character of several tokens, or of a
            possible stop string. For a token that ends the generation, and for a timeout, only the text withheld until
            then.
        logprob: Natural logarithm of the token's probability according to the model, before the sampler; 0 for a
            timeout.
        finish_reason: None except for the last event of a generation: then "stop" (a token or a string that ends a
            generation), "length" or "timeout".
        sample: Index among the generations of the same prompt.
        top_logprobs: The most likely tokens at this place with their log-probabilities, highest first, as many as
            requested.
        parts: For a conversation: what the text adds to the message (content, reasoning or tool calls).
        completion: With the last event of a request to an Engine: the whole generation. None otherwise.
    """

    index: int
    token: int
    text: str
    logprob: float
    finish_reason: str | None
    sample: int = 0
    top_logprobs: tuple[tuple[int, float], ...] = ()
    parts: tuple[Any, ...] = ()
    completion: Completion | None = None

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """Deprecated name of `top_logprobs`."""
        warnings.warn(
            "Event.top is deprecated; use Event.top_logprobs", DeprecationWarning, stacklevel=2
        )
        return self.top_logprobs


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation: the events of one prompt and sample, joined.

    Attributes:
        index: Index of the prompt.
        sample: Index among the generations of the same prompt.
        tokens: The generated token ids.
        text: The generated text.
        logprobs: Log-probability of each token.
        finish_reason: "stop" (a token or a string that ends a generation), "length" (max_tokens or n_ctx), "timeout" or
            "cancelled"; None if the generation has not finished.
        prompt_tokens: The token ids of the prompt.
        top_logprobs: For each token the most likely tokens with their log-probabilities, as in Event. Empty if none
            were requested.
        message: The reply as a message, if the prompt was a conversation; else None.
        usage: Number of tokens of the prompt, of its cached part and of the generation. Not compared by ==.
        timings: Times in seconds. Not compared by ==.
    """

    index: int
    sample: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish_reason: str | None
    prompt_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    message: Any = None
    usage: Usage | None = field(default=None, compare=False)
    timings: Timings | None = field(default=None, compare=False)

    @property
    def logprob(self) -> float:
        """Log-probability of the whole generation."""
        return math.fsum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token, which compares generations of different lengths; NaN without tokens."""
        return self.logprob / len(self.logprobs) if self.logprobs else math.nan

    def _repr_html_(self) -> str:
        from plait.display.tables import completion_html

        facts = [
            ("prompt, sample", f"{self.index}, {self.sample}"),
            ("tokens", f"{len(self.tokens):,}"),
            ("finish reason", str(self.finish_reason)),
            ("log-probability", f"{self.logprob:.4f}"),
            ("per token", f"{self.mean_logprob:.4f}" if self.tokens else ""),
        ]
        if self.usage is not None:
            facts.append(
                (
                    "prompt tokens",
                    f"{self.usage.n_prompt:,}, {self.usage.n_cached:,} of them cached",
                )
            )
        if self.timings is not None:
            facts.append(("seconds", f"{self.timings.total:.3f}"))
        return completion_html(self.text, facts)
