"""The formats of model families: transcripts parse alike wherever they are cut."""

import json
import random
import re
from pathlib import Path

import pytest
from plait.generation.messages import Parser, values
from plait.generation.messages.families import BY_NAME, detect

HERE = Path(__file__).parent / "transcripts"
TOOLS = json.loads((HERE / "tools.json").read_text())
CASES = [
    pytest.param(family, case, id=f"{family}: {case['name']}")
    for family in sorted(BY_NAME)
    for case in json.loads((HERE / f"{family}.json").read_text())
]


def parsed(family, case, pieces):
    """Return the message, after checking that the streamed parts add up to it."""
    parser = Parser(family, TOOLS, reasoning=case.get("opened"))
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.end()
    message = parser.finish()
    assert "".join(part.text for part in parts if part.kind == "content") == message.content
    assert "".join(part.text for part in parts if part.kind == "reasoning") == message.reasoning
    assert tuple(part.call for part in parts if part.kind == "tool_call") == message.tool_calls
    return message


@pytest.mark.parametrize(("family", "case"), CASES)
def test_transcripts(family, case):
    data = case["text"].encode()
    message = parsed(family, case, [case["text"]])
    assert message.content == case["content"]
    assert message.reasoning == case.get("reasoning", "")
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    assert calls == case.get("tool_calls", [])
    for at in range(1, len(data)):
        assert parsed(family, case, [data[:at], data[at:]]) == message
    assert parsed(family, case, [data[i : i + 1] for i in range(len(data))]) == message


@pytest.mark.parametrize("family", sorted(BY_NAME))
def test_there_are_twenty_transcripts(family):
    assert len(json.loads((HERE / f"{family}.json").read_text())) >= 20


def test_numbers_that_json_cannot_write_are_no_call():
    for number in ("1e999", "-1e999", "Infinity", "NaN"):
        text = f'{{"name": "look", "arguments": {{"x": {number}}}}}'
        with pytest.raises(ValueError, match=re.escape(number)):
            values.loads(text)
        assert values.from_json(text) is None
        assert values.typed(number, None) == number
    (call,) = values.from_json('{"name": "look", "arguments": {"x": 1.5e300}}')
    assert call.arguments == {"x": 1.5e300}


@pytest.mark.parametrize("family", sorted(BY_NAME))
def test_broken_text_never_raises(family):
    """Pieces of all transcripts in random order parse to something, alike for every cut."""
    random_ = random.Random(family)
    texts = [case["text"] for case in json.loads((HERE / f"{family}.json").read_text())]
    for _ in range(200):
        pieces = []
        for _ in range(random_.randrange(1, 5)):
            text = random_.choice(texts)
            start = random_.randrange(len(text))
            pieces.append(text[start : random_.randrange(start, len(text)) + 1])
        whole = parsed(family, {}, ["".join(pieces)])
        assert parsed(family, {}, list("".join(pieces))) == whole


def test_text_is_released_at_once():
    parser = Parser("hermes")
    assert [part.text for part in parser.feed("Hello <to")] == ["Hello"]
    assert [part.text for part in parser.feed("wer")] == [" <tower"]
    assert parser.feed(" <tool_call") == []
    assert [part.text for part in parser.end()] == [" <tool_call"]
    with pytest.raises(ValueError, match="has ended"):
        parser.feed("more")


def test_calls_have_ids():
    text = '[TOOL_CALLS] [{"name": "a", "arguments": {}, "id": "abcdef123"}, {"name": "b", "arguments": {}}]'
    parser = Parser("mistral")
    parser.feed(text)
    first, second = parser.finish().tool_calls
    assert first.id == "abcdef123"
    assert len(second.id) == 9
    assert second.id.isalnum()
    assert json.loads(first.to_dict()["function"]["arguments"]) == {}


def test_long_replies_cost_linear_time():
    """A megabyte of marks inside a string is scanned a bounded number of times."""
    text = '<tool_call>{"name": "a", "arguments": {"s": "' + "</tool_call>" * 50_000
    parser = Parser("hermes")
    for at in range(0, len(text), 4096):
        parser.feed(text[at : at + 4096])
    assert parser.finish().content == text


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ '<|im_start|>' }}<tool_call>{\"name\"", "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=a>", "qwen-coder"),
        ("<|start_header_id|>{{ m.role }}<|end_header_id|>", "llama3"),
        ("[INST] [AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<start_of_turn>model", "gemma"),
        ("<|turn>model\n<|tool_call>call:", "gemma4"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "deepseek"),
        ("[gMASK]<sop><tool_call>{{ name }}<arg_key>", "glm"),
        ("<|tool_list_start|>", "lfm2"),
        ("<|start_of_role|>assistant<|end_of_role|><tool_call>", "granite"),
        ("{{ m.content }}", "json"),
    ],
)
def test_families_are_detected(template, family):
    assert detect(template).name == family


def test_an_unknown_family():
    with pytest.raises(ValueError, match=r"'qwen' is unknown; expected one of .*hermes"):
        Parser("qwen")


NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}  # str | None, as pydantic writes it
SHARED = {
    "string": {"type": "string"},
    "a/b": {"enum": ["1", "2"]},
    "options": NULLABLE,
    "self": {"$ref": "#/$defs/self"},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (NULLABLE, "12345"),
        ({"oneOf": [{"type": "string"}, {"const": None}]}, "12345"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 12345),
        ({"anyOf": [{"type": "string"}, {}]}, 12345),
        ({"anyOf": []}, 12345),
        ({"allOf": [{"minLength": 1}, {"type": ["string", "integer"]}, NULLABLE]}, "12345"),
        ({"type": "integer", "enum": [12345]}, 12345),
        ({"type": ["integer", "null"], "enum": [12345, None]}, 12345),
        ({"enum": ["12345", "6"]}, "12345"),
        ({"enum": ["12345", 6]}, 12345),
        ({"const": "12345"}, "12345"),
        ({"$ref": "#/$defs/string"}, "12345"),
        ({"$ref": "#/$defs/a~1b", "description": "text"}, "12345"),
        ({"anyOf": [{"$ref": "#/%24defs/string"}, {"type": "null"}]}, "12345"),
        ({"anyOf": [NULLABLE, {"$ref": "#/$defs/self"}]}, 12345),
        ({"$ref": "#/$defs/missing/0"}, 12345),
        ({"$ref": "#/$defs/a~1b/enum/" + "9" * 5000}, 12345),
        ({"$ref": "#/$defs/options/anyOf/0"}, "12345"),
        ({"$ref": "https://example.org/a"}, 12345),
        ({"type": [{}, 5], "enum": 5, "anyOf": {}, "$ref": 5}, 12345),
        ({"type": ["integer", {}]}, 12345),
        (5, 12345),
    ],
)
def test_types_of_values_without_quotes(schema, value):
    parameters = {"properties": {"x": schema}, "$defs": SHARED}
    text = "<function=f>\n<parameter=x>\n12345\n</parameter>\n</function>"
    pair = "f<arg_key>x</arg_key><arg_value>12345</arg_value>"
    for schemas in (
        {"f": parameters},
        {
            "f": {
                "$ref": "#/$defs/Model",
                "$defs": {**SHARED, "Model": {"properties": {"x": schema}}},
            }
        },
    ):
        for calls in (values.from_xml(text, schemas), values.from_glm(pair, schemas)):
            (call,) = calls
            assert repr(call.arguments) == repr({"x": value})


def test_types_of_extreme_schemas():
    shared = {str(i): {"anyOf": [{"$ref": f"#/{i + 1}"}] * 9} for i in range(200)}
    assert values.typed("5", {"$ref": "#/0"}, {**shared, "200": {"type": "string"}}) == "5"
    nested = {"type": "string"}
    for _ in range(5000):
        nested = {"allOf": [nested]}
    assert values.typed("5", nested) == 5
    assert values.typed("null", NULLABLE) is None
    assert values.typed("True", {"anyOf": [{"type": "boolean"}, {"type": "null"}]}) is True
