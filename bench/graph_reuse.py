#!/usr/bin/env python3
"""Measure the gain from plan reuse and from fused operations.

    graph_reuse.py tiny-llama:F32 stories-15m:Q8_0 smol-135m:Q8_0 [--steps 200] [--rounds 5] [-B 1 2 4 8 16 32]

Decodes one token for each of B sequences per step. Prints the tokens per second with plan reuse, and the medians of
the paired ratios to runs that rebuild the plan for every step, and to runs without fusion, in alternation. Then
prints the host time of a step, excluding compute, for the first B. A model is a GGUF file, or shape:type for a model
with random weights (models.py).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import plait
from cache_variants import opened

VARIANTS: dict[str, dict[str, Any]] = {
    "kept": {},
    "built anew": {"graph_reuse": False},
    "unfused": {"fuse": False},
}


class Steps:
    """A context that repeatedly decodes one token per sequence."""

    def __init__(self, model: plait.Model, n_seqs: int, n_steps: int, **options: Any) -> None:
        self.n_seqs, self.n_steps = n_seqs, n_steps
        self.ctx = plait.Context(model, n_ctx=n_steps + 1, n_seq_max=n_seqs, **options)
        self.batch = plait.Batch()
        for seq in range(n_seqs):
            self.batch.add(5 + seq, seq=seq, logits=True)

    def rate(self) -> float:
        self.ctx.kv.clear()
        self.ctx.decode(self.batch)
        self.ctx.stats.reset()
        start = time.perf_counter()
        for _ in range(self.n_steps):
            self.ctx.decode(self.batch)
        return self.n_seqs * self.n_steps / (time.perf_counter() - start)


def beside_compute(steps: Steps) -> dict[str, float]:
    return {phase: s for phase, s in steps.ctx.stats.seconds.items() if phase != "compute"}


def report(name: str, n_steps: int, rounds: int, batches: list[int]) -> None:
    with opened(name) as model:
        print(f"{name}: tokens/s, and how many times that of plans built anew and of unfused ones")
        print(f"{'B':>4} {'kept':>10} {'anew':>7} {'unfused':>9}")
        for n_seqs in batches:
            steps = [Steps(model, n_seqs, n_steps, **options) for options in VARIANTS.values()]
            rows = [[one.rate() for one in steps] for _ in range(rounds)]
            anew, unfused = (statistics.median(row[0] / row[i] for row in rows) for i in (1, 2))
            kept = statistics.median(row[0] for row in rows)
            print(f"{n_seqs:4} {kept:10.1f} {anew:7.2f} {unfused:9.3f}")
            if n_seqs == batches[0]:
                kept_seconds, anew_seconds = (beside_compute(one) for one in steps[:2])
            for one in steps:
                one.ctx.close()
        beside = {phase: 1e6 * s / n_steps for phase, s in kept_seconds.items()}
        saved = 1e6 * sum(anew_seconds.values()) / n_steps - sum(beside.values())
        parts = ", ".join(f"{phase} {us:.1f}" for phase, us in beside.items())
        print(
            f"beside compute, B = {batches[0]}: {sum(beside.values()):.1f} microseconds a step ({parts}); "
            f"{saved:.1f} saved by keeping plans\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="GGUF files, or shape:type")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-B", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="sequences")
    args = parser.parse_args()
    for name in args.models:
        report(name, args.steps, args.rounds, args.B)


if __name__ == "__main__":
    main()
