"""Measure the throughput of a model in tokens per second.

pp N: process a prompt of N tokens, starting from an empty cache. tg N: generate N tokens, one per step. btg B x N:
generate N tokens for each of B sequences, B tokens per step.

Encoders run other tests. enc B x N: compute embeddings of B texts of N tokens in one call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.cli.arguments import add_context, add_json, add_model, context_options, open_model
from plait.cli.terminal import Progress, write_json, write_table

if TYPE_CHECKING:
    from plait import Model

_BATCHED_DEPTH = 16  # tokens in each sequence's cache before a btg test starts


class Plait:
    """The engine under test: a Context with the options of the command line. bench/engines.py uses it too.

    Args:
        model: The model to measure.
        options: Keyword arguments of Context.
    """

    name = "plait"

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self._model, self._options, self.n_vocab = model, options, model.n_vocab

    def is_encoder(self) -> bool:
        """Return whether the model computes embeddings of texts and no next tokens."""
        from plait import Context

        with Context(self._model, **(self._options | {"n_ctx": 1})) as ctx:
            return ctx.kv.kind in ("none", "cross")

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        """Create an empty cache for `n_seqs` sequences of `n_ctx` tokens, or room to embed as many texts."""
        from plait import Batch, Context

        options = {"n_ctx": n_ctx, "n_seq_max": n_seqs} | self._options
        if embed:
            options["n_batch"] = max(options.get("n_batch", 0), n_ctx * n_seqs)
        self._ctx = Context(self._model, **options)
        self._batch = Batch()

    def read(self, tokens: list[list[int]]) -> None:
        """Decode the next tokens of each sequence together and compute the logits of the last ones."""
        step = max(1, self._ctx.n_batch // len(tokens))
        for begin in range(0, len(tokens[0]), step):
            self._batch.clear()
            for seq, own in enumerate(tokens):
                part = own[begin : begin + step]
                if len(part) == 1:  # the call that a generation loop makes
                    self._batch.add(part[0], seq=seq, logits=True)
                else:
                    self._batch.add_sequence(part, seq=seq)
            self._ctx.decode(self._batch)

    def embed(self, texts: list[list[int]]) -> None:
        """Compute an embedding of each text in one call."""
        self._batch.clear()
        for seq, tokens in enumerate(texts):
            self._batch.add_sequence(tokens, seq=seq)
        self._ctx.encode(self._batch)

    def save(self, path: str) -> None:
        """Write the state of the first sequence to a file."""
        self._ctx.kv.save(path, seq=0)

    def load(self, path: str, n_seqs: int) -> None:
        """Read a state into each of `n_seqs` sequences, which get cells of their own."""
        for seq in range(n_seqs):
            self._ctx.kv.load(path, seq=seq)

    def close(self) -> None:
        """Free the cache."""
        self._ctx.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait bench`."""
    add_model(parser)
    parser.add_argument(
        "-p",
        "--prompt",
        default="512",
        metavar="N,...",
        help="prompt lengths of the pp tests, or text lengths of the enc tests (default 512)",
    )
    parser.add_argument(
        "-n",
        "--steps",
        default="64",
        metavar="N,...",
        help="numbers of steps of the tg tests (default 64)",
    )
    parser.add_argument(
        "-b",
        "--batch",
        default="2,4,8",
        metavar="B,...",
        help="numbers of sequences of the btg tests, or of texts of the enc tests (default 2,4,8)",
    )
    parser.add_argument(
        "-r", "--rounds", type=int, default=3, metavar="N", help="runs of each test (default 3)"
    )
    add_json(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Run the tests and print the median throughput and its spread, one line per test."""
    prompts, steps = _numbers("--prompt", args.prompt), _numbers("--steps", args.steps)
    batches = _numbers("--batch", args.batch)
    if args.rounds < 1:
        raise ValueError(f"--rounds is {args.rounds}; it must be at least 1")
    options = context_options(args)
    model = open_model(args.model)
    engine = Plait(model, options)
    if engine.is_encoder():
        limit = model.n_ctx_train or max(prompts, default=1)
        lengths = sorted({min(n, limit) for n in prompts})
        tests = [("enc", b, n) for b in (1, *batches) for n in lengths]
    else:
        tests = [("pp", 1, n) for n in prompts] + [("tg", 1, n) for n in steps]
        tests += [("btg", b, n) for b in batches for n in steps[:1]]
    rows = []
    with Progress("bench") as progress:
        for i, test in enumerate(tests):
            rows.append(_measure(engine, test, args.rounds))
            progress(i + 1, len(tests))
    if args.json:
        write_json({"model": model.path, "options": options, "tests": rows})
    else:
        write_table(["test", f"{Plait.name} t/s"], _lines(rows))
    return 0


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise ValueError(f"{option} is {text!r}; expected numbers separated by commas") from None
    if any(n < 1 for n in found):
        raise ValueError(f"{option} is {text!r}; each number must be at least 1")
    return found


def _measure(engine: Plait, test: tuple[str, int, int], rounds: int) -> dict[str, Any]:
    """Measure the throughput of `rounds` runs of a test, after one run to warm up."""
    kind, n_seqs, n = test
    rates = [_rate(engine, test) for _ in range(rounds + 1)][1:]
    label = f"{kind} {n_seqs} x {n}" if kind in ("btg", "enc") else f"{kind} {n}"
    return {"test": label, "tokens": n_seqs * n, "rates": {engine.name: rates}}


def _rate(engine: Plait, test: tuple[str, int, int]) -> float:
    kind, n_seqs, n = test
    random = np.random.default_rng(0)

    def tokens(per_sequence: int) -> list[list[int]]:
        drawn: list[list[int]] = random.integers(0, engine.n_vocab, (n_seqs, per_sequence)).tolist()
        return drawn

    depth = _BATCHED_DEPTH if kind == "btg" else 0
    engine.open(n_seqs, depth + n, embed=kind == "enc")
    try:
        if kind == "enc":
            texts = tokens(n)
            began = time.perf_counter()
            engine.embed(texts)
            return n_seqs * n / (time.perf_counter() - began)
        if depth:
            engine.read(tokens(depth))
        steps = [tokens(n)] if kind == "pp" else [tokens(1) for _ in range(n)]
        began = time.perf_counter()
        for step in steps:
            engine.read(step)
        return n_seqs * n / (time.perf_counter() - began)
    finally:
        engine.close()


def _lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = []
    for row in rows:
        rates = row["rates"][Plait.name]
        spread = (max(rates) - min(rates)) / 2
        lines.append([row["test"], f"{statistics.median(rates):,.1f} +/- {spread:,.1f}"])
    return lines
