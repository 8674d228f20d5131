"""Engine: one context that any number of tasks and threads generate in."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, SupportsFloat, SupportsIndex

from plait.arguments import flag, integer
from plait.closeable import Closeable
from plait.context import Context, SharedContext, model_of
from plait.generation.engine_stats import EngineStats
from plait.generation.events import Completion, Event
from plait.generation.messages import Parser, render
from plait.generation.prefix_store import PrefixStore
from plait.generation.prompts import Prompt, encode
from plait.generation.response_format import formatted
from plait.generation.scheduler import Scheduler
from plait.generation.stepping import Call, Delivery, Stepper, TaskCall, ThreadCall
from plait.generation.stops import Stop

if TYPE_CHECKING:
    from plait.generation.drafts import Drafter
    from plait.generation.grammar import Grammar
    from plait.generation.request import Request
    from plait.model import Model

Conversation = Iterable[Mapping[str, Any]]

_MAX_TOKENS: Final = 128  # as generate()
_MAX_REPLY: Final = 512  # as Chat
_MAX_N_CTX: Final = 16384  # length of the sequences of a context that an engine creates
_MAX_CELLS: Final = 16384  # cells of such a context
_LONG_TEXT: Final = 1 << 14  # characters from which on a prompt is encoded in another thread


class Engine(SharedContext):
    """Generates for any number of asyncio tasks and threads in one context, with continuous batching.

    A thread steps the context while there are requests. Each step generates one token of every running request and
    processes parts of new prompts, so that a short request does not wait for a long prompt. Common prefixes are
    computed once, and the cells of finished requests are kept for later ones until they are needed.

    Requests wait in a queue while sequences or cells are short. They start in order of priority, then of submission. If
    the cells run out, the last request in that order is preempted and recomputed later with the same result. The text
    of a request depends only on its prompt, parameters, seed and sample, and is the same as if it ran alone.

    An error of one request, such as an exception of its sampler, ends only that request. If a step fails as a whole,
    for example because a device was lost, all requests end with its error.

    close(), or leaving a `with` block, ends all requests; so do the end of the interpreter and the deletion of the
    engine.

    Args:
        model: A Model, for which a context is created; or a Context, whose other sequences are not touched.
        n_seq_max: Max requests that run at a time, together with kept prefixes. Ignored for a Context.
        prefixes: False to share no prefixes between requests. None or True: share them, and keep those of finished
            requests. A PrefixStore: also load prefixes from it, and save those of prompts; one of `n_seq_max`
            sequences of a Context is reserved for that.
        n_ctx: Max length of a prompt with its generation, in tokens. None: the training length, at most 16384. Not for
            a Context.
        max_queued: Max number of waiting requests. Further callers wait until there is a place.
        chunk: Max prompt tokens per step, which limits the time of a step. None: n_ubatch.
        patience: Number of later requests that one unit of priority is worth; no request waits forever.
        options: More options of plait.Context, such as kv_cells, type_k, backend or threads. Not for a Context.

    Raises:
        TypeError: An argument has the wrong type, or options are given for a Context.
        ValueError: A number is out of range.

    Example:
        async def main():
            with plait.Engine(model) as engine:
                return await asyncio.gather(*(engine.complete(prompt) for prompt in prompts))
    """

    def __init__(
        self,
        model: Model | Context,
        n_seq_max: SupportsIndex = 32,
        prefixes: bool | PrefixStore | None = None,
        *,
        n_ctx: SupportsIndex | None = None,
        max_queued: SupportsIndex = 4096,
        chunk: SupportsIndex | None = None,
        patience: SupportsIndex = 256,
        **options: Any,
    ) -> None:
        self.model = model_of(model, "Engine")
        store = prefixes if isinstance(prefixes, PrefixStore) else None
        shares = prefixes is None or store is not None or flag(prefixes, "Engine: prefixes")
        limit = integer(max_queued, "Engine: max_queued", 1)
        n_seqs = integer(n_seq_max, "Engine: n_seq_max", 1)
        if isinstance(model, Context):
            if options or n_ctx is not None:
                given = ", ".join([*options, *(["n_ctx"] if n_ctx is not None else [])])
                raise TypeError(
                    f"Engine: {given}: options of a context cannot be given together with a Context; pass a Model, or "
                    f"create the context with these options"
                )
            self._ctx = model
        else:
            self._ctx = _context_for(self.model, n_seqs + (store is not None), n_ctx, options)
        owned = None if self._ctx is model else self._ctx
        try:
            self._scheduler = Scheduler(
                self._ctx,
                chunk=chunk,
                patience=patience,
                share_prefixes=shares,
                keep_prefixes=shares,
                live=True,
                prefixes=store,
            )
        except BaseException:
            if owned is not None:
                owned.close()
            raise
        self._stepper = Stepper(self._scheduler, limit, owned)
        self._pid = os.getpid()
        # Also runs at the end of the interpreter.
        self._end = weakref.finalize(self, _close_stepper, self._stepper, self._pid)

    @property
    def ctx(self) -> Context:
        """The context. Other sequences than those of the engine may be used at any time."""
        return self._ctx

    @property
    def stats(self) -> EngineStats:
        """Counters and times so far."""
        scheduler, closed = self._scheduler, self._ctx.closed
        return self._stepper.counters.snapshot(
            n_active=scheduler.n_active, n_queued=self._stepper.n_queued, n_preempted=scheduler.n_preempted,
            n_steps=scheduler.n_steps, n_cells=0 if closed else self._ctx.kv.n_cells,
            n_used_cells=0 if closed else self._ctx.kv.n_used,
        )  # fmt: skip

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._stepper.closing

    async def stream(
        self,
        prompt: Prompt | Conversation,
        max_tokens: SupportsIndex | None = None,
        sampler: Callable[..., int] | None = None,
        *,
        stop: Stop = (),
        seed: SupportsIndex | None = None,
        sample: int = 0,
        top_logprobs: SupportsIndex = 0,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tools: Iterable[Any] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
        draft: Drafter | None = None,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Generate, and yield every token as it is generated. If the task is cancelled, its cells are freed.

        Args:
            prompt: Text, token ids, or messages: mappings with "role" and "content".
            max_tokens: Max tokens to generate. None: 128, or 512 for messages.
            sampler: Chooses tokens, as in generate(). None is greedy.
            stop: Strings and token ids that end the generation, as in generate().
            seed: Seed to use instead of that of the Sampler. None: the sampler's own.
            sample: Distinguishes generations of the same prompt and seed, which differ by their sample.
            top_logprobs: Number of top log-probabilities to report per token.
            response_format: Form of the text: a Grammar, or a mapping as in OpenAI's API: {"type": "text"},
                {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": ...}}.
            tools: Functions that the model may call, for messages: JSON schemas or Python functions.
            template: Text of a Jinja template to use for messages instead of that of the file.
            variables: More variables of the template.
            priority: Requests with a higher priority start first.
            timeout: Seconds after which the generation ends with the finish reason "timeout". None: no limit.
            draft: Proposes draft tokens, as in generate().
            add_special: As in Tokenizer.encode(). Ignored for messages.
            parse_special: As in Tokenizer.encode(). Ignored for messages.

        Yields:
            An Event per token. The last one has the whole generation as its `completion`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The prompt is empty or longer than n_ctx, a number is out of range, or the engine is closed.
            IndexError: A token id is outside the vocabulary.
            CacheFull: The prompt does not fit into the empty cache.
            RuntimeError: The engine was closed while the request was running.
        """
        call = await self._start_task(
            True,
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, seed=seed, sample=sample,
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, template=template,
            variables=variables, priority=priority, timeout=timeout, draft=draft, add_special=add_special,
            parse_special=parse_special,
        )  # fmt: skip
        try:
            ended = None
            while ended is None:
                _, events, ended = await call.get()
                for event in call.events_of(events, ended):
                    yield event
        finally:
            self._stepper.cancel(call)

    async def complete(
        self,
        prompt: Prompt | Conversation,
        max_tokens: SupportsIndex | None = None,
        sampler: Callable[..., int] | None = None,
        *,
        stop: Stop = (),
        seed: SupportsIndex | None = None,
        sample: int = 0,
        top_logprobs: SupportsIndex = 0,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tools: Iterable[Any] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
        draft: Drafter | None = None,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Completion:
        """Generate, and return the whole generation. If the task is cancelled, its cells are freed.

        Args:
            prompt: As in stream().
            max_tokens: As in stream().
            sampler: As in stream().
            stop: As in stream().
            seed: As in stream().
            sample: As in stream().
            top_logprobs: As in stream().
            response_format: As in stream().
            tools: As in stream().
            template: As in stream().
            variables: As in stream().
            priority: As in stream().
            timeout: As in stream().
            draft: As in stream().
            add_special: As in stream().
            parse_special: As in stream().

        Returns:
            The generation.

        Raises:
            ValueError: As in stream(), like its other exceptions.
        """
        call = await self._start_task(
            False,
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, seed=seed, sample=sample,
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, template=template,
            variables=variables, priority=priority, timeout=timeout, draft=draft, add_special=add_special,
            parse_special=parse_special,
        )  # fmt: skip
        try:
            _, _, request = await call.get()
            return call.completion_of(request)
        finally:
            self._stepper.cancel(call)

    def stream_sync(
        self,
        prompt: Prompt | Conversation,
        max_tokens: SupportsIndex | None = None,
        sampler: Callable[..., int] | None = None,
        *,
        stop: Stop = (),
        seed: SupportsIndex | None = None,
        sample: int = 0,
        top_logprobs: SupportsIndex = 0,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tools: Iterable[Any] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
        draft: Drafter | None = None,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Generator[Event, None, None]:
        """Generate like stream(), from a thread.

        Args:
            prompt: As in stream().
            max_tokens: As in stream().
            sampler: As in stream().
            stop: As in stream().
            seed: As in stream().
            sample: As in stream().
            top_logprobs: As in stream().
            response_format: As in stream().
            tools: As in stream().
            template: As in stream().
            variables: As in stream().
            priority: As in stream().
            timeout: As in stream().
            draft: As in stream().
            add_special: As in stream().
            parse_special: As in stream().

        Returns:
            A generator of events. close() ends the generation.

        Raises:
            ValueError: As in stream(), like its other exceptions.
        """
        call = self._start_thread(
            True,
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, seed=seed, sample=sample,
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, template=template,
            variables=variables, priority=priority, timeout=timeout, draft=draft, add_special=add_special,
            parse_special=parse_special,
        )  # fmt: skip
        return self._events(call)

    def complete_sync(
        self,
        prompt: Prompt | Conversation,
        max_tokens: SupportsIndex | None = None,
        sampler: Callable[..., int] | None = None,
        *,
        stop: Stop = (),
        seed: SupportsIndex | None = None,
        sample: int = 0,
        top_logprobs: SupportsIndex = 0,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tools: Iterable[Any] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        priority: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
        draft: Drafter | None = None,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Completion:
        """Generate like complete(), from a thread.

        Args:
            prompt: As in stream().
            max_tokens: As in stream().
            sampler: As in stream().
            stop: As in stream().
            seed: As in stream().
            sample: As in stream().
            top_logprobs: As in stream().
            response_format: As in stream().
            tools: As in stream().
            template: As in stream().
            variables: As in stream().
            priority: As in stream().
            timeout: As in stream().
            draft: As in stream().
            add_special: As in stream().
            parse_special: As in stream().

        Returns:
            The generation.

        Raises:
            ValueError: As in stream(), like its other exceptions.
        """
        call = self._start_thread(
            False,
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, seed=seed, sample=sample,
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, template=template,
            variables=variables, priority=priority, timeout=timeout, draft=draft, add_special=add_special,
            parse_special=parse_special,
        )  # fmt: skip
        try:
            return call.completion_of(call.events.get()[2])
        finally:
            self._stepper.cancel(call)

    def batch(self) -> EngineBatch:
        """Return a scheduler whose requests run in this engine, for example for generate()."""
        self._check_open()
        return EngineBatch(self._ctx, self._stepper)

    def close(self) -> None:
        """End all requests and the thread. Does nothing if already closed."""
        self._end()

    def __repr__(self) -> str:
        if self.closed:
            return "<plait.Engine, closed>"
        return (
            f"<plait.Engine: {self._scheduler.n_active} running, {self._stepper.n_queued} queued>"
        )

    def _repr_html_(self) -> str:
        return self.stats._repr_html_()

    # -- starting requests -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "Engine: the engine was created in another process; create one in each process"
            )
        if self.closed:
            raise ValueError("Engine: the engine is closed")

    async def _start_task(self, streaming: bool, prompt: Any, **given: Any) -> _TaskCall:
        self._check_open()
        call = _TaskCall(streaming)
        if isinstance(prompt, str) and len(prompt) > _LONG_TEXT:
            ids, parameters = await asyncio.to_thread(self._prepared, call, prompt, **given)
        else:
            ids, parameters = self._prepared(call, prompt, **given)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()

        def gate() -> None:
            try:
                loop.call_soon_threadsafe(_open, opened)
            except RuntimeError:  # the loop is closed
                self._stepper.release()

        if not self._stepper.reserve(gate):
            try:
                await opened
            except asyncio.CancelledError:
                self._stepper.release(gate)
                raise
        self._stepper.submit(call, ids, **parameters)
        return call

    def _start_thread(self, streaming: bool, prompt: Any, **given: Any) -> _ThreadCall:
        self._check_open()
        call = _ThreadCall(streaming)
        ids, parameters = self._prepared(call, prompt, **given)
        reserve_blocking(self._stepper)
        self._stepper.submit(call, ids, **parameters)
        return call

    def _prepared(
        self,
        call: _Replying,
        prompt: Any,
        *,
        max_tokens: SupportsIndex | None,
        sampler: Callable[..., int] | None,
        response_format: Mapping[str, Any] | Grammar | None,
        tools: Iterable[Any] | None,
        template: str | None,
        variables: Mapping[str, Any] | None,
        add_special: bool,
        parse_special: bool,
        **parameters: Any,
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the tokens of the prompt and the parameters of the request."""
        conversation = _messages(prompt)
        if conversation is None:
            if tools is not None or template is not None or variables is not None:
                raise ValueError(
                    "Engine: tools, template and variables apply to messages; the prompt is text or token ids"
                )
            ids = encode(self.model, prompt, "the prompt", add_special, parse_special)
        else:
            functions = None if tools is None else list(tools)
            ids = render(
                self.model, conversation, functions, template=template, **dict(variables or {})
            )
            call.parser = Parser(self.model, functions, template=template, prompt=ids)
            parameters["shown"] = call.parser.shown
        if max_tokens is None:
            max_tokens = _MAX_TOKENS if conversation is None else _MAX_REPLY
        parameters["max_tokens"] = max_tokens
        parameters["sampler"] = formatted(sampler, response_format)
        parameters["index"] = 0
        return ids, parameters

    def _events(self, call: _ThreadCall) -> Generator[Event, None, None]:
        try:
            ended = None
            while ended is None:
                _, events, ended = call.events.get()
                yield from call.events_of(events, ended)
        finally:
            self._stepper.cancel(call)


class _Replying(Call):
    """A call that converts the text of its request to a message."""

    parser: Parser | None = None

    def events_of(self, events: list[Event], ended: Request | None) -> Iterator[Event]:
        """Yield events with the parts of the message, and the last one with the completion."""
        if ended is not None and not events:
            self.completion_of(ended)  # raises the error of the request
        for event in events:
            parts = () if self.parser is None else tuple(self.parser.feed(event.text))
            last = ended is not None and event is events[-1]
            if last and self.parser is not None:
                parts += tuple(self.parser.end())
            completion = self.completion_of(ended, parsed=True) if last else None
            if parts or completion is not None:
                event = replace(event, parts=parts, completion=completion)
            yield event

    def completion_of(self, request: Request | None, parsed: bool = False) -> Completion:
        """Return the completion of a request that has ended, or raise its error.

        Args:
            request: The request.
            parsed: Whether its text has been passed to the parser.
        """
        done = _result(request)
        if self.parser is None:
            return done
        if not parsed:
            self.parser.feed(done.text)
        return replace(done, message=self.parser.finish())


class _TaskCall(_Replying, TaskCall):
    pass


class _ThreadCall(_Replying, ThreadCall):
    pass


class EngineBatch(Closeable):
    """Requests of one caller that run in an engine. Has the methods of Scheduler that generate() uses.

    Args:
        ctx: The context of the engine.
        stepper: The thread of the engine.
    """

    def __init__(self, ctx: Context, stepper: Stepper) -> None:
        self._ctx = ctx
        self._stepper = stepper
        self._queue: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._calls: list[Call] = []

    def submit(self, prompt: list[int], max_tokens: SupportsIndex, **parameters: Any) -> Request:
        """Submit a prompt; see Scheduler.submit(). Waits while the queue of the engine is full."""
        call = ThreadCall(True, self._queue)
        reserve_blocking(self._stepper)
        request = self._stepper.submit(call, prompt, max_tokens=max_tokens, **parameters)
        self._calls.append(call)
        return request

    def run(self) -> Iterator[Event]:
        """Yield the events of all requests. If one fails, its exception is raised."""
        n_left = len(self._calls)
        while n_left:
            _, events, ended = self._queue.get()
            yield from events
            if ended is not None:
                _result(ended)
                n_left -= 1

    def close(self) -> None:
        """End the requests."""
        for call in self._calls:
            self._stepper.cancel(call)


def generate_ids(
    engine: Engine,
    prompt: list[int],
    max_tokens: int,
    sampler: Callable[..., int] | None,
    **parameters: Any,
) -> tuple[Call, Generator[Event, None, None]]:
    """Start a request of a thread with the parameters of Scheduler.submit().

    Returns:
        The call, and a generator of its events. close() ends the generation.
    """
    engine._check_open()
    call = _ThreadCall(True)
    reserve_blocking(engine._stepper)
    engine._stepper.submit(call, prompt, max_tokens=max_tokens, sampler=sampler, **parameters)
    return call, engine._events(call)


def reserve_blocking(stepper: Stepper) -> None:
    """Wait until a place in the queue is reserved."""
    opened = threading.Event()
    if stepper.reserve(opened.set):
        return
    try:
        opened.wait()
    except BaseException:
        stepper.release(opened.set)
        raise


def _result(request: Request | None) -> Completion:
    """Return the completion of a request that has ended, or raise its error."""
    assert request is not None
    if request.error is not None:
        raise request.error
    if request.finish_reason == "cancelled":
        raise RuntimeError("Engine: the engine was closed while the request was running")
    return request.completion()


def _open(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _messages(prompt: Any) -> list[Any] | None:
    """Return the messages of a prompt that is a conversation, else None."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, list | tuple):
        return None
    return (
        list(prompt)
        if any(isinstance(item, Mapping) or hasattr(item, "role") for item in prompt)
        else None
    )


def _context_for(
    model: Model, n_seqs: int, n_ctx: SupportsIndex | None, options: dict[str, Any]
) -> Context:
    if n_ctx is None:
        n_ctx = min(model.n_ctx_train or _MAX_N_CTX, _MAX_N_CTX)
    length = integer(n_ctx, "Engine: n_ctx", 1)
    if options.get("kv") != "streams":
        options = {"kv_cells": max(length, min(length * n_seqs, _MAX_CELLS))} | options
    return Context(model, n_ctx=length, n_seq_max=n_seqs, **options)


def _close_stepper(stepper: Stepper, pid: int) -> None:
    if os.getpid() == pid:  # a forked process has no such thread
        stepper.close()
