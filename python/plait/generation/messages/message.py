"""A reply as data: content, reasoning and tool calls."""

from __future__ import annotations

import json
import secrets
import string
from dataclasses import dataclass, field
from typing import Any, Final

_ALPHABET: Final = string.ascii_letters + string.digits


def new_id() -> str:
    """Return a random id for a tool call: nine letters and digits, the form that Mistral's templates require."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model requests.

    Attributes:
        name: Name of the tool.
        arguments: Arguments by name.
        id: Identifies the call in the message with its result. Not compared by ==.
    """

    name: str
    arguments: dict[str, Any]
    id: str = field(default_factory=new_id, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the call in the form of OpenAI's API, with the arguments as JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": arguments},
        }


@dataclass(frozen=True, slots=True)
class Part:
    """What a piece of text adds to a message.

    Attributes:
        kind: "content", "reasoning" or "tool_call".
        text: The added text; empty for a tool call.
        call: The tool call, if that is the kind. Calls are reported when they are complete.
    """

    kind: str
    text: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A reply of a model.

    Attributes:
        content: The text for the user.
        reasoning: The model's reasoning, if its format separates it from the content.
        tool_calls: Calls of tools, in order.
        role: The role, "assistant".
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    role: str = "assistant"

    def to_dict(self) -> dict[str, Any]:
        """Return the message as a dict for a list of messages, in the form of OpenAI's API.

        Reasoning is in the key "reasoning_content". Empty reasoning and tool calls are omitted.
        """
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return found
