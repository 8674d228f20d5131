"""Docstrings of public names state shapes and dtypes of arrays, units, errors and all parameters."""

import ast
import asyncio
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import numpy as np
import plait
import pytest

MODULES = [
    "plait",
    "plait.quant",
    "plait.testing",
    "plait.figures",
    "plait.files.gguf",
    "plait.files.hub",
    "plait.tokenizer",
    "plait.tokenizer.chat_template",
    "plait.generation.drafts",
    "plait._core",
]


def public(module):
    names = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items()
        if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
    ]  # fmt: skip
    return [(name, getattr(module, name)) for name in names if not name.startswith("__")]


def members(cls):
    """Yield public methods and properties of a class and of its bases in plait."""
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("plait"):
            for name, value in vars(base).items():
                kinds = property | classmethod | staticmethod
                if not name.startswith("_") and (
                    inspect.isroutine(value) or isinstance(value, kinds)
                ):
                    yield name, inspect.getattr_static(cls, name)


def described():
    """Yield (name, object, docstring, docstring of its class) of all public names."""
    for module in MODULES:
        for name, thing in public(importlib.import_module(module)):
            if inspect.isclass(thing):
                yield f"{module}.{name}", thing, inspect.getdoc(thing) or "", ""
                of_class = inspect.getdoc(thing) or ""
                for member, value in members(thing):
                    yield f"{module}.{name}.{member}", value, inspect.getdoc(value) or "", of_class
            elif callable(thing):
                yield f"{module}.{name}", thing, inspect.getdoc(thing) or "", ""


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    assert importlib.import_module(name).__doc__
    assert [where for where, _, text, _ in described() if not text] == []


def annotations():
    """Return annotations of return values by (class, name), from sources and stubs."""
    found = {}
    root = Path(plait.__file__).parent
    for path in [*root.rglob("*.pyi"), *root.rglob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            inner = node.body if isinstance(node, ast.ClassDef) else []
            for function in [node, *inner]:
                if isinstance(function, ast.FunctionDef) and function.returns is not None:
                    owner = node.name if function is not node else path.stem
                    found[owner, function.name] = ast.unparse(function.returns)
    return found


ARRAY = re.compile(r"NDArray|ndarray|\b(Floats|Rows?|Masks)\b")
DTYPE = re.compile(r"\b(float32|float64|int32|int64|uint8|uint32|bool)\b")
SHAPE = re.compile(r"\(\w[\w*, +/.]*(,|n\w*|\.\.\.|dim)\)|\bshapes?\b|structured")


def test_docstrings_state_dtype_and_shape_of_arrays():
    """Functions that return arrays document the dtype and shape."""
    returns = annotations()
    seen, unclear = 0, []
    for where, thing, text, of_class in described():
        owner, name = where.rsplit(".", 1)
        if not inspect.isclass(thing) and not of_class:  # a function: of the module where it stands
            owner = thing.__module__
        if ARRAY.search(returns.get((owner.rsplit(".", 1)[-1], name), "")):
            seen += 1
            # Bound functions start with their signature, which does not count.
            words = "\n".join(line for line in text.splitlines() if "->" not in line)
            if not (DTYPE.search(words) and SHAPE.search(words)):
                unclear.append(where)
    assert seen > 20
    assert unclear == []


UNITS = {"bytes": "byte", "nbytes": "byte", "seconds": "second", "memory": "byte"}


def test_docstrings_state_units():
    unclear = [
        where
        for where, _, text, _ in described()
        if any(
            where.rsplit(".", 1)[-1].removesuffix(end) != where.rsplit(".", 1)[-1] and unit not in text.lower()
            for end, unit in UNITS.items()
        )
    ]  # fmt: skip
    assert unclear == []


def test_docstrings_name_raised_errors():
    """Errors raised in the body are named in the docstring or in that of the class."""
    silent = []
    for where, thing, text, of_class in described():
        function = getattr(thing, "__func__", getattr(thing, "fget", thing))
        if inspect.isclass(thing):
            function, of_class = vars(thing).get("__init__"), ""
        try:
            tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
        except (TypeError, OSError, SyntaxError):
            continue  # of C++
        raised = {
            ast.unparse(node.exc.func)
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        }
        for error in raised - {"TypeError", "AttributeError"}:
            if not re.search(rf"\b{error}\b", text + of_class):
                silent.append((where, error))
    assert silent == []


def mistakes_of_generation(ctx, seq, tiny):
    sampler = plait.Sampler(1.0)
    return [
        ("Sampler", lambda: plait.Sampler(-1)),
        ("Sampler.sample", lambda: sampler.sample(np.zeros((2, 5), np.float32), [1, 1])),
        ("Sampler.accept", lambda: sampler.accept(-1, [1])),
        ("generate", lambda: plait.generate(tiny, [""], 0)),
        ("generate", lambda: list(plait.generate(ctx, [[1] * 40]))),
        ("complete", lambda: plait.complete(tiny, ["a"], 0)),
        ("best_of", lambda: plait.best_of(tiny, ["a"], 0)),
        ("beam_search", lambda: plait.beam_search(tiny, "a", 0)),
        ("score", lambda: plait.score(tiny, "a", [""])),
        ("perplexity", lambda: plait.perplexity(tiny, "a", window=0)),
        ("token_logprobs", lambda: plait.token_logprobs(tiny, "a", window=0)),
        ("embed", lambda: plait.embed(tiny, [[]])),
        ("Chat", lambda: plait.Chat(tiny, full="drop")),
        ("Chat", lambda: plait.Chat(tiny)),
        ("Scheduler", lambda: plait.Scheduler(ctx, chunk=0)),
        ("PromptLookup", lambda: plait.PromptLookup(0)),
        ("DraftModel", lambda: plait.DraftModel(tiny, 0)),
        ("MTP", lambda: plait.MTP(0)),
        ("attention_sinks", lambda: plait.attention_sinks(seq, 0)),
        ("quant.quantize", lambda: plait.quant.quantize(np.zeros(3, np.float32), "Q8_0")),
        ("quant.quantize", lambda: plait.quant.quantize(np.zeros(32, np.float32), "Q99")),
        ("quant.dequantize", lambda: plait.quant.dequantize(np.zeros(3, np.uint8), "Q8_0")),
    ]


@pytest.fixture
def mistakes(tiny, tiny_path, tmp_path):
    """Invalid calls, each with the public name that it tests."""
    ctx = plait.Context(tiny, n_ctx=16, n_seq_max=2)
    streams = plait.Context(tiny, n_ctx=16, n_seq_max=2, kv="streams")
    other = plait.Context(tiny, n_ctx=16, type_k="q8_0")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:100])
    five, long, unseen = plait.Batch(), plait.Batch(), plait.Batch()
    five.add_sequence([1, 2, 3, 4, 5], seq=0)
    long.add_sequence(range(1, 40), seq=0)
    unseen.add_sequence([tiny.n_vocab], seq=1)
    out = ctx.decode(five)
    streams.decode(five)
    state = ctx.kv.to_bytes()
    seq = ctx.sequence()
    yield [
        ("Model", lambda: plait.Model(tmp_path / "none.gguf")),
        ("Model", lambda: plait.Model(broken)),
        ("Model.tensor", lambda: tiny.tensor("none")),
        ("Model.tensor_rows", lambda: tiny.tensor_rows("none", [0])),
        ("Model.tensor_rows", lambda: tiny.tensor_rows("output_norm.weight", [0])),
        ("Model.tensor_rows", lambda: tiny.tensor_rows("output.weight", [-1])),
        ("Model.load_lora", lambda: tiny.load_lora(broken)),
        ("load_control_vector", lambda: plait.load_control_vector(broken)),
        ("Context", lambda: plait.Context(tiny, n_ctx=0)),
        ("Context", lambda: plait.Context(tiny, type_k="q9")),
        ("Context", lambda: plait.Context(tiny, backend="abacus")),
        ("Context", lambda: plait.Context(tiny, isa="mmx")),
        ("Context.decode", lambda: ctx.decode(unseen)),
        ("Context.decode", lambda: ctx.decode(long)),
        ("Context.encode", lambda: ctx.encode(unseen)),
        ("Context.graph", lambda: ctx.graph(n_tokens=0)),
        ("Context.sequence", lambda: [ctx.sequence() for _ in range(3)]),
        ("Context.capture", lambda: ctx.capture("none").__enter__()),
        ("Context.gradients", lambda: ctx.gradients("none", of=plait.Logit(5))),
        ("Context.set_control_vector", lambda: ctx.set_control_vector(np.zeros((1, 1)))),
        ("KVCache.seq_rm", lambda: ctx.kv.seq_rm(9)),
        ("KVCache.seq_cp", lambda: ctx.kv.seq_cp(0, 9)),
        ("KVCache.seq_keep", lambda: ctx.kv.seq_keep(9)),
        ("KVCache.seq_add", lambda: ctx.kv.seq_add(0, 0, 5, -9)),
        ("KVCache.seq_div", lambda: ctx.kv.seq_div(0, 0, 5, 0)),
        ("KVCache.seq_pos_min", lambda: ctx.kv.seq_pos_min(9)),
        ("KVCache.seq_pos_max", lambda: ctx.kv.seq_pos_max(9)),
        ("KVCache.seq_len", lambda: ctx.kv.seq_len(9)),
        ("KVCache.keys", lambda: ctx.kv.keys(99, 0)),
        ("KVCache.keys", lambda: ctx.kv.keys(0, 9)),
        ("KVCache.values", lambda: ctx.kv.values(99, 0)),
        ("KVCache.to_bytes", lambda: ctx.kv.to_bytes(seq=9)),
        ("KVCache.from_bytes", lambda: ctx.kv.from_bytes(state[:-1])),
        ("KVCache.save", lambda: ctx.kv.save(tmp_path / "no" / "where")),
        ("KVCache.load", lambda: ctx.kv.load(tmp_path / "none.state")),
        ("KVCache.load", lambda: ctx.kv.load(broken)),
        ("KVCache.copy_to", lambda: ctx.kv.copy_to(other)),
        ("KVCache.export", lambda: ctx.kv.export(tmp_path / "x.txt", 0)),
        ("KVCache.defrag", lambda: ctx.kv.defrag(-1)),
        ("Batch.add", lambda: plait.Batch().add(1, pos=-5)),
        ("Batch.add_sequence", lambda: plait.Batch().add_sequence([1], logits="some")),
        ("Batch.add_embeddings", lambda: plait.Batch().add_embeddings(np.zeros(3, np.float32))),
        ("Batch.from_arrays", lambda: plait.Batch.from_arrays([1, 2], [1], [0], [True, True])),
        ("Output.__getitem__", lambda: out[9]),
        ("Sequence.fork", lambda: [seq.fork() for _ in range(3)]),
        ("Sequence.truncate", lambda: seq.truncate(-2)),
        ("Sequence.rewind", lambda: seq.rewind(-1)),
        ("Sequence.shift", lambda: seq.shift(-1, 3)),
        *mistakes_of_generation(ctx, seq, tiny),
    ]
    for opened in (ctx, streams, other):
        opened.close()


def told(name, depth=2):
    """Return the docstrings of a function and its class, and of the functions that they refer to."""
    owner, _, member = name.rpartition(".")
    holder = getattr(plait, owner) if owner else plait
    text = inspect.getdoc(getattr(holder, member)) or ""
    for other in re.findall(r"those of (\w+)\(\)|as in (\w+)\(\)", text) if depth else []:
        other = "".join(other)
        text += told(f"{owner}.{other}" if hasattr(holder, other) and owner else other, depth - 1)
    return text + (inspect.getdoc(holder) or "" if inspect.isclass(holder) else "")


def test_docstrings_name_the_errors_of_misuse(mistakes):
    """Each call raises an error that the docstring names."""
    untold = []
    for name, call in mistakes:
        with pytest.raises((plait.Error, ValueError, IndexError, KeyError, OSError)) as raised:
            call()
        names = [
            cls.__name__ for cls in type(raised.value).__mro__[:-3]
        ]  # without Exception and above
        if not any(re.search(rf"\b{error}\b", told(name)) for error in names):
            untold.append(f"{name}: {type(raised.value).__name__}: {raised.value}")
    assert untold == []


def described_names(text):
    """Return the names under Args and Attributes of a docstring."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)+)", text, re.MULTILINE)
    return {name for part in sections for name in re.findall(r"^    (\w+):", part, re.MULTILINE)}


def public_functions():
    """Yield (name, function, docstring) of Python functions; constructors have the docstring of their class."""
    for module in ("plait", "plait.quant", "plait.testing", "plait.figures", "plait.tokenizer"):
        for name, thing in public(importlib.import_module(module)):
            found = {name: thing}
            if inspect.isclass(thing):
                found = {f"{name}.{n}": v for n, v in vars(thing).items() if n[0] != "_"}
                found[name] = vars(thing).get("__init__")
            for where, value in found.items():
                function = getattr(value, "__func__", value)
                if inspect.isfunction(function) and function.__module__.startswith("plait."):
                    documented = thing if where == name else function
                    yield f"{module}.{where}", function, inspect.getdoc(documented) or ""


# Objects that users receive and do not create.
RECEIVED = {
    "plait.CacheFull", "plait.KVCache", "plait.Receipt", "plait.Request", "plait.Sequence", "plait.Stats",
    "plait.VerificationError",
}  # fmt: skip


def test_docstrings_describe_every_parameter():
    missing, n = [], 0
    for where, function, text in public_functions():
        if where in RECEIVED or where == "plait.tokenizer.TokenStream":
            continue
        names = [
            name for name in inspect.signature(function).parameters if name not in ("self", "cls")
        ]
        missing += [f"{where}({name})" for name in names if name not in described_names(text)]
        n += len(names)
    assert n > 200
    assert missing == []


EXAMPLE = re.compile(r"^Example:\n((?:(?:    .*)?\n?)+)", re.MULTILINE)
# What examples take for granted.
GIVEN = """
import asyncio
import matplotlib.pyplot as plt
import numpy as np
import plait
from plait import tool_schema

def weather(city: str):
    return "sunny"

text = "Tom lives in Oslo."
f16, q4 = ctx, plait.Context(model, n_ctx=32)
texts = queries = prompts = ["Tom lives in Oslo.", "The kite is red."]
direction = np.zeros(model.n_embd, np.float32)
token = 5
batch = plait.Batch()
batch.add_sequence([1, 2, 3], seq=0)
"""


def test_examples_of_docstrings_run(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="plait[viz] is not installed")
    pytest.importorskip("jinja2", reason="plait[chat] is not installed")
    monkeypatch.chdir(tmp_path)
    model = plait.Model.demo()
    for name in ("f16.gguf", "q4.gguf"):
        (tmp_path / name).symlink_to(model.path)
    chat = functools.partial(
        plait.Chat, template="{{ messages[-1].content }}{{ tools }}", max_tokens=4
    )
    monkeypatch.setattr(plait, "Chat", chat)
    examples = {
        textwrap.dedent(code).strip(): where
        for where, _, text, _ in described()
        for code in EXAMPLE.findall(text)
    }
    assert len(examples) >= 7
    for code, where in examples.items():
        with plait.Context(model, n_ctx=32, n_seq_max=4) as ctx:
            names = {"model": model, "ctx": ctx}
            exec(GIVEN, names)
            exec(compile(code, where, "exec"), names)
            if "main" in names:
                asyncio.run(names["main"]())
