"""Any number of generations side by side in one context."""

from __future__ import annotations

import bisect
import itertools
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core
from plait._core import Batch
from plait.arguments import expect_context
from plait.closeable import Closeable
from plait.errors import CacheFull, UnsupportedError
from plait.generation.drafts import Ask, Drafter
from plait.generation.events import Event
from plait.generation.prefix_cache import PrefixCache
from plait.generation.prefix_tree import PrefixTree
from plait.generation.request import Request
from plait.generation.sampler import Sampler
from plait.generation.stops import StopStrings
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.context import Context
    from plait.tokenizer import Tokenizer

    Prompt = str | Items[int] | npt.NDArray[np.integer]

Row = npt.NDArray[np.float32]
Stop = str | SupportsIndex | Iterable[str | SupportsIndex]

_LOOK_AHEAD: Final = 64  # requests that are looked at while those before them wait for a prefix
_POOLED: Final = ("unified", "sliding", "hybrid", "cross")  # kinds where sequences share free cells


@dataclass(slots=True)
class _Part:
    """What a request has of a batch: tokens that it reads, then a guess of what follows."""

    request: Request
    n_read: int
    answered: bool  # whether its last token is among them
    guess: list[int] = field(default_factory=list)
    checkpoint: Sequence | None = None  # where memories go back to that cannot forget a part
    row: int = 0  # of its first logits

    def free(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()
            self.checkpoint = None


class Scheduler(Closeable):
    """Continues any number of prompts in one context: continuous batching.

    submit() takes prompts at any time, step() makes one call of the model for all of them, and gives the tokens that
    came of it. A step has a token of every generation under way, and pieces of prompts that are still being read, up to
    n_batch tokens; at most `chunk` of prompts where generations are under way, so that these need not wait long.

    Requests begin by priority, then in the order that they came; each unit of priority is worth `patience` other
    requests, so none waits for ever. One begins as soon as there is a sequence and room for its prompt. Where cells run
    out, the last by that order is set aside: its cells are freed, and later its tokens are computed again, with the
    same results.

    Prompts that begin alike compute the beginning once: a request starts as a fork of one that has read so far, and
    waits for one that is about to. What a generation held is kept while a waiting prompt begins with it; always with
    `keep_prefixes`, until cells or sequences are needed. `share_prefixes` False switches all of it off.

    Other sequences of the context are left alone. close(), or leaving a `with` block, ends everything. Calls from
    several threads take turns.

    `set_aside`: how often a request gave its cells to others. `failed`: the requests that failed in the last step.

    Raises ValueError for `chunk` and `patience` below 1.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        chunk: SupportsIndex | None = None,
        patience: SupportsIndex = 256,
        share_prefixes: bool = True,
        keep_prefixes: bool = False,
    ) -> None:
        expect_context(ctx, "Scheduler")
        self.chunk = ctx.n_ubatch if chunk is None else operator.index(chunk)
        self.patience = operator.index(patience)
        if self.chunk < 1 or self.patience < 1:
            raise ValueError(
                f"Scheduler: chunk is {self.chunk} and patience {self.patience}, expected at least 1"
            )
        self.set_aside = 0
        self.failed: list[Request] = []
        self._ctx = ctx
        self._tokenizer: Tokenizer = ctx.model.tokenizer
        self._pooled = ctx.kv.kind in _POOLED
        self._forgets_parts = ctx.kv.kind in ("unified", "streams")
        self._shares = bool(share_prefixes) or bool(keep_prefixes)
        self._lock = threading.RLock()
        self._inbox: deque[Request] = deque()
        self._cancelled: deque[Request] = deque()
        self._waiting: list[Request] = []  # by rank
        self._waiting_tree: PrefixTree[Request] = PrefixTree()
        self._active: list[Request] = []
        self._prefixes = PrefixCache(
            ctx, self._waiting_tree, share=self._shares, keep=bool(keep_prefixes)
        )
        self._drafters: list[Drafter] = []
        self._numbers = itertools.count()
        self._steps = 0
        self._closed = False

    # -- what users ask for ----------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        max_tokens: SupportsIndex = 128,
        *,
        sampler: Callable[..., int] | None = None,
        stop: Stop = (),
        priority: SupportsIndex = 0,
        top: SupportsIndex = 0,
        draft: Drafter | None = None,
        index: int | None = None,
        sample: int = 0,
        key: SupportsIndex | None = None,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Request:
        """Ask for a continuation; it begins in one of the next steps.

        Arguments are those of generate(). `priority`: the higher goes first. `index` and `sample` come back in the
        events; None: how many were submitted before. `key`: the sampler's name for the sequence; None: a number of its
        own, which the sampler forgets at the end.

        Raises ValueError for a prompt that is empty or longer than n_ctx, IndexError for ids outside the vocabulary.
        """
        number = next(self._numbers)
        ids = self._ids(
            prompt, f"prompt {number if index is None else index}", add_special, parse_special
        )
        limit = operator.index(max_tokens)
        if limit < 1:
            raise ValueError(f"generate: expected max_tokens of at least 1, got {limit}")
        strings, ends = stops_of(stop)
        if sampler is not None and not callable(sampler):
            raise TypeError(f"generate: expected a sampler to call, got {type(sampler).__name__}")
        if draft is not None and not hasattr(draft, "propose"):
            raise TypeError(f"generate: expected a draft that proposes, got {type(draft).__name__}")
        own = number if key is None else operator.index(key)
        if isinstance(sampler, Sampler):
            sampler.bind(self._tokenizer)
            sampler.start(own, ids)
        with self._lock:
            if self._closed:
                raise ValueError("submit: the scheduler is closed")
            if draft is not None and all(draft is not known for known in self._drafters):
                draft.attach(self._ctx)
                self._drafters.append(draft)
        request = Request(
            self, number, ids, min(limit, self._ctx.n_ctx - len(ids) + 1),
            index=number if index is None else index, sample=sample, key=own, own_key=key is None,
            priority=number / self.patience - operator.index(priority),
            ends=self._tokenizer.eog | ends, stops=StopStrings(strings),
            stream=self._tokenizer.stream(continuing=True), sampler=sampler, draft=draft,
            n_top=operator.index(top),
        )  # fmt: skip
        self._inbox.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request; see Request.cancel()."""
        if not isinstance(request, Request):
            raise TypeError(f"cancel: expected a Request, got {type(request).__name__}")
        self._cancelled.append(request)
        if self._lock.acquire(blocking=False):
            try:
                self._take_in()
                self._drop_cancelled()
            finally:
                self._lock.release()

    def step(self) -> list[Event]:
        """Call the model once; the tokens that came of it. None where nothing is left to do.

        A request that fails, in its sampler for one, ends alone: `failed` lists it and `error` tells why. What concerns
        all, as KeyboardInterrupt does, is raised and changes nothing.
        """
        with self._lock:
            self.failed = []
            self._steps += 1
            self._take_in()
            self._drop_cancelled()
            self._admit()
            parts = self._plan()
            try:
                logits = self._decode(parts)
                return [] if logits is None else self._interpret(parts, logits)
            finally:
                for part in parts:
                    part.free()

    def run(self) -> Iterator[Event]:
        """Steps until all is done. A request that fails raises its error."""
        while self.busy:
            yield from self.step()
            for request in self.failed:
                if request.error is not None:
                    raise request.error

    def close(self) -> None:
        """Cancel everything and free all cells. Harmless when closed."""
        with self._lock:
            self._closed = True
            # An interrupt may have left a request in some of what holds it, and not in the rest.
            left = [*self._inbox, *self._waiting, *self._active]
            for held in (
                self._inbox,
                self._waiting,
                self._active,
                self._waiting_tree,
                self._cancelled,
            ):
                held.clear()
            for request in left:
                self._prefixes.abandon(request)
                if not request.done:
                    self._finish(request, "cancelled")
            self._prefixes.clear()

    @property
    def busy(self) -> bool:
        """Whether there is something left to do."""
        return bool(self._inbox or self._waiting or self._active)

    @property
    def n_waiting(self) -> int:
        """Requests that have not begun or were set aside."""
        return len(self._waiting) + len(self._inbox)

    @property
    def n_active(self) -> int:
        """Requests that hold a sequence."""
        return len(self._active)

    @property
    def n_kept(self) -> int:
        """Sequences that are kept for their tokens alone."""
        return len(self._prefixes)

    @property
    def n_shared(self) -> int:
        """Tokens that were not computed because another sequence held them."""
        return self._prefixes.n_shared

    def __repr__(self) -> str:
        return f"<plait.Scheduler: {self.n_active} active, {self.n_waiting} waiting, {self.n_kept} kept>"

    # -- who takes part --------------------------------------------------------------------------------

    def _ids(self, prompt: Prompt, what: str, add_special: bool, parse_special: bool) -> list[int]:
        ids = encode(self._tokenizer, prompt, what, add_special, parse_special)
        if len(ids) > self._ctx.n_ctx:
            raise ValueError(
                f"generate: {what} has {len(ids)} tokens, the context holds n_ctx = {self._ctx.n_ctx}"
            )
        n_vocab = self._ctx.model.n_vocab
        for token in ids:
            if not 0 <= token < n_vocab:
                raise IndexError(
                    f"generate: {what}: id {token} is outside the vocabulary of {n_vocab} tokens"
                )
        return ids

    def _take_in(self) -> None:
        while self._inbox:
            self._wait(self._inbox.popleft())

    def _wait(self, request: Request) -> None:
        bisect.insort(self._waiting, request, key=lambda r: r.rank)
        if self._shares:
            self._waiting_tree.add(list(request.all), request)

    def _no_longer_waits(self, request: Request) -> None:
        at = bisect.bisect_left(self._waiting, request.rank, key=lambda r: r.rank)
        del self._waiting[at]
        if self._shares:
            self._waiting_tree.remove(request.all, request)

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.popleft()
            if request.done:
                continue
            if request.seq is None:
                self._no_longer_waits(request)
            self._end(request, "cancelled")

    def _admit(self) -> None:
        """Begin requests in order while there are sequences and cells for their prompts."""
        looked = 0
        while looked < len(self._waiting) and looked < _LOOK_AHEAD:
            request = self._waiting[looked]
            shared = self._prefixes.best(request.all)[1]
            if self._shares and self._prefixes.coming(request.all) > shared:
                looked += 1  # sooner ready if it waits
                continue
            if not self._has_room(request):
                if self._active:
                    break
                self._no_longer_waits(request)
                free, needed = self._ctx.kv.n_free, request.n_pending
                self._fail(
                    request,
                    CacheFull(
                        f"generate: prompt {request.index} has {needed} tokens, {free} cells are free",
                        needed, free,
                    ),
                )  # fmt: skip
                continue
            self._no_longer_waits(request)
            try:
                opened = self._prefixes.open(request)
            except BaseException:
                self._wait(request)
                raise
            if opened:
                self._active.append(request)
                continue
            if not self._active:
                self._fail(request, CacheFull("generate: no sequence of the context is free", 1, 0))
                continue
            self._wait(request)
            break
        self._prefixes.sweep()

    def _has_room(self, request: Request) -> bool:
        """Whether the cells are free that its prompt and the next tokens of the others need."""
        if not self._pooled:
            return True
        others = sum(max(r.n_pending, 1) for r in self._active)
        while True:
            holder, n = self._prefixes.best(request.all)
            if len(request.all) - n <= self._ctx.kv.n_free - others:
                return True
            if not self._prefixes.evict(but=holder) and (
                self._active or not self._prefixes.evict()
            ):
                return False

    def _set_aside(self, request: Request) -> None:
        self._active.remove(request)
        self._prefixes.close(request, useful=False)
        request.set_aside += 1
        self.set_aside += 1
        self._wait(request)

    def _end(self, request: Request, reason: str) -> None:
        """A request that no longer waits is done."""
        if request.seq is not None:
            self._active.remove(request)
            self._prefixes.close(request, useful=self._shares and reason in ("stop", "length"))
        self._finish(request, reason)

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        if isinstance(request.sampler, Sampler):
            if request.own_key:
                request.sampler.reset(request.key)
            else:
                request.sampler.start(request.key)
        if request.draft is not None:
            request.draft.release(request)

    def _fail(self, request: Request, error: BaseException) -> None:
        request.error = error
        self.failed.append(request)
        self._end(request, "error")

    # -- one call of the model -------------------------------------------------------------------------

    def _plan(self) -> list[_Part]:
        """Who reads what: the next token of those that speak first, then prompts in order."""
        for request in [r for r in self._active if r.n_pending < 1]:
            self._set_aside(request)  # a step was interrupted before its token was drawn
        in_turn = sorted(self._active, key=lambda r: (r.served, r.rank))
        speaking = [r for r in in_turn if r.n_pending == 1]
        reading = sorted((r for r in self._active if r.n_pending > 1), key=lambda r: r.rank)
        parts = [_Part(request, 1, True) for request in speaking[: self._ctx.n_batch]]
        room = self._ctx.n_batch - len(parts)
        for_prompts = min(room, self.chunk) if parts else room
        for request in reading:
            take = self._prefixes.until_branch(request, min(request.n_pending, for_prompts))
            if take < 1:
                break
            parts.append(_Part(request, take, take == request.n_pending))
            for_prompts -= take
            room -= take
        self._guess(parts, room)
        for part in parts:
            part.request.served = self._steps
        return parts

    def _guess(self, parts: list[_Part], room: int) -> None:
        """Guesses for those that ask for them, while the batch has room."""
        for drafter in self._drafters:
            asking = [
                p for p in parts if p.answered and p.request.draft is drafter and p.request.n_said
            ]
            if not asking:
                continue
            asks = []
            for part in asking:
                request = part.request
                left = min(request.limit - request.n_said - 1, self._ctx.n_ctx - len(request.all))
                share = room // len(asking)
                asks.append(Ask(request, request.all, max(0, min(left, share))))
            for part, ask, guess in zip(asking, asks, drafter.propose(asks), strict=True):
                part.guess = [operator.index(token) for token in guess[: ask.most]]
                room -= len(part.guess)
                if part.guess and not self._forgets_parts:
                    assert part.request.seq is not None
                    try:
                        part.checkpoint = part.request.seq.fork()
                    except CacheFull:
                        part.guess = []

    def _decode(self, parts: list[_Part]) -> Row | None:
        """The logits of all that are answered; whoever finds no room is set aside and no longer a part."""
        while parts:
            batch = Batch()
            row = 0
            for part in parts:
                request = part.request
                assert request.seq is not None
                tokens = request.all[request.n_held : request.n_held + part.n_read]
                wants = np.zeros(part.n_read + len(part.guess), np.bool_)
                wants[part.n_read - 1 :] = part.answered
                batch.add_sequence(tokens + part.guess, seq=request.seq, logits=wants)
                part.row = row
                row += int(wants.sum())
            try:
                out = self._ctx.decode(batch)
            except CacheFull as error:
                self._make_room(parts, error)
                continue
            for part in parts:
                part.request.n_held += part.n_read + len(part.guess)
                if not part.answered:
                    self._prefixes.branch(part.request)
            if out.logits is None and any(part.answered for part in parts):
                raise UnsupportedError("generate: the context gives no logits")
            logits: Row | None = out.logits
            return logits
        return None

    def _make_room(self, parts: list[_Part], error: CacheFull) -> None:
        """Give up what is needed least."""
        guessing = [part for part in parts if part.guess]
        if guessing:
            for part in guessing:
                part.guess = []
                part.free()
            return
        if self._prefixes.evict():
            return
        last = max(self._active, key=lambda r: r.rank)
        if len(self._active) > 1:
            self._set_aside(last)
        else:
            self._fail(last, error)
        parts[:] = [part for part in parts if part.request.seq is not None]

    def _interpret(self, parts: list[_Part], logits: Row) -> list[Event]:
        """Draw tokens; where a guess has the same, the next one too."""
        events = []
        live = [part for part in parts if part.answered]
        for part in live:
            if part.guess and part.request.draft is not None:
                part.request.draft.acceptance.drafted += len(part.guess)
                part.request.draft.acceptance.rounds += 1
        depth = 0
        while live:
            rows = [part.row + depth for part in live]
            picked = logits if len(rows) == len(logits) else logits[rows]
            going = []
            for part, row, drawn in zip(live, picked, self._draw(live, picked), strict=True):
                if isinstance(drawn, BaseException):
                    self._fail(part.request, drawn)
                    continue
                token, logprob = drawn
                agrees = depth < len(part.guess) and part.guess[depth] == token
                event = self._advance(part.request, token, logprob, row, more=agrees)
                events.append(event)
                if agrees and part.request.draft is not None:
                    part.request.draft.acceptance.accepted += 1
                if event.finish_reason is None and agrees:
                    going.append(part)
                elif part.guess and part.request.seq is not None:
                    self._take_back(part)
            live = going
            depth += 1
        return events

    def _draw(self, live: list[_Part], rows: Row) -> list[tuple[int, float] | BaseException]:
        """A token and its log-probability for each row, or why there is none."""
        drawn: list[tuple[int, float] | BaseException] = [RuntimeError()] * len(live)
        groups: dict[int, list[int]] = {}
        for i, part in enumerate(live):
            groups.setdefault(id(part.request.sampler), []).append(i)
        for members in groups.values():
            requests = [live[i].request for i in members]
            own = rows if len(members) == len(live) else rows[members]
            for i, result in zip(members, _draw_or_fail(requests, own), strict=True):
                drawn[i] = result
        return drawn

    def _advance(self, request: Request, token: int, logprob: float, row: Row, more: bool) -> Event:
        text, reason = request.advance(token, logprob)
        if reason is None and not more and self._is_full(request):
            text, reason = text + request.run_out(), "length"
        if reason is not None:
            self._end(request, reason)
        top = _top(row, request.n_top) if request.n_top else ()
        return Event(request.index, token, text, logprob, reason, request.sample, top)

    def _is_full(self, request: Request) -> bool:
        """Whether no cell is left for its next token, nor anybody who could give one."""
        return (
            self._ctx.kv.kind == "unified"
            and self._ctx.kv.n_free == 0
            and self._active == [request]
            and not len(self._prefixes)
        )

    def _take_back(self, part: _Part) -> None:
        """The sequence goes back to before the guess that was wrong."""
        request = part.request
        wanted = len(request.all) - 1
        if wanted >= request.n_held:
            return
        assert request.seq is not None
        part_lost = request.seq.rewind(wanted)
        request.n_held = wanted - part_lost


def stops_of(stop: Stop) -> tuple[list[str], frozenset[int]]:
    """Stop strings and stop tokens of one argument."""
    if isinstance(stop, str) or not isinstance(stop, Iterable):
        stop = (stop,)
    items = list(stop)
    strings = [item for item in items if isinstance(item, str)]
    return strings, frozenset(operator.index(i) for i in items if not isinstance(i, str))


def encode(
    tokenizer: Tokenizer, prompt: Prompt, what: str, add_special: bool, parse_special: bool
) -> list[int]:
    """The ids of a prompt, at least one."""
    if isinstance(prompt, str):
        ids: list[int] = tokenizer.encode(
            prompt, add_special=add_special, parse_special=parse_special
        ).tolist()
    elif hasattr(prompt, "__iter__"):
        ids = [operator.index(token) for token in prompt]
    else:
        raise TypeError(f"generate: {what}: expected str or token ids, got {type(prompt).__name__}")
    if not ids:
        raise ValueError(f"generate: {what} has no tokens")
    return ids


def _draw_or_fail(requests: list[Request], rows: Row) -> list[tuple[int, float] | BaseException]:
    """Draws for requests of one sampler. Where that fails, one by one: only those fail that have to."""
    try:
        tokens = _tokens(requests, rows)
        logprobs = _core.token_logprobs(rows, tokens)
        return list(zip(tokens, logprobs.tolist(), strict=True))
    except Exception as error:
        if len(requests) == 1:
            return [error]
    results: list[tuple[int, float] | BaseException] = []
    for i, request in enumerate(requests):
        results += _draw_or_fail([request], rows[i : i + 1])
    return results


def _tokens(requests: list[Request], rows: Row) -> list[int]:
    sampler = requests[0].sampler
    if sampler is None:
        tokens: list[int] = rows.argmax(axis=1).tolist()
        return tokens
    if isinstance(sampler, Sampler):
        drawn: list[int] = sampler.sample(rows, [request.key for request in requests]).tolist()
        return drawn
    return [int(sampler(row, seq=request.key)) for request, row in zip(requests, rows, strict=True)]


def _top(row: Row, n: int) -> tuple[tuple[int, float], ...]:
    logprobs = log_softmax(row)
    best = np.argsort(-row, kind="stable")[:n]
    return tuple((int(token), float(logprobs[token])) for token in best)
