"""Generate from one or more prompts.

The output of a single prompt is written as it is generated; that of several prompts is written at
the end, or when Ctrl-C ends the generation.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from plait.arguments import integer
from plait.cli.arguments import (
    add_context,
    add_json,
    add_model,
    add_sampling,
    make_context,
    make_sampler,
    open_model,
    read_text,
)
from plait.cli.terminal import Progress, flush, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait generate`."""
    add_model(parser)
    parser.add_argument(
        "prompt", nargs="*", metavar="PROMPT", help="prompts; - or none for standard input"
    )
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="file with a prompt; may be repeated",
    )
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=128,
        metavar="N",
        help="max tokens per prompt (default 128)",
    )
    add_json(parser)
    add_sampling(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Write the prompts with their continuations."""
    from plait import generate

    integer(args.max_tokens, "max_tokens", 1)
    model = open_model(args.model)
    given = [read_text("-") if prompt == "-" else prompt for prompt in args.prompt]
    prompts = [*given, *map(read_text, args.file)] or [read_text("-")]
    sampler = make_sampler(args)
    live = len(prompts) == 1 and not args.json
    results: list[dict[str, Any]] = [
        {"prompt": prompt, "text": "", "tokens": [], "logprob": 0.0, "finish_reason": None} for prompt in prompts
    ]  # fmt: skip
    lengths = [len(model.tokenizer.encode(prompt)) + args.max_tokens for prompt in prompts]
    at_once = min(len(prompts), 8)
    cells = sum(sorted(lengths)[-at_once:])
    room = {"n_ctx": max(lengths), "n_seq_max": at_once}
    if args.kv != "streams" and args.n_ctx is None:
        room["kv_cells"] = cells
    interrupted = False
    with make_context(model, args, **room) as ctx, Progress("generate") as progress:
        try:
            for n_new, event in enumerate(generate(ctx, prompts, args.max_tokens, sampler), 1):
                if live and n_new == 1:  # not before: the model may be unable to generate
                    sys.stdout.write(prompts[0])
                one = results[event.index]
                one["text"] += event.text
                one["tokens"].append(event.token)
                one["logprob"] += event.logprob
                one["finish_reason"] = event.finish_reason
                if live:
                    sys.stdout.write(event.text)
                    flush()
                else:
                    progress(n_new, args.max_tokens * len(prompts))
        except KeyboardInterrupt:
            interrupted = True
    if args.json:
        write_json({"seed": None if sampler is None else sampler.seed, "generations": results})
    elif live:
        write()
    else:
        write("\n\n".join(one["prompt"] + one["text"] for one in results))
    if not interrupted:
        return 0
    done = sum(one["finish_reason"] is not None for one in results)
    sys.stderr.write(
        f"plait generate: interrupted; {done} of {len(results)} generations are complete\n"
    )
    return 130
