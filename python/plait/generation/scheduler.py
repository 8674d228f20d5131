"""Continuous batching: any number of generations in one context."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from plait.arguments import expect, expect_context, flag, integer, kind, renamed
from plait.arguments import number as to_number
from plait.closeable import Closeable
from plait.errors import CacheFull, UnsupportedError
from plait.generation.drafts import Drafter
from plait.generation.draws import Failure, Row, top_logprobs
from plait.generation.draws import token_id as token_id
from plait.generation.events import Event
from plait.generation.prefix_store import PrefixStore, store_of
from plait.generation.prompts import NoText, Prompt, encode, require_fit, tokenizer_of
from plait.generation.request import Request
from plait.generation.request_pool import RequestPool
from plait.generation.sampler import Sampler
from plait.generation.slices import (
    Slice,
    add_drafts,
    by_drafter,
    decode,
    draw_all,
    image_slices,
    prompt_shares,
)
from plait.generation.stops import Stop, StopConditions, StopStrings
from plait.generation.stored_prefixes import REMOVING_KINDS
from plait.vision.prompt import n_before_image, text_tokens

if TYPE_CHECKING:
    from plait.context import Context
    from plait.tokenizer import Tokenizer


class Scheduler(Closeable):
    """Generates from any number of prompts in one context, with continuous batching.

    submit() accepts prompts at any time. step() calls the model once for all requests and returns the new tokens. A
    step includes one token of every running generation, and parts of prompts that are still being processed, up to
    n_batch tokens in total.

    Requests start in order of priority, then of submission, as soon as a sequence and room for the prompt are free. If
    the cache runs out of cells, the last request in that order is preempted: its cells are freed, and its tokens are
    recomputed later with the same results.

    Common prefixes are computed once: a request starts as a fork of another one that has processed the prefix, and
    waits for one that is about to. The cells of a finished generation are kept while a waiting prompt starts with the
    same tokens.

    Other sequences of the context are not touched. close(), or leaving a `with` block, ends all requests. Calls from
    several threads are serialised.

    Args:
        ctx: The context.
        chunk: Max prompt tokens per step while generations are running, which limits their latency. None: n_ubatch.
        patience: Number of later requests that one unit of priority is worth; no request waits forever.
        share_prefixes: False to compute every prompt on its own.
        keep_prefixes: True to keep the cells of finished generations until their cells or sequences are needed.
        live: True if requests arrive at any time and other callers use the context. Prompts are then always processed
            in parts of at most `chunk` tokens, and a request waits for cells and sequences that others hold.
        prefixes: A PrefixStore, from which prefixes are loaded and where they are saved. One sequence of the context
            is reserved for it if there are several.

    Attributes:
        n_steps: Number of steps so far.

    Raises:
        ValueError: `chunk` or `patience` is below 1.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        chunk: SupportsIndex | None = None,
        patience: SupportsIndex = 256,
        share_prefixes: bool = True,
        keep_prefixes: bool = False,
        live: bool = False,
        prefixes: PrefixStore | None = None,
    ) -> None:
        expect_context(ctx, "Scheduler")
        self.chunk = ctx.n_ubatch if chunk is None else integer(chunk, "Scheduler: chunk", 1)
        self.patience = integer(patience, "Scheduler: patience", 1)
        share_prefixes = flag(share_prefixes, "Scheduler: share_prefixes")
        keep_prefixes = flag(keep_prefixes, "Scheduler: keep_prefixes")
        self._live = flag(live, "Scheduler: live")
        store = store_of(prefixes, "Scheduler")
        self.n_steps = 0
        self._ctx = ctx
        self._tokenizer = tokenizer_of(ctx.model)
        self._computed_images = False  # in the last step
        self._removes_tokens = ctx.kv.kind in REMOVING_KINDS
        self._lock = threading.RLock()
        self._changing = False  # whether the thread that holds _lock is changing requests
        self._submitting = threading.Lock()  # never held during a step; taken after _lock
        self._pool = RequestPool(
            ctx, share=share_prefixes, keep=keep_prefixes, live=self._live, store=store
        )
        self._numbers = itertools.count()
        self._closed = False

    # -- public methods --------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        max_tokens: SupportsIndex = 128,
        *,
        sampler: Callable[..., int] | None = None,
        stop: Stop | StopConditions = (),
        priority: SupportsIndex = 0,
        seed: SupportsIndex | None = None,
        top_logprobs: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
        draft: Drafter | None = None,
        index: int | None = None,
        sample: int = 0,
        key: SupportsIndex | None = None,
        add_special: bool = True,
        parse_special: bool = True,
        owner: object = None,
        since: float | None = None,
        shown: frozenset[int] = frozenset(),
        top: SupportsIndex | None = None,
    ) -> Request:
        """Submit a prompt; its generation starts in one of the next steps.

        Args:
            prompt: Text, token ids, or a list of token ids and ImageEmbeddings.
            max_tokens: Max tokens to generate.
            sampler: Chooses tokens, as in generate(). None is greedy.
            stop: Strings and token ids that end the generation, as in generate().
            priority: Requests with a higher priority start first.
            seed: Seed to use instead of that of the Sampler. None: the sampler's own.
            top_logprobs: Number of top log-probabilities to report per token.
            timeout: Seconds after which the generation ends with the finish reason "timeout". None: no limit.
            draft: Proposes draft tokens, as in generate().
            index: The index reported in events. None: the number of requests submitted before.
            sample: The sample reported in events.
            key: Identifies the sequence to the sampler. None: for a Sampler, the random numbers depend only on its
                seed, the prompt and `sample`; for other callables, a unique number.
            add_special: As in Tokenizer.encode().
            parse_special: As in Tokenizer.encode().
            owner: Stored as the attribute `owner` of the request.
            since: The time.monotonic() from which `timeout` and the timings count. None: now.
            shown: Ids of control tokens that are part of the text, as in Tokenizer.stream().
            top: Deprecated name of `top_logprobs`.

        Returns:
            A handle of the request.

        Raises:
            ValueError: The prompt is empty, a number is out of range, or the scheduler is closed.
            PromptTooLong: The prompt is longer than n_ctx; a ValueError.
            IndexError: A token id of the prompt or of `stop` is outside the vocabulary.
            TypeError: An argument has the wrong type.
        """
        number = next(self._numbers)
        name = f"prompt {number if index is None else index}"
        ids = encode(self._ctx.model, prompt, name, add_special, parse_special, images=True)
        require_fit(ids, self._ctx.n_ctx, f"generate: {name}")
        limit = integer(max_tokens, "generate: max_tokens", 1)
        rank = integer(priority, "generate: priority")
        index = number if index is None else integer(index, "generate: index")
        sample = integer(sample, "generate: sample")
        n_top = renamed(top_logprobs, top, "top_logprobs", "top", "submit")
        n_top = integer(n_top, "generate: top_logprobs", 0, self._ctx.model.n_vocab)
        seconds = None if timeout is None else to_number(timeout, "generate: timeout", 0)
        conditions = StopConditions.of(stop)
        self._check(conditions, sampler, draft)
        self._check_images(ids, name, draft)
        # Before the lock is taken, because grammars are compiled.
        sampler = ready_sampler(sampler, seed, self._tokenizer)
        if since is not None:
            since = to_number(since, "generate: since")
        own = number if key is None else integer(key, "generate: key", 0, (1 << 64) - 1)
        with self._submitting:
            if self._closed:
                raise ValueError("submit: the scheduler is closed")
            if draft is not None:
                draft.attach(self._ctx)
            if isinstance(sampler, Sampler):
                if key is None:
                    sampler, own = sampler.acquire(text_tokens(ids), sample)
                else:
                    sampler.start(own, text_tokens(ids))
            tokenizer = self._tokenizer
            request = Request(
                self, number, ids, min(limit, self._ctx.n_ctx - len(ids) + 1),
                index=index, sample=sample, key=own, own_key=key is None,
                priority=number / self.patience - rank,
                end_ids=(frozenset() if tokenizer is None else tokenizer.eog) | conditions.ids,
                stops=StopStrings(conditions.strings),
                stream=NoText() if tokenizer is None else tokenizer.stream(continuing=True, shown=shown),
                sampler=sampler, draft=draft, n_top=n_top, timeout=seconds, owner=owner, since=since,
            )  # fmt: skip
            self._pool.inbox.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request; see Request.cancel().

        Args:
            request: A request of this scheduler.

        Raises:
            TypeError: The value is not a Request.
            ValueError: The request is of another scheduler.
        """
        if not isinstance(request, Request):
            raise TypeError(f"cancel: request: expected a Request, got {kind(request)}")
        if request.scheduler is not self:
            raise ValueError("cancel: request belongs to another Scheduler")
        self._pool.cancelled.append(request)
        if self._lock.acquire(blocking=False):
            try:
                if not self._changing:
                    with self._exclusive():
                        self._pool.drop_cancelled()
            finally:
                self._lock.release()

    def step(self) -> list[Event]:
        """Call the model once for all requests.

        A request whose sampler raises, for example, ends alone: `failed` lists it, and its `error` holds the exception.
        An exception that concerns all requests, such as KeyboardInterrupt, is raised, and the next step continues.
        Tokens that a Sampler had drawn in the interrupted step are drawn again, with other random numbers.

        Returns:
            The new tokens, and the ends of requests at their timeouts. Empty if nothing is left to do.

        Raises:
            ValueError: The scheduler is closed. Or another caller changed the sequence of a running request, for
                example with `ctx.kv.clear()`, or replaced all sequences.
        """
        if self._closed:
            raise ValueError("step: the scheduler is closed")
        return [event for _, event in self.advance()]

    def advance(self) -> list[tuple[Request, Event]]:
        """Call the model once like step(), and return each event with its request."""
        with self._exclusive():
            self.n_steps += 1
            self._pool.update()
            slices = self._plan_step()
            try:
                logits = self._decode(slices)
                events = [] if logits is None else self._sample(slices, logits)
                expired, self._pool.expired = self._pool.expired, []
                return expired + events
            finally:
                for part in slices:
                    part.free()
                self._pool.drop_cancelled()

    def run(self) -> Iterator[Event]:
        """Yield the events of all steps until every request has finished.

        If a request fails, its exception is raised; its `error` is None then. Others that failed in the same step keep
        theirs, without tracebacks.
        """
        while self.busy:
            yield from self.step()
            for request in self.failed[1:]:
                if request.error is not None:
                    request.error = request.error.with_traceback(None)  # see Request.raise_error()
            for request in self.failed:
                request.raise_error()

    def close(self) -> None:
        """Cancel all requests and free their cells. Does nothing if already closed."""
        with self._exclusive():
            with self._submitting:
                self._closed = True
            self._pool.end_all("cancelled")
            self._pool.prefixes.end()

    def fail(self, error: BaseException) -> None:
        """End all requests with an error and free their cells, for example after a device has failed.

        Args:
            error: The error of the requests.
        """
        expect(error, BaseException, "fail: error", "an exception")
        with self._exclusive():
            self._pool.end_all("error", error)

    def take_ended(self) -> list[Request]:
        """Return the requests that have ended since the last call, for whatever reason. Requires `live`."""
        with self._lock:
            ended, self._pool.ended = self._pool.ended, []
        return ended

    @property
    def failed(self) -> list[Request]:
        """The requests that failed in the last step."""
        return self._pool.failed

    @property
    def n_preempted(self) -> int:
        """Number of preemptions so far."""
        return self._pool.n_preempted

    @property
    def busy(self) -> bool:
        """True while a request has not finished, or step() has not returned its last event."""
        pool = self._pool
        return bool(pool.inbox or pool.waiting or pool.active or pool.expired)

    @property
    def n_waiting(self) -> int:
        """Number of requests that have not started or were preempted."""
        return len(self._pool.waiting) + len(self._pool.inbox)

    @property
    def n_active(self) -> int:
        """Number of requests that hold a sequence."""
        return len(self._pool.active)

    @property
    def n_kept(self) -> int:
        """Number of sequences that are kept only for their prefixes."""
        return len(self._pool.prefixes)

    @property
    def n_shared(self) -> int:
        """Number of tokens that were not computed because another sequence held them."""
        return self._pool.prefixes.n_shared

    def __repr__(self) -> str:
        return f"<plait.Scheduler: {self.n_active} active, {self.n_waiting} waiting, {self.n_kept} kept>"

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock while requests change.

        Meanwhile, a sampler or a finalizer that runs in this thread may call cancel(), which must then end no request
        that is part of the step.
        """
        with self._lock:
            nested = self._changing
            try:
                self._changing = True
                yield
            finally:
                self._changing = nested

    def _check(
        self,
        stop: StopConditions,
        sampler: Callable[..., int] | None,
        draft: Drafter | None,
    ) -> None:
        n_vocab = self._ctx.model.n_vocab
        stop.check_ids(n_vocab)
        if stop.strings and self._tokenizer is None:
            raise UnsupportedError(
                "generate: stop has strings, but the model file has no vocabulary; pass token ids"
            )
        if sampler is not None and not callable(sampler):
            raise TypeError(f"generate: sampler: expected a callable, got {kind(sampler)}")
        members = () if draft is None else ("acceptance", "attach", "propose", "release")
        if missing := [name for name in members if not hasattr(draft, name)]:
            raise TypeError(
                f"generate: draft: expected a drafter, got {kind(draft)}, which lacks {', '.join(missing)}"
            )

    def _check_images(self, prompt: list[int], name: str, draft: Drafter | None) -> None:
        images = getattr(prompt, "images", {}).values()
        if images and draft is not None:
            raise UnsupportedError(f"generate: {name}: draft tokens after images are not supported")
        for image in images:
            limit = self._ctx.n_ubatch if image.both_directions else self._ctx.n_batch
            if len(image) > limit:
                option = "n_ubatch" if image.both_directions else "n_batch"
                raise CacheFull(
                    f"generate: {name}: an image has {len(image)} embeddings, but {option} is {limit}; create a "
                    f"context with a larger {option}, or a Vision with a smaller max_pixels",
                    len(image), limit,
                )  # fmt: skip

    # -- one step --------------------------------------------------------------------------------------

    def _plan_step(self) -> list[Slice]:
        """Choose what a step computes: tokens, or in turn with them the images of prompts."""
        for request in [r for r in self._pool.active if r.n_pending < 1]:
            self._pool.preempt(request)  # a step was interrupted before the next token was sampled
        images = image_slices(sorted(self._pool.active, key=lambda r: r.rank), self._image_room)
        slices = [] if images and not self._computed_images else self._plan_tokens()
        self._computed_images = bool(images) and not slices
        if self._computed_images:
            slices = images
        for part in slices:
            part.request.last_step = self.n_steps
        return slices

    @property
    def _image_room(self) -> int:
        return min(self.chunk, self._ctx.n_ubatch, self._ctx.n_batch)

    def _plan_tokens(self) -> list[Slice]:
        """Choose the tokens of a step: one of each generating request, then prompt tokens in order of rank."""
        with_text = [r for r in self._pool.active if r.next_image is None]
        by_turn = sorted(with_text, key=lambda r: (r.last_step, r.rank))
        generating = [r for r in by_turn if r.n_pending == 1]
        prefilling = sorted((r for r in with_text if r.n_pending > 1), key=lambda r: r.rank)
        slices = [Slice(request, 1, True) for request in generating[: self._ctx.n_batch]]
        room = self._ctx.n_batch - len(slices)
        prompt_room = min(room, self.chunk) if slices or self._live else room
        for request, share in prompt_shares(prefilling, prompt_room):
            if request.images:
                share = min(share, n_before_image(request.all, request.n_cached))
            n = self._pool.prefixes.until_branch(request, share)
            if n > 0:
                slices.append(Slice(request, n, n == request.n_pending))
                room -= n
        for asking in by_drafter(slices):
            try:
                room -= add_drafts(asking, room, self._ctx, self._removes_tokens)
            except Exception as error:
                for part in asking:
                    part.free()
                    self._pool.fail(part.request, error)
        return [part for part in slices if part.request.seq is not None]

    def _decode(self, slices: list[Slice]) -> Row | None:
        """Decode the slices and return the logits. If the cache is full, preempts requests and removes their slices."""
        while slices:
            try:
                out, readings = decode(self._ctx, slices)
            except CacheFull as error:
                self._make_room(slices, error)
                continue
            for part in slices:
                part.request.n_cached += part.n_pending + len(part.draft)
                self._pool.prefixes.processed(part.request)
            for reading in readings:
                try:
                    reading.report()
                except Exception as error:
                    self._pool.fail(reading.request, error)
            if out.logits is None and any(part.has_output for part in slices):
                raise UnsupportedError("generate: the context gives no logits")
            logits: Row | None = out.logits
            return logits
        return None

    def _make_room(self, slices: list[Slice], error: CacheFull) -> None:
        """Give up drafts, then a kept prefix, then the last active request."""
        with_draft = [part for part in slices if part.draft]
        if with_draft:
            for part in with_draft:
                part.draft = []
                part.free()
            return
        if self._pool.prefixes.evict():
            return
        last = max(self._pool.active, key=lambda r: r.rank)
        if len(self._pool.active) > 1 or self._pool.others_hold_cells(last):
            self._pool.preempt(last)
        else:
            self._pool.fail(last, error)
        slices[:] = [part for part in slices if part.request.seq is not None]

    def _sample(self, slices: list[Slice], logits: Row) -> list[tuple[Request, Event]]:
        """Sample the next token of each request, and further ones while they equal the draft."""
        events = []
        live = [part for part in slices if part.has_output and not part.request.done]
        for part in live:
            if part.draft and part.request.draft is not None:
                part.request.draft.acceptance.drafted += len(part.draft)
                part.request.draft.acceptance.rounds += 1
        depth = 0
        while live:
            rows = [part.row + depth for part in live]
            selected = logits if len(rows) == len(logits) else logits[rows]
            accepted = []
            for part, row, drawn in zip(live, selected, draw_all(live, selected), strict=True):
                if isinstance(drawn, Failure):
                    self._pool.fail(part.request, drawn.take())
                    continue
                token, logprob = drawn
                agrees = depth < len(part.draft) and part.draft[depth] == token
                try:
                    read = part.request.advance(token, logprob)
                except Exception as error:
                    self._pool.fail(part.request, error)
                    continue
                if not agrees or read[1] is not None:
                    self._roll_back(part)  # first, because _event() counts the free cells
                event = self._event(part.request, token, logprob, row, *read, more=agrees)
                events.append((part.request, event))
                if agrees and part.request.draft is not None:
                    part.request.draft.acceptance.accepted += 1
                if event.finish_reason is None and agrees:
                    accepted.append(part)
            live = accepted
            depth += 1
        return events

    def _event(
        self, request: Request, token: int, logprob: float, row: Row,
        text: str, reason: str | None, more: bool,
    ) -> Event:  # fmt: skip
        """Return the event of a token, and end its request if it was the last one."""
        if reason is None and not more and self._pool.is_full(request):
            text, reason = text + request.flush(), "length"
        top = top_logprobs(row, request.n_top) if request.n_top else ()
        if top:
            request.top_logprobs.append(top)
        if reason is not None:
            self._pool.end(request, reason)
        return Event(request.index, token, text, logprob, reason, request.sample, top)

    def _roll_back(self, part: Slice) -> None:
        """Remove the rejected draft tokens from the sequence."""
        request = part.request
        wanted = len(request.all) - 1
        if request.seq is None or wanted >= request.n_cached:
            return
        n_lost = request.seq.rewind(wanted)
        request.n_cached = wanted - n_lost


def ready_sampler(
    sampler: Callable[..., int] | None, seed: SupportsIndex | None, tokenizer: Tokenizer | None
) -> Callable[..., int] | None:
    """Return a sampler with a seed, if one is given, and bind it. May compile a grammar, which may take seconds.

    Raises:
        TypeError: A seed is given, but the sampler is not a Sampler.
        ValueError: The seed is out of range, the sampler is bound to another tokenizer, or its grammar cannot be
            compiled.
    """
    if seed is not None:
        number = integer(seed, "generate: seed", 0, (1 << 64) - 1)
        sampler = None if sampler is None else _reseeded(sampler, number)
    if isinstance(sampler, Sampler) and tokenizer is not None:
        sampler.bind(tokenizer)
    return sampler


def _reseeded(sampler: Callable[..., int], seed: int) -> Sampler:
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"generate: seed is given, but sampler is a {kind(sampler)}; only a plait.Sampler takes a seed"
        )
    return sampler if sampler.seed == seed else sampler.replace(seed=seed)
