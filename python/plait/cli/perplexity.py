"""Compute the perplexity of a text.

Perplexity is exp of the mean negative log-probability per token.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from plait.cli.arguments import (
    add_context,
    add_json,
    add_model,
    make_context,
    open_model,
    read_text,
)
from plait.cli.terminal import Progress, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait perplexity`."""
    add_model(parser)
    parser.add_argument("file", metavar="FILE", help="text file; - is standard input")
    parser.add_argument("--window", type=int, metavar="N", help="tokens per window (default n_ctx)")
    parser.add_argument(
        "--stride", type=int, metavar="N", help="tokens between windows (default half of --window)"
    )
    add_json(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Write the perplexity with its standard error, derived from that of the mean log-probability."""
    from plait import token_logprobs

    model = open_model(args.model)
    ids = model.tokenizer.encode(read_text(args.file))
    if len(ids) < 2:
        raise ValueError(f"{args.file} has {len(ids)} tokens; it must have at least 2")
    longest = args.window or min(len(ids), model.n_ctx_train or len(ids))
    with make_context(model, args, n_ctx=longest) as ctx, Progress("perplexity") as progress:
        scores = token_logprobs(ctx, ids, window=args.window, stride=args.stride, progress=progress)
    value = math.exp(-scores.logprob / len(scores))
    error = value * float(np.std(scores.logprobs)) / math.sqrt(len(scores))
    if args.json:
        write_json(
            {"perplexity": value, "error": error, "tokens": len(scores), "nats": -scores.logprob}
        )
        return 0
    write(f"perplexity {value:.4f} +/- {error:.4f} over {len(scores)} tokens")
    return 0
