"""Compute the perplexity of a text.

Perplexity is exp of the mean negative log-probability per token. Ctrl-C ends the run and
writes the perplexity of the tokens read so far.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np

from plait.arguments import integer
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
    from plait.evaluation.scoring import partial_scores

    if args.window is not None:
        integer(args.window, "window", 2)
    model = open_model(args.model)
    ids = model.tokenizer.encode(read_text(args.file)).tolist()
    if len(ids) < 2:
        raise ValueError(f"{args.file} has {len(ids)} tokens; it must have at least 2")
    longest = args.window or min(len(ids), model.n_ctx_train or len(ids))
    scores = None
    with make_context(model, args, n_ctx=longest) as ctx, Progress("perplexity") as progress:
        try:
            for scores in partial_scores(ctx, ids, args.window, args.stride):
                progress(len(scores), len(ids) - 1)
        except KeyboardInterrupt:
            if scores is None:
                raise
    assert scores is not None
    value = math.exp(-scores.logprob / len(scores))
    error = value * float(np.std(scores.logprobs)) / math.sqrt(len(scores))
    if args.json:
        write_json(
            {"perplexity": value, "error": error, "tokens": len(scores), "nats": -scores.logprob}
        )
    else:
        write(f"perplexity {value:.4f} +/- {error:.4f} over {len(scores)} tokens")
    if len(scores) == len(ids) - 1:
        return 0
    sys.stderr.write(
        f"plait perplexity: interrupted after {len(scores)} of {len(ids) - 1} tokens\n"
    )
    return 130
