"""Grammars of replies that call tools, in the format of a model family."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import string
from plait.errors import UnsupportedError
from plait.generation.messages import formats
from plait.generation.messages.parser import Parser
from plait.generation.messages.tools import parameters_of
from plait.generation.response_format import is_text

if TYPE_CHECKING:
    from plait.generation.grammar import Grammar
    from plait.model import Model

_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")  # schemas by name
_VALUES: Final = ("const", "enum", "default", "examples")  # no schemas


def tools_grammar(
    model: Model,
    tools: Iterable[Any],
    choice: str = "required",
    *,
    parallel: bool = True,
    template: str | None = None,
) -> Grammar:
    """Return the grammar of replies that call tools, in the format of the model's family.

    Args:
        model: The model.
        tools: The tools: JSON schemas or Python functions.
        choice: "required" for any of the tools, or the name of one.
        parallel: Whether several calls are allowed.
        template: Text of a Jinja template that is used instead of that of the file.

    Raises:
        ValueError: There are no tools, or none has that name.
        UnsupportedError: The format of the family is not based on JSON.
    """
    from plait.generation.grammar import Grammar  # imports llguidance

    known = parameters_of(tools)
    if choice != "required":
        if choice not in known:
            raise ValueError(f"tool_choice names the tool {choice!r}, which is not among the tools")
        known = {choice: known[choice]}
    if not known:
        raise ValueError("tool_choice requires a call, but there are no tools")
    write = _Writer(model, known, parallel)
    family = Parser(model, template=template).family
    return Grammar.lark(write.rules(family))


def chosen_format(
    model: Model,
    tools: Iterable[Any] | None,
    choice: str,
    response_format: Mapping[str, Any] | Grammar | None,
    template: str | None,
    what: str,
) -> Mapping[str, Any] | Grammar | None:
    """Return the form of a reply: `response_format`, or calls of tools if the choice requires them.

    Args:
        model: The model.
        tools: The tools.
        choice: "auto", "none", "required" or the name of a tool.
        response_format: As in Engine.stream().
        template: Text of a Jinja template that is used instead of that of the file.
        what: Name of the caller, for messages.

    Raises:
        ValueError: A call is required and there is another form, or as in tools_grammar().
        UnsupportedError: As in tools_grammar().
    """
    if string(choice, f"{what}: tool_choice") in ("auto", "none"):
        return response_format
    if response_format is not None and not is_text(response_format):
        raise ValueError(f"{what}: response_format and tool_choice exclude each other")
    return tools_grammar(model, tools or [], choice, template=template)


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's parameters without parameters that it does not name, unless it says otherwise."""
    closed = {"additionalProperties": False} if "properties" in parameters else {}
    return {**closed, **parameters}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references to itself are right after it was placed at a JSON pointer of another one."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, Mapping) or isinstance(schema.get("$id"), str):
        return schema  # references are relative to a schema with an id
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = place + value[1:]
        elif key in _NAMED and isinstance(value, Mapping):
            found[key] = {name: _moved(one, place) for name, one in value.items()}
        else:
            found[key] = value if key in _VALUES else _moved(value, place)
    return found


class _Writer:
    """Writes the rules of calls in llguidance's dialect of Lark."""

    def __init__(
        self, model: Model, tools: Mapping[str, Mapping[str, Any]], parallel: bool
    ) -> None:
        self._tokenizer = model.tokenizer
        self._tools = {name: _closed(parameters) for name, parameters in tools.items()}
        self._parallel = parallel

    def rules(self, family: str) -> str:
        mark, many = self._mark, "+" if self._parallel else ""
        if family in ("hermes", "qwen-coder", "glm"):
            call = f'{mark("<tool_call>")} "\\n" {self._objects()} "\\n" {mark("</tool_call>")}'
            more = ' ("\\n" call)*' if self._parallel else ""
            return f"start: call{more}\ncall: {call}\n"
        if family == "llama3":
            return f"start: {self._objects('parameters')}\n"
        if family == "json":
            return f"start: {self._objects()}\n"
        if family == "gemma":
            return f'start: "```json\\n" {self._objects()} "\\n```"\n'
        if family == "mistral":
            return f"start: {mark('[TOOL_CALLS]')} {self._array()}\n"
        if family == "granite":
            return f"start: {mark('<|tool_call|>')} {self._array()}\n"
        if family == "lfm2":
            return f"start: {mark('<|tool_call_start|>')} {self._array()} {mark('<|tool_call_end|>')}\n"
        if family == "deepseek":
            begin, end = formats.CALL
            calls = " | ".join(
                f"{mark(begin)} {_quoted(name)} {mark(formats.CALL_SEPARATOR)} {_json(schema)} {mark(end)}"
                for name, schema in self._tools.items()
            )
            return f"start: {mark(formats.CALLS[0])} call{many} {mark(formats.CALLS[1])}\ncall: {calls}\n"
        if family == "harmony":
            return "start: " + " | ".join(
                f"{mark('<|channel|>')} {_quoted('commentary to=functions.' + name + ' ')} "
                f'{mark("<|constrain|>")} "json" {mark("<|message|>")} {_json(schema)}'
                for name, schema in self._tools.items()
            )
        raise UnsupportedError(
            f"tool_choice: the format of the family {family} is not based on JSON, so its calls cannot be required"
        )

    def _mark(self, text: str) -> str:
        """Return a control token, or text if the mark is not a control token."""
        token = self._tokenizer.token_id(text)
        if token is not None and token in self._tokenizer.control_ids:
            return f"<[{token}]>"
        return _quoted(text)

    def _schema(self, key: str = "arguments", at: str = "#") -> dict[str, Any]:
        """Return the schema of a call. `at` is the JSON pointer to it in the whole schema."""
        one: list[dict[str, Any]] = []
        for name, schema in self._tools.items():
            place = at if len(self._tools) == 1 else f"{at}/anyOf/{len(one)}"
            parameters = _moved(schema, f"{place}/properties/{key}") or {"type": "object"}
            one.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, key: parameters},
                    "required": ["name", key],
                    "additionalProperties": False,
                }
            )
        return one[0] if len(one) == 1 else {"anyOf": one}

    def _objects(self, key: str = "arguments") -> str:
        return _json(self._schema(key))

    def _array(self) -> str:
        limit = {} if self._parallel else {"maxItems": 1}
        return _json({"type": "array", "items": self._schema(at="#/items"), "minItems": 1, **limit})


def _json(schema: Mapping[str, Any]) -> str:
    from plait.generation.grammar import WHITESPACE

    limited = {**(schema or {"type": "object"}), "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"%json {json.dumps(limited)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
