"""A prompt that is being continued."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from plait.generation.events import Completion
from plait.generation.stops import StopStrings

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.generation.drafts import Drafter
    from plait.tokenizer import TokenStream


class Canceller(Protocol):
    """Ends requests: the part of a Scheduler that a Request uses."""

    def cancel(self, request: Request) -> None:
        """End a request that has not finished."""


class Request:
    """A handle of what Scheduler.submit() was given. Its attributes are for reading.

    `index`, `sample`: what its events are called. `tokens`: ids of the prompt, `said`: those that came of it, with
    `logprobs`. `text`: what was told of them. `finish_reason`: None while it is under way, then "stop", "length",
    "cancelled" or "error", of which `error` says more.
    """

    def __init__(
        self,
        scheduler: Canceller,
        number: int,
        prompt: list[int],
        limit: int,
        *,
        index: int,
        sample: int,
        key: int,
        own_key: bool,
        priority: float,
        ends: frozenset[int],
        stops: StopStrings,
        stream: TokenStream,
        sampler: Callable[..., int] | None,
        draft: Drafter | None,
        n_top: int,
    ) -> None:
        self.index = index
        self.sample = sample
        self.error: BaseException | None = None
        self.finish_reason: str | None = None
        self.logprobs: list[float] = []
        self.set_aside = 0  # how often it gave its cells to others
        self._scheduler = scheduler
        self._text: list[str] = []
        self._n_prompt = len(prompt)
        # What follows is the scheduler's.
        self.all = prompt  # the prompt and what was said
        self.limit = limit  # most new tokens
        self.key = key  # the sampler's name for it
        self.own_key = own_key
        self.rank = (priority, number)  # the smaller goes first
        self.ends = ends
        self.stops = stops
        self.stream = stream
        self.sampler = sampler
        self.draft = draft
        self.n_top = n_top
        self.seq: Sequence | None = None
        self.n_held = 0  # how many of all tokens are in the cache
        self.filed: list[int] = []  # the tokens that it stands under in the tree of held ones
        self.served = -1  # the step in which it last had a part

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt's ids."""
        return tuple(self.all[: self._n_prompt])

    @property
    def said(self) -> tuple[int, ...]:
        """The new ids."""
        return tuple(self.all[self._n_prompt :])

    @property
    def text(self) -> str:
        """What its events told so far."""
        return "".join(self._text)

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def logprob(self) -> float:
        """The log-probability of the new tokens together."""
        return math.fsum(self.logprobs)

    def cancel(self) -> None:
        """End it; its cells are free at once, or when the step ends that another thread is in. Harmless when done."""
        self._scheduler.cancel(self)

    def completion(self) -> Completion:
        """All of it so far."""
        return Completion(
            self.index, self.sample, self.said, self.text, tuple(self.logprobs), self.finish_reason
        )

    @property
    def n_said(self) -> int:
        """Number of new tokens."""
        return len(self.all) - self._n_prompt

    @property
    def n_pending(self) -> int:
        """Number of tokens that are not in the cache."""
        return len(self.all) - self.n_held

    def advance(self, token: int, logprob: float) -> tuple[str, str | None]:
        """Take a token; the text that it completes, and why it was the last one, if it was."""
        self.all.append(token)
        self.logprobs.append(logprob)
        if token in self.ends:
            text, stopped = self.stops.push(self.stream.flush())
            reason: str | None = "stop"
        else:
            text, stopped = self.stops.push(self.stream.push(token))
            reason = "stop" if stopped else "length" if self.n_said >= self.limit else None
            if reason == "length":
                rest, stopped = self.stops.push(self.stream.flush())
                text += rest
                reason = "stop" if stopped else "length"
        if reason is not None and not stopped:
            text += self.stops.flush()
        self._text.append(text)
        return text, reason

    def run_out(self) -> str:
        """What was held back, as there is no room to go on."""
        rest, stopped = self.stops.push(self.stream.flush())
        text = rest if stopped else rest + self.stops.flush()
        self._text.append(text)
        return text

    def __repr__(self) -> str:
        state = self.finish_reason or ("active" if self.seq is not None else "waiting")
        return f"<plait.Request {self.index}.{self.sample}: {self._n_prompt} + {self.n_said} tokens, {state}>"
