"""One engine in a process of its own, doing one case of compare.py: the same calls, whichever engine it is.

    engines.py ENGINE MODEL CASE [--threads N] [--options '{"type_k": "q8_0"}']

prints the figure of the case as JSON, measured after one warm-up.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

N_BATCH, N_UBATCH = 2048, 512


@dataclass(frozen=True)
class Case:
    """What is done once, and what its figure counts.

    pp:N        one prompt of N tokens into an empty cache, logits of the last                     tokens/s
    tg:N@D      N steps of one token after a prompt of D                                           tokens/s
    btg:BxN@D   N steps of B sequences, each after its own prompt of D                             tokens/s
    encode:BxN  B texts of N tokens in one call, one pooled embedding each                         tokens/s
    load        a model opened and one token decoded, its file cached by the system                bytes/s
    """

    kind: str
    n_seqs: int = 1
    n_steps: int = 0
    depth: int = 0

    @classmethod
    def parse(cls, text: str) -> Case:
        if m := re.fullmatch(r"pp:(\d+)", text):
            return cls("pp", depth=int(m[1]))
        if m := re.fullmatch(r"tg:(\d+)@(\d+)", text):
            return cls("tg", n_steps=int(m[1]), depth=int(m[2]))
        if m := re.fullmatch(r"btg:(\d+)x(\d+)@(\d+)", text):
            return cls("tg", n_seqs=int(m[1]), n_steps=int(m[2]), depth=int(m[3]))
        if m := re.fullmatch(r"encode:(\d+)x(\d+)", text):
            return cls("encode", n_seqs=int(m[1]), depth=int(m[2]))
        if text == "load":
            return cls("load")
        raise ValueError(f"{text!r}: expected pp:N, tg:N@D, btg:BxN@D, encode:BxN or load")


class Plait:
    def __init__(self, path: str, threads: int, options: dict[str, Any]) -> None:
        import plait

        self.plait, self.threads, self.options = plait, threads, options
        self.model = plait.Model(path)
        self.n_vocab = self.model.n_vocab

    def open(self, n_seqs: int, n_ctx: int, encode: bool = False) -> None:
        batch = {"n_batch": max(N_BATCH, n_seqs * n_ctx)} if encode else {"n_batch": N_BATCH}
        self.ctx = self.plait.Context(
            self.model, n_ctx=n_ctx, n_seq_max=n_seqs, n_ubatch=N_UBATCH, threads=self.threads,
            **batch, **self.options,
        )  # fmt: skip

    def prompt(self, tokens: np.ndarray, seq: int) -> None:
        for i in range(0, len(tokens), N_BATCH):
            batch = self.plait.Batch()
            last = i + N_BATCH >= len(tokens)
            batch.add_sequence(tokens[i : i + N_BATCH], seq=seq, logits="last" if last else "none")
            self.ctx.decode(batch)

    def step(self, tokens: np.ndarray, position: int) -> float:
        batch = self.plait.Batch()
        for seq, token in enumerate(tokens):
            batch.add(int(token), pos=position, seq=seq, logits=True)
        return float(self.ctx.decode(batch).logits[-1, 0])

    def encode(self, texts: np.ndarray) -> float:
        batch = self.plait.Batch()
        for seq, tokens in enumerate(texts):
            batch.add_sequence(tokens, seq=seq)
        return float(self.ctx.encode(batch).embeddings[-1, 0])

    def close(self) -> None:
        self.ctx.close()


class LlamaCpp:
    """Through the low-level functions of llama-cpp-python, as a careful user would."""

    TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # noqa: RUF012

    def __init__(self, path: str, threads: int, options: dict[str, Any]) -> None:
        import llama_cpp

        self.api, self.threads, self.options = llama_cpp, threads, options
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        how = llama_cpp.llama_model_default_params()
        how.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), how)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def open(self, n_seqs: int, n_ctx: int, encode: bool = False) -> None:
        how = self.api.llama_context_default_params()
        how.n_ctx, how.n_seq_max = n_ctx * n_seqs, n_seqs
        how.n_batch = max(N_BATCH, n_ctx * n_seqs) if encode else N_BATCH
        how.n_ubatch = how.n_batch if encode else N_UBATCH
        how.n_threads = how.n_threads_batch = self.threads
        how.embeddings, how.kv_unified = encode, False
        how.type_k = self.TYPES[self.options.get("type_k", "f16")]
        how.type_v = self.TYPES[self.options.get("type_v", "f16")]
        if "q" in self.options.get("type_v", ""):
            how.flash_attn_type = 1
        self.ctx = self.api.llama_init_from_model(self.model, how)
        self.batch = self.api.llama_batch_init(how.n_batch, 0, 1)

    def decode(self, entries: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, seq, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
        if self.api.llama_decode(self.ctx, batch):
            raise RuntimeError("llama_decode failed")

    def prompt(self, tokens: np.ndarray, seq: int) -> None:
        end = len(tokens)
        for i in range(0, end, N_BATCH):
            self.decode(
                [(int(tokens[j]), j, seq, j == end - 1) for j in range(i, min(i + N_BATCH, end))]
            )

    def step(self, tokens: np.ndarray, position: int) -> float:
        self.decode([(int(token), position, seq, True) for seq, token in enumerate(tokens)])
        return self.api.llama_get_logits_ith(self.ctx, -1)[0]

    def encode(self, texts: np.ndarray) -> float:
        self.decode(
            [(int(t), i, seq, True) for seq, text in enumerate(texts) for i, t in enumerate(text)]
        )
        return self.api.llama_get_embeddings_seq(self.ctx, len(texts) - 1)[0]

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.ctx)


ENGINES = {"plait": Plait, "llama.cpp": LlamaCpp}


def figure(engine: str, path: str, case: Case, threads: int, options: dict[str, Any]) -> float:
    """Of the second time the case is done."""
    rng = np.random.default_rng(1)
    opened = ENGINES[engine](path, threads, options)
    for _ in range(2):
        tokens = rng.integers(0, min(opened.n_vocab, 30000), (case.n_seqs, max(1, case.depth)))
        opened.open(case.n_seqs, case.depth + case.n_steps + 1, case.kind == "encode")
        start = time.perf_counter()
        if case.kind == "encode":
            opened.encode(tokens)
        elif case.depth:
            for seq in range(case.n_seqs):
                opened.prompt(tokens[seq], seq)
        count = tokens.size
        if case.kind == "tg":
            start, count = time.perf_counter(), case.n_seqs * case.n_steps
            for i in range(case.n_steps):
                opened.step(tokens[:, i % tokens.shape[1]], case.depth + i)
        seconds = time.perf_counter() - start
        opened.close()
    return count / seconds


def loading(engine: str, path: str, threads: int, options: dict[str, Any]) -> dict[str, float]:
    size = Path(path).stat().st_size
    with open(path, "rb") as file:  # into the system's cache
        while file.read(1 << 24):
            pass
    start = time.perf_counter()
    opened = ENGINES[engine](path, threads, options)
    opened.open(1, 32)
    opened.step(np.array([1]), 0)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"figure": size / seconds, "peak": peak / size}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={})
    args = parser.parse_args()
    case = Case.parse(args.case)
    if case.kind == "load":
        found = loading(args.engine, args.model, args.threads, args.options)
    else:
        found = {"figure": figure(args.engine, args.model, case, args.threads, args.options)}
    json.dump(found, sys.stdout)
