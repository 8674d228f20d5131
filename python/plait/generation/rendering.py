"""Conversations as prompts, and replies as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.model import Model


@dataclass(frozen=True)
class Message:
    """A reply of a model.

    Attributes:
        content: The text.
        reasoning: Text of the model's reasoning, if its format separates it.
        tool_calls: Calls of tools.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[Any, ...] = ()


def render(
    model: Model,
    messages: Iterable[Mapping[str, Any]],
    tools: Iterable[Mapping[str, Any]] | None = None,
    *,
    template: str | None = None,
    **variables: Any,
) -> list[int]:
    """Return the prompt tokens of a conversation.

    Args:
        model: The model.
        messages: Mappings with a "role" and usually a "content".
        tools: JSON schemas of functions.
        template: Text of a Jinja template to use instead of that of the file.
        variables: More variables of the template.

    Raises:
        ValueError: The template rejects the messages.
        UnsupportedError: There is no template.
    """
    from plait.tokenizer.chat_template import KEY, ChatTemplate

    if template is not None:
        found = ChatTemplate({KEY: template}, model.tokenizer, name="template")
    else:
        found = model.chat_template
    text = found.render(messages, tools, **variables)
    ids: list[int] = model.tokenizer.encode(text, add_special=False).tolist()
    return ids


class Parser:
    """Converts the text of a reply to a message, piece by piece.

    Args:
        model: The model.
        tools: As given to render().
    """

    def __init__(self, model: Model, tools: Iterable[Mapping[str, Any]] | None = None) -> None:
        self._text: list[str] = []

    def feed(self, text: str) -> list[Any]:
        """Return what a piece of text adds to the message."""
        self._text.append(text)
        return [("content", text)] if text else []

    def finish(self) -> Message:
        """Return the message."""
        return Message("".join(self._text))
