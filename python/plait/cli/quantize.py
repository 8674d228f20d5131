"""Write a model file again with its matrices in fewer bits."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from plait.cli.arguments import add_json, add_model, open_model
from plait.cli.terminal import Progress, size, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From where, to where, and to what."""
    add_model(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the file to write")
    parser.add_argument("type", metavar="TYPE", help="Q8_0, Q4_0, Q4_K or Q6_K")
    parser.add_argument(
        "--output-type", metavar="TYPE", help="of the output matrix (default Q6_K for four bits)"
    )
    parser.add_argument(
        "--requantize", action="store_true", help="also matrices that are quantised already"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    parser.add_argument("--threads", type=int, metavar="N")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """The new file, opened once to see that it can be."""
    from plait import Model, quant

    if Path(args.output).exists() and not args.overwrite:
        raise ValueError(f"{args.output} exists already; --overwrite replaces it")
    model = open_model(args.model)
    with Progress("quantize") as progress:
        made = quant.quantize_file(
            model, args.output, args.type,
            output_type=args.output_type, requantize=args.requantize, threads=args.threads, progress=progress,
        )  # fmt: skip
    Model(args.output)
    if args.json:
        write_json({"output": args.output, **dataclasses.asdict(made)})
        return 0
    types = ", ".join(f"{dtype} {size(n)}" for dtype, n in made.types.items())
    write(f"{args.output}: {size(made.bytes_before)} became {size(made.bytes_after)} ({types})")
    return 0
