#!/usr/bin/env python3
"""Measure what edits, transactions and captures cost, in pairs with and without them.

    experiment_costs.py [qwen-0.5b:Q8_0] [--seqs 16] [--steps 8] [--rounds 3] [--threads 2]

Prints medians: the throughput of steps of --seqs sequences with array edits of 4 values of each sequence, as a share of
that without; the time of an empty transaction, and what one around a step adds to the processor time outside of
decode(), each for 32 sequences; the rate of a prompt of 256 tokens with a capture of one value of every layer, as a
share; and the throughput of a context in which such scopes have ended, as a share of that of one which had none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
import plait
from cache_variants import opened


def step_of(model: plait.Model, n_seqs: int, n: int = 1) -> plait.Batch:
    """Return a batch with n tokens of each sequence."""
    batch = plait.Batch()
    for seq in range(n_seqs):
        batch.add_sequence(np.arange(n) % model.n_vocab, seq=seq, logits="last")
    return batch


def seconds(call: Callable[[], Any], scope: AbstractContextManager[Any], n: int) -> float:
    """Return the seconds of n calls within a scope, after one call."""
    with scope:
        call()
        begin = time.perf_counter()
        for _ in range(n):
            call()
        return time.perf_counter() - begin


def ratio(
    call: Callable[[], Any], scope: Callable[[], AbstractContextManager[Any]], n: int, rounds: int
) -> float:
    """Return the median of the time without a scope divided by the time within one."""
    pairs = [(seconds(call, nullcontext(), n), seconds(call, scope(), n)) for _ in range(rounds)]
    return statistics.median(without / within for without, within in pairs)


def edits_ratio(model: plait.Model, args: argparse.Namespace) -> float:
    """Return the throughput with edits of 4 values of each sequence, as a share of that without."""
    rng = np.random.default_rng(1)
    layers = np.linspace(0, model.n_layer - 2, 4).astype(int)
    with plait.Context(model, n_ctx=256, n_seq_max=args.seqs, threads=args.threads) as ctx:
        batch = step_of(model, args.seqs)

        def edits() -> ExitStack:
            stack = ExitStack()
            for seq in range(args.seqs):
                for layer in layers:
                    row = rng.normal(size=model.n_embd).astype(np.float32)
                    stack.enter_context(ctx.edit(f"l_out.{layer}", row, seq=seq))
            return stack

        return ratio(lambda: ctx.decode(batch), edits, args.steps, args.rounds)


def transaction_seconds(model: plait.Model, threads: int) -> tuple[float, float]:
    """Return the seconds of an empty transaction, and those that one around a step adds.

    Code that follows a step finds cold processor caches, with a transaction or without. So the processor time of a
    loop outside of decode() is compared, in turn: it makes the batch, and reads a position after the step.
    """
    with plait.Context(model, n_ctx=128, n_seq_max=32, threads=threads) as ctx:
        ctx.decode(step_of(model, 32, 8))

        def empty() -> float:
            begin = time.perf_counter()
            with ctx.transaction():
                pass
            return time.perf_counter() - begin

        def step() -> float:
            batch = step_of(model, 32)
            begin = time.thread_time()
            ctx.decode(batch)
            return time.thread_time() - begin

        def plain() -> float:
            begin = time.thread_time()
            decoding = step()
            ctx.kv.seq_pos_max(0)
            return time.thread_time() - begin - decoding

        def around() -> float:
            begin = time.thread_time()
            with ctx.transaction():
                decoding = step()
            ctx.kv.seq_pos_max(0)
            return time.thread_time() - begin - decoding

        added = []
        for _ in range(4):
            added += [around() - plain() for _ in range(25)]
            ctx.kv.clear()
        return statistics.median(empty() for _ in range(200)), statistics.median(added)


def capture_ratio(model: plait.Model, args: argparse.Namespace) -> float:
    """Return the rate of a prompt with a capture of one value per layer, as a share of that without."""
    with plait.Context(model, n_ctx=256, threads=args.threads) as ctx:
        batch = step_of(model, 1, 256)

        def prompt() -> None:
            ctx.kv.clear()
            ctx.decode(batch)

        return ratio(prompt, lambda: ctx.capture("l_out.*"), 1, args.rounds)


def rest_ratio(model: plait.Model, args: argparse.Namespace) -> float:
    """Return the throughput of a context whose scopes have ended, as a share of that of one without any."""

    def context() -> plait.Context:
        return plait.Context(model, n_ctx=256, n_seq_max=args.seqs, threads=args.threads)

    batch = step_of(model, args.seqs)
    with context() as used, context() as fresh:
        row = np.ones(model.n_embd, np.float32)
        with used.transaction(), used.capture("l_out.*"), used.edit("l_out.0", row, seq=0):
            used.decode(batch)
        ratios = []
        for _ in range(args.rounds):
            without = seconds(lambda: fresh.decode(batch), nullcontext(), args.steps)
            ratios.append(without / seconds(lambda: used.decode(batch), nullcontext(), args.steps))
        return statistics.median(ratios)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="qwen-0.5b:Q8_0", help="a file, or shape:type")
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    with opened(args.model) as model:
        print(f"edits of 4 values of {args.seqs} sequences: {edits_ratio(model, args):.3f}")
        empty, added = transaction_seconds(model, args.threads)
        print(
            f"transaction of 32 sequences: {1e6 * empty:.1f} us empty, {1e6 * added:.1f} us added to a step"
        )
        print(f"capture of one value per layer: {capture_ratio(model, args):.3f}")
        print(f"after the scopes: {rest_ratio(model, args):.3f}")


if __name__ == "__main__":
    main()
