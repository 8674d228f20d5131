"""Generations looked for rather than drawn: beam search, and the best of several."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from plait._core import Batch
from plait.context import Context, model_of
from plait.generation.events import Completion
from plait.generation.generate import complete
from plait.generation.sampler import Sampler
from plait.generation.scheduler import encode
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.generation.scheduler import Prompt
    from plait.model import Model


@dataclass(slots=True)
class _Beam:
    seq: Sequence
    tokens: list[int]
    logprobs: list[float]

    @property
    def logprob(self) -> float:
        return math.fsum(self.logprobs)


def best_of(
    model: Model | Context,
    prompts: Prompt | Iterable[Prompt],
    n: SupportsIndex,
    max_tokens: SupportsIndex = 128,
    sampler: Callable[..., int] | None = None,
    **options: Any,
) -> list[Completion]:
    """For each prompt the likeliest of n generations: that with the highest mean log-probability of a token.

    `sampler`: None is Sampler(). Arguments and errors are those of generate().
    """
    found = complete(
        model, prompts, max_tokens, Sampler() if sampler is None else sampler, n=n, **options
    )
    best: dict[int, Completion] = {}
    for one in found:
        if one.index not in best or one.mean_logprob > best[one.index].mean_logprob:
            best[one.index] = one
    return [best[index] for index in sorted(best)]


def beam_search(
    model: Model | Context,
    prompt: Prompt,
    width: SupportsIndex = 4,
    max_tokens: SupportsIndex = 128,
    *,
    length_penalty: SupportsFloat = 1.0,
    stop: Iterable[SupportsIndex] = (),
    add_special: bool = True,
    parse_special: bool = True,
) -> list[Completion]:
    """The likeliest continuations that keeping the best `width` beginnings at every step finds, the best first.

    A beginning goes on as a fork of the one that it came from; those that are given up are freed. A continuation is
    done with a token of `tokenizer.eog` or `stop` ("stop"), or at max_tokens or n_ctx ("length"). They are ranked by
    log-probability / length ** length_penalty (Wu et al. 2016, arXiv:1609.08144, without its constant): 0 prefers
    short ones. The search ends when no beginning can come before the worst of `width` finished ones.

    `model` is a Model, for which a context is made, or a Context with `width` sequences left. Raises ValueError for a
    width or max_tokens below 1 and a prompt that is empty or does not fit, CacheFull where there is no room.
    """
    source = model_of(model, "beam_search")
    size, limit = operator.index(width), operator.index(max_tokens)
    penalty = float(length_penalty)
    if size < 1 or limit < 1:
        raise ValueError(
            f"beam_search: width is {size} and max_tokens {limit}, expected at least 1"
        )
    ids = encode(source.tokenizer, prompt, "the prompt", add_special, parse_special)
    ends = source.tokenizer.eog | {operator.index(token) for token in stop}
    with ExitStack() as closes:
        if isinstance(model, Context):
            ctx = model
        else:
            ctx = Context(source, n_ctx=len(ids) + limit, n_seq_max=size)
            closes.enter_context(closing(ctx))
        if len(ids) > ctx.n_ctx:
            raise ValueError(
                f"beam_search: the prompt has {len(ids)} tokens, the context holds n_ctx = {ctx.n_ctx}"
            )
        limit = min(limit, ctx.n_ctx - len(ids) + 1)
        search = _Search(ctx, size, limit, penalty, ends)
        closes.callback(search.close)
        found = search.run(ids)
    text = source.tokenizer
    return [_completion(text, beam, reason, ends) for beam, reason in found]


class _Search:
    def __init__(
        self, ctx: Context, width: int, limit: int, penalty: float, ends: frozenset[int]
    ) -> None:
        self._ctx = ctx
        self._width = width
        self._limit = limit
        self._penalty = penalty
        self._ends = ends
        self._live: list[_Beam] = []
        self._done: list[tuple[float, _Beam, str]] = []

    def run(self, prompt: list[int]) -> list[tuple[_Beam, str]]:
        first = _Beam(self._ctx.sequence(), [], [])
        self._live = [first]
        *whole, rest = [
            prompt[i : i + self._ctx.n_batch] for i in range(0, len(prompt), self._ctx.n_batch)
        ]
        for piece in whole:
            batch = Batch()
            batch.add_sequence(piece, seq=first.seq, logits="none")
            self._ctx.decode(batch)
        news = [rest]
        while self._live:
            batch = Batch()
            for beam, tokens in zip(self._live, news, strict=True):
                batch.add_sequence(tokens, seq=beam.seq, logits="last")
            self._expand(log_softmax(self._ctx.decode(batch).logits))
            news = [[beam.tokens[-1]] for beam in self._live]
        ranked = sorted(self._done, key=lambda done: -done[0])[: self._width]
        return [(beam, reason) for _, beam, reason in ranked]

    def close(self) -> None:
        for beam in self._live:
            beam.seq.close()

    def _expand(self, logprobs: Any) -> None:
        """One token more: of all continuations the best, those that end put aside."""
        n_vocab = logprobs.shape[1]
        totals = logprobs + np.array([[beam.logprob] for beam in self._live])
        # Each of the best may end, so twice as many are looked at.
        most = min(2 * self._width, int((totals > -np.inf).sum()))
        flat = -totals.ravel()
        best = np.argpartition(flat, most - 1)[:most]
        best = best[np.lexsort((best, flat[best]))]
        chosen: list[tuple[int, int]] = []
        for place in best.tolist():
            parent, token = divmod(place, n_vocab)
            if len(chosen) == self._width:
                break
            if token in self._ends:
                self._finish(parent, token, float(logprobs[parent, token]), "stop")
            else:
                chosen.append((parent, token))
        if len(self._live[0].tokens) + 1 >= self._limit:
            for parent, token in chosen:
                self._finish(parent, token, float(logprobs[parent, token]), "length")
            chosen = []
        if self._decided(totals, chosen):
            chosen = []
        self._become(chosen, logprobs)

    def _finish(self, parent: int, token: int, logprob: float, reason: str) -> None:
        beam = self._live[parent]
        done = _Beam(beam.seq, [*beam.tokens, token], [*beam.logprobs, logprob])
        self._done.append((self._score(done.logprob, len(done.tokens)), done, reason))

    def _score(self, logprob: float, length: int) -> float:
        return logprob / math.pow(length, self._penalty)

    def _decided(self, totals: Any, chosen: list[tuple[int, int]]) -> bool:
        """Whether what is going on can no longer come before the worst of the finished ones that count."""
        if len(self._done) < self._width or not chosen:
            return False
        worst = sorted((score for score, _, _ in self._done), reverse=True)[self._width - 1]
        highest = max(float(totals[parent, token]) for parent, token in chosen)
        # A log-probability only falls; dividing by the longest length makes the most of it.
        length = self._limit if self._penalty > 0 else len(self._live[0].tokens) + 1
        return self._score(highest, length) <= worst

    def _become(self, chosen: list[tuple[int, int]], logprobs: Any) -> None:
        parents = self._live
        heirs = {parent for parent, _ in chosen}
        for i, beam in enumerate(parents):
            if i not in heirs:
                beam.seq.close()
        self._live = [beam for i, beam in enumerate(parents) if i in heirs]
        children = []
        taken: set[int] = set()
        for parent, token in chosen:
            beam = parents[parent]
            seq = beam.seq.fork() if parent in taken else beam.seq
            taken.add(parent)
            child = _Beam(
                seq, [*beam.tokens, token], [*beam.logprobs, float(logprobs[parent, token])]
            )
            children.append(child)
            if seq is not beam.seq:
                self._live.append(child)  # for close(), should the next fork fail
        self._live = children


def _completion(tokenizer: Any, beam: _Beam, reason: str, ends: frozenset[int]) -> Completion:
    stream = tokenizer.stream(continuing=True)
    said = beam.tokens[:-1] if beam.tokens[-1] in ends else beam.tokens
    text = "".join(stream.push(token) for token in said) + stream.flush()
    return Completion(0, 0, tuple(beam.tokens), text, tuple(beam.logprobs), reason)
