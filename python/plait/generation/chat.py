"""Chat: a conversation whose cached tokens are reused from turn to turn."""

from __future__ import annotations

import difflib
import inspect
import logging
import operator
import os
import re
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from plait.arguments import expect, integer, kind, string
from plait.closeable import Closeable, begun
from plait.context import Context, model_of
from plait.errors import CacheFull, ModelError
from plait.generation import saved_chat
from plait.generation.engine import Engine
from plait.generation.events import Event
from plait.generation.generate import generate
from plait.generation.messages import Message as Reply
from plait.generation.messages import Parser, render
from plait.generation.messages.calling import result_message
from plait.generation.messages.constrain import chosen_format
from plait.generation.messages.tools import functions_of, schemas_of
from plait.generation.response_format import begins_with_reasoning, formatted
from plait.generation.sampler import Sampler
from plait.generation.stops import Stop, StopConditions
from plait.generation.turns import Turn, common_length, turns_of
from plait.vision.parts import ImagePrompt, take_images
from plait.vision.prompt import text_tokens

if TYPE_CHECKING:
    from plait.generation.grammar import Grammar
    from plait.model import Model
    from plait.tokenizer.chat_template import ChatTemplate
    from plait.vision import Vision

Message = dict[str, Any]

_POLICIES: Final = ("error", "truncate", "shift")
_log = logging.getLogger("plait")


class Chat(Closeable):
    """A conversation whose turns compute only what is new.

    Each turn renders `messages` with the model's chat template and computes only the tokens after
    the longest prefix that is still cached. A turn therefore costs its own tokens, and an edit of
    `messages` costs the tokens after the edit.

    Conversations of one context or engine share what they have in common, such as the system
    message, and threads that talk in several of them at once share steps.

    If a conversation has more than n_ctx tokens, or than kv_cells if that is smaller, `full`
    decides what happens. Omitted messages and removed tokens are also logged (logger "plait",
    level WARNING).

    - "error": a turn that does not fit raises CacheFull, and nothing changes.
    - "truncate": if there is no room for an answer of max_tokens, or of a quarter of n_ctx, the
      model no longer sees the oldest messages after the system message. So many are omitted that
      the next one is a user message and a quarter of n_ctx is free. `n_left_out` counts them; they
      stay in `messages`.
    - "shift": half of the cached tokens after the system message are removed and later ones move
      up, also in the middle of an answer (see Sequence.shift()); fewer if those left would not fill
      a sliding window. `n_forgotten` counts the removed tokens. Requires a memory that can remove
      and shift tokens, which recurrent and hybrid ones cannot. Such a conversation has a sequence
      of its own and shares nothing.

    With "error" and "truncate", an answer that reaches n_ctx ends with the finish reason "length".

    Args:
        model: A Model, for which a context is created; a Context with a free sequence; or an Engine.
        system: Text of the system message. If the template rejects that role, the text is placed
            before the first user message, separated by an empty line.
        tools: Tools that the model may call: JSON schemas, or Python functions, which run()
            executes. The result of a call is a message with the role "tool".
        full: "error", "truncate" or "shift".
        max_tokens: Max tokens per answer.
        sampler: Chooses tokens, as in generate(). None is greedy.
        stop: Strings and token ids that end an answer, as in generate().
        template: Text of a Jinja template to use instead of that of the file.
        vision: The image encoder of the model. The content of messages may then be a list of parts:
            {"type": "text", "text": ...}, {"type": "image", "image": ...} with an image as for
            Vision.encode(), or {"type": "image_url", "image_url": {"url": ...}} with a data URL.
            `full` is "error" or "truncate". None: that of the Engine, if there is one.
        variables: More variables of the template.

    Attributes:
        messages: The conversation, a list of dicts with "role" and "content", which may be edited.
            Reasoning is in the key "reasoning_content", and calls of tools in "tool_calls".
        message: The last answer as a Message with its content, reasoning and tool_calls; None
            before the first one.
        tools: JSON schemas of the tools, or None.
        finish_reason: Why the last answer ended: "stop" or "length"; None if it was interrupted.
        n_left_out: Number of messages that the model no longer sees.

    Raises:
        ValueError: `full` is unknown.
        TypeError: An argument has the wrong type, or a variable that the template does not use is a
            misspelt parameter, or one of Sampler, stream(), Context, Engine or generate().
        IndexError: A token id in `stop` is outside the vocabulary.
        UnsupportedError: The file has no template, or `full` is "shift" and the memory cannot
            shift.
        ModelError: The template is invalid.
    """

    def __init__(
        self,
        model: Model | Context | Engine,
        system: str | None = None,
        *,
        tools: Iterable[Any] | None = None,
        full: str = "error",
        max_tokens: SupportsIndex = 512,
        sampler: Callable[..., int] | None = None,
        stop: Stop = (),
        template: str | None = None,
        vision: Vision | None = None,
        **variables: Any,
    ) -> None:
        source = model_of(model, "Chat")
        self.messages: list[Message] = []
        if system is not None:
            content = string(system, "Chat: system")
            self.messages.append({"role": "system", "content": content})
        given = list(tools) if isinstance(tools, Iterator) else tools  # it is read twice
        self.tools = schemas_of(given, "Chat: tools")
        self._functions = functions_of(given)
        self.message: Reply | None = None
        self.full = full
        self.max_tokens = integer(max_tokens, "Chat: max_tokens", 1)
        self.sampler = sampler
        self._check_attributes()
        self.n_left_out = 0
        self.finish_reason: str | None = None
        self._variables = variables
        stop = list(stop) if isinstance(stop, Iterator) else stop  # it is read twice
        self._stop = StopConditions.of(stop)
        self._stop.check_ids(source.n_vocab)
        self._given = {"stop": _as_list(stop), "template": template}
        self._streaming: weakref.ref[Generator[Event, None, None]] | None = None
        self._template = source.chat_template if template is None else _template(source, template)
        _check_variables(variables, self._template.source)
        self._model = source
        self._tokenizer = source.tokenizer
        if vision is None and full != "shift":
            vision = getattr(model, "vision", None)
        self._images = _images(vision, source, full)
        self._turns = turns_of(model, full == "shift")
        self._turn = 0
        self._shown_tools = self.tools
        if isinstance(sampler, Sampler):
            sampler.bind(self._tokenizer)

    def say(
        self,
        text: str | list[Any] | None = None,
        *,
        max_tokens: SupportsIndex | None = None,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tool_choice: str = "auto",
    ) -> str:
        """Send a user message and return the content of the answer; see stream().

        The reasoning and the tool calls of the answer are in `message`.

        Args:
            text: The user message, or the list of its parts. None answers `messages` as they are.
            max_tokens: Max tokens of the answer. None: as given to Chat.
            response_format: As in stream().
            tool_choice: As in stream().

        Returns:
            The content of the answer.

        Raises:
            ValueError: As in stream().
            CacheFull: As in stream().
        """
        for _ in self.stream(
            text, max_tokens=max_tokens, response_format=response_format, tool_choice=tool_choice
        ):
            pass
        assert self.message is not None
        return self.message.content

    def run(
        self,
        text: str | list[Any] | None = None,
        *,
        max_rounds: SupportsIndex = 8,
        max_tokens: SupportsIndex | None = None,
    ) -> Reply:
        """Send a user message, execute the tools that the model calls, and return its final answer.

        Only Python functions given as `tools` are executed. A call of an unknown tool, or one that
        raises an exception, is answered with a description of the error.

        Args:
            text: The user message, or the list of its parts. None answers `messages` as they are.
            max_rounds: Max answers with tool calls. After these, the last answer is returned with
                its calls not executed.
            max_tokens: Max tokens of each answer. None: as given to Chat.

        Returns:
            The last answer. The answers and results before it are in `messages`.

        Raises:
            ValueError: As in stream().
            CacheFull: As in stream().

        Example:
            chat = plait.Chat(model, tools=[weather])
            print(chat.run("What is the weather in Paris?").content)
        """
        for _ in range(integer(max_rounds, "Chat: max_rounds", 0)):
            self.say(text, max_tokens=max_tokens)
            assert self.message is not None
            if not self.message.tool_calls:
                return self.message
            self.messages += [
                result_message(call, self._functions) for call in self.message.tool_calls
            ]
            text = None
        self.say(text, max_tokens=max_tokens)
        assert self.message is not None
        return self.message

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages and settings to a JSON file, which load() reads.

        The sampler and Python functions are not saved; of functions, the schemas are.

        Args:
            path: The file, which is replaced.

        Raises:
            ValueError: A message, a tool or a variable is not JSON.
            OSError: The file cannot be written.
        """
        names = ("messages", "tools", "full", "max_tokens", "n_left_out")
        values = {name: getattr(self, name) for name in names}
        saved_chat.write(path, values | self._given | {"variables": self._variables})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: Model | Context | Engine,
        *,
        tools: Iterable[Any] | None = None,
        sampler: Callable[..., int] | None = None,
        vision: Vision | None = None,
    ) -> Chat:
        """Continue a conversation that save() wrote.

        Args:
            path: The file.
            model: As for Chat.
            tools: Tools to use instead of the saved schemas, such as the Python functions.
            sampler: As for Chat.
            vision: As for Chat. Images are saved if they are data URLs.

        Returns:
            The conversation; the next answer computes its tokens.

        Raises:
            ValueError: The file is not a saved conversation.
            OSError: The file cannot be read.
        """
        saved = saved_chat.read(path)
        if reserved := saved["variables"].keys() & _parameters(Chat.__init__):
            raise ValueError(
                f"Chat: load: {os.fspath(path)} is not a saved conversation: variables has {min(reserved)!r}, which is "
                f"a parameter of Chat"
            )
        chat = cls(
            model, tools=saved["tools"] if tools is None else tools, full=saved["full"],
            max_tokens=saved["max_tokens"], sampler=sampler, stop=saved["stop"],
            template=saved["template"], vision=vision, **saved["variables"],
        )  # fmt: skip
        chat.messages, chat.n_left_out = list(saved["messages"]), saved["n_left_out"]
        return chat

    def stream(
        self,
        text: str | list[Any] | None = None,
        *,
        max_tokens: SupportsIndex | None = None,
        response_format: Mapping[str, Any] | Grammar | None = None,
        tool_choice: str = "auto",
    ) -> Generator[Event, None, None]:
        """Send a user message and stream the answer token by token.

        The answer is appended to `messages` when it ends, even if it is interrupted. If the call
        raises, `messages` are as before.

        Args:
            text: The user message, or the list of its parts. None answers `messages` as they are.
            max_tokens: Max tokens of the answer. None: as given to Chat.
            response_format: Form of the answer, as in Engine.stream(). Requires llguidance.
            tool_choice: "auto"; "none", which omits the tools from the prompt; "required", which
                constrains the answer to calls of tools; or the name of a tool to call. The last two
                require llguidance, and a family whose calls are JSON.

        Returns:
            A generator of events, whose `parts` say what the text adds to the message. close()
            ends the answer.

        Raises:
            ValueError: The template rejects the messages, a number is out of range, another answer
                is being streamed, or another caller changed the sequence of the answer.
            UnsupportedError: The calls of the model's family cannot be constrained.
            CacheFull: The conversation does not fit; see `full`.
        """
        if self._turns.closed:
            raise ValueError("Chat: the chat is closed")
        self._check_attributes()
        if self._turns.shifts != (self.full == "shift"):
            raise ValueError(
                f"Chat: full was set to {self.full!r}; whether it is 'shift' cannot change, so create another Chat"
            )
        limit = integer(
            self.max_tokens if max_tokens is None else max_tokens, "Chat: max_tokens", 1
        )
        if text is not None and not isinstance(text, list):
            text = string(text, "Chat: text")
        running = None if self._streaming is None else self._streaming()
        if running is not None and inspect.getgeneratorstate(running) != inspect.GEN_CLOSED:
            raise ValueError(
                "Chat: another answer is being streamed; read it to its end or close() its iterator first"
            )
        template = self._template.source
        form = chosen_format(
            self._model, self.tools, tool_choice, response_format, template, "Chat"
        )
        sampler = formatted(self.sampler, form)
        if isinstance(sampler, Sampler):
            sampler.bind(self._tokenizer)
        self._shown_tools = None if tool_choice == "none" else self.tools
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        try:
            answer = self._answer(self._prompt(limit), limit, sampler)
        except BaseException:
            if text is not None:
                self.messages.pop()
            raise
        self._streaming = weakref.ref(answer)
        return answer

    def close(self) -> None:
        """Free the cells, and the context if Chat created it. Does nothing if already closed."""
        self._turns.close()

    @property
    def n_reused(self) -> int:
        """Number of tokens of the last prompt that were already cached."""
        return self._turns.n_reused

    @property
    def n_forgotten(self) -> int:
        """Number of tokens removed so far, if `full` is "shift"."""
        return self._turns.n_forgotten

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<plait.Chat of {len(self)} messages, full={self.full!r}>"

    def _check_attributes(self) -> None:
        """Raise an error for attributes that a caller set to invalid values."""
        expect(self.messages, list, "Chat: messages", "a list of dicts")
        if self.sampler is not None and not callable(self.sampler):
            raise TypeError(f"Chat: sampler: expected a callable, got {kind(self.sampler)}")
        if string(self.full, "Chat: full") not in _POLICIES:
            raise ValueError(
                f"Chat: full is {self.full!r}; it must be one of {', '.join(_POLICIES)}"
            )

    # -- from messages to tokens -----------------------------------------------------------------------

    def _prompt(self, limit: int) -> list[int]:
        """Return the tokens that the model sees, with room for an answer of at most `limit` tokens."""
        ids = self._rendered(self.messages)
        room = self._turns.room
        if self.full == "truncate":
            return self._truncated(ids, min(limit, room // 4))
        if self.full == "error" and len(ids) >= room:
            raise CacheFull(
                f"Chat: the conversation has {len(ids)} tokens, but {self._turns.limit} is {room}",
                len(ids), room,
            )  # fmt: skip
        return ids

    def _truncated(self, ids: list[int], n_answer: int) -> list[int]:
        """Return the tokens without the oldest turns.

        Turns that were omitted stay omitted, so the cached prefix stays valid.

        Returns:
            Token ids that leave room for an answer.

        Raises:
            CacheFull: The newest turn alone is too long.
        """
        room = self._turns.room
        if len(ids) + n_answer <= room:
            self.n_left_out = 0
            return ids
        first = 1 if self.messages and self.messages[0]["role"] == "system" else 0
        turns = [
            i for i, message in enumerate(self.messages) if i >= first and message["role"] == "user"
        ]
        current = first + self.n_left_out
        for start in turns[turns.index(current) :] if current in turns else turns:
            ids = self._rendered([*self.messages[:first], *self.messages[start:]])
            limit = room - n_answer if start == current else room - room // 4
            if len(ids) <= limit or (start == turns[-1] and len(ids) < room):
                if start != current:
                    self.n_left_out = start - first
                    _log.warning("chat: the %d oldest messages are left out", self.n_left_out)
                return ids
        raise CacheFull(
            f"Chat: the last message has {len(ids)} tokens with the system message, but {self._turns.limit} is {room}",
            len(ids),
            room,
        )

    def _rendered(self, messages: list[Message], **more: Any) -> list[int]:
        images: list[Any] = []
        try:
            if self._images is not None:
                messages, images = take_images(messages)
            ids = render(
                self._model,
                messages,
                self._shown_tools,
                template=self._template,
                placeholder=self._images.placeholder if self._images and images else None,
                **self._variables,
                **more,
            )
            return ids if self._images is None else self._images.insert(ids, images)
        except ModelError:
            raise
        except ValueError as error:
            raise ValueError(f"Chat: {str(error).removeprefix('render: ')}") from error

    def _n_system(self, prompt: list[int]) -> int:
        """Return how many leading tokens are the system message."""
        if self.full != "shift" or not self.messages or self.messages[0]["role"] != "system":
            return 0
        try:
            alone = self._rendered(self.messages[:1], add_generation_prompt=False)
        except ValueError:
            return 0  # the template requires a user message
        return common_length(alone, prompt)

    # -- the answer ------------------------------------------------------------------------------------

    def _answer(
        self, prompt: list[int], limit: int, sampler: Callable[..., int] | None
    ) -> Generator[Event, None, None]:
        """Compute the prompt and return the events of the answer."""
        parser = Parser(
            self._model, self._shown_tools, template=self._template.source,
            prompt=text_tokens(prompt), reasoning=begins_with_reasoning(sampler),
        )  # fmt: skip
        turn = Turn(
            self._turn, prompt, self._n_system(prompt), limit, sampler, self._stop, parser.shown
        )
        events = self._turns.start(turn)
        self._turn += 1
        return begun(self._parsed(events, parser))

    def _parsed(
        self, events: Generator[Event, None, None], parser: Parser
    ) -> Generator[Event | None, None, None]:
        """Yield None, as begun() requires, and then events with the parts of the message.

        At the end, the message is appended to `messages`.
        """
        self.finish_reason = None
        try:
            yield None
            for event in events:
                parts = parser.feed(event.text)
                if event.finish_reason is not None:
                    self.finish_reason = event.finish_reason
                    parts += parser.end()
                yield replace(event, parts=tuple(parts))
        finally:
            events.close()
            self.message = parser.finish()
            self.messages.append(self.message.to_dict())


def _as_list(stop: Stop) -> list[str | int]:
    """Return a valid `stop` as a list that JSON can represent."""
    items = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else stop
    return [item if isinstance(item, str) else operator.index(item) for item in items]


def _images(vision: Vision | None, model: Model, full: str) -> ImagePrompt | None:
    if vision is None:
        return None
    if full == "shift":
        raise ValueError("Chat: full is 'shift', which a conversation with images does not support")
    return ImagePrompt(vision, model, "Chat")


def _check_variables(variables: Iterable[str], template: str) -> None:
    """Raise TypeError for what is no variable of the template but looks like a parameter."""
    places: tuple[tuple[Callable[..., Any], str], ...] = (
        (Sampler, "pass sampler=Sampler({}=...)"),
        (Chat.stream, "pass it to say() or stream()"),
        (Context, "pass Context(model, {}=...) in place of the model"),
        (Engine, "pass Engine(model, {}=...) in place of the model"),
        (generate, "it is a parameter of generate()"),
    )
    for name in variables:
        if re.search(rf"\b{re.escape(name)}\b", template):
            continue
        hints = [hint.format(name) for function, hint in places if name in _parameters(function)]
        hints += [
            f"did you mean {near}?"
            for near in difflib.get_close_matches(name, _parameters(Chat), 1, 0.8)
        ]
        if hints:
            raise TypeError(f"Chat() got an unexpected keyword argument {name!r}; {hints[0]}")


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a function."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def _template(model: Model, text: str) -> ChatTemplate:
    from plait.tokenizer.chat_template import KEY, ChatTemplate  # imports Jinja

    string(text, "Chat: template")

    return ChatTemplate({KEY: text}, model.tokenizer, name="template")
