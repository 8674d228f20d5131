"""Execution of tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from plait.generation.messages.message import ToolCall


def result_message(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Execute a tool call, and return the message with its result.

    A str is the content as it is, another result is converted to JSON. If the tool is unknown or raises an exception,
    the content describes the error, so that the model can correct its call.

    Args:
        call: The call.
        functions: The functions of the tools by name.

    Returns:
        A message with the role "tool".
    """  # noqa: DOC501 - caught below
    try:
        if call.name not in functions:
            known = ", ".join(functions) or "none"
            raise LookupError(f"there is no tool {call.name!r}; the tools are: {known}")
        result = functions[call.name](**call.arguments)
        content = (
            result
            if isinstance(result, str)
            else json.dumps(result, ensure_ascii=False, default=str)
        )
    except Exception as error:  # whatever a function of the caller raises
        content = json.dumps({"error": f"{type(error).__name__}: {error}"}, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
