#!/usr/bin/env python3
"""Compare the unified cache with streams when many sequences are decoded together.

    cache_variants.py qwen-0.5b:Q4_0 [-B 16] [--prompts 0,128,256,512] [--steps 32] [--rounds 3] [--cpu] [--json out]

For each prompt length, B sequences of that length are computed, followed by steps of one token each. Prints the
tokens per second of these steps, alternating between the variants within one run, and the median of the paired
ratios. Then prints the number of cells for a prefix shared by B sequences, and the cost of a fragmented cache. A
model is a GGUF file, or shape:type for a model with random weights (models.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import models
import numpy as np
import plait


@contextmanager
def opened(name: str) -> Iterator[plait.Model]:
    if Path(name).is_file():
        yield plait.Model(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield plait.Model(models.write(name, Path(folder) / "model.gguf"))


def step_rate(
    model: plait.Model, kv: str, n_seqs: int, prompt: int, steps: int, *, cpu: bool
) -> float:
    """Return the tokens per second of `steps` steps of `n_seqs` sequences, each after its own prompt.

    With `cpu`, use the processor time of one thread, which other programs hardly affect.
    """
    clock = time.process_time if cpu else time.perf_counter
    threads = 1 if cpu else None
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"n_ctx": prompt + steps + 1, "n_seq_max": n_seqs, "threads": threads}
    with plait.Context(model, kv=kv, **options) as ctx:
        for seq in range(n_seqs if prompt else 0):
            batch = plait.Batch()
            batch.add_sequence(rng.integers(0, model.n_vocab, prompt), seq=seq, logits="none")
            ctx.decode(batch)

        def step() -> None:
            batch = plait.Batch()
            for seq in range(n_seqs):
                batch.add(int(rng.integers(model.n_vocab)), seq=seq, logits=True)
            ctx.decode(batch)

        step()
        start = clock()
        for _ in range(steps):
            step()
        return n_seqs * steps / (clock() - start)


def shared_prefix_cells(model: plait.Model, n_seqs: int, prefix: int) -> float:
    """Return the number of cells used by `n_seqs` sequences that share a prefix, relative to the prefix length."""
    with plait.Context(model, n_ctx=prefix, n_seq_max=n_seqs, kv_cells=2 * prefix) as ctx:
        batch = plait.Batch()
        batch.add_sequence(np.arange(prefix) % model.n_vocab, logits="none")
        ctx.decode(batch)
        for seq in range(1, n_seqs):
            ctx.kv.seq_cp(0, seq)
        return ctx.kv.n_used / prefix


def scattered_cost(model: plait.Model, n: int, steps: int) -> float:
    """Return the time of a step after `n` tokens in every second cell, relative to `n` tokens in consecutive cells."""
    ids = np.arange(n) % model.n_vocab
    options: dict[str, Any] = {
        "n_ctx": 2 * n + steps,
        "n_seq_max": 2,
        "threads": 1,
        "defrag_threshold": None,
    }
    seconds = []
    for scattered in (False, True):
        with plait.Context(model, kv_cells=2 * n + steps + 1, **options) as ctx:
            batch = plait.Batch()
            if scattered:
                for _ in range(2):
                    batch.clear()
                    batch.add_sequence(ids, seq=1, logits="none")
                    ctx.decode(batch)
                for pos in range(0, 2 * n, 2):
                    ctx.kv.seq_rm(1, pos, pos + 1)
            batch.clear()
            batch.add_sequence(ids, seq=0, logits="none")
            ctx.decode(batch)
            batch.clear()
            batch.add(0, seq=0, logits=True)
            best = float("inf")
            for _ in range(steps):
                start = time.process_time()
                ctx.decode(batch)
                best = min(best, time.process_time() - start)
            seconds.append(best)
    return seconds[1] / seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a GGUF file, or shape:type")
    parser.add_argument("-B", "--sequences", type=int, default=16)
    parser.add_argument("--prompts", default="0,128,256,512")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="measure processor time of one thread")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    rows = []
    with opened(args.model) as model:
        print(f"{args.model}, {args.sequences} sequences, {args.steps} steps; tokens/s")
        print(f"{'prompt':>8} {'unified':>10} {'streams':>10} {'ratio':>7}")
        for prompt in map(int, args.prompts.split(",")):
            pairs = [
                [
                    step_rate(model, kv, args.sequences, prompt, args.steps, cpu=args.cpu)
                    for kv in ("unified", "streams")
                ]
                for _ in range(args.rounds)
            ]
            unified, streams = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(u / s for u, s in pairs)
            cells = args.sequences * (prompt + args.steps)
            row = {"prompt": prompt, "cells": cells, "unified": unified, "streams": streams}
            rows.append(row | {"ratio": ratio})
            print(f"{prompt:8} {unified:10.1f} {streams:10.1f} {ratio:7.2f}")
        prefix = shared_prefix_cells(model, args.sequences, 1024)
        print(f"a prefix of 1,024 tokens, shared by {args.sequences}: {prefix:.2f} of one prefix")
        scattered = scattered_cost(model, 1000, args.steps)
        print(f"a step after 1,000 tokens in scattered cells: {scattered:.2f} of one in neighbours")
    if args.json:
        result = {
            "model": args.model,
            "sequences": args.sequences,
            "steps": args.steps,
            "rows": rows,
            "prefix": prefix,
            "scattered": scattered,
            "build": plait.build_info(),
        }
        args.json.write_text(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    main()
