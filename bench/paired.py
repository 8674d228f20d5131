#!/usr/bin/env python3
"""Compare two builds of plait by short bursts in alternation, for differences of a few percent.

    paired.py BASE_PYTHON NEW_PYTHON MODEL... [--cases pp:256,tg:8@0,btg:8x3@256] [--launches 6] [--pairs 5]
              [--options '{"type_k": "q8_0"}']

BASE_PYTHON and NEW_PYTHON are interpreters that have one build each, for example those of two checkouts. A model is a
GGUF file, or shape:type for one with random weights (models.py). The options are passed to plait.Context. The processes
of both builds stay alive during a launch and keep their contexts. They take turns at bursts of about a tenth of a
second, in changing order, so that whatever else the machine does meets both. Where the system places the memory of a
process changes its speed by up to several percent, also between two processes of one build, so both are started anew
for every launch.

A launch gives the median of the ratios base / new of its pairs; above 1, the new build is faster. A row has the median
of the launches, their quartiles, and the ratio of the fastest bursts of all.

Choose the steps of a case so that a burst takes about a tenth of a second. `load` and `encode` have no bursts;
compare.py measures them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from engines import Case

N_UBATCH = 512

Seconds = dict[str, list[float]]  # of the bursts of "base" and "new"


class Worker:
    """The process of one build; it computes a burst for each line that it reads."""

    def __init__(self, python: str, path: str, options: str) -> None:
        self._python = python
        self._process = subprocess.Popen(
            [python, __file__, "--worker", path, options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.version = self._line()

    def burst(self, case: str) -> float:
        """Run a burst; return its seconds."""
        self._stdin.write(case + "\n")
        self._stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        line = self._stdout.readline()
        if not line:
            raise SystemExit(f"{self._python} ended with status {self._process.wait()}")
        return line.strip()

    def close(self) -> None:
        self._stdin.close()
        self._process.wait()


def serve(path: str, options: dict[str, Any]) -> None:
    """Run bursts for the lines of stdin, in the interpreter of a build."""
    import plait

    print(plait.build_info()["commit"], flush=True)
    model = plait.Model(path)
    contexts: dict[str, plait.Context] = {}
    for line in sys.stdin:
        case = Case.parse(line.strip())
        if line not in contexts:
            contexts[line] = prepared(model, case, options)
        print(run(contexts[line], case), flush=True)


def prepared(model: Any, case: Case, options: dict[str, Any]) -> Any:
    """Return a context of a case, with the prompts of its sequences."""
    import plait

    n_ctx = case.depth + case.n_tokens + case.n_steps + 8
    ctx = plait.Context(model, n_ctx=n_ctx, n_seq_max=case.n_seqs, **options)
    for seq in range(case.n_seqs):
        for begin in range(0, case.depth, N_UBATCH):
            read(ctx, tokens(model, min(N_UBATCH, case.depth - begin), seq), [seq])
    return ctx


def tokens(model: Any, n: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, min(model.n_vocab, 30000), n).tolist()
    return ids


def read(ctx: Any, ids: list[int], seqs: list[int]) -> None:
    """Decode the same tokens for each sequence."""
    import plait

    batch = plait.Batch()
    for seq in seqs:
        batch.add_sequence(ids, seq=seq, logits="last")
    ctx.decode(batch)


def run(ctx: Any, case: Case) -> float:
    """Run a burst and undo it; return its seconds."""
    seqs = list(range(case.n_seqs))
    prompt = tokens(ctx.model, case.n_tokens, 0)
    begin = time.perf_counter()
    if prompt:
        read(ctx, prompt, seqs)
    for i in range(case.n_steps):
        read(ctx, [7 + i], seqs)
    seconds = time.perf_counter() - begin
    for seq in seqs:
        ctx.kv.seq_rm(seq, case.depth, None)
    return seconds


def launch(args: argparse.Namespace, path: str, index: int) -> tuple[list[str], dict[str, Seconds]]:
    """Start both builds, let them take turns; return their commits and the seconds of bursts by case."""
    pythons = {"base": args.base, "new": args.new}
    order = list(pythons) if index % 2 else list(pythons)[::-1]
    options = json.dumps({"threads": args.threads} | args.options)
    workers = {name: Worker(pythons[name], path, options) for name in order}
    cases = args.cases.split(",")
    seconds = {case: turns(workers, case, args.pairs) for case in cases}
    for worker in workers.values():
        worker.close()
    return [workers[name].version for name in pythons], seconds


def turns(workers: dict[str, Worker], case: str, pairs: int) -> Seconds:
    """Let two builds take turns; return the seconds of each one's bursts."""
    for worker in workers.values():  # builds plans and packs weights
        worker.burst(case)
        worker.burst(case)
    seconds: Seconds = {name: [] for name in workers}
    for i in range(pairs):
        for name in ("base", "new") if i % 2 else ("new", "base"):
            seconds[name].append(workers[name].burst(case))
    return seconds


def summary(launches: list[Seconds]) -> dict[str, float]:
    """Return the statistics of a row: of the ratios of the launches, and of all bursts."""
    ratios = [
        statistics.median(a / b for a, b in zip(found["base"], found["new"], strict=True))
        for found in launches
    ]
    low, median, high = statistics.quantiles(ratios, n=4)
    best = {name: min(min(found[name]) for found in launches) for name in ("base", "new")}
    return {
        "median": median,
        "low": low,
        "high": high,
        "best": best["base"] / best["new"],
        "seconds": statistics.median(burst for found in launches for burst in found["base"]),
    }


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("base", help="interpreter with the build to compare with")
    parser.add_argument("new", help="interpreter with the other build")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--cases", default="pp:256,tg:8@0,btg:8x3@256")
    parser.add_argument("--launches", type=int, default=6, help="processes of each build")
    parser.add_argument("--pairs", type=int, default=5, help="bursts of each process for a case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={}, help="arguments of plait.Context")
    args = parser.parse_args()
    if args.launches < 2:
        parser.error(f"--launches is {args.launches}; it must be at least 2")
    if args.pairs < 1:
        parser.error(f"--pairs is {args.pairs}; it must be at least 1")
    for case in args.cases.split(","):
        try:
            kind = Case.parse(case).kind
        except ValueError as error:
            parser.error(str(error))
        if kind in ("load", "encode"):
            parser.error(f"{case} has no bursts; compare.py measures it")
    return args


def main() -> None:
    args = parsed(
        argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
    )
    from compare import files  # needs plait in this interpreter

    with files(args.models) as paths:
        for name, path in paths.items():
            found = [launch(args, path, i) for i in range(args.launches)]
            print(f"{name}: {' and '.join(found[0][0])}")
            print(f"{'case':>16} {'median':>8} {'quartiles':>16} {'best':>8} {'burst':>9}")
            for case in args.cases.split(","):
                row = summary([seconds[case] for _, seconds in found])
                print(
                    f"{case:>16} {row['median']:8.3f}   {row['low']:.3f} to {row['high']:.3f}"
                    f" {row['best']:8.3f} {1000 * row['seconds']:6.0f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(str(Path(sys.argv[2])), json.loads(sys.argv[3]))
    else:
        main()
