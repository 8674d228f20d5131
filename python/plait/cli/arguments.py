"""Arguments that several commands share."""

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
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a GGUF file, hf:owner/name[/file], or demo for the model inside the package",
    )


def open_model(name: str) -> Model:
    """Open the model of the argument MODEL: a file, demo, or hf:owner/name[/file]."""
    from plait.model import open_named

    return open_named(name, "MODEL")


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers with commas between them, such as 3,1; got {text!r}"
        ) from None


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the options of the context, named as in plait.Context."""
    group = parser.add_argument_group("context", "options of plait.Context")
    group.add_argument(
        "--n-ctx",
        type=int,
        metavar="N",
        help="max tokens per sequence; without it, the command chooses a length that suits it",
    )
    group.add_argument(
        "--kv", choices=("unified", "streams"), help="how sequences share cache rows"
    )
    group.add_argument(
        "--type-k", metavar="TYPE", help="element type of cached keys, such as f16 or q8_0"
    )
    group.add_argument("--type-v", metavar="TYPE", help="element type of cached values")
    group.add_argument("--n-batch", type=int, metavar="N", help="max tokens per call")
    group.add_argument("--n-ubatch", type=int, metavar="N", help="max tokens per microbatch")
    group.add_argument("--backend", metavar="NAME", help="cpu, vulkan or auto")
    group.add_argument(
        "--n-gpu-layers",
        type=int,
        metavar="N",
        help="number of layers on Vulkan devices; -1 for all",
    )
    group.add_argument(
        "--split", type=_shares, metavar="X,Y", help="shares of the layers, one number per device"
    )
    group.add_argument("--threads", type=int, metavar="N", help="number of CPU threads")
    group.add_argument(
        "--isa",
        metavar="NAME",
        help="strongest instruction set to use: scalar, avx2, avx512 or amx; on ARM, scalar, neon, "
        "neon_i8mm or neon_bf16; or blas",
    )


def context_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the context options that were given."""
    given = {name: getattr(args, name) for name in CONTEXT}
    return {name: value for name, value in given.items() if value is not None}


def make_context(model: Model, args: argparse.Namespace, **defaults: Any) -> Context:
    """Create a context from the given options, and `defaults` for the others."""
    from plait import Context

    return Context(model, **(defaults | context_options(args)))


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of sampling, whose defaults are those of plait.Sampler."""
    group = parser.add_argument_group("sampling", "without these options, decoding is greedy")
    group.add_argument(
        "-t",
        "--temperature",
        type=float,
        metavar="X",
        help="temperature; 0 chooses the most likely token (default 0.8)",
    )
    group.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        help="keep the N most likely tokens; 0 keeps all (default 40)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="X",
        help="keep the most likely tokens up to this total probability (default 0.95)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="X",
        help="drop tokens less likely than X times the most likely one (default 0.05)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")


def make_sampler(args: argparse.Namespace) -> Sampler | None:
    """Create a sampler from the options; None, which is greedy, if none is given."""
    from plait import Sampler

    given = {name: getattr(args, name) for name in SAMPLING}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Sampler(**options) if options else None


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help="write JSON")


def read_text(path: str) -> str:
    """Return the text of a file; - is standard input. Raises ValueError if it is not UTF-8."""
    if path == "-" and sys.stdin.isatty():
        sys.stderr.write("reading from standard input; press Ctrl-D to end\n")
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}") from None
