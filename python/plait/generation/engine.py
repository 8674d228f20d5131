"""Engine: one context that any number of tasks and threads generate in."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, SupportsFloat, SupportsIndex

from plait.arguments import flag, integer
from plait.closeable import begun
from plait.context import Context, SharedContext, model_of
from plait.generation.calls import (
    EngineBatch,
    ReplyingTask,
    ReplyingThread,
    deadline_of,
    n_characters,
    prepared,
    reserve_blocking,
)
from plait.generation.engine_stats import EngineStats
from plait.generation.events import Completion, Event
from plait.generation.prefix_store import PrefixStore
from plait.generation.prompts import Prompt
from plait.generation.sampler import binds_slowly
from plait.generation.scheduler import Scheduler
from plait.generation.stepping import Call, Stepper
from plait.generation.stops import Stop
from plait.vision.parts import ImagePrompt, has_images

if TYPE_CHECKING:
    from plait.generation.drafts import Drafter
    from plait.generation.grammar import Grammar
    from plait.model import Model
    from plait.vision.encoder import Vision

Conversation = Iterable[Mapping[str, Any]]

_MAX_N_CTX: Final = 16384  # length of the sequences of a context that an engine creates
_MAX_CELLS: Final = 16384  # cells of such a context
# Longer prompts are rendered, and grammars compiled, in another thread, so that the event loop does not wait.
_LONG_TEXT: Final = 1 << 14  # characters


class Engine(SharedContext):
    """Generates for any number of asyncio tasks and threads in one context, with continuous batching.

    A thread steps the context while there are requests. Each step generates one token of every running request and
    processes parts of new prompts, so that a short request does not wait for a long prompt. Common prefixes are
    computed once, and the cells of finished requests are kept for later ones until they are needed.

    Requests wait in a queue while sequences or cells are short. They start in order of priority, then of submission. If
    the cells run out, the last request in that order is preempted and recomputed later with the same result. The text
    of a request depends only on its prompt, parameters, seed and sample, and is the same as if it ran alone.

    An error of one request, such as an exception of its sampler or drafter, ends only that request. If a step
    fails as a whole, for example because a device was lost, all requests end with its error.

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
        vision: The image encoder of the model, for messages with images. close() does not close it.
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
        vision: Vision | None = None,
        **options: Any,
    ) -> None:
        self.model = model_of(model, "Engine")
        self.vision = vision
        self._images = None if vision is None else ImagePrompt(vision, self.model, "Engine")
        # Images wait for the encoder in a thread of their own, so that text does not wait for its threads.
        self._encoding = None if vision is None else ThreadPoolExecutor(1, "plait-images")
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
        tool_choice: str = "auto",
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
            prompt: Text; token ids, among which there may be ImageEmbeddings; or messages: mappings with "role" and
                "content". With a `vision`, the content may be a list of parts as for Chat, with images.
            max_tokens: Max tokens to generate. None: 128, or 512 for messages.
            sampler: Chooses tokens, as in generate(). None is greedy.
            stop: Strings and token ids that end the generation, as in generate().
            seed: Seed to use instead of that of the Sampler. None: the sampler's own.
            sample: Distinguishes generations of the same prompt and seed, which differ by their sample.
            top_logprobs: Number of top log-probabilities to report per token.
            response_format: Form of the text: a Grammar, or a mapping as in OpenAI's API: {"type": "text"},
                {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": ...}}.
            tools: Functions that the model may call, for messages: JSON schemas or Python functions.
            tool_choice: "auto"; "none", which omits the tools from the prompt; "required", which constrains the answer
                to calls of tools; or the name of a tool to call. The last two exclude `response_format`.
            template: Text of a Jinja template to use for messages instead of that of the file.
            variables: More variables of the template.
            priority: Requests with a higher priority start first.
            timeout: Seconds after which the generation ends with the finish reason "timeout". None: no limit.
            draft: Proposes draft tokens, as in generate().
            add_special: As in Tokenizer.encode(). Ignored for messages.
            parse_special: As in Tokenizer.encode(). Ignored for messages.

        Yields:
            An Event per token, and one for a timeout. The last one has the whole generation as its `completion`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The prompt is empty or longer than n_ctx, a number is out of range, or the engine is closed.
            IndexError: A token id is outside the vocabulary.
            CacheFull: The prompt does not fit into the empty cache.
            UnsupportedError: `tool_choice` requires a call, and the calls of the model's family cannot be constrained.
            RuntimeError: The engine was closed while the request was running.
        """
        call = await self._start_task(
            True,
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, seed=seed, sample=sample,
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, tool_choice=tool_choice,
            template=template, variables=variables, priority=priority, timeout=timeout, draft=draft,
            add_special=add_special, parse_special=parse_special,
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
        tool_choice: str = "auto",
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
            tool_choice: As in stream().
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
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, tool_choice=tool_choice,
            template=template, variables=variables, priority=priority, timeout=timeout, draft=draft,
            add_special=add_special, parse_special=parse_special,
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
        tool_choice: str = "auto",
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
            tool_choice: As in stream().
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
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, tool_choice=tool_choice,
            template=template, variables=variables, priority=priority, timeout=timeout, draft=draft,
            add_special=add_special, parse_special=parse_special,
        )  # fmt: skip
        return begun(self._events(call))

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
        tool_choice: str = "auto",
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
            tool_choice: As in stream().
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
            top_logprobs=top_logprobs, response_format=response_format, tools=tools, tool_choice=tool_choice,
            template=template, variables=variables, priority=priority, timeout=timeout, draft=draft,
            add_special=add_special, parse_special=parse_special,
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
        if self._encoding is not None:
            self._encoding.shutdown(wait=False)

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

    async def _start_task(self, streaming: bool, prompt: Any, **given: Any) -> ReplyingTask:
        self._check_open()
        call = ReplyingTask(streaming)
        given["images"] = self._images
        is_slow = (
            any(given[name] is not None for name in ("response_format", "tools", "template"))
            or n_characters(prompt) > _LONG_TEXT
            or binds_slowly(given["sampler"], given["seed"])
        )
        if self._encoding is not None and has_images(prompt):
            encoded = functools.partial(prepared, self._ctx, call, prompt, **given)
            ids, parameters = await asyncio.get_running_loop().run_in_executor(
                self._encoding, encoded
            )
        elif is_slow:
            ids, parameters = await asyncio.to_thread(prepared, self._ctx, call, prompt, **given)
        else:
            ids, parameters = prepared(self._ctx, call, prompt, **given)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        given_back = threading.Lock()  # acquired by the first that gives the place back

        def gate() -> None:
            try:
                loop.call_soon_threadsafe(_open, opened)
            except RuntimeError:  # the loop is closed
                if given_back.acquire(blocking=False):
                    self._stepper.release()

        if not self._stepper.reserve(gate, deadline_of(call, given["timeout"])):
            try:
                await opened
            except BaseException:  # also GeneratorExit, if the task is destroyed with its loop
                if given_back.acquire(blocking=False):
                    self._stepper.release(gate)
                raise
        self._stepper.submit(call, ids, **parameters)
        return call

    def _start_thread(self, streaming: bool, prompt: Any, **given: Any) -> ReplyingThread:
        self._check_open()
        call = ReplyingThread(streaming)
        ids, parameters = prepared(self._ctx, call, prompt, images=self._images, **given)
        reserve_blocking(self._stepper, deadline_of(call, given["timeout"]))
        self._stepper.submit(call, ids, **parameters)
        return call

    def _events(self, call: ReplyingThread) -> Generator[Event | None, None, None]:
        """Yield None, as begun() requires, and then the events of a call, which ends with the generator."""
        try:
            yield None
            ended = None
            while ended is None:
                _, events, ended = call.events.get()
                yield from call.events_of(events, ended)
        finally:
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
    call = ReplyingThread(True)
    reserve_blocking(engine._stepper)
    engine._stepper.submit(call, prompt, max_tokens=max_tokens, sampler=sampler, **parameters)
    return call, begun(engine._events(call))


def _open(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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
