"""every_call.py MODEL: each public callable with each kind of wrong value for each of its parameters.

The other parameters have good values, so the wrong one is what the call meets. A call returns or raises what is
documented, in time; if it raises, the cache and the batch are byte for byte what they were; `object()` is never
accepted for a required parameter, and a closed context by no method. In the end a fresh context gives its old logits.
"""

import ast
import dataclasses
import inspect
import itertools
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import plait
from limits import DOCUMENTED, UNDER_ASAN, expect_words, limit_memory

SECONDS = 200 if UNDER_ASAN else 20
# Which need a network, a cluster or a display, or end this program's own objects.
NOT_CALLED = {
    "from_hub",
    "plot",
    "demo",
    "close",
    "lm_eval",
    "ray",
    "figures",
    "testing",
    "agenerate",
}
NOT_CALLED |= {
    "Request"
}  # made by a Scheduler, as the records of results are by the calls that return them
# Calls that only store a value, which is looked at when it is used.
ONLY_STORED = {"Sampler.bind(tokenizer=object)"}
WRONG: dict[str, Callable[[Any], object]] = {
    "None": lambda _: None,
    "object": lambda _: object(),
    "text": lambda _: "x",
    "-1": lambda _: -1,
    "2^31": lambda _: 2**31,
    "2^63": lambda _: 2**63,
    "1.5": lambda _: 1.5,
    "NaN": lambda _: float("nan"),
    "empty list": lambda _: [],
    "complex array": lambda _: np.zeros(3, complex),
    "array with gaps": lambda _: np.arange(8)[::2],
    "empty array": lambda _: np.zeros(0, np.float32),
    "array of two axes": lambda _: np.full((2, 3), 2**40),
    "closed context": lambda world: world.closed,
    "closed sequence": lambda world: world.gone,
}


class HungError(Exception):
    pass


class World:
    """Objects to call, with something in the cache."""

    def __init__(self, path: str) -> None:
        self.path, self.model = path, plait.Model(path)
        self.ctx, self.other = self.context(), self.context()
        self.closed = self.context()
        self.gone = self.closed.sequence()
        self.closed.close()
        self.renew()
        self.state = self.ctx.kv.to_bytes()

    def context(self) -> plait.Context:
        return plait.Context(self.model, n_ctx=32, n_seq_max=4, threads=1)

    def renew(self) -> None:
        """Make the objects anew that calls change."""
        self.ctx.close()
        self.ctx = self.context()
        self.batch = plait.Batch()
        self.batch.add_sequence([1, 5, 9, 4], seq=0)
        self.ctx.decode(self.batch)
        self.output = self.ctx.decode(plait.Batch.from_arrays([7], None, [1], [True]))
        self.seq = self.ctx.sequence()
        self.scheduler = plait.Scheduler(self.ctx)
        self.state = self.ctx.kv.to_bytes()

    def good(self, function: str, name: str) -> object:
        """Return a good value of a parameter, or None if there is none."""
        values: dict[str, Callable[[], object]] = {
            "seq": lambda: 0, "src": lambda: 0, "dst": lambda: 1, "layer": lambda: 0, "pos": lambda: 2,
            "p0": lambda: 0, "p1": lambda: 2, "delta": lambda: 1, "divisor": lambda: 2, "token": lambda: 5,
            "tokens": lambda: [5, 6], "ids": lambda: [5, 6], "text": lambda: "abc", "texts": lambda: ["abc"],
            "prompt": lambda: "abc", "prompts": lambda: ["abc"], "batch": lambda: self.batch,
            "model": lambda: self.model, "context": lambda: self.ctx, "ctx": lambda: self.ctx,
            "source": lambda: self.ctx, "other": lambda: self.other, "adapters": lambda: None,
            "data": lambda: self.state, "path": lambda: self.path, "name": lambda: "l_out.0", "index": lambda: 0,
            "logits": lambda: np.zeros(self.model.n_vocab, np.float32), "max_tokens": lambda: 3,
            "values": lambda: np.zeros((2, 32), np.float32), "type": lambda: "Q8_0",
            "raw": lambda: np.zeros((2, 34), np.uint8), "edit": lambda: lambda rows: rows,
            "names": lambda: ["l_out.0"], "pattern": lambda: "l_out.*", "embeddings": lambda: [[0.0]],
            "what": lambda: lambda rows: rows, "n_tokens": lambda: 1, "n_seqs": lambda: 1, "n_outputs": lambda: 1,
            "array": lambda: np.zeros((1, self.model.n_embd), np.float32), "positions": lambda: [0],
            "seq_ids": lambda: [0], "keep": lambda: 0, "discard": lambda: 1, "max_length": lambda: 20,
            "logits_row": lambda: np.zeros(self.model.n_vocab, np.float32), "seqs": lambda: 0,
            "request": lambda: self.scheduler.submit([5], 1), "continuations": lambda: [" a"],
            "metadata": lambda: self.model.metadata, "ctx_a": lambda: self.ctx, "ctx_b": lambda: self.other,
            "reference": lambda: self.model, "candidate": lambda: self.model, "of": lambda: plait.Logit(5),
            "a": lambda: 5, "b": lambda: 6,
        }  # fmt: skip
        own: dict[tuple[str, str], Callable[[], object]] = {
            ("from_arrays", "tokens"): lambda: [5], ("from_arrays", "logits"): lambda: [True],
            ("acquire", "prompt"): lambda: [5, 6], ("score", "context"): lambda: "abc",
            ("export", "path"): lambda: "a.npz", ("Grammar", "source"): lambda: 'root ::= "a"',
            ("attention_sinks", "seq"): lambda: self.seq, ("SelfExtend", "seq"): lambda: self.seq,
            ("PrefixStore", "path"): lambda: "prefixes", ("fail", "error"): lambda: ValueError("failed"),
            ("choose_types", "bits_per_weight"): lambda: 8.5,
            ("value_shape", "name"): lambda: self.ctx.value_names()[0],
            ("tensor", "name"): lambda: "token_embd.weight", ("save", "path"): lambda: "a.state",
            ("load", "path"): lambda: "good.state", ("quantize_file", "path"): lambda: "a.gguf",
            ("sample", "logits"): lambda: np.zeros((1, self.model.n_vocab), np.float32),
            ("sample", "seqs"): lambda: [0], ("rewind", "n"): lambda: 0, ("truncate", "n"): lambda: 0,
            ("best_of", "n"): lambda: 2,
        }  # fmt: skip
        found = own.get((function, name)) or values.get(name)
        return found() if found else None

    def targets(self) -> Iterator[tuple[str, str, Callable[[], Callable[..., object]]]]:
        """Yield (owner, name, a function that returns the callable)."""
        objects: dict[str, Callable[[], object]] = {
            "Context": lambda: self.ctx,
            "kv": lambda: self.ctx.kv,
            "Batch": lambda: self.batch,
            "Model": lambda: self.model,
            "Tokenizer": lambda: self.model.tokenizer,
            "Sequence": lambda: self.seq,
            "Output": lambda: self.output,
            "Stats": lambda: self.ctx.stats,
            "Sampler": lambda: plait.Sampler(),
            "Scheduler": lambda: self.scheduler,
            "quant": lambda: plait.quant,
        }
        for owner, get in objects.items():
            for name in public(get()):
                yield owner, name, lambda get=get, name=name: getattr(get(), name)
        for name in plait.__all__:
            found = getattr(plait, name)
            if (
                name not in NOT_CALLED
                and callable(found)
                and not is_error(found)
                and not is_record(found)
            ):
                yield "plait", name, lambda found=found: found


def is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseException)


def is_record(found: object) -> bool:
    """Return whether this is the class of a result, which nobody else makes."""
    return inspect.isclass(found) and dataclasses.is_dataclass(found)


def public(owner: object) -> list[str]:
    names = owner.__all__ if inspect.ismodule(owner) else dir(owner)
    return [
        n for n in names if not n.startswith("_") and n not in NOT_CALLED and is_method(owner, n)
    ]


def is_method(owner: object, name: str) -> bool:
    """Return whether a name is one of a function, not of a value that has to be computed."""
    found = inspect.getattr_static(owner, name)
    compiled = type(found).__name__ == "instancemethod" or inspect.isbuiltin(found)
    return compiled or isinstance(found, (staticmethod, classmethod)) or inspect.isfunction(found)


def parameters_of_stubs() -> dict[tuple[str, str], list[tuple[str, bool]]]:
    """Return (name, whether it is required) of the parameters of compiled functions, by (class, function)."""
    tree = ast.parse((Path(plait.__file__).parent / "_core.pyi").read_text())
    found = {}
    for node in tree.body:
        functions = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        for function in functions:
            if isinstance(function, ast.FunctionDef):
                found[owner, function.name] = arguments(function.args)
    return found


def arguments(of: ast.arguments) -> list[tuple[str, bool]]:
    positional = [*of.posonlyargs, *of.args]
    n_required = len(positional) - len(of.defaults)
    listed = [
        (a.arg, i < n_required) for i, a in enumerate(positional) if a.arg not in ("self", "cls")
    ]
    return listed + [(a.arg, d is None) for a, d in zip(of.kwonlyargs, of.kw_defaults, strict=True)]


STUBS = parameters_of_stubs()


def parameters(function: Callable[..., object]) -> list[tuple[str, bool]]:
    """Return (name, whether it is required) of each parameter."""
    try:
        listed = inspect.signature(function).parameters.values()
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [p for p in listed if p.kind not in kinds]
        if named or not listed:
            return [(p.name, p.default is p.empty) for p in named]
    except (TypeError, ValueError):
        pass
    name = "__init__" if inspect.isclass(function) else function.__name__
    owner = function if inspect.isclass(function) else type(getattr(function, "__self__", None))
    for kind in [*getattr(owner, "__mro__", []), None]:
        key = (kind.__name__ if kind else "", name)
        if key in STUBS:
            return STUBS[key]
    return []


def call(function: Callable[..., object], keywords: dict[str, object]) -> object:
    signal.alarm(SECONDS)
    try:
        result = function(**keywords)
        if inspect.isgenerator(result):
            for _ in itertools.islice(result, 3):
                pass
            result.close()
        elif hasattr(result, "__enter__") and not isinstance(
            result, (plait.Context, plait.Sequence)
        ):
            with result:
                pass
        repr(result)
        return result
    finally:
        signal.alarm(0)


def attempt(
    world: World, where: str, get: Callable[[], Callable[..., object]], keywords: dict
) -> str:
    """Make one call; return "returned" or "raised"."""
    before, n = world.ctx.kv.to_bytes(), len(world.batch)
    raised, result = None, None
    try:
        result = call(get(), keywords)
    except DOCUMENTED as error:
        raised = error
    except BaseException as error:
        raise AssertionError(where) from error
    if raised is not None:
        expect_words(raised)
        assert world.ctx.kv.to_bytes() == before, f"{where} raised {raised!r} and changed the cache"
        assert len(world.batch) == n, f"{where} raised {raised!r} and changed the batch"
        return "raised"
    if isinstance(result, (plait.Context, plait.Sequence)):
        result.close()
    if world.ctx.closed or world.ctx.kv.to_bytes() != world.state or len(world.batch) != 4:
        world.renew()
    return "returned"


def attempt_good(
    world: World, owner: str, name: str, get: Any, listed: list[tuple[str, bool]]
) -> bool:
    """Return whether a call succeeds with good values for all its required parameters."""
    keywords = {p: world.good(name, p) for p, required in listed if required}
    return attempt(world, f"{owner}.{name}", get, keywords) == "returned"


def calls_of_closed(world: World) -> list[str]:
    """Return the methods of a closed context, its cache and its sequence that do not raise."""
    owners = {"Context": world.closed, "kv": world.closed.kv}
    accepted = []
    for owner, closed in owners.items():
        for name in public(closed):
            function = getattr(closed, name)
            keywords = {p: world.good(name, p) for p, required in parameters(function) if required}
            with suppress(*DOCUMENTED):
                call(function, keywords)
                accepted.append(f"{owner}.{name}() of a closed context was accepted")
    return accepted


def main(path: str) -> None:
    limit_memory()
    warnings.simplefilter("ignore")

    def hung(*_: object) -> None:
        raise HungError

    signal.signal(signal.SIGALRM, hung)
    world = World(path)
    want = world.output.logits.tobytes()
    counts, n_callables, n_good, problems = {"raised": 0, "returned": 0}, 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("good.state").write_bytes(world.state)
        problems += calls_of_closed(world)
        for owner, name, get in world.targets():
            listed = parameters(get())
            n_callables += 1
            n_good += attempt_good(world, owner, name, get, listed)
            for (wrong, required), (kind, make) in itertools.product(listed, WRONG.items()):
                keywords = {p: world.good(name, p) for p, needed in listed if needed}
                keywords[wrong] = make(world)
                where = f"{owner}.{name}({wrong}={kind})"
                try:
                    outcome = attempt(world, where, get, keywords)
                    accepted = required and kind == "object" and where not in ONLY_STORED
                    assert outcome == "raised" or not accepted, f"{where} was accepted"
                except AssertionError as error:
                    problems.append(f"{error}: {error.__cause__!r}")
                    world.renew()
                    continue
                counts[outcome] += 1
    world.renew()
    assert world.output.logits.tobytes() == want
    for problem in problems:
        print(problem, file=sys.stderr)
    assert n_good > 0.8 * n_callables, n_good  # or values that are meant to be good are not
    n = sum(counts.values())
    print(
        f"{n:,} calls of {n_callables} public callables, {counts['raised']:,} of them errors, 0 caches changed"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
