"""Parser: converts the text of a reply to a message while it arrives."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import kind
from plait.errors import UnsupportedError
from plait.generation.messages.families import BY_NAME, Family, detect
from plait.generation.messages.formats import Options
from plait.generation.messages.message import Message, Part
from plait.generation.messages.reader import Reader, Reply
from plait.generation.messages.tools import parameters_of

if TYPE_CHECKING:
    from plait.model import Model

_N_OPENING: Final = (
    16  # last tokens of a prompt in which the opening mark of the reasoning is looked for
)


class Parser:
    """Converts the text of a reply to a message while it arrives, by the format of the model's family.

    The message is the same however the text is cut. Text that is not in the family's format, such as a tool call that
    is not valid JSON, becomes content.

    Args:
        model: A Model, whose chat template identifies the family; or the name of a family: "hermes", "qwen-coder",
            "llama3", "mistral", "gemma", "gemma4", "harmony", "deepseek", "glm", "lfm2", "granite" or "json".
        tools: The tools that the model may call, as given to render(). They determine the types of arguments in
            formats without types, and which bare JSON is a call.
        template: Text of a Jinja template that was used instead of that of the file.
        prompt: Token ids of the prompt. If it ends with the mark that opens the reasoning, as the templates of some
            models do, the reply starts with reasoning. Requires a Model.
        reasoning: Whether the reply starts with reasoning. None: determined from `prompt`.

    Attributes:
        family: Name of the family.
        shown: Ids of control tokens that are part of the format. The text must contain them; see Tokenizer.stream().

    Raises:
        ValueError: The family is unknown.

    Example:
        parser = Parser("hermes")
        for piece in pieces:
            for part in parser.feed(piece):
                print(part.kind, part.text)
        message = parser.finish()
    """

    def __init__(
        self,
        model: Model | str,
        tools: Iterable[Any] | None = None,
        *,
        template: str | None = None,
        prompt: Sequence[int] | None = None,
        reasoning: bool | None = None,
    ) -> None:
        family = _family_of(model, template)
        self.family = family.name
        self.shown: frozenset[int] = frozenset()
        if not isinstance(model, str):
            tokenizer = model.tokenizer
            ids = {tokenizer.token_id(mark) for mark in family.marks}
            self.shown = frozenset(token for token in ids if token is not None) - tokenizer.eog
            if prompt is not None and reasoning is None:
                end = tokenizer.decode(list(prompt[-_N_OPENING:]), skip_special=False)
                reasoning = end.rstrip().endswith(family.opening)
        self._reader = Reader()
        self._reply = Reply()
        self._steps = family.read(
            self._reader, self._reply, Options(parameters_of(tools), bool(reasoning))
        )
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._done = False
        self._message: Message | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def feed(self, text: str | bytes) -> list[Part]:
        """Add text.

        Args:
            text: The next piece of the reply. Bytes are UTF-8 and may be cut inside a character.

        Returns:
            What the message gains. Text that could still be the start of a mark is withheld.

        Raises:
            TypeError: The text is neither str nor bytes.
            ValueError: end() or finish() has been called.
        """
        if self._reader.ended:
            raise ValueError("Parser: the reply has ended; create a Parser for each reply")
        if isinstance(text, bytes | bytearray):
            text = self._decoder.decode(text)
        elif not isinstance(text, str):
            raise TypeError(f"Parser: text: expected a str or bytes, got {kind(text)}")
        self._reader.push(text)
        self._advance()
        return self._parts()

    def end(self) -> list[Part]:
        """End the text.

        Returns:
            What was withheld. Empty if the text has already ended.
        """
        if self._reader.ended:
            return []
        self._reader.push(self._decoder.decode(b"", final=True))
        self._reader.ended = True
        self._advance()
        self._reply.finish()
        return self._parts()

    def finish(self) -> Message:
        """End the text if end() has not been called, and return the message."""
        self.end()
        return Message("".join(self._content), "".join(self._reasoning), tuple(self._reply.calls))

    def _advance(self) -> None:
        if self._done:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._done = True

    def _parts(self) -> list[Part]:
        """Return the new parts, neighbours of a kind joined."""
        joined: list[Part] = []
        for part in self._reply.parts:
            if part.call is None and joined and joined[-1].kind == part.kind:
                joined[-1] = Part(part.kind, joined[-1].text + part.text)
            else:
                joined.append(part)
        self._reply.parts.clear()
        for part in joined:
            if part.call is None:
                (self._content if part.kind == "content" else self._reasoning).append(part.text)
        return joined


def _family_of(model: Model | str, template: str | None) -> Family:
    if isinstance(model, str):
        if model not in BY_NAME:
            raise ValueError(
                f"Parser: the family {model!r} is unknown; expected one of {', '.join(BY_NAME)}"
            )
        return BY_NAME[model]
    if template is None:
        try:
            template = model.chat_template.source
        except UnsupportedError:
            template = ""
    return detect(template)
