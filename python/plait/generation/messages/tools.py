"""Tools: JSON schemas of Python functions, from their signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

from plait.arguments import kind

_SCALARS: Final[Mapping[Any, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip
_SECTION: Final = re.compile(r"^(\w+):\s*$")
_ARGUMENT: Final = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function, as chat templates and OpenAI's API expect it.

    Names, types and defaults come from the signature, descriptions from the docstring in Google's style.

    Args:
        function: A function whose parameters have type hints: str, int, float, bool, None, list, tuple, dict, Literal,
            Enum, Optional and unions of those, or Any. A parameter without a hint may have any type.

    Returns:
        {"type": "function", "function": {"name", "description", "parameters"}}.

    Raises:
        TypeError: The value is not a function, a type has no JSON schema, or a parameter cannot be passed by name.

    Example:
        def weather(city: str, days: int = 1) -> str:
            \"\"\"Return the weather forecast.\"\"\"

        tool_schema(weather)["function"]["parameters"]["required"]    # ["city"]
    """
    if not callable(function):
        raise TypeError(f"tool_schema: expected a function, got {kind(function)}")
    name = getattr(function, "__name__", type(function).__name__)
    hints = typing.get_type_hints(inspect.unwrap(function)) if inspect.isroutine(function) else {}
    summary, described = _docstring(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"tool_schema: the function {name} has the parameter {key}, which cannot be passed by name; replace it "
                f"by named parameters"
            )
        schema = _schema_of(hints.get(key, Any), f"tool_schema: {name}: {key}")
        if key in described:
            schema["description"] = described[key]
        properties[key] = schema
        if parameter.default is parameter.empty:
            required.append(key)
        elif isinstance(parameter.default, str | int | float | bool):
            schema["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": summary, "parameters": parameters},
    }


def schemas_of(tools: Iterable[Any] | None, where: str = "tools") -> list[dict[str, Any]] | None:
    """Return the JSON schemas of tools; None for None.

    Args:
        tools: JSON schemas, which are returned as they are, or Python functions.
        where: Start of error messages.

    Raises:
        TypeError: A tool is neither a mapping nor a function.
    """
    if tools is None:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"{where}: expected a list of JSON schemas or functions, got {kind(tools)}")
    found = []
    for tool in tools:
        if isinstance(tool, Mapping):
            found.append(dict(tool))
        elif callable(tool):
            found.append(tool_schema(tool))
        else:
            raise TypeError(
                f"{where}: expected a list of JSON schemas (dicts) or functions; it contains {kind(tool)}"
            )
    return found


def functions_of(tools: Iterable[Any] | None) -> dict[str, Callable[..., Any]]:
    """Return the Python functions among tools, by name."""
    return {tool_schema(tool)["function"]["name"]: tool for tool in tools or () if callable(tool)}


def parameters_of(tools: Iterable[Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the parameters of tools, by name of the tool. Tools without a name are omitted."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in schemas_of(tools) or []:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            found[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    return found


def _schema_of(hint: Any, where: str) -> dict[str, Any]:
    if hint is Any or hint is inspect.Parameter.empty:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _schema_of(inner[0], where)
    if origin is Literal:
        return _choices(list(inner), where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choices([member.value for member in hint], where)
    if origin in (Union, types.UnionType):
        options = [_schema_of(one, where) for one in inner]
        if all(set(option) == {"type"} and isinstance(option["type"], str) for option in options):
            return {"type": [option["type"] for option in options]}
        return {"anyOf": options}
    if hint in (list, tuple, set) or origin in (list, set, Sequence, Iterable):
        return {"type": "array", "items": _schema_of(inner[0], where) if inner else {}}
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return {"type": "array", "items": _schema_of(inner[0], where)}
        items = [_schema_of(one, where) for one in inner]
        return {
            "type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)
        }  # fmt: skip
    if hint is dict or origin in (dict, Mapping):
        values = _schema_of(inner[1], where) if inner else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if typing.is_typeddict(hint):
        fields = typing.get_type_hints(hint)
        return {
            "type": "object",
            "properties": {key: _schema_of(one, where) for key, one in fields.items()},
            "required": sorted(hint.__required_keys__),
        }
    raise TypeError(
        f"{where}: the type {hint!r} has no JSON schema; use str, int, float, bool, list, dict, Literal or Enum, or "
        f"pass a JSON schema as the tool"
    )


def _choices(values: list[Any], where: str) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    if not kinds <= _SCALARS.keys():
        raise TypeError(f"{where}: the choices {values!r:.80} have no JSON schema; use strings")
    schema: dict[str, Any] = {"enum": values}
    return {"type": _SCALARS[kinds.pop()], **schema} if len(kinds) == 1 else schema


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section of a docstring, and the descriptions of its arguments."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section, key, depth = "", "", 0
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading is not None:
            section, key = heading[1], ""
            continue
        if not section:
            summary.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            indent = len(line) - len(line.lstrip())
            found = _ARGUMENT.match(line.strip())
            if found is not None and (not key or indent <= depth):
                key, depth = found[1], indent
                described[key] = found[2].strip()
            elif key:
                described[key] = f"{described[key]} {line.strip()}".strip()
    return "\n".join(summary).strip(), described
