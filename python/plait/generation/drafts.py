"""Guesses of what comes next, which the model then checks in one call (speculative decoding).

Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318. A guess is accepted where the sampler
draws that very token: what is said is the same, token by token, as without guesses. Where a guess is not itself drawn
at random, as here, no other rule accepts more often.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_model
from plait.context import Context
from plait.errors import CacheFull
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.model import Model


Row = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ask:
    """Whose next tokens to guess: `key` names a generation, `tokens` is all of it, `most` how many to guess."""

    key: Hashable
    tokens: list[int]
    most: int


@dataclass(slots=True)
class Acceptance:
    """How well guesses did: `drafted` tokens were guessed, `accepted` of them said, in `rounds` calls of the model."""

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0

    @property
    def rate(self) -> float:
        """Accepted tokens of those drafted; 0 where none was."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens said in a call of the model that had a guess to check."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


class Drafter(Protocol):
    """What Scheduler.submit(draft=...) takes. One object may serve any number of generations."""

    acceptance: Acceptance

    def attach(self, ctx: Context) -> None:
        """Called once for each scheduler, with the context that checks the guesses."""

    def propose(self, asks: list[Ask]) -> list[list[int]]:
        """For each the tokens that may follow, at most `most`, or none."""

    def release(self, key: Hashable) -> None:
        """This generation has ended."""


class PromptLookup:
    """Guesses that a text goes on as it did where its last tokens stood before: no second model is needed.

    Of the last `max_ngram` tokens down to `min_ngram`, the longest end that was there earlier decides, and of several
    places the latest. Good where answers repeat what they were asked about. Saxena 2023,
    https://github.com/apoorvumang/prompt-lookup-decoding

    Raises ValueError for numbers below 1 and a `min_ngram` above `max_ngram`.
    """

    def __init__(
        self,
        n: SupportsIndex = 8,
        max_ngram: SupportsIndex = 3,
        min_ngram: SupportsIndex = 2,
    ) -> None:
        self.n = operator.index(n)
        self._lengths = range(operator.index(max_ngram), operator.index(min_ngram) - 1, -1)
        if self.n < 1 or not self._lengths or self._lengths[-1] < 1:
            raise ValueError(
                f"PromptLookup: n is {n}, n-grams {min_ngram} to {max_ngram}; expected at least 1"
            )
        self.acceptance = Acceptance()
        self._places: dict[Hashable, tuple[dict[tuple[int, ...], int], int]] = {}

    def attach(self, ctx: Context) -> None:
        """Nothing: any model's tokens will do."""

    def propose(self, asks: list[Ask]) -> list[list[int]]:
        """For each the tokens that followed its last ones earlier."""
        return [self._propose(ask) for ask in asks]

    def release(self, key: Hashable) -> None:
        """Forget where this generation's n-grams stand."""
        self._places.pop(key, None)

    def _propose(self, ask: Ask) -> list[int]:
        # Where each n-gram last ended, for all that have a token after them.
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
                return tokens[at : at + min(self.n, ask.most)]
        return []


class DraftModel:
    """Guesses of a smaller model with the same vocabulary: its likeliest token, up to `n` times.

    It stops early where the likeliest token is less likely than `p_min`. The context is made when a scheduler comes,
    as long as the one it serves; `options` are more arguments of it. close() frees it.

    Raises ValueError for numbers out of range, and when it is used, for another vocabulary.
    """

    def __init__(
        self, model: Model, n: SupportsIndex = 4, p_min: float = 0.0, **options: object
    ) -> None:
        expect_model(model, "DraftModel")
        self.n = operator.index(n)
        self.p_min = float(p_min)
        if self.n < 1 or not 0 <= self.p_min <= 1:
            raise ValueError(
                f"DraftModel: n is {n} and p_min {p_min}, expected at least 1 and 0 to 1"
            )
        self.acceptance = Acceptance()
        self._model = model
        self._options = options
        self._ctx: Context | None = None
        self._held: dict[Hashable, tuple[Sequence, list[int]]] = {}

    def attach(self, ctx: Context) -> None:
        """Make its context, as long as `ctx` and for as many sequences."""
        names = ("tokenizer.ggml.tokens", "tokenizer.ggml.model")
        if any(self._model.metadata.get(name) != ctx.model.metadata.get(name) for name in names):
            raise ValueError("DraftModel: its vocabulary is not that of the model it guesses for")
        if self._ctx is None or self._ctx.closed:
            self._held.clear()
            options: dict[str, object] = {
                "n_ctx": ctx.n_ctx + self.n,
                "n_seq_max": ctx.n_seq_max,
                **self._options,
            }
            self._ctx = Context(self._model, **options)  # type: ignore[arg-type]

    def propose(self, asks: list[Ask]) -> list[list[int]]:
        """For each the model's likeliest continuation; none where its cache has no room."""
        drafts: list[list[int]] = [[] for _ in asks]
        try:
            self._draft(asks, drafts)
        except CacheFull:
            self._free()
        return drafts

    def release(self, key: Hashable) -> None:
        """Free the cells of this generation."""
        if key in self._held:
            self._held.pop(key)[0].close()

    def close(self) -> None:
        """Free the context. It is made again when it is needed."""
        self._free()
        if self._ctx is not None:
            self._ctx.close()

    def _free(self) -> None:
        while self._held:
            self._held.popitem()[1][0].close()

    def _draft(self, asks: list[Ask], drafts: list[list[int]]) -> None:
        ctx = self._ctx
        assert ctx is not None
        live = [i for i, ask in enumerate(asks) if ask.most > 0]
        news = {i: self._unread(asks[i]) for i in live}
        while live:
            rows = self._read(ctx, [(asks[i].key, news[i]) for i in live])
            going = []
            for i, row in zip(live, rows, strict=True):
                token = int(row.argmax())
                if self.p_min > 0 and log_softmax(row)[token] < math.log(self.p_min):
                    continue
                drafts[i].append(token)
                news[i] = [token]
                if len(drafts[i]) < min(self.n, asks[i].most):
                    going.append(i)
            live = going

    def _unread(self, ask: Ask) -> list[int]:
        """The tokens that its sequence has to read, at least one; what was guessed in vain is taken back."""
        assert self._ctx is not None
        if ask.key not in self._held:
            self._held[ask.key] = (self._ctx.sequence(), [])
        seq, held = self._held[ask.key]
        n = min(len(held), len(ask.tokens) - 1)
        same = next((i for i in range(n) if held[i] != ask.tokens[i]), n)
        if same < len(held):
            same -= seq.rewind(same)
            del held[same:]
        return ask.tokens[same:]

    def _read(self, ctx: Context, reads: list[tuple[Hashable, list[int]]]) -> list[Row]:
        """The logits after the last token of each."""
        rows: dict[Hashable, Row] = {}
        left = [(key, list(tokens)) for key, tokens in reads]
        while left:
            batch, room, answered, rest = Batch(), ctx.n_batch, [], []
            for key, tokens in left:
                part, more = tokens[:room], tokens[room:]
                room -= len(part)
                if part:
                    batch.add_sequence(
                        part, seq=self._held[key][0], logits="none" if more else "last"
                    )
                    answered += [] if more else [key]
                if more:
                    rest.append((key, more))
            out = ctx.decode(batch)
            rows.update(zip(answered, out, strict=True))
            left = rest
        for key, tokens in reads:
            self._held[key][1].extend(tokens)
        return [rows[key] for key, _ in reads]
