"""Search instead of sampling: beam search, and the best of several generations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from plait._core import Batch
from plait.arguments import integer, number, renamed
from plait.context import Context, SharedContext, model_of
from plait.errors import UnsupportedError
from plait.generation.events import Completion
from plait.generation.generate import complete
from plait.generation.prompts import NoText, encode, require_fit, tokenizer_of
from plait.generation.sampler import Sampler
from plait.generation.stops import StopConditions, StopStrings
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.generation.drafts import Drafter
    from plait.generation.parameters import Limits, Samplers, Seeds
    from plait.generation.prompts import Prompt
    from plait.generation.stops import Stop
    from plait.model import Model
    from plait.progress import ProgressOption
    from plait.tokenizer import Tokenizer


_MAX_WIDTH = 1 << 16  # sequences of a context
_MAX_PENALTY = 10.0


@dataclass(slots=True)
class _Beam:
    seq: Sequence
    tokens: list[int]
    logprobs: list[float]

    @property
    def logprob(self) -> float:
        return math.fsum(self.logprobs)


def best_of(
    model: Model | Context | SharedContext,
    prompts: Prompt | Iterable[Prompt],
    n: SupportsIndex,
    max_tokens: Limits = 128,
    sampler: Samplers = None,
    *,
    stop: Stop | Iterable[Stop] = (),
    seed: Seeds = None,
    top_logprobs: SupportsIndex = 0,
    draft: Drafter | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    top: SupportsIndex | None = None,
) -> list[Completion]:
    """Return for each prompt the generation with the highest mean log-probability per token, of `n` generations.

    Args:
        model: As in generate().
        prompts: As in generate().
        n: Number of generations per prompt.
        max_tokens: As in generate().
        sampler: As in generate(), but None is Sampler().
        stop: As in generate().
        seed: As in generate().
        top_logprobs: As in generate().
        draft: As in generate().
        add_special: As in generate().
        parse_special: As in generate().
        progress: As in generate().
        top: Deprecated name of `top_logprobs`.

    Raises:
        ValueError: As in generate(), like its other exceptions.
        KeyboardInterrupt: As in complete().
    """
    found = complete(
        model, prompts, max_tokens, Sampler() if sampler is None else sampler, n=n, stop=stop, seed=seed,
        top_logprobs=renamed(top_logprobs, top, "top_logprobs", "top", "best_of"), draft=draft,
        add_special=add_special, parse_special=parse_special, progress=progress,
    )  # fmt: skip
    best: dict[int, Completion] = {}
    for one in found:
        if one.index not in best or one.mean_logprob > best[one.index].mean_logprob:
            best[one.index] = one
    return [best[index] for index in sorted(best)]


def beam_search(
    model: Model | Context | SharedContext,
    prompt: Prompt,
    width: SupportsIndex = 4,
    max_tokens: SupportsIndex = 128,
    *,
    length_penalty: SupportsFloat = 1.0,
    stop: Stop = (),
    add_special: bool = True,
    parse_special: bool = True,
) -> list[Completion]:
    """Find likely continuations with beam search.

    Each step keeps the `width` best beams; a beam that continues another is a fork of its sequence.
    The search ends when no unfinished beam can score higher than the worst of `width` finished
    ones. The score is log-probability / length ** length_penalty (Wu et al. 2016, arXiv:1609.08144,
    without its constant).

    Args:
        model: A Model or an Engine, for whose model a context is created; or a Context with `width` free sequences and
            an n_batch of at least `width`.
        prompt: Text or token ids.
        width: Number of beams, and max number of results.
        max_tokens: Max tokens to generate.
        length_penalty: Exponent of the length in the score; 0 prefers short continuations.
        stop: Strings and token ids that end a continuation, in addition to `tokenizer.eog`. The text ends before a stop
            string.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().

    Returns:
        Completions, best first. The finish reason is "stop", or "length" at max_tokens or n_ctx.

    Raises:
        ValueError: `width` or `max_tokens` is below 1, `width` exceeds n_batch, or the prompt is empty or longer than
            n_ctx.
        IndexError: A token id is outside the vocabulary.
        CacheFull: The context has too little free room.
        UnsupportedError: `stop` has strings, and the model file has no vocabulary.
    """
    source = model_of(model, "beam_search")
    size = integer(width, "beam_search: width", 1, _MAX_WIDTH)
    limit = integer(max_tokens, "beam_search: max_tokens", 1)
    penalty = number(length_penalty, "beam_search: length_penalty", -_MAX_PENALTY, _MAX_PENALTY)
    conditions = StopConditions.of(stop)
    conditions.check_ids(source.n_vocab)
    ids = encode(source, prompt, "the prompt", add_special, parse_special)
    tokenizer = tokenizer_of(source)
    if conditions.strings and tokenizer is None:
        raise UnsupportedError(
            "beam_search: stop has strings, but the model file has no vocabulary; pass token ids"
        )
    ends = _Ends(tokenizer, conditions)
    with ExitStack() as resources:
        if isinstance(model, Context):
            ctx = model
        else:
            n_ctx = len(ids) + limit
            if source.n_ctx_train:
                n_ctx = max(len(ids), min(n_ctx, source.n_ctx_train))
            ctx = Context(source, n_ctx=n_ctx, n_seq_max=size)
            resources.enter_context(closing(ctx))
        if size > ctx.n_batch:
            raise ValueError(
                f"beam_search: width is {size} but n_batch is {ctx.n_batch}; create the context with an n_batch of at "
                f"least {size}"
            )
        require_fit(ids, ctx.n_ctx, "beam_search: the prompt")
        limit = min(limit, ctx.n_ctx - len(ids) + 1)
        search = _Search(ctx, size, limit, penalty, ends)
        resources.callback(search.close)
        found = search.run(ids)
    return [
        Completion(
            0,
            0,
            tuple(beam.tokens),
            ends.text(beam.tokens)[0],
            tuple(beam.logprobs),
            reason,
            tuple(ids),
        )
        for beam, reason in found
    ]


class _Ends:
    """What ends a continuation: token ids and strings."""

    def __init__(self, tokenizer: Tokenizer | None, stop: StopConditions) -> None:
        self._tokenizer = tokenizer
        self._ids = (frozenset() if tokenizer is None else tokenizer.eog) | stop.ids
        self._strings = stop.strings

    def reached(self, tokens: list[int]) -> bool:
        """Return whether the last token ends a continuation."""
        return tokens[-1] in self._ids or (bool(self._strings) and self.text(tokens)[1])

    def text(self, tokens: list[int]) -> tuple[str, bool]:
        """Return the text of a continuation up to a stop string, and whether there is one."""
        stream = NoText() if self._tokenizer is None else self._tokenizer.stream(continuing=True)
        shown = tokens[:-1] if tokens[-1] in self._ids else tokens
        whole = "".join(stream.push(token) for token in shown) + stream.flush()
        stops = StopStrings(self._strings)
        text, stopped = stops.push(whole)
        return (text, True) if stopped else (text + stops.flush(), False)


class _Search:
    def __init__(self, ctx: Context, width: int, limit: int, penalty: float, ends: _Ends) -> None:
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
        for chunk in whole:
            batch = Batch()
            batch.add_sequence(chunk, seq=first.seq, logits="none")
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
        """Extend the live beams by one token: keep the best candidates and put aside those that end."""
        totals = logprobs + np.array([[beam.logprob] for beam in self._live])
        chosen: list[tuple[int, int]] = []
        # One candidate of each beam may end, so twice the width usually suffices.
        for parent, token in _best_first(totals, 2 * self._width):
            if len(chosen) == self._width:
                break
            if self._ends.reached([*self._live[parent].tokens, token]):
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
        """Return whether no candidate can score higher than the worst of the `width` best finished beams."""
        if len(self._done) < self._width or not chosen:
            return False
        worst = sorted((score for score, _, _ in self._done), reverse=True)[self._width - 1]
        highest = max(float(totals[parent, token]) for parent, token in chosen)
        # Log-probabilities only decrease, so the score at the greatest possible length is an upper bound.
        length = self._limit if self._penalty > 0 else len(self._live[0].tokens) + 1
        return self._score(highest, length) <= worst

    def _become(self, chosen: list[tuple[int, int]], logprobs: Any) -> None:
        parents = self._live
        kept = {parent for parent, _ in chosen}
        for i, beam in enumerate(parents):
            if i not in kept:
                beam.seq.close()
        self._live = [beam for i, beam in enumerate(parents) if i in kept]
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
                self._live.append(child)  # close() frees it if the next fork fails
        self._live = children


def _best_first(totals: Any, n: int) -> Iterator[tuple[int, int]]:
    """Yield the row and column of each finite number, largest first; of equal ones, in the order of the array.

    Args:
        totals: float64 (n_beams, n_vocab).
        n: Number of elements to sort at first. Whenever the caller needs more, twice as many are sorted.
    """
    flat = -totals.ravel()
    n_finite = int((flat < np.inf).sum())
    done = 0
    while done < n_finite:
        last = min(n, n_finite) - 1
        best = np.flatnonzero(flat <= np.partition(flat, last)[last])
        best = best[np.argsort(flat[best], kind="stable")]
        for place in best[done:].tolist():
            yield divmod(place, totals.shape[1])
        done, n = len(best), 2 * len(best)
