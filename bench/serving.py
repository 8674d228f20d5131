#!/usr/bin/env python3
"""Measure the throughput of an engine with many requests, beside generate() and llama-server, and its latency.

    serving.py MODEL [--requests 64] [--slots 16] [--threads N] [--rounds 3] [--systems NAME,...]

MODEL is a GGUF file, or shape:type for one with random weights (models.py). All requests of mixed length are given at
once; every round measures each system in turn with the same prompts, limits, slots and threads. llama-server takes part
if PLAIT_LLAMA_SERVER is the path of its binary. A figure is the number of generated tokens per second, until the last
request has ended.

The latency is the time from the submission of a short prompt to its first token, in steps of the engine: divided by the
mean time of the steps in which long prompts are processed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import plait

N_CTX = 512
Requests = list[tuple[list[int], int]]  # prompts and the number of tokens to generate


def requests_of(n: int, n_vocab: int, seed: int = 0) -> Requests:
    """Return prompts of 16 to 256 tokens, each with 16 to 64 tokens to generate."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(100, n_vocab // 2, rng.integers(16, 257)).tolist(), int(rng.integers(16, 65)))
        for _ in range(n)
    ]


def context(model: plait.Model, slots: int, threads: int | None) -> plait.Context:
    return plait.Context(
        model, n_ctx=N_CTX, n_seq_max=slots, kv_cells=slots * N_CTX, threads=threads
    )


def with_generate(ctx: plait.Context, requests: Requests) -> int:
    prompts, limits = zip(*requests, strict=True)
    done = plait.complete(ctx, list(prompts), list(limits), progress=False)
    return sum(len(one.tokens) for one in done)


def with_engine(engine: plait.Engine, requests: Requests) -> int:
    async def main() -> int:
        done = await asyncio.gather(*(engine.complete(ids, n) for ids, n in requests))
        return sum(len(one.tokens) for one in done)

    return asyncio.run(main())


@contextmanager
def llama_server(binary: str, path: str, slots: int, threads: int) -> Iterator[str]:
    """Run llama-server, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        binary, "-m", path, "-np", str(slots), "-c", str(slots * N_CTX), "-t", str(threads), "-tb", str(threads),
        "--port", str(port), "-ngl", "0",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(300):
                try:
                    with urllib.request.urlopen(f"{address}/health"):
                        break
                except OSError:
                    if process.poll() is not None:
                        log.seek(0)
                        raise SystemExit(log.read().decode(errors="replace")[-2000:]) from None
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait()


def with_llama_server(address: str, requests: Requests) -> int:
    def ask(request: tuple[list[int], int]) -> int:
        body: dict[str, Any] = {
            "prompt": request[0], "n_predict": request[1], "temperature": 0, "ignore_eos": True,
            "cache_prompt": False,
        }  # fmt: skip
        sent = urllib.request.Request(
            f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(sent) as reply:
            return int(json.load(reply)["tokens_predicted"])

    with ThreadPoolExecutor(len(requests)) as pool:
        return sum(pool.map(ask, requests))


def latency(engine: plait.Engine, n_vocab: int) -> tuple[float, float]:
    """Return the seconds to the first token of a short prompt beside long ones, and those of a step meanwhile."""
    rng = np.random.default_rng(1)
    long = [rng.integers(100, n_vocab // 2, 480).tolist() for _ in range(8)]

    async def begun(stream: AsyncIterator[plait.Event]) -> float:
        await anext(stream)
        return time.monotonic()

    async def main() -> tuple[float, float]:
        n, start = engine.stats.n_steps, time.monotonic()
        streams = [engine.stream(ids, 8) for ids in long]
        running = [asyncio.create_task(begun(stream)) for stream in streams]
        while engine.stats.n_steps < n + 2:  # in the middle of a step, that of other prompts
            await asyncio.sleep(0.001)
        short = await engine.complete(long[0][:8][::-1], 2)
        seconds = max(await asyncio.gather(*running)) - start
        n_steps = engine.stats.n_steps - n
        for stream in streams:
            await stream.aclose()
        assert short.timings is not None
        assert short.timings.first_token is not None
        return short.timings.first_token, seconds / n_steps

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", metavar="NAME,...", help="default: all")
    given = parser.parse_args()
    path = given.model
    if not Path(path).exists():
        sys.path.insert(0, str(Path(__file__).parent))
        import models

        path = str(
            models.write(given.model, Path(tempfile.mkdtemp()) / "model.gguf", vocabulary=True)
        )
    model = plait.Model(path)
    threads = given.threads or os.cpu_count() or 1
    requests = requests_of(given.requests, model.n_vocab)
    with ExitStack() as opened:
        first, second = (
            opened.enter_context(context(model, given.slots, threads)) for _ in range(2)
        )
        engine = opened.enter_context(plait.Engine(second, prefixes=False))
        systems: dict[str, Callable[[Requests], int]] = {
            "generate": lambda asked: with_generate(first, asked),
            "engine": lambda asked: with_engine(engine, asked),
        }
        if binary := os.environ.get("PLAIT_LLAMA_SERVER"):
            address = opened.enter_context(llama_server(binary, path, given.slots, threads))
            systems["llama-server"] = lambda asked: with_llama_server(address, asked)
        chosen = given.systems.split(",") if given.systems else list(systems)
        measure({name: systems[name] for name in chosen}, requests, given.rounds)
        if "engine" in chosen:
            seconds, step = latency(engine, model.n_vocab)
            print(
                f"first token of a short prompt: {seconds * 1e3:.0f} ms, {seconds / step:.1f} steps"
            )


def measure(systems: dict[str, Callable[[Requests], int]], requests: Requests, rounds: int) -> None:
    """Print the tokens per second of each system in each round, and their median."""
    figures: dict[str, list[float]] = {name: [] for name in systems}
    for call in systems.values():
        call(requests[:4])  # builds plans
    for i in range(rounds):
        order = list(systems) if i % 2 == 0 else list(systems)[::-1]
        for name in order:
            start = time.monotonic()
            n = systems[name](requests)
            figures[name].append(n / (time.monotonic() - start))
    for name, found in figures.items():
        listed = " ".join(f"{one:.1f}" for one in found)
        print(f"{name}: {statistics.median(found):.1f} tokens/s ({listed})", flush=True)


if __name__ == "__main__":
    main()
