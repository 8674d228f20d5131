"""Arguments that several commands take, and what becomes of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait import Context, Model, Sampler

CONTEXT = (
    "n_ctx", "kv", "type_k", "type_v", "n_batch", "n_ubatch", "backend", "n_gpu_layers", "split", "threads", "isa",
)  # fmt: skip


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, the first argument of most commands."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a GGUF file, demo: the embedded model, or hf:owner/name[/file]",
    )


def open_model(name: str) -> Model:
    """The model of that argument. A file of the name `demo` comes first; hf:owner/name/file is one of the hub."""
    from plait import Model

    if name.startswith("hf:"):
        owner, repo, *file = name[3:].split("/", 2)
        return Model.from_hub(f"{owner}/{repo}", *file)

    if name == "demo" and not Path(name).is_file():
        return Model.demo()
    return Model(name)


def _shares(text: str) -> list[float]:
    return [float(share) for share in text.split(",")]


def add_context(parser: argparse.ArgumentParser) -> None:
    """Options of the context, named as those of plait.Context."""
    group = parser.add_argument_group("context", "as for plait.Context; left out: as there")
    group.add_argument("--n-ctx", type=int, metavar="N", help="cells of one sequence")
    group.add_argument("--kv", choices=("unified", "streams"), help="how sequences share rows")
    group.add_argument("--type-k", metavar="TYPE", help="element type of cached keys: f16, q8_0")
    group.add_argument("--type-v", metavar="TYPE", help="element type of cached values")
    group.add_argument("--n-batch", type=int, metavar="N", help="most tokens of one call")
    group.add_argument("--n-ubatch", type=int, metavar="N", help="most tokens computed at once")
    group.add_argument("--backend", metavar="NAME", help="cpu, vulkan, auto")
    group.add_argument("--n-gpu-layers", type=int, metavar="N", help="layers on devices; -1: all")
    group.add_argument("--split", type=_shares, metavar="X,Y", help="shares of several devices")
    group.add_argument("--threads", type=int, metavar="N", help="threads of the CPU")
    group.add_argument("--isa", metavar="NAME", help="scalar, avx2, avx512 or amx: at most this")


def context_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    given = {name: getattr(args, name) for name in CONTEXT}
    return {name: value for name, value in given.items() if value is not None}


def make_context(model: Model, args: argparse.Namespace, **defaults: Any) -> Context:
    """A context with the options that were given, and `defaults` for those that were not."""
    from plait import Context

    return Context(model, **(defaults | context_options(args)))


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "-t", "--temperature", type=float, default=0.8, metavar="X", help="0: the likeliest (default 0.8)"
    )  # fmt: skip
    group.add_argument("--top-k", type=int, default=40, metavar="N", help="0: all (default 40)")
    group.add_argument("--top-p", type=float, default=0.95, metavar="X", help="default 0.95")
    group.add_argument("--min-p", type=float, default=0.05, metavar="X", help="default 0.05")
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same text")


def make_sampler(args: argparse.Namespace) -> Sampler:
    """The sampler of these options."""
    from plait import Sampler

    return Sampler(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p, seed=args.seed
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json, for programs."""
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def read_text(path: str) -> str:
    """A file's text; - is standard input. ValueError for what is not UTF-8."""
    if path == "-" and sys.stdin.isatty():
        sys.stderr.write("reading standard input, which Ctrl-D ends\n")
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
