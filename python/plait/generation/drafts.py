"""Speculative decoding: draft tokens that the model verifies in one call.

Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318. A draft token is
accepted if the sampler draws the same token, so the generated text is identical to decoding without
drafts. The drafters here propose tokens deterministically; for such proposals no other rule accepts
more often.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_context, expect_model, integer, number
from plait.context import Context
from plait.errors import CacheFull
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.model import Model


Row = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A generation to draft for.

    Attributes:
        key: Identifies the generation.
        tokens: All of its tokens, including the prompt.
        max_tokens: Max draft tokens.
    """

    key: Hashable
    tokens: list[int]
    max_tokens: int


@dataclass(slots=True)
class Acceptance:
    """Acceptance statistics of a drafter.

    Attributes:
        drafted: Number of draft tokens proposed.
        accepted: Number of draft tokens accepted.
        rounds: Number of model calls that verified a draft.
    """

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0

    @property
    def rate(self) -> float:
        """Accepted tokens divided by drafted tokens; 0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean number of tokens generated per model call that verified a draft."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


class Drafter(Protocol):
    """Protocol of the argument `draft` of Scheduler.submit().

    One object can serve any number of generations. An exception of propose() ends only the generations that it was
    called for.

    Attributes:
        acceptance: Statistics, which the scheduler updates.
    """

    acceptance: Acceptance

    def attach(self, ctx: Context) -> None:
        """Prepare for a context. Must return at once if nothing has changed.

        Called whenever a request is submitted, possibly while another thread calls the other methods in a step.

        Args:
            ctx: The context that verifies the drafts.
        """

    def propose(self, asks: list[DraftRequest]) -> list[list[int]]:
        """Return for each generation at most `max_tokens` draft tokens, possibly none."""

    def release(self, key: Hashable) -> None:
        """Free what is stored for a generation that has ended. An exception is logged."""


@runtime_checkable
class StateReader(Drafter, Protocol):
    """Protocol of drafters that also need intermediate values of the verifying model, as MTP does.

    Attributes:
        reads: Name of the value, as in Context.value_names(), with one row per token.
    """

    reads: str

    def observe(self, key: Hashable, tokens: list[int], start: int, states: Row) -> None:
        """Take the values of tokens that the model has computed, accepted or not.

        Args:
            key: Identifies the generation.
            tokens: All tokens of the generation, without draft tokens.
            start: Position of the first value.
            states: float32 (n, n_embd).
        """


class PromptLookup:
    """Drafts the tokens that followed the latest earlier occurrence of the last tokens.

    Needs no second model.

    Uses the longest n-gram at the end of the text, of `max_ngram` down to `min_ngram` tokens, that
    occurred earlier. Works well where answers repeat parts of the prompt. Saxena 2023,
    https://github.com/apoorvumang/prompt-lookup-decoding

    Args:
        n: Max draft tokens per step.
        max_ngram: Longest n-gram to look up, in tokens.
        min_ngram: Shortest n-gram to look up, in tokens.

    Raises:
        ValueError: A number is below 1, or `min_ngram` exceeds `max_ngram`.
    """

    def __init__(
        self,
        n: SupportsIndex = 8,
        max_ngram: SupportsIndex = 3,
        min_ngram: SupportsIndex = 2,
    ) -> None:
        self.n = integer(n, "PromptLookup: n", 1)
        longest = integer(max_ngram, "PromptLookup: max_ngram", 1)
        shortest = integer(min_ngram, "PromptLookup: min_ngram", 1)
        if shortest > longest:
            raise ValueError(
                f"PromptLookup: min_ngram is {shortest} and max_ngram is {longest}; min_ngram must not exceed max_ngram"
            )
        self._lengths = range(longest, shortest - 1, -1)
        self.acceptance = Acceptance()
        self._places: dict[Hashable, tuple[dict[tuple[int, ...], int], int]] = {}

    def attach(self, ctx: Context) -> None:
        """Do nothing: any model's tokens work.

        Args:
            ctx: The context that verifies the drafts.
        """

    def propose(self, asks: list[DraftRequest]) -> list[list[int]]:
        """Return for each generation the tokens that followed the same n-gram earlier.

        Args:
            asks: The generations.
        """
        return [self._propose(ask) for ask in asks]

    def release(self, key: Hashable) -> None:
        """Forget the n-grams of a generation.

        Args:
            key: Identifies the generation.
        """
        self._places.pop(key, None)

    def _propose(self, ask: DraftRequest) -> list[int]:
        # Maps each n-gram that is followed by a token to the index after its latest occurrence.
        places, done = self._places.get(ask.key, ({}, 0))
        tokens = ask.tokens
        for end in range(done + 1, len(tokens)):
            for n in self._lengths:
                if n <= end:
                    places[tuple(tokens[end - n : end])] = end
        self._places[ask.key] = places, len(tokens) - 1
        for n in self._lengths:
            at = places.get(tuple(tokens[-n:])) if n < len(tokens) else None
            if at is not None:
                return tokens[at : at + min(self.n, ask.max_tokens)]
        return []


class DraftModel:
    """Drafts the most likely tokens of a smaller model with the same vocabulary.

    Its context is created when a scheduler first uses it, with the length, the number of sequences
    and the `kv_cells` of the scheduler's context, and again if a later scheduler needs a larger one
    while no generation uses it. Calls from several threads are serialised.

    Generations share no cells of this context, so it can be full while the scheduler's context is
    not, for example if prompts have a long prefix in common. A generation for which there is no
    room continues without drafts. Its text is the same; a larger `kv_cells` avoids this.

    Args:
        model: The draft model.
        n: Max draft tokens per step.
        p_min: Drafting stops at a token with a lower probability than this.
        options: More arguments of the draft model's Context. With `n_ctx`, `n_seq_max` or `kv` among
            them, `kv_cells` has the default of Context.

    Raises:
        ValueError: A number is out of range. On use: the vocabulary differs from that of the
            verifying model.
    """

    def __init__(
        self, model: Model, n: SupportsIndex = 4, p_min: float = 0.0, **options: object
    ) -> None:
        expect_model(model, "DraftModel")
        self.n = integer(n, "DraftModel: n", 1)
        self.p_min = number(p_min, "DraftModel: p_min", 0, 1)
        self.acceptance = Acceptance()
        self._model = model
        self._options = options
        self._ctx: Context | None = None
        # n_ctx, n_seq_max and kv_cells that the context was created for
        self._size: tuple[int, ...] = (0, 0, 0)
        self._held: dict[Hashable, tuple[Sequence, list[int]]] = {}
        self._without_room: set[Hashable] = set()
        self._lock = threading.RLock()

    def attach(self, ctx: Context) -> None:
        """Create the draft context, unless there is one that is large enough or in use.

        Args:
            ctx: The context that verifies the drafts.

        Raises:
            ValueError: The vocabularies differ.
        """
        expect_context(ctx, "attach")
        names = ("tokenizer.ggml.tokens", "tokenizer.ggml.model")
        if any(self._model.metadata.get(name) != ctx.model.metadata.get(name) for name in names):
            raise ValueError(
                "DraftModel: the draft model and the verifying model have different vocabularies"
            )
        # Not kv.n_cells: memories with windows or states have fewer cells than their sequences have tokens.
        n_cells = ctx._options.get("kv_cells") or ctx.n_ctx * ctx.n_seq_max
        needed = (ctx.n_ctx + self.n, ctx.n_seq_max, n_cells + self.n * ctx.n_seq_max)
        size = tuple(map(max, self._size, needed))
        if size == self._size:
            return
        with self._lock:
            if self._held or size == self._size:
                return
            self.close()
            options: dict[str, object] = {"n_ctx": size[0], "n_seq_max": size[1], **self._options}
            if self._options.keys().isdisjoint(("n_ctx", "n_seq_max", "kv", "kv_cells")):
                options["kv_cells"] = size[2]
            self._ctx = Context(self._model, **options)  # type: ignore[arg-type]
            self._size = size

    def propose(self, asks: list[DraftRequest]) -> list[list[int]]:
        """Return for each generation the most likely continuation.

        Returns nothing for a generation for which the draft cache has no room, or after close().

        Args:
            asks: The generations.
        """
        drafts: dict[Hashable, list[int]] = {}
        with self._lock:
            if self._ctx is not None:
                drafts = self._draft_what_fits(self._ctx, asks)
        return [drafts.get(ask.key, []) for ask in asks]

    def release(self, key: Hashable) -> None:
        """Free the cells of a generation.

        Args:
            key: Identifies the generation.
        """
        with self._lock:
            self._without_room.discard(key)
            if key in self._held:
                self._held.pop(key)[0].close()

    def close(self) -> None:
        """Free the draft context. It is created again when a request that uses this drafter is submitted."""
        with self._lock:
            for key in [*self._held, *self._without_room]:
                self.release(key)
            self._size = (0, 0, 0)
            if self._ctx is not None:
                self._ctx.close()
                self._ctx = None

    def _draft_what_fits(self, ctx: Context, asks: list[DraftRequest]) -> dict[Hashable, list[int]]:
        """Draft for the generations for which the cache has room. The last ones get no drafts from then on."""
        fitting = [
            ask
            for ask in asks
            if ask.max_tokens > 0
            and ask.key not in self._without_room
            and len(ask.tokens) + self.n <= ctx.n_ctx
        ]
        while fitting:
            try:
                return self._draft(ctx, fitting)
            except CacheFull:
                key = fitting.pop().key
                self.release(key)
                self._without_room.add(key)
        return {}

    def _draft(self, ctx: Context, asks: list[DraftRequest]) -> dict[Hashable, list[int]]:
        drafts: dict[Hashable, list[int]] = {ask.key: [] for ask in asks}
        limits = {ask.key: min(self.n, ask.max_tokens) for ask in asks}
        news = {ask.key: self._unread(ctx, ask) for ask in asks}
        while news:
            rows = self._read(ctx, list(news.items()))
            tokens = {key: likeliest(row, self.p_min) for key, row in zip(news, rows, strict=True)}
            news = {}
            for key, token in tokens.items():
                if token is None:
                    continue
                drafts[key].append(token)
                if len(drafts[key]) < limits[key]:
                    news[key] = [token]
        return drafts

    def _unread(self, ctx: Context, ask: DraftRequest) -> list[int]:
        """Return the tokens that the draft sequence must process, at least one, after removing rejected ones."""
        if ask.key not in self._held:
            self._held[ask.key] = (ctx.sequence(), [])
        seq, held = self._held[ask.key]
        n = min(len(held), len(ask.tokens) - 1)
        same = next((i for i in range(n) if held[i] != ask.tokens[i]), n)
        if same < len(held):
            same -= seq.rewind(same)
            del held[same:]
        return ask.tokens[same:]

    def _read(self, ctx: Context, reads: list[tuple[Hashable, list[int]]]) -> list[Row]:
        """Return the logits after the last token of each generation."""
        rows: list[Row] = []
        for call in in_calls([len(tokens) for _, tokens in reads], ctx.n_batch):
            batch = Batch()
            for i, begin, end in call:
                key, tokens = reads[i]
                last = end == len(tokens)
                batch.add_sequence(
                    tokens[begin:end], seq=self._held[key][0], logits="last" if last else "none"
                )
            rows += list(ctx.decode(batch))
            for i, begin, end in call:
                key, tokens = reads[i]
                self._held[key][1].extend(tokens[begin:end])
        return rows


def likeliest(logits: Row, p_min: float) -> int | None:
    """Return the most likely token, or None if its probability is below `p_min`."""
    token = int(logits.argmax())
    if p_min > 0 and log_softmax(logits)[token] < math.log(p_min):
        return None
    return token


def in_calls(lengths: list[int], n_batch: int) -> list[list[tuple[int, int, int]]]:
    """Divide sequences of these lengths, in order, into calls of at most `n_batch` entries.

    Returns:
        For each call, the numbers of its sequences with the begin and end of the part of each.
    """
    calls: list[list[tuple[int, int, int]]] = []
    room = 0
    for i, length in enumerate(lengths):
        begin = 0
        while begin < length:
            if room == 0:
                calls.append([])
                room = n_batch
            end = min(length, begin + room)
            calls[-1].append((i, begin, end))
            room -= end - begin
            begin = end
    return calls
