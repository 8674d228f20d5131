"""Write a copy of a model file with its matrices in fewer bits.

With --budget, the type of each matrix is chosen so that the whole model has at most this size, by
measuring how much the model changes on the text of --text.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING

from plait.cli.arguments import add_json, add_model, open_model, read_text
from plait.cli.terminal import Progress, logging_to, size, write, write_json

if TYPE_CHECKING:
    from plait.files.imatrix import ImportanceMatrix
    from plait.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait quantize`."""
    from plait.files.quantize import FILE_TYPES

    add_model(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the file to write")
    parser.add_argument(
        "positional_type", metavar="TYPE", nargs="?", help=f"one of {', '.join(FILE_TYPES)}"
    )
    parser.add_argument("--type", metavar="TYPE", help="another way to give TYPE")
    parser.add_argument(
        "--output-type",
        metavar="TYPE",
        help="type of the output matrix (default Q6_K for types of less than 6.5 bits)",
    )
    parser.add_argument(
        "--imatrix", metavar="FILE", help="importance matrix, from `plait imatrix` or llama-imatrix"
    )
    parser.add_argument(
        "--budget", metavar="N[bpw]", help="bits per weight of the whole model; needs --text"
    )
    parser.add_argument("--text", metavar="FILE", help="text to measure on, for --budget")
    parser.add_argument(
        "--requantize", action="store_true", help="convert matrices that are already quantised"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="if interrupted, keep the unfinished file and the measurements of --budget for the next run",
    )
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

    kind = _type_of(args)
    if Path(args.output).exists() and not args.overwrite:
        raise ValueError(f"{args.output} already exists; pass --overwrite to replace it")
    model = open_model(args.model)
    imatrix = None if args.imatrix is None else quant.ImportanceMatrix.load(args.imatrix)
    logged = BufferingHandler(sys.maxsize)  # shown after the progress bar
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        types = None if args.budget is None else _chosen(model, args, imatrix)
        with Progress("quantize") as progress, logging_to(logged):
            made = quant.quantize_file(
                model, args.output, kind,
                output_type=args.output_type, imatrix=imatrix, tensor_types=types, requantize=args.requantize,
                allow_fallback=args.allow_fallback, resume=args.resume, threads=args.threads, progress=progress,
            )  # fmt: skip
    Model(args.output)
    if args.resume:
        _measurements(args.output).unlink(missing_ok=True)
    messages = [str(one.message) for one in caught] + [one.getMessage() for one in logged.buffer]
    for message in messages:
        sys.stderr.write(f"plait quantize: warning: {message}\n")
    if args.json:
        write_json({"output": args.output, **dataclasses.asdict(made)})
        return 0
    by_type = ", ".join(f"{dtype} {size(n)}" for dtype, n in made.types.items())
    write(f"{args.output}: {size(made.bytes_before)} -> {size(made.bytes_after)} ({by_type})")
    return 0


def _type_of(args: argparse.Namespace) -> str:
    """Return the type. Raises ValueError if none or two were given, or options that do not combine."""
    given = [t for t in (args.positional_type, args.type) if t is not None]
    if args.budget is not None:
        if given:
            raise ValueError(
                f"--type: both --budget and TYPE ({given[0]}) were given; pass one of them"
            )
        if args.text is None:
            raise ValueError("--budget needs --text FILE, a text of the kind the model will read")
        if args.output_type is not None:
            raise ValueError(
                f"--output-type: both --budget and --output-type {args.output_type} were given, but --budget also "
                f"chooses the type of the output matrix; pass one of them"
            )
        return "Q8_0"
    if args.text is not None:
        raise ValueError("--text is only for --budget, which was not given")
    if len(given) != 1:
        raise ValueError(f"--type: {len(given)} types were given; pass one TYPE, or --budget")
    return str(given[0])


def _chosen(
    model: Model, args: argparse.Namespace, imatrix: ImportanceMatrix | None
) -> dict[str, str]:
    """Return the types that --budget chooses."""
    from plait import quant
    from plait.files.quantize import check_target

    check_target(model, args.output)
    number = args.budget.lower().removesuffix("bpw")
    try:
        bits = float(number)
    except ValueError:
        raise ValueError(
            f'--budget is "{args.budget}"; expected bits per weight, such as 4.5bpw'
        ) from None
    with Progress("measure") as progress:
        return quant.choose_types(
            model, read_text(args.text), bits,
            imatrix=imatrix, measurements=_measurements(args.output) if args.resume else None, threads=args.threads,
            progress=progress,
        )  # fmt: skip


def _measurements(output: str) -> Path:
    """Return the file that keeps the measurements of an interrupted run."""
    return Path(f"{output}.measurements.jsonl")
