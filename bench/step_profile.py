#!/usr/bin/env python3
"""Print the share of each operation in the time of a step of one token.

    step_profile.py smol-135m:Q8_0 [--cells 1000] [--steps 20]

Uses one thread, after a prompt of --cells tokens. A model is a GGUF file, or shape:type for a model with random weights
(models.py).
"""

from __future__ import annotations

import argparse

import numpy as np
import plait
from cache_variants import opened


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file, or shape:type")
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with (
        opened(args.model) as model,
        plait.Context(model, n_ctx=args.cells + args.steps + 1, threads=1) as ctx,
    ):
        batch = plait.Batch()
        batch.add_sequence(np.arange(args.cells) % model.n_vocab, logits="none")
        ctx.decode(batch)
        batch.clear()
        batch.add(0, logits=True)
        ctx.decode(batch)
        with ctx.trace() as trace:
            for _ in range(args.steps):
                ctx.decode(batch)
        seconds = trace.seconds_by_op()
        total = sum(seconds.values())
        print(f"{args.model}, {args.cells} cells: {1e3 * total / args.steps:.2f} ms a step")
        for op, s in list(seconds.items())[:10]:
            print(f"{op:20} {100 * s / total:5.1f} %")


if __name__ == "__main__":
    main()
