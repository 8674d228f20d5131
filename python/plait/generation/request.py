"""A submitted prompt and its generation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from plait.generation.events import Completion, Timings, Usage
from plait.generation.stops import StopStrings
from plait.vision.prompt import Positions

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.generation.drafts import Drafter
    from plait.vision.encoder import ImageEmbeddings


class Canceller(Protocol):
    """The part of Scheduler that Request uses."""

    def cancel(self, request: Request) -> None:
        """End a request."""


class TextStream(Protocol):
    """Converts token ids to text one at a time; see TokenStream."""

    def push(self, token: int) -> str:
        """Return the text that a token completes."""

    def flush(self) -> str:
        """Return the text of an unfinished character."""


class Request:
    """A submitted prompt, returned by Scheduler.submit(). All attributes are read-only.

    Attributes:
        index: Index in the events.
        sample: Sample in the events.
        logprobs: Log-probabilities of the generated tokens.
        finish_reason: None until the request has finished; then "stop", "length", "timeout", "cancelled" or "error".
        top_logprobs: For each generated token the most likely tokens with their log-probabilities, if requested.
        owner: What was given to Scheduler.submit().
        error: The exception that ended the request, if `finish_reason` is "error".
        n_preempted: Number of times that the request gave up its cells to others.
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
        end_ids: frozenset[int],
        stops: StopStrings,
        stream: TextStream,
        sampler: Callable[..., int] | None,
        draft: Drafter | None,
        n_top: int,
        timeout: float | None = None,
        owner: object = None,
        since: float | None = None,
    ) -> None:
        self.index = index
        self.owner = owner
        self.sample = sample
        self.error: BaseException | None = None
        self.finish_reason: str | None = None
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.n_preempted = 0
        self._text: list[str] = []
        self._n_prompt = len(prompt)
        # The attributes below belong to the scheduler and the prefix cache.
        self.scheduler = scheduler
        self.all = list(prompt)  # the prompt and the generated tokens
        self.images: dict[int, ImageEmbeddings] = getattr(prompt, "images", {})  # see ImageTokens
        self.positions = Positions(prompt)
        self.limit = limit  # max generated tokens
        self.key = key  # identifies the sequence to the sampler
        self.own_key = own_key  # whether the scheduler chose the key
        self.rank = (priority, number)  # lower ranks go first
        self.end_ids = end_ids
        self.stops = stops
        self.stream = stream
        self.sampler = sampler
        self.draft = draft
        self.n_top = n_top
        self.seq: Sequence | None = None
        self.n_cached = 0  # leading tokens of `all` that are in the cache
        self.filed: list[int] = []  # the tokens under which the prefix cache lists the request
        self.epoch = 0  # of the context when the sequence was opened
        self.marks: frozenset[int] = frozenset()  # lengths at which the prefix is saved
        self.last_step = -1  # the last step that included the request
        self.n_reused: int | None = None  # prompt tokens that were cached when the request started
        self.submitted = time.monotonic() if since is None else since
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.deadline = None if timeout is None else self.submitted + timeout

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """Token ids of the prompt, with -1 for each embedding of an image."""
        return tuple(max(token, -1) for token in self.all[: self._n_prompt])

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids generated so far."""
        return tuple(self.all[self._n_prompt :])

    @property
    def text(self) -> str:
        """Text generated so far: the joined text of its events."""
        return "".join(self._text)

    @property
    def done(self) -> bool:
        """True once the request has finished."""
        return self.finish_reason is not None

    @property
    def logprob(self) -> float:
        """Log-probability of all generated tokens."""
        return math.fsum(self.logprobs)

    def cancel(self) -> None:
        """End the request. Does nothing if it has finished.

        Its cells are freed at once, or after the current step if one is running.
        """
        self.scheduler.cancel(self)

    def completion(self) -> Completion:
        """Return the generation so far."""
        return Completion(
            self.index,
            self.sample,
            self.tokens,
            self.text,
            tuple(self.logprobs),
            self.finish_reason,
            self.prompt_tokens,
            tuple(self.top_logprobs),
            usage=self.usage,
            timings=self.timings,
        )

    @property
    def usage(self) -> Usage:
        """Number of tokens so far."""
        return Usage(self._n_prompt, self.n_reused or 0, self.n_generated)

    @property
    def timings(self) -> Timings:
        """Times so far, in seconds since the request was submitted."""
        until = time.monotonic() if self.ended is None else self.ended
        started = until if self.started is None else self.started
        first = None if self.first_token is None else self.first_token - self.submitted
        return Timings(started - self.submitted, first, until - self.submitted)

    def begin(self, n_cached: int) -> None:
        """Record that the request has received a sequence.

        Args:
            n_cached: Number of its tokens that the sequence holds.
        """
        if self.started is None:
            self.started, self.n_reused = time.monotonic(), n_cached

    def raise_error(self) -> None:
        """Raise the exception that ended the request, if there is one, and forget it.

        A raised exception refers to the frames of all callers. If those could reach it through the request, only the
        garbage collector would free what they hold, such as sequences.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    def end(self, reason: str) -> None:
        """Record that the request has finished.

        Args:
            reason: The finish reason.
        """
        self.finish_reason, self.ended = reason, time.monotonic()
        self.images = {}

    @property
    def next_image(self) -> ImageEmbeddings | None:
        """The image that follows the cached tokens."""
        return self.images.get(self.all[self.n_cached]) if self.images and self.n_pending else None

    @property
    def n_generated(self) -> int:
        """Number of generated tokens."""
        return len(self.all) - self._n_prompt

    @property
    def n_pending(self) -> int:
        """Number of tokens that are not in the cache."""
        return len(self.all) - self.n_cached

    def advance(self, token: int, logprob: float) -> tuple[str, str | None]:
        """Append a generated token.

        Args:
            token: The token id.
            logprob: Its log-probability.

        Returns:
            The text that the token completes, and the finish reason if it is the last token.
        """
        if self.first_token is None:
            self.first_token = time.monotonic()
        self.all.append(token)
        self.logprobs.append(logprob)
        if token in self.end_ids:
            text, stopped = self.stops.push(self.stream.flush())
            reason: str | None = "stop"
        else:
            text, stopped = self.stops.push(self.stream.push(token))
            reason = "stop" if stopped else "length" if self.n_generated >= self.limit else None
            if reason == "length":
                rest, stopped = self.stops.push(self.stream.flush())
                text += rest
                reason = "stop" if stopped else "length"
        if reason is not None and not stopped:
            text += self.stops.flush()
        self._text.append(text)
        return text, reason

    def flush(self) -> str:
        """Return the withheld text of a request that ends at its timeout or because the cache is full."""
        rest, stopped = self.stops.push(self.stream.flush())
        text = rest if stopped else rest + self.stops.flush()
        self._text.append(text)
        return text

    def __repr__(self) -> str:
        state = self.finish_reason or ("active" if self.seq is not None else "waiting")
        return (
            f"<plait.Request {self.index}.{self.sample}: {self._n_prompt} prompt tokens, "
            f"{self.n_generated} generated, {state}>"
        )
