"""Write a copy of a model file with its matrices in fewer bits."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from pathlib import Path

from plait.cli.arguments import add_json, add_model, open_model
from plait.cli.terminal import Progress, size, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait quantize`."""
    add_model(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the file to write")
    parser.add_argument("type", metavar="TYPE", help="Q8_0, Q4_0, Q4_K or Q6_K")
    parser.add_argument(
        "--output-type",
        metavar="TYPE",
        help="type of the output matrix (default Q6_K for 4-bit types)",
    )
    parser.add_argument(
        "--requantize", action="store_true", help="convert matrices that are already quantised"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument("--threads", type=int, metavar="N", help="number of threads")
    parser.add_argument(
        "--allow-fallback",
        action="store_true",
        help="write the file even if no matrix can have TYPE",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the new file and open it once to check it."""
    from plait import Model, quant

    if Path(args.output).exists() and not args.overwrite:
        raise ValueError(f"{args.output} already exists; pass --overwrite to replace it")
    model = open_model(args.model)
    with warnings.catch_warnings(record=True) as caught, Progress("quantize") as progress:
        warnings.simplefilter("always")
        made = quant.quantize_file(
            model, args.output, args.type,
            output_type=args.output_type, requantize=args.requantize, allow_fallback=args.allow_fallback,
            threads=args.threads, progress=progress,
        )  # fmt: skip
    Model(args.output)
    for warning in caught:
        sys.stderr.write(f"plait quantize: warning: {warning.message}\n")
    if args.json:
        write_json({"output": args.output, **dataclasses.asdict(made)})
        return 0
    types = ", ".join(f"{dtype} {size(n)}" for dtype, n in made.types.items())
    write(f"{args.output}: {size(made.bytes_before)} -> {size(made.bytes_after)} ({types})")
    return 0
