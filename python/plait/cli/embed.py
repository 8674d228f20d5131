"""Compute embeddings of texts and their cosine similarities."""

from __future__ import annotations

import argparse

import numpy as np

from plait.cli.arguments import add_json, add_model, open_model, read_text
from plait.cli.terminal import write, write_json, write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait embed`."""
    add_model(parser)
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="texts; without any, the lines of standard input, without blank ones",
    )
    parser.add_argument(
        "--pooling", default="auto", help="auto, mean, cls, last or rank (default auto)"
    )
    parser.add_argument(
        "--truncate", action="store_true", help="cut texts longer than the training length"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write float32 (n, n_embd) as .npy")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the embeddings to a file or as JSON, or write a table of cosine similarities."""
    from plait import embed

    model = open_model(args.model)
    texts = args.text or _lines(read_text("-"))
    if not texts:
        raise ValueError("TEXT: no text given; pass TEXT arguments, or lines on standard input")
    rows = embed(model, texts, pooling=args.pooling, truncate=args.truncate)
    if args.output:
        with open(args.output, "wb") as file:
            np.save(file, rows)
    if args.json:
        write_json(
            [{"text": text, "embedding": row} for text, row in zip(texts, rows, strict=True)]
        )
        return 0
    write(f"{len(texts)} texts, {rows.shape[1]} numbers per text")
    if not args.output:
        cosines = rows @ rows.T
        lines = [
            (text if len(text) <= 40 else text[:37] + "...", *(f"{x:.3f}" for x in row))
            for text, row in zip(texts, cosines, strict=True)
        ]
        write_table(("cosine", *(str(i + 1) for i in range(len(texts)))), lines)
    return 0


def _lines(text: str) -> list[str]:
    """Return the lines that are not blank. Other separators of Unicode than line feeds are part of a line."""
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
