"""Run one case of compare.py with one engine. The calls are the same for every engine.

    engines.py ENGINE MODEL CASE [--threads N] [--options '{"type_k": "q8_0"}'] [--prefix FILE]

prints the figure of the case as JSON, measured after one warm-up. With ENGINE `memory`, it prints the memory
bandwidth of the threads in bytes per second. With --prefix, every sequence begins with the same tokens, whose saved
state is read from FILE; the first process computes it and writes the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("plait", "llama.cpp")
LLAMA_CPP = Path(__file__).with_name("llama_cpp_engine.py")
N_BATCH, N_UBATCH = 2048, 512


@dataclass(frozen=True)
class Case:
    """A case: the work, and the unit of its figure.

    pp:N        one prompt of N tokens into an empty cache, logits of the last                     tokens/s
    pp:N@D      the same after D other tokens                                                      tokens/s
    tg:N@D      N steps of one token after a prompt of D tokens                                    tokens/s
    btg:BxN@D   N steps of B sequences, each after its own prompt of D tokens                      tokens/s
    encode:BxN  B texts of N tokens in one call, one pooled embedding each                         tokens/s
    load        open a model whose file is in the page cache, and decode one token                 bytes/s
    """

    kind: str
    n_seqs: int = 1
    n_tokens: int = 0  # of a prompt or text
    n_steps: int = 0
    depth: int = 0  # tokens in the cache before the measurement

    @property
    def is_reading(self) -> bool:
        """Whether the time of a step is mostly that of reading the weights."""
        return self.kind == "tg" and self.n_seqs == 1 and self.depth == 0

    @classmethod
    def parse(cls, text: str) -> Case:
        if m := re.fullmatch(r"pp:(\d+)(?:@(\d+))?", text):
            return cls("pp", n_tokens=int(m[1]), depth=int(m[2] or 0))
        if m := re.fullmatch(r"tg:(\d+)@(\d+)", text):
            return cls("tg", n_steps=int(m[1]), depth=int(m[2]))
        if m := re.fullmatch(r"btg:(\d+)x(\d+)@(\d+)", text):
            return cls("tg", n_seqs=int(m[1]), n_steps=int(m[2]), depth=int(m[3]))
        if m := re.fullmatch(r"encode:(\d+)x(\d+)", text):
            return cls("encode", n_seqs=int(m[1]), n_tokens=int(m[2]))
        if text == "load":
            return cls("load")
        raise ValueError(f"{text!r}: expected pp:N, pp:N@D, tg:N@D, btg:BxN@D, encode:BxN or load")


def open_engine(name: str, path: str, threads: int, options: dict[str, Any]) -> Any:
    """Open an engine. That of llama.cpp is loaded as a file, because its interpreter may not have plait."""
    options = {"threads": threads, "n_batch": N_BATCH, "n_ubatch": N_UBATCH, **options}
    if name == "plait":
        import plait
        from plait.cli.bench import Plait

        return Plait(plait.Model(path), options)
    found = importlib.util.spec_from_file_location("engine_of_llama_cpp", LLAMA_CPP)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.LlamaCpp(path, {"kv": "streams", **options})  # faster than unified in llama.cpp


def figure(opened: Any, case: Case, prefix: str | None = None) -> float:
    """Return the throughput of an engine in the second run; the first one is a warm-up.

    Args:
        opened: The engine.
        case: The case.
        prefix: A file with the state of the `case.depth` tokens that each sequence begins with, of its own. It is
            written where it does not exist, for contexts of as many sequences. Without it, the tokens differ by
            sequence and are computed in each run.
    """
    rng = np.random.default_rng(1)
    n = case.depth + case.n_tokens
    tokens = rng.integers(0, min(opened.n_vocab, 30000), (case.n_seqs, max(1, n)))
    held, prompts = tokens[:, : case.depth].tolist(), tokens[:, case.depth : n].tolist()
    steps = [tokens[:, [i % tokens.shape[1]]].tolist() for i in range(case.n_steps)]
    if prefix and not Path(prefix).exists():
        opened.open(case.n_seqs, case.depth)
        opened.read(held[:1])
        opened.save(prefix)
        opened.close()
    for _ in range(2):
        opened.open(case.n_seqs, n + case.n_steps + 1, embed=case.kind == "encode")
        if prefix:
            opened.load(prefix, case.n_seqs)
        elif case.depth:
            opened.read(held)
        start = time.perf_counter()
        if case.kind == "encode":
            opened.embed(prompts)
        elif case.kind == "pp":
            opened.read(prompts)
        for step in steps:
            opened.read(step)
        seconds = time.perf_counter() - start
        opened.close()
    return case.n_seqs * (case.n_tokens + case.n_steps) / seconds


def loading(engine: str, path: str, threads: int, options: dict[str, Any]) -> dict[str, float]:
    size = Path(path).stat().st_size
    with open(path, "rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    start = time.perf_counter()
    opened = open_engine(engine, path, threads, options)
    opened.open(1, 32)
    opened.read([[1]])
    seconds = time.perf_counter() - start
    # Not ru_maxrss, which a process takes over from the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return {"figure": size / seconds, "peak": peak / size}


def reading(threads: int) -> dict[str, float]:
    """Measure the bandwidth of reading half a gigabyte, which fits in no CPU cache: the median of several passes."""
    parts = np.array_split(np.ones(1 << 27, np.float32), threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(8):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - start)
    return {"figure": 4 * (1 << 27) / float(np.median(seconds[1:]))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=(*ENGINES, "memory"))
    parser.add_argument("model")
    parser.add_argument("case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--prefix")
    args = parser.parse_args()
    case = Case.parse(args.case)
    if args.engine == "memory":
        found = reading(args.threads)
    elif case.kind == "load":
        found = loading(args.engine, args.model, args.threads, args.options)
    else:
        opened = open_engine(args.engine, args.model, args.threads, args.options)
        found = {"figure": figure(opened, case, args.prefix)}
    json.dump(found, sys.stdout)
