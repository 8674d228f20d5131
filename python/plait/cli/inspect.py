"""Show the contents of a model file, and the memory of a context.

With an option of the context, or --plan, a context is created and its memory is shown.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.cli.arguments import (
    add_context,
    add_json,
    add_model,
    context_options,
    make_context,
    open_model,
)
from plait.cli.terminal import size, write, write_json, write_table

if TYPE_CHECKING:
    from plait import Model

_MAX_LENGTH = 70  # characters of a value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait inspect`."""
    add_model(parser)
    parser.add_argument("--metadata", action="store_true", help="show all metadata")
    parser.add_argument("--tensors", action="store_true", help="show all tensors")
    parser.add_argument("--plan", action="store_true", help="show the memory of a context")
    parser.add_argument(
        "--n-seq-max", type=int, default=1, metavar="N", help="sequences of the context (default 1)"
    )
    add_json(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Write facts about the model, then the requested details."""
    model = open_model(args.model)
    plan = args.plan or args.n_seq_max != 1 or bool(context_options(args))
    memory = _memory(model, args) if plan else None
    if args.json:
        write_json(_as_json(model, memory))
        return 0
    write_table(("", ""), _facts(model), left=2)
    if args.metadata:
        write()
        rows = [(_line(key), _short(value)) for key, value in model.metadata.items()]
        write_table(("key", "value"), rows, left=2)
    if args.tensors:
        rows_of = (
            (_line(t.name), _shape(t.shape), t.dtype, f"{t.nbytes:,}")
            for t in model.tensors.values()
        )
        write()
        write_table(("tensor", "shape", "type", "bytes"), rows_of, left=3)
    if memory is not None:
        write()
        _write_plan(memory)
    return 0


def _facts(model: Model) -> list[tuple[str, str]]:
    types = Counter[str]()
    for tensor in model.tensors.values():
        types[tensor.dtype] += tensor.nbytes
    name = _line(str(model.metadata.get("general.name", "")))
    return [
        ("file", _line(str(model.path))),
        ("architecture", f"{model.arch}{f' ({name})' if name else ''}"),
        ("weights", f"{model.n_params / 1e6:,.1f} million in {len(model.tensors)} tensors, {size(model.nbytes)}"),
        ("types", ", ".join(f"{dtype} {size(n)}" for dtype, n in types.most_common())),
        ("shape", f"{model.n_layer} layers, n_embd {model.n_embd}, n_vocab {model.n_vocab}"),
        ("training length", f"{model.n_ctx_train} tokens" if model.n_ctx_train else "unknown"),
        ("tokenizer", _line(str(model.metadata.get("tokenizer.ggml.model", "none")))),
        ("chat template", "yes" if "tokenizer.chat_template" in model.metadata else "no"),
    ]  # fmt: skip


def _memory(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    with make_context(model, args, n_seq_max=args.n_seq_max) as ctx:
        kv = ctx.kv
        return {
            "devices": ctx.devices,
            "kv": kv.kind,
            "n_ctx": ctx.n_ctx,
            "n_seq_max": ctx.n_seq_max,
            "n_cells": kv.n_cells,
            "type_k": ctx.type_k,
            "type_v": ctx.type_v,
            "weights": model.nbytes,
            "cache": kv.nbytes,
            "cache_per_cell": kv.nbytes / kv.n_cells if kv.n_cells else 0,
            "compute": ctx.compute_bytes,
        }


def _write_plan(memory: dict[str, Any]) -> None:
    cells = f"{memory['n_cells']:,} cells of {size(memory['cache_per_cell'])}"
    rows = [
        ("weights", size(memory["weights"]), "as in the file"),
        ("cache", size(memory["cache"]), f"{memory['kv']}, {cells}, {memory['type_k']} and {memory['type_v']}"),
        ("compute", size(memory["compute"]), "inputs and intermediate values of the largest step"),
        ("total", size(memory["weights"] + memory["cache"] + memory["compute"]), ""),
    ]  # fmt: skip
    where = ", ".join(memory["devices"])
    write(f"memory on {where}: n_ctx {memory['n_ctx']}, n_seq_max {memory['n_seq_max']}")
    write_table(("for", "bytes", "what"), rows, left=3)


def _as_json(model: Model, memory: dict[str, Any] | None) -> dict[str, Any]:
    facts = ("path", "arch", "n_params", "nbytes", "n_layer", "n_embd", "n_vocab", "n_ctx_train")
    tensors = [
        {"name": t.name, "shape": t.shape, "dtype": t.dtype, "nbytes": t.nbytes}
        for t in model.tensors.values()
    ]
    result: dict[str, Any] = {name: getattr(model, name) for name in facts}
    result |= {"metadata": dict(model.metadata), "tensors": tensors}
    return result if memory is None else result | {"memory": memory}


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _short(value: object) -> str:
    if isinstance(value, list | np.ndarray):
        start = ", ".join(_line(str(item)) for item in value[:4])
        return f"{len(value):,} of [{start}{', ...' if len(value) > 4 else ''}]"[:_MAX_LENGTH]
    text = _line(str(value))
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."


def _line(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    shown = text.encode(errors="replace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
