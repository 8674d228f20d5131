#!/usr/bin/env python3
"""Measure the overhead of Python when one token is decoded.

    python_overhead.py tiny-llama:F32 [--steps 2000] [--rounds 5]

A loop fills a batch with one token, decodes it and reads the row of logits. Prints microseconds for each part, from
the fastest round: `batch` is clear() and add(); `call` is decode() without the phases measured by the runtime
(ctx.stats.seconds); `row` is out.logits[0]; `transaction` is the beginning and the commit of a transaction around a
step of 32 sequences with 128 tokens each, the median of the steps. A model is a GGUF file, or shape:type for a model
with random weights (models.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import plait
from cache_variants import opened


def measure(ctx: plait.Context, n_steps: int) -> dict[str, float]:
    """Return microseconds per step."""
    batch, clock = plait.Batch(), time.perf_counter
    parts = dict.fromkeys(("batch", "call", "row", "runtime"), 0.0)
    ctx.kv.clear()
    batch.add(5, logits=True)
    ctx.decode(batch)  # builds the plan
    ctx.stats.reset()
    for token in range(n_steps):
        start = clock()
        batch.clear()
        batch.add(5 + token % 16, logits=True)
        made = clock()
        out = ctx.decode(batch)
        decoded = clock()
        row = out.logits[0]
        taken = clock()
        assert row.shape == (ctx.model.n_vocab,)
        parts["batch"] += made - start
        parts["call"] += decoded - made
        parts["row"] += taken - decoded
    parts["runtime"] = sum(ctx.stats.seconds.values())
    parts["call"] -= parts["runtime"]
    return {name: 1e6 * seconds / n_steps for name, seconds in parts.items()}


def measure_transaction(ctx: plait.Context, n_steps: int) -> float:
    """Return the median of the microseconds that a committed transaction adds to a step of all sequences."""
    batch, clock = plait.Batch(), time.perf_counter
    ctx.kv.clear()
    for seq in range(ctx.n_seq_max):
        batch.clear()
        batch.add_sequence([5 + seq] * 128, seq=seq, logits="none")
        ctx.decode(batch)
    seconds = []
    for token in range(n_steps):
        batch.clear()
        for seq in range(ctx.n_seq_max):
            batch.add(5 + token % 16, seq=seq)
        start = clock()
        with ctx.transaction():
            begun = clock()
            ctx.decode(batch)
            decoded = clock()
        seconds.append(begun - start + clock() - decoded)
    return 1e6 * statistics.median(seconds)


def report(name: str, n_steps: int, rounds: int) -> dict[str, float]:
    with opened(name) as model:
        with plait.Context(model, n_ctx=n_steps + 1, threads=1) as ctx:
            found = [measure(ctx, n_steps) for _ in range(rounds)]
        n_blocks = min(n_steps, 200)
        with plait.Context(model, n_ctx=128 + n_blocks, n_seq_max=32, threads=1) as ctx:
            for parts in found:
                parts["transaction"] = measure_transaction(ctx, n_blocks)
    return {part: min(one[part] for one in found) for part in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="GGUF files, or shape:type")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    rows = {name: report(name, args.steps, args.rounds) for name in args.models}
    print(
        f"{'model':24} {'batch':>7} {'call':>7} {'row':>7} {'in all':>7} {'transaction':>11}   microseconds a step"
    )
    for name, parts in rows.items():
        outside = [parts[part] for part in ("batch", "call", "row")]
        cells = " ".join(f"{us:7.2f}" for us in [*outside, sum(outside)])
        cells += f" {parts['transaction']:11.2f}"
        print(f"{Path(name).name:24} {cells}   beside {parts['runtime']:.1f} in the runtime")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
