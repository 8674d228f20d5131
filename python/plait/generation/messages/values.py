"""Tool calls in the notations of model families: JSON, Python calls, XML, and those of Gemma and GLM.

Each function returns None for text that is not a call; none raises.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from plait.generation.messages.message import ToolCall, new_id
from plait.generation.messages.schema import permitted_types, property_of

Schemas = Mapping[str, Mapping[str, Any]]  # parameters of the tools, by name of the tool
Calls = list[ToolCall] | None

_NAME: Final = re.compile(r"[\w.:/-]{1,256}")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_IDS: Final = ("id", "tool_call_id", "call_id")
_BETWEEN: Final = re.compile(r"[\s;,]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PARAMETER: Final = re.compile(
    r"<parameter=([^>\n]+)>(.*?)</parameter>(?=\s*(?:<parameter=|</function>|\Z))", re.DOTALL
)
_GLM_PAIR: Final = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL
)
_BROKEN: Final = (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError)


def call(name: Any, arguments: Any, identity: Any = None) -> ToolCall:
    """Return a tool call.

    Raises:
        ValueError: The name or the arguments are not those of a call.
    """
    if isinstance(arguments, str):
        arguments = loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(arguments, dict):
        raise ValueError("not a call")
    known = isinstance(identity, str) and identity
    return ToolCall(name, arguments, identity if known else new_id())


def loads(text: str) -> Any:
    """Parse JSON. Control characters in strings are accepted; NaN and numbers that overflow to infinity are not.

    Returns:
        The value.

    Raises:
        ValueError: The text is not JSON.
    """
    return _well_formed(_DECODER.decode(text))


def from_json(text: str) -> Calls:
    """Return the calls of a JSON object or array, or of several, separated by white space, ";" or ","."""
    calls: list[ToolCall] = []
    try:
        at = _skip(text, 0)
        while at < len(text):
            value, at = _DECODER.raw_decode(text, at)
            calls += _calls_in(_well_formed(value))
            at = _skip(text, at)
    except _BROKEN:
        return None
    return calls or None


def from_python(text: str, schemas: Schemas) -> Calls:
    """Return the calls of Python source: a call, a list of calls, or calls in lines, also in print()."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip())
        found: list[ast.expr] = []
        for statement in tree.body:
            if not isinstance(statement, ast.Expr | ast.Assign):
                return None
            value = statement.value
            found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        return [_python_call(one, schemas) for one in found] or None
    except _BROKEN:
        return None


def from_xml(text: str, schemas: Schemas) -> Calls:
    """Return the calls of <function=NAME><parameter=KEY>VALUE</parameter></function>, once or more."""
    calls: list[ToolCall] = []
    for body in re.split(r"<function=(?=[\w.:/-]+>)", text)[1:]:
        name, _, rest = body.partition(">")
        schema = schemas.get(name, {})
        arguments: dict[str, Any] = {}
        for key, value in _PARAMETER.findall(rest):
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = typed(value, property_of(schema, key), schema)
        if not arguments and rest.partition("</function>")[0].strip():
            return None
        try:
            calls.append(call(name, arguments))
        except _BROKEN:
            return None
    return calls or None


def from_glm(text: str, schemas: Schemas) -> Calls:
    """Return the call of NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>..."""
    name, mark, rest = text.strip().partition("<arg_key>")
    name, rest = name.strip(), (mark + rest).strip()
    schema = schemas.get(name, {})
    arguments: dict[str, Any] = {}
    at = 0
    while at < len(rest):
        pair = _GLM_PAIR.match(rest, at)
        if pair is None:
            return None
        key, at = pair[1].strip(), pair.end()
        arguments[key] = typed(pair[2], property_of(schema, key), schema)
    if not arguments and schemas and name not in schemas:
        return None
    try:
        return [call(name, arguments)]
    except _BROKEN:
        return None


def from_gemma(text: str, quote: str) -> Calls:
    """Return the call of call:NAME{KEY:VALUE,...}, whose strings stand between two `quote`."""
    found = re.match(r"\s*call:\s*([\w.:/-]+)\s*(?=\{)", text)
    if found is None:
        return None
    try:
        value, at = _GemmaValue(text, quote).read(found.end())
        return None if text[at:].strip() else [call(found[1], value)]
    except (*_BROKEN, IndexError):
        return None


def typed(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """Return a value that is written without quotes, by the types that its schema permits.

    Args:
        text: The text.
        schema: The schema of the value, or None.
        root: The schema at which references in `schema` start.
    """
    kinds = permitted_types(schema, root or {})
    if kinds and kinds <= {"string", "null"}:
        return None if "null" in kinds and text.strip() == "null" else text
    try:
        return loads(text)
    except (ValueError, RecursionError):
        pass
    if kinds and "boolean" in kinds and text.strip() in ("True", "False"):
        return text.strip() == "True"
    return text


def is_quoted(text: str) -> bool:
    """Return whether JSON text ends inside a string."""
    return '"' in re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)


class _GemmaValue:
    """Reads values of Gemma's notation: JSON with bare keys and strings between special tokens."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def read(self, at: int) -> tuple[Any, int]:
        text = self._text
        at = self._space(at)
        if text.startswith(self._quote, at):
            start = at + len(self._quote)
            end = text.index(self._quote, start)
            return text[start:end], end + len(self._quote)
        if text[at] == "{":
            return self._object(at + 1)
        if text[at] == "[":
            items, at = [], self._space(at + 1)
            while text[at] != "]":
                item, at = self.read(at)
                items.append(item)
                at = self._next(at, "]")
            return items, at + 1
        if text[at] == '"':
            return _DECODER.raw_decode(text, at)
        bare = re.compile(r"[^,\]}]*").match(text, at)
        assert bare is not None
        return typed(bare[0].strip(), None), bare.end()

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._space(at)
        while self._text[at] != "}":
            if self._text[at] == '"' or self._text.startswith(self._quote, at):
                key, at = self.read(at)
                at = self._text.index(":", at)
            else:
                end = self._text.index(":", at)
                key, at = self._text[at:end].strip(), end
            found[key], at = self.read(at + 1)
            at = self._next(at, "}")
        return found, at + 1

    def _next(self, at: int, close: str) -> int:
        at = self._space(at)
        if self._text[at] == ",":
            return self._space(at + 1)
        if self._text[at] != close:
            raise ValueError("not a value")
        return at

    def _space(self, at: int) -> int:
        while self._text[at : at + 1].isspace():
            at += 1
        return at


def _calls_in(value: Any) -> list[ToolCall]:
    if isinstance(value, list):
        return [found for item in value for found in _calls_in(item)]
    if not isinstance(value, dict):
        raise ValueError("not a call")
    for key in ("tool_calls", "tool_call"):
        if key in value:
            return _calls_in(value[key])
    identity = next((value[key] for key in _IDS if key in value), None)
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name: Callable[..., Any] | Any = value.get(
        "name", value.get("function", value.get("tool_name"))
    )
    given = [value[key] for key in _ARGUMENTS if key in value]
    if not given:
        raise ValueError("not a call")
    return [call(name, given[0], identity)]


def _python_call(node: ast.expr, schemas: Schemas) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and name not in schemas and len(node.args) == 1 and not node.keywords:
        return _python_call(node.args[0], schemas)
    arguments: dict[str, Any] = {}
    names = list(schemas.get(name, {}).get("properties", {}))
    if len(node.args) > len(names):
        raise ValueError("positional arguments of an unknown tool")
    for key, value in zip(names, node.args, strict=False):
        arguments[key] = _literal(value)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a literal")
        arguments[keyword.arg] = _literal(keyword.value)
    return call(name, _jsonable(arguments))


def _literal(node: ast.expr) -> Any:
    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            known = {"true": True, "false": False, "null": None}
            return ast.Constant(known[node.id]) if node.id in known else node

    return ast.literal_eval(Names().visit(node))


def _jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def _well_formed(value: Any) -> Any:
    """Replace lone surrogates, which JSON can write but UTF-8 cannot, by U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_well_formed(item) for item in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return value


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    assert found is not None
    return found.end()


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} exceeds the largest float")
    return number


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_reject, parse_float=_finite)
