"""Schemas of Python functions."""

import enum
from typing import Any, Literal, Optional

import numpy as np
import pytest
from plait.generation.messages import tool_schema
from plait.generation.messages.tools import functions_of, parameters_of, schemas_of
from plait.tokenizer import Tokenizer
from plait.tokenizer.bpe import byte_alphabet


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


def weather(city: str, days: int = 1, unit: Unit = Unit.C, *, tags: list[str] | None = None) -> str:
    """Return the forecast.

    It covers the whole day.

    Args:
        city: Name of the city,
            in English.
        days (int): Number of days: at most 7.
        tags: Words.

    Returns:
        city: not an argument.
    """
    return f"{city} {days} {unit} {tags}"


def test_signature_and_docstring():
    schema = tool_schema(weather)
    assert schema["type"] == "function"
    function = schema["function"]
    assert function["name"] == "weather"
    assert function["description"] == "Return the forecast.\n\nIt covers the whole day."
    assert function["parameters"] == {
        "type": "object",
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Name of the city, in English."},
            "days": {"type": "integer", "description": "Number of days: at most 7.", "default": 1},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "Words.",
            },
        },
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (list, {"type": "array", "items": {}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (Any, {}),
    ],
)  # fmt: skip
def test_types(hint, schema):
    def f(x):
        return x

    f.__annotations__["x"] = hint
    assert tool_schema(f)["function"]["parameters"]["properties"]["x"] == schema


def test_what_has_no_schema():
    def f(x: bytes):
        return x

    def g(*args: int):
        return args

    with pytest.raises(
        TypeError, match=r"tool_schema: f: x: the type .*bytes.* has no JSON schema"
    ):
        tool_schema(f)
    with pytest.raises(TypeError, match="parameter args, which cannot be passed by name"):
        tool_schema(g)
    with pytest.raises(TypeError, match="expected a function, got str"):
        tool_schema("weather")
    with pytest.raises(TypeError, match="it contains int"):
        schemas_of([5])
    with pytest.raises(TypeError, match="expected a list of JSON schemas or functions"):
        schemas_of({"name": "x"})


def test_lists_of_tools():
    plain = {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}
    assert schemas_of([plain, weather]) == [plain, tool_schema(weather)]
    assert parameters_of([plain, weather]).keys() == {"look", "weather"}
    assert functions_of([plain, weather]) == {"weather": weather}
    assert schemas_of(None) is None


ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHIP = {  # as pydantic writes a model in a model
    "name": "ship",
    "parameters": {
        "type": "object",
        "$defs": {"Address": ADDRESS},
        "properties": {"to": {"$ref": "#/$defs/Address"}, "kind": {"const": {"$ref": "#"}}},
        "required": ["to"],
    },
}
TREE = {
    "name": "tree",
    "parameters": {
        "type": "object",
        "properties": {"const": {"type": "array", "items": {"$ref": "#"}}},
    },
}
NODE = {  # as pydantic writes a recursive model
    "name": "node",
    "parameters": {
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "$ref": "#/$defs/Node",
    },
}
IDENTIFIED = {"name": "tree", "parameters": {"$id": "https://example.org/a", **TREE["parameters"]}}
WRAPPED = {  # by family: a template that it is detected by, and how it writes a call
    "hermes": ("<tool_call>", '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'),
    "llama3": ("<|python_tag|>", '{{"name": "{}", "parameters": {}}}'),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS][{{"name": "{}", "arguments": {}}}]'),
    "harmony": ("<|channel|>", "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"),
}  # fmt: skip


BYTES = Tokenizer(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_alphabet(), "<end>"],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3], np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 256,
    }
)


def permits(matchers, text):
    """Return whether a grammar permits a text as a whole."""
    matchers.reset()
    for token in [*BYTES.encode(text, add_special=False, parse_special=False).tolist(), BYTES.eos]:
        if not matchers.masks([0])[0][token // 32] >> (token % 32) & 1:
            return False
        if token != BYTES.eos:
            matchers.accept(0, token)
    return True


@pytest.mark.parametrize("family", WRAPPED)
@pytest.mark.parametrize("tools", [[SHIP], [TREE], [NODE], [SHIP, TREE, NODE], [IDENTIFIED, SHIP]])
def test_references_in_parameters_of_required_calls(demo_model, family, tools):
    """They are relative to the parameters, which are a part of the schema of a call."""
    pytest.importorskip("llguidance", reason="plait[grammar] is not installed")
    from plait.generation.grammar import Matchers
    from plait.generation.messages.constrain import tools_grammar

    template, form = WRAPPED[family]
    matchers = Matchers(tools_grammar(demo_model, tools, template=template), BYTES)
    names = [tool["name"] for tool in tools]
    for name, arguments, valid in (
        ("ship", '{"to": {"city": "Rome"}}', True),
        ("ship", '{"to": {"city": "Rome"}, "kind": {"$ref": "#"}}', True),
        ("ship", '{"to": {"town": "Rome"}}', False),
        ("ship", '{"to": {"city": 5}}', False),
        ("tree", '{"const": [{"const": []}, {}]}', True),
        ("tree", '{"const": [{"const": [5]}]}', False),
        ("tree", '{"const": [{"name": "tree"}]}', False),
        ("node", '{"next": {"next": {}}}', True),
        ("node", '{"next": {"next": 5}}', False),
    ):
        expected = valid and name in names
        text = form.format(name, arguments)
        assert permits(matchers, text) == expected, text
