"""Schemas of Python functions."""

import enum
from typing import Any, Literal, Optional

import pytest
from plait.generation.messages import tool_schema
from plait.generation.messages.tools import functions_of, parameters_of, schemas_of


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
