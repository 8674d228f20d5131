"""Measure which columns of a model's matrices matter most.

`plait quantize --imatrix` uses the result. The file has the format of llama-imatrix, and llama-quantize reads it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from plait.cli.arguments import add_json, add_model, open_model, read_text
from plait.cli.terminal import Progress, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait imatrix`."""
    add_model(parser)
    parser.add_argument("text", metavar="TEXT", help="text file; - is standard input")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="imatrix.gguf", help="default imatrix.gguf"
    )
    parser.add_argument("--window", type=int, metavar="N", help="tokens per window (default 512)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the importance matrix."""
    from plait import quant

    if Path(args.output).exists() and not args.overwrite:
        raise ValueError(f"{args.output} already exists; pass --overwrite to replace it")
    model = open_model(args.model)
    with Progress("imatrix") as progress:
        found = quant.importance_matrix(
            model, read_text(args.text), window=args.window, dataset=args.text, progress=progress
        )
    found.save(args.output)
    n_tokens = found.chunk_count * found.chunk_size
    matrices = sum(len(tensor.shape) > 1 for tensor in model.tensors.values())
    if args.json:
        write_json({"output": args.output, "matrices": len(found.sums), "tokens": n_tokens})
    else:
        write(f"{args.output}: {len(found.sums)} of {matrices} matrices, {n_tokens} tokens")
    return 0
