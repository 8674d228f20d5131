"""The calls of an engine: what its callers wait for."""

from __future__ import annotations

import math
import numbers
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from plait.arguments import string
from plait.closeable import Closeable
from plait.generation.events import Completion, Event
from plait.generation.messages import Parser, render
from plait.generation.messages.constrain import chosen_format
from plait.generation.prompts import encode, tokenizer_of
from plait.generation.response_format import begins_with_reasoning, formatted
from plait.generation.scheduler import ready_sampler
from plait.generation.stepping import Call, Delivery, Stepper, TaskCall, ThreadCall
from plait.vision.parts import take_images
from plait.vision.prompt import text_tokens

if TYPE_CHECKING:
    from plait.context import Context
    from plait.generation.grammar import Grammar
    from plait.generation.request import Request
    from plait.vision.parts import ImagePrompt

_MAX_TOKENS: Final = 128  # as generate()
_MAX_REPLY: Final = 512  # as Chat


def prepared(
    ctx: Context,
    call: Replying,
    prompt: Any,
    *,
    images: ImagePrompt | None,
    max_tokens: SupportsIndex | None,
    sampler: Callable[..., int] | None,
    seed: SupportsIndex | None,
    response_format: Mapping[str, Any] | Grammar | None,
    tools: Iterable[Any] | None,
    tool_choice: str,
    template: str | None,
    variables: Mapping[str, Any] | None,
    add_special: bool,
    parse_special: bool,
    **parameters: Any,
) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens of the prompt and the parameters of Scheduler.submit().

    Args:
        ctx: The context.
        call: The call, which gets the parser of its message.
        prompt: As in Engine.stream(), like the rest.
        images: Inserts the images of messages. None: images are refused.
        max_tokens: As there.
        sampler: As there. The result has it with the seed, and with its grammar compiled, which may take seconds.
        seed: As there.
        response_format: As there.
        tools: As there.
        tool_choice: As there.
        template: As there.
        variables: As there.
        add_special: As there.
        parse_special: As there.
        parameters: More parameters of Scheduler.submit().

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Arguments exclude each other, or the prompt is empty.
    """
    model = ctx.model
    conversation = _messages(prompt)
    tool_choice = string(tool_choice, "Engine: tool_choice")
    if conversation is None and (
        tools is not None or template is not None or variables is not None or tool_choice != "auto"
    ):
        raise ValueError(
            "Engine: tools, tool_choice, template and variables apply to messages; the prompt is text or token ids"
        )
    functions = None if tools is None else list(tools)
    response_format = chosen_format(
        model, functions, tool_choice, response_format, template, "Engine"
    )
    sampler = formatted(sampler, response_format)
    if conversation is None:
        ids = encode(model, prompt, "the prompt", add_special, parse_special, images=True)
    else:
        functions = None if tool_choice == "none" else functions
        pictures: list[Any] = []
        if images is not None:
            conversation, pictures = take_images(conversation)
        ids = render(
            model,
            conversation,
            functions,
            template=template,
            placeholder=images.placeholder if images is not None and pictures else None,
            **dict(variables or {}),
        )
        if images is not None:
            ids = images.insert(ids, pictures, ctx.n_ctx)
        call.parser = Parser(
            model, functions, template=template, prompt=text_tokens(ids),
            reasoning=begins_with_reasoning(sampler),
        )  # fmt: skip
        parameters["shown"] = call.parser.shown
    if max_tokens is None:
        max_tokens = _MAX_TOKENS if conversation is None else _MAX_REPLY
    parameters["max_tokens"] = max_tokens
    parameters["sampler"] = ready_sampler(sampler, seed, tokenizer_of(model))
    parameters["index"] = 0
    return ids, parameters


class Replying(Call):
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


class ReplyingTask(Replying, TaskCall):
    """A call of a task."""


class ReplyingThread(Replying, ThreadCall):
    """A call of a thread."""


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


def reserve_blocking(stepper: Stepper, deadline: float = math.inf) -> None:
    """Wait until a place in the queue is reserved; see Stepper.reserve()."""
    opened = threading.Event()
    if stepper.reserve(opened.set, deadline):
        return
    try:
        opened.wait()
    except BaseException:
        stepper.release(opened.set)
        raise


def deadline_of(call: Call, timeout: object) -> float:
    """Return the time (monotonic) at which a call ends, infinite if the timeout is None or not a number."""
    return call.since + float(timeout) if isinstance(timeout, numbers.Real) else math.inf


def _result(request: Request | None) -> Completion:
    """Return the completion of a request that has ended, or raise its error."""
    assert request is not None
    request.raise_error()
    if request.finish_reason == "cancelled":
        raise RuntimeError("Engine: the engine was closed while the request was running")
    return request.completion()


def n_characters(prompt: Any) -> int:
    """Return the number of characters of a prompt. A token id counts as one."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, Mapping):
        return sum(map(n_characters, prompt.values()))
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], str | Mapping):
        return sum(map(n_characters, prompt))
    return len(prompt) if isinstance(prompt, Sized) else 0


def _messages(prompt: Any) -> list[Any] | None:
    """Return the messages of a prompt that is a conversation, else None."""
    if isinstance(prompt, str | bytes) or not isinstance(prompt, list | tuple):
        return None
    return (
        list(prompt)
        if any(isinstance(item, Mapping) or hasattr(item, "role") for item in prompt)
        else None
    )
