"""Brings messages into the form that a chat template expects.

Clients send messages in the form of OpenAI's API: the arguments of tool calls are JSON text, and keys without a value
may be None. Most templates expect arguments as objects instead, which has to be found out by rendering a probe, and
test whether keys are present.
"""

from __future__ import annotations

import contextlib
import json
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import kind
from plait.generation.messages.message import Message

if TYPE_CHECKING:
    from plait.tokenizer.chat_template import ChatTemplate

_IMAGE: Final = {"type": "image"}
# message['content'] is none, message.content != None, message.get('content') is not none
_COMPARED_WITH_NONE: Final = re.compile(
    r"content['\"]?[\])]?\s*(?:is\s+(?:not\s+)?|[!=]=\s*)none\b", re.IGNORECASE
)
_PROBE: Final = {"probe_key": "probe_value"}  # arguments of a tool call

# For templates that have rendered tool calls, with or without tools: whether they expect arguments as text.
_expect_text: weakref.WeakKeyDictionary[ChatTemplate, dict[bool, bool]] = (
    weakref.WeakKeyDictionary()
)


def prepared(
    messages: Iterable[Mapping[str, Any] | Message],
    template: ChatTemplate,
    tools: bool,
    image_parts: bool,
) -> list[dict[str, Any]]:
    """Return messages in the form that a template expects.

    Args:
        messages: As in render().
        template: The template.
        tools: Whether tools are passed to the template.
        image_parts: Whether parts {"type": "image"} are passed to the template.

    Raises:
        ValueError: A message has no role, or a part of a content has no text.
        TypeError: A message, a content or a tool call has the wrong type.
    """
    found = [_checked(message, i, image_parts) for i, message in enumerate(messages)]
    for message in found:
        if message["role"] == "developer" and "developer" not in template.source:
            message["role"] = "system"
    calling = [message for message in found if "tool_calls" in message]
    if calling:
        as_text = _expects_text(template, tools)
        for message in calling:
            message["tool_calls"] = [_with_arguments(one, as_text) for one in message["tool_calls"]]
            if message["role"] == "assistant":
                message["content"] = message["content"] or _no_content(template)
    return found


def _checked(message: Any, index: int, image_parts: bool) -> dict[str, Any]:
    """Return a message without absent values, whose content is text or a list with images."""
    if isinstance(message, Message):
        message = message.to_dict()
    if not isinstance(message, Mapping):
        raise TypeError(f"render: message {index}: expected a mapping, got {kind(message)}")
    found = {key: value for key, value in message.items() if value is not None}
    if not isinstance(found.get("role"), str):
        raise ValueError(f'render: message {index} has no "role"')
    content = found.setdefault("content", "")
    if isinstance(content, list | tuple) and image_parts and _IMAGE in content:
        found["content"] = [
            part if part == _IMAGE else {"type": "text", "text": _part(part, index)}
            for part in content
        ]
    elif isinstance(content, list | tuple):
        found["content"] = "".join(_part(part, index) for part in content)
    elif not isinstance(content, str):
        raise TypeError(
            f"render: message {index}: content: expected a str or a list of parts, got {kind(content)}"
        )
    calls = found.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise TypeError(
                f"render: message {index}: tool_calls: expected a list of mappings or ToolCalls, got {kind(calls)}"
            )
        found["tool_calls"] = [_call(call, index) for call in calls]
    if found.get("reasoning_content") and not (calls and found["content"]):
        found.setdefault("thinking", found["reasoning_content"])
    return found


def _part(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError(
        f'render: message {index}: a part of the content has no "text"; expected {{"type": "text", "text": ...}}, '
        "or an image with vision=plait.Vision(...)"
    )


def _call(call: Any, index: int) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        if not hasattr(call, "to_dict"):
            raise TypeError(
                f"render: message {index}: tool_calls: expected mappings or ToolCalls, got {kind(call)}"
            )
        call = call.to_dict()
    return dict(call)


def _with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """Return a tool call whose arguments are JSON text or an object."""
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_arguments(call["function"], as_text)}
    arguments = call.get("arguments")
    if as_text and not isinstance(arguments, str):
        return {**call, "arguments": json.dumps(arguments or {}, ensure_ascii=False)}
    if not as_text and isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # the template shows the text
            return {**call, "arguments": json.loads(arguments or "{}")}
    return dict(call)


def _no_content(template: ChatTemplate) -> str | None:
    """Return the content of a message that has only tool calls: None for templates that compare with it."""
    return None if _COMPARED_WITH_NONE.search(template.source) else ""


def _expects_text(template: ChatTemplate, tools: bool) -> bool:
    """Return whether a template expects the arguments of tool calls as text, which is found out once."""
    known = _expect_text.setdefault(template, {})
    if tools not in known:
        as_object = _probed(template, tools, _PROBE)
        known[tools] = (
            # It raises an error, omits the arguments or writes them as Python does.
            (_PROBE["probe_key"] not in as_object or str(_PROBE) in as_object)
            and json.dumps(_PROBE) in _probed(template, tools, json.dumps(_PROBE))
        )
    return known[tools]


def _probed(template: ChatTemplate, tools: bool, arguments: Any) -> str:
    """Return the prompt of a conversation that calls a tool with these arguments; empty if it is refused."""
    function = {"name": "probe", "arguments": arguments}
    calls = [{"id": "probe0000", "type": "function", "function": function}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Call the tool."},
        {"role": "assistant", "content": _no_content(template), "tool_calls": calls},
    ]
    parameters = {"type": "object", "properties": {"probe": {"type": "string"}}, "required": []}
    schema = {"name": "probe", "description": "A tool.", "parameters": parameters}
    with contextlib.suppress(Exception):  # errors count in the caller's conversation only
        return template.render(
            messages,
            [{"type": "function", "function": schema}] if tools else None,
            add_generation_prompt=False,
        )
    return ""
