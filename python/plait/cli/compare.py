"""Compare two models on a text.

Reports how far the predictions of CANDIDATE are from those of REFERENCE. For models of the same
architecture and shape, it also lists the intermediate values that differ most.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from plait.cli.arguments import add_context, add_json, make_context, open_model, read_text
from plait.cli.terminal import Progress, write, write_json, write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait compare`."""
    parser.add_argument(
        "model", metavar="REFERENCE", help="a GGUF file, hf:owner/name[/file], or demo"
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="the model to compare with it")
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="text file; - is standard input"
    )
    parser.add_argument("--window", type=int, metavar="N", help="tokens per window (default n_ctx)")
    parser.add_argument(
        "--values",
        type=int,
        default=8,
        metavar="N",
        help="number of values to list, those that differ most (default 8)",
    )
    add_json(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Write the comparison. The exit status is 0 whatever it shows."""
    from plait import compare, kl_divergence
    from plait.arguments import integer
    from plait.evaluation.comparison import most_different, shape_difference

    integer(args.values, "values", 0)
    reference, candidate = open_model(args.model), open_model(args.candidate)
    text = read_text(args.text)
    ids = reference.tokenizer.encode(text).tolist()
    longest = args.window or min(len(ids), reference.n_ctx_train or len(ids))
    with (
        closing(make_context(reference, args, n_ctx=longest)) as a,
        closing(make_context(candidate, args, n_ctx=longest)) as b,
        Progress("compare") as progress,
    ):
        found = kl_divergence(a, b, text, window=args.window, progress=progress)
        alike = shape_difference(a, b) is None
        report = compare(a, b, ids[: min(a.n_ctx, b.n_ctx)]) if alike else None
    facts: dict[str, Any] = {
        "kl": found.mean, "error": found.stderr, "median": found.median, "p99": found.p99, "max": found.max,
        "top1": found.top1, "tokens": found.n_tokens,
    }  # fmt: skip
    if args.json:
        if report is not None:
            names = report.layers.dtype.names or ()
            values = [dict(zip(names, row.item(), strict=True)) for row in report.layers]
            facts |= {"first_difference": report.first_difference, "values": values}
        write_json(facts)
        return 0
    rows = [
        ("KL divergence", f"{found.mean:.6f} +/- {found.stderr:.6f} nats"),
        ("median", f"{found.median:.6f}"),
        ("99th percentile", f"{found.p99:.6f}"),
        ("maximum", f"{found.max:.6f}"),
        ("same most likely token", f"{found.top1:.2%}"),
        ("tokens", f"{found.n_tokens:,}"),
    ]
    if report is not None and report.first_difference is None:
        rows.append(("first difference", "none: all values have the same bits"))
    elif report is not None:
        _, name, position = report.first_difference or (None, "", 0)
        rows.append(("first difference", f"{name} at position {position}"))
    write_table(("", ""), rows, left=2)
    if report is not None and report.first_difference is not None:
        write()
        write_table(
            ("value", "max", "rms", "cosine"),
            [
                (row["name"], f"{row['max_abs']:.4g}", f"{row['rms']:.4g}", f"{row['cosine']:.6f}")
                for row in most_different(report.layers, args.values)
            ],
        )
    return 0
