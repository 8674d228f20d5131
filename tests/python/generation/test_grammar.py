"""Generations under a grammar conform to it. Needs llguidance."""

import copy
import gc
import json
import re
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import plait
import pytest

pytest.importorskip("llguidance")
from plait import Grammar, Sampler
from plait.generation import grammar as grammars
from plait.generation.grammar_depth import depth_of

SCHEMAS = {
    "flat": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "place": {
                "type": "object",
                "properties": {
                    "street": {"type": "string", "maxLength": 10},
                    "house": {"type": "integer", "minimum": 1, "maximum": 999},
                },
                "required": ["street", "house"],
                "additionalProperties": False,
            }
        },
        "required": ["place"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"type": "integer", "minimum": -5, "maximum": 5},
        "minItems": 1,
        "maxItems": 6,
    },
    "array of objects": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "minimum": 0, "maximum": 99},
                "ok": {"type": "boolean"},
            },
            "required": ["id", "ok"],
            "additionalProperties": False,
        },
        "minItems": 2,
        "maxItems": 3,
    },
    "enum": {"enum": ["red", "green", "blue", 7, None]},
    "number": {"type": "number", "minimum": -2.5, "maximum": 2.5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "any of": {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "kind": {"const": "a"},
                    "n": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["kind", "n"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "b"}, "s": {"type": "string", "maxLength": 4}},
                "required": ["kind", "s"],
                "additionalProperties": False,
            },
        ]
    },
    "optional": {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"type": "null"},
            "c": {"type": "string", "maxLength": 3},
        },
        "additionalProperties": False,
    },
    "references": {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
        "required": ["left", "right"],
        "additionalProperties": False,
        "$defs": {"leaf": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3}},
    },
}


def fits(value, schema, root):
    """Validate a value against the keywords that SCHEMAS use, and with jsonschema if it is installed."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return any(fits(value, choice, root) for choice in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema.get("required", ())) <= set(value) <= set(properties)
            and all(fits(item, properties[name], root) for name, item in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
            and all(fits(item, schema["items"], root) for item in value)
        )
    if kind == "string":
        return (
            isinstance(value, str)
            and len(value) <= schema.get("maxLength", 100)
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if kind == "boolean" or value is None:
        return isinstance(value, bool) if kind == "boolean" else kind == "null"
    whole = kind == "number" or isinstance(value, int)
    return whole and not isinstance(value, bool) and schema["minimum"] <= value <= schema["maximum"]


def generations(model, grammar, n, max_tokens=400):
    sampler = Sampler(temperature=1.5, top_k=0, top_p=1, min_p=0, grammar=grammar, seed=1)
    texts = [""] * n
    reasons = [None] * n
    for event in plait.generate(model, "The", max_tokens, sampler, n=n):
        texts[event.sample] += event.text
        reasons[event.sample] = event.finish_reason
    assert set(reasons) == {"stop"}
    return texts


def check(name, texts):
    schema = SCHEMAS[name]
    for text in texts:
        assert fits(json.loads(text), schema, schema), text
    try:
        import jsonschema
    except ImportError:
        return
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_generations_are_documents_of_the_schema(demo_model, name):
    check(name, generations(demo_model, SCHEMAS[name], 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_fifty_generations_are_documents_of_the_schema(demo_model, name):
    texts = generations(demo_model, SCHEMAS[name], 50)
    check(name, texts)
    assert len(set(texts)) > 3  # the temperature is high enough for differences


def test_the_check_can_fail():
    for name, wrong in [
        ("flat", '{"name": "x"}'),
        ("array", "[9]"),
        ("pattern", '"AB-12"'),
        ("number", "3"),
        ("references", '{"left": ["z"], "right": []}'),
    ]:
        assert not fits(json.loads(wrong), SCHEMAS[name], SCHEMAS[name])


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ("[a-f]{3}-(yes|no)", r"[a-f]{3}-(yes|no)"),
        ('start: greeting " " NAME\ngreeting: "hi" | "hello"\nNAME: /[A-Z][a-z]{1,5}/', r"(hi|hello) [A-Z][a-z]{1,5}"),
        ('root ::= digit "+" digit\ndigit ::= [0-9]', r"[0-9]\+[0-9]"),
        ({"type": "integer", "minimum": 10, "maximum": 12}, r"1[012]"),
        ('{"enum": ["up", "down"]}', r'"(up|down)"'),
    ],
)  # fmt: skip
def test_every_notation(demo_model, grammar, pattern):
    for text in generations(demo_model, grammar, 5):
        assert re.fullmatch(pattern, text)


def test_other_sequences_are_not_touched(demo_model):
    """Many sequences in different states of the grammar give the results of each alone."""
    row = np.random.default_rng(1).normal(size=demo_model.n_vocab).astype(np.float32)
    settings = {"grammar": "[a-z]{5}", "tokenizer": demo_model.tokenizer, "seed": 4}
    alone = Sampler(**settings)
    want = {seq: [alone(row, seq) for _ in range(8 - seq)] for seq in range(4)}
    mixed = Sampler(**settings)
    got = {seq: [] for seq in range(4)}
    for step in range(8):
        live = [seq for seq in range(4) if step < 8 - seq]
        for seq, token in zip(live, mixed.sample(np.stack([row] * len(live)), live), strict=True):
            got[seq].append(int(token))
    assert got == want
    mixed.start(0)
    with pytest.raises(ValueError, match=r"^grammar: token \d+: .*doesn't satisfy the grammar.*$"):
        mixed.accept(0, [demo_model.tokenizer.encode("7", add_special=False)[0]])


@pytest.mark.parametrize("grammar", ["(", "start: missing", '{"type": "nothing"}', "{"])
def test_invalid_grammars_are_refused(grammar):
    with pytest.raises(ValueError, match="grammar"):
        Sampler(grammar=grammar)


def test_a_schema_that_is_nested_too_deeply_for_python_is_refused():
    schema = {}
    for _ in range(100_000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ValueError, match="schema is not JSON: maximum recursion depth"):
        Grammar.json(schema)


@pytest.fixture
def compiled(monkeypatch):
    """The grammars that are compiled during a test."""
    made, compile_one = [], grammars._compile

    def recorded(grammar, tokenizer):
        made.append(grammar)
        return compile_one(grammar, tokenizer)

    monkeypatch.setattr(grammars, "_compile", recorded)
    return made


def test_copies_of_a_sampler_share_the_compiled_grammar(demo_model, compiled):
    sampler = Sampler(grammar="[0-9]{5}", tokenizer=demo_model.tokenizer, seed=4)
    (first, key), (second, same_key) = sampler.acquire([1, 2]), sampler.acquire([1, 2])
    assert first is not second
    assert key == same_key
    changed = sampler.replace(seed=5)
    row = np.zeros(demo_model.n_vocab, np.float32)
    digit = demo_model.tokenizer.encode("7", add_special=False)[-1]
    first.accept(key, [digit] * 5)
    assert first(row, key) in demo_model.tokenizer.eog
    for other in (second, changed, copy.copy(sampler)):
        assert other(row, key) not in demo_model.tokenizer.eog
    assert len(compiled) == 1


def test_threads_that_bind_a_sampler_compile_its_grammar_once(demo_model, compiled):
    sampler = Sampler(grammar="[a-z]{5}", seed=4)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sampler.bind, [demo_model.tokenizer] * 8))
    assert len(compiled) == 1


def test_a_grammar_does_not_keep_the_tokenizer_alive():
    model = plait.Model.demo()
    grammar = Grammar.regex("[a-z]{5}")
    sampler = Sampler(grammar=grammar, tokenizer=model.tokenizer)
    tokenizer = weakref.ref(model.tokenizer)
    del model
    gc.collect()
    assert tokenizer() is not None
    del sampler
    gc.collect()
    assert tokenizer() is None


def test_a_grammar_needs_a_tokenizer():
    with pytest.raises(ValueError, match="a grammar needs a tokenizer"):
        Sampler(grammar="a")(np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="grammar"):
        Sampler(grammar=5)
    assert "Grammar" in repr(Grammar.regex("a"))


def schema_chain(n, last):
    """A schema of `n` definitions, each of which refers to the next one, and 3 levels deep."""
    defs = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(n)
    }
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{n}": last}}


def lark_chain(n, last):
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(n)) + f"r{n}: {last}\n"


CHAINS = {
    "schema": schema_chain,
    "schema in Lark": lambda n, last: f"start: %json {json.dumps(schema_chain(n, last))}",
    "Lark": lambda n, last: lark_chain(3 * n, last),
    "terminals": lambda n, last: lark_chain(3 * n, last).replace("r", "R").replace("staRt", "start"),
    "GBNF": lambda n, last: lark_chain(3 * n, last).replace(":", " ::=").replace("start", "root"),
}  # fmt: skip
# The last rule: a leaf, or the first one, so that the rules are a ring.
ENDS = {"schema": ({"type": "string"}, {"$ref": "#/$defs/d0"}), "Lark": ('"a"', '"a" | "b" r0')}
DEEP = """
import json, sys, threading
import plait
from plait.generation.grammar import Matchers

def use():
    try:
        Matchers(plait.Grammar.of(json.load(sys.stdin)), plait.Model.demo().tokenizer).masks([0, 1])
        print("ok")
    except ValueError as error:
        print(error)

threading.stack_size(256 << 10)
thread = threading.Thread(target=use)
thread.start()
thread.join()
"""


def used_in_a_small_thread(grammar):
    """Use a grammar in a process, in a thread with a stack of 256 KiB, and return "ok" or the error."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP], input=json.dumps(grammar), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("notation", "ring"),
    [
        *((notation, False) for notation in CHAINS),
        *((notation, True) for notation in CHAINS if notation != "terminals"),  # they have no rings
    ],
)
def test_references_up_to_the_limit_work_and_deeper_ones_are_refused(notation, ring):
    last = ENDS["schema" if "schema" in notation else "Lark"][ring]
    assert used_in_a_small_thread(CHAINS[notation](650, last)) == "ok"
    assert re.search(
        r"nested up to \d+ levels deep.*the limit is 2000",
        used_in_a_small_thread(CHAINS[notation](700, last)),
    )
    assert "nested up to" in used_in_a_small_thread(CHAINS[notation](2000, last))


def one_level(reference):
    return {"type": "object", "properties": {"a": {"$ref": reference}}}


@pytest.mark.parametrize(
    ("grammar", "depth"),
    [
        ('start: "a" ("b" ["c"])', 3),
        ('start: x | y\nx: "a" x\ny: "b"', 2),
        ('start: x\nx: y\ny: "a" | x', 3),
        ('start: <a"> x <b">\nx: /[\\/]"/ y // z\ny: "\\"/" z # x\nz: "("', 4),
        ('start: {"x" y\ny:\n  | "a"', 3),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}, "y": one_level("#/$defs/x")}}, 2),
        ({"properties": {"a": one_level("#"), "b": one_level("#/properties/a")}}, 13),
        # Several names of one definition count as several.
        ({"properties": {"a": one_level("#/$defs/%78"), "b": one_level("#/$defs/x")}, "$defs": {"x": True}}, 15),
        ({"properties": {"a": {"$id": "b", "$ref": "#/x"}}, "x": {"y": {"z": {}}}}, 8),
        ({"$ref": ["#"], "enum": [[[]]]}, 4),
    ],
)  # fmt: skip
def test_the_depth_counts_rules_references_and_brackets(grammar, depth):
    if not isinstance(grammar, str):
        grammar = json.dumps({"grammars": [{"json_schema": grammar}]})
    assert depth_of(grammar) == depth


def test_reading_a_grammar_takes_time_in_proportion_to_its_length():
    numbers = range(20000)
    wide = "start: " + " | ".join(f"r{i}" for i in numbers) + "\n"
    wide += "".join(f'r{i}: "a{i}"\n' for i in numbers)
    assert depth_of(wide) == 2
    for text in (
        "/\\" * 400_000,
        '"\\' * 400_000,
        "(" * 400_000,
        "%json " * 100_000,
        "<" * 400_000,
    ):
        start = time.monotonic()
        depth_of("start: " + text)
        assert time.monotonic() - start < 20
