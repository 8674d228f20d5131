#!/usr/bin/env python3
"""Compare plait.generate() with a loop over Llama of llama-cpp-python, for many prompts with a common prefix.

    generate.py --model m.gguf [--prompts 200] [--prefix 300] [--tail 8] [--max-tokens 16] [--threads 2] [--rounds 2]

Prompts are random token ids: a common prefix, followed by a different tail. Both engines decode greedily. Llama keeps
the cache of the previous prompt, so it also computes the prefix once, but it cannot run prompts in parallel. Each
engine runs in its own process, in alternation; loading is not counted. The comparison needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

ENGINES = ("plait", "llama-cpp-python")


def prompts(n_vocab: int, args: argparse.Namespace) -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(1)
    low = min(300, n_vocab // 2)  # past control tokens and single bytes
    prefix = rng.integers(low, n_vocab, args.prefix).tolist()
    return [prefix + rng.integers(low, n_vocab, args.tail).tolist() for _ in range(args.prompts)]


def run_plait(args: argparse.Namespace) -> dict[str, float]:
    import plait

    model = plait.Model(args.model)
    asked = prompts(model.n_vocab, args)
    longest = args.prefix + args.tail + args.max_tokens
    cells = args.prefix + args.at_once * (args.tail + args.max_tokens) + args.prefix
    with plait.Context(
        model,
        n_ctx=longest,
        n_seq_max=args.at_once,
        kv_cells=max(cells, longest),
        threads=args.threads,
    ) as ctx:
        list(plait.generate(ctx, asked[:2], max_tokens=2))  # page in the weights
        ctx.stats.reset()
        start = time.perf_counter()
        n = sum(1 for _ in plait.generate(ctx, asked, max_tokens=args.max_tokens))
        return {"seconds": time.perf_counter() - start, "said": n, "computed": ctx.stats.tokens}


def run_llama(args: argparse.Namespace) -> dict[str, float]:
    import llama_cpp

    longest = args.prefix + args.tail + args.max_tokens
    llm = llama_cpp.Llama(
        args.model,
        n_ctx=longest + 8,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )
    asked = prompts(llm.n_vocab(), args)

    def said(prompt: list[int], limit: int) -> int:
        made = llm.create_completion(prompt, max_tokens=limit, temperature=0.0)
        return int(made["usage"]["completion_tokens"])

    said(asked[0], 2)
    start = time.perf_counter()
    n = sum(said(prompt, args.max_tokens) for prompt in asked)
    return {"seconds": time.perf_counter() - start, "said": n, "computed": float("nan")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--prefix", type=int, default=300)
    parser.add_argument("--tail", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--engine", choices=ENGINES, help="run one engine here, and print its figures"
    )
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(run_plait(args) if args.engine == "plait" else run_llama(args)))
        return
    rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for _ in range(args.rounds):
        for engine in ENGINES:
            command = [sys.executable, __file__, *sys.argv[1:], "--engine", engine]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            figures = json.loads(output.splitlines()[-1])
            rates[engine].append(figures["said"] / figures["seconds"])
            print(
                f"{engine:17} {figures['seconds']:8.2f} s  {rates[engine][-1]:8.1f} tokens/s  "
                f"{figures['computed']:.0f} computed"
            )
    ratio = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    print(f"plait / llama-cpp-python: {statistics.median(ratio):.2f}")


if __name__ == "__main__":
    main()
