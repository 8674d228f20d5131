"""Measure how many tokens a second a model reads and writes.

pp N: a prompt of N tokens into an empty cache. tg N: N steps of one token. btg B x N: N steps of B sequences at once.
With --compare llama.cpp does the same work in turn, where llama-cpp-python is installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from plait.cli.arguments import add_context, add_json, add_model, context_options, open_model
from plait.cli.terminal import Progress, table, write, write_json

if TYPE_CHECKING:
    from plait import Model

_DEPTH = 16  # tokens that a sequence of a batched test holds before


class Engine(Protocol):
    """What is measured: room for sequences, and tokens read by some of them."""

    name: str
    n_vocab: int

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        """An empty cache for this many sequences of this length; or room for as many texts to embed."""

    def read(self, tokens: list[list[int]]) -> None:
        """Give each sequence its next tokens, at once, and compute the logits of the last."""

    def embed(self, texts: list[list[int]]) -> None:
        """Compute an embedding of each, in one call."""

    def close(self) -> None:
        """Free it."""


class Plait:
    """plait.Context with the options of the command line."""

    name = "plait"

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self._model, self._options, self.n_vocab = model, options, model.n_vocab

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        """See Engine."""
        from plait import Batch, Context

        options = {"n_ctx": n_ctx, "n_seq_max": n_seqs} | self._options
        if embed:
            options["n_batch"] = max(options.get("n_batch", 0), n_ctx * n_seqs)
        self._ctx = Context(self._model, **options)
        self._batch = Batch()

    def read(self, tokens: list[list[int]]) -> None:
        """See Engine."""
        step = max(1, self._ctx.n_batch // len(tokens))
        for begin in range(0, len(tokens[0]), step):
            self._batch.clear()
            for seq, own in enumerate(tokens):
                part = own[begin : begin + step]
                if len(part) == 1:  # as whoever generates would
                    self._batch.add(part[0], seq=seq, logits=True)
                else:
                    self._batch.add_sequence(part, seq=seq)
            self._ctx.decode(self._batch)

    def embed(self, texts: list[list[int]]) -> None:
        """See Engine."""
        self._batch.clear()
        for seq, tokens in enumerate(texts):
            self._batch.add_sequence(tokens, seq=seq)
        self._ctx.encode(self._batch)

    def close(self) -> None:
        """See Engine."""
        self._ctx.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure."""
    add_model(parser)
    parser.add_argument(
        "-p", "--prompt", default="512", metavar="N,...", help="pp tests (default 512)"
    )
    parser.add_argument(
        "-n", "--steps", default="64", metavar="N,...", help="tg tests (default 64)"
    )
    parser.add_argument(
        "-b", "--batch", default="2,4,8", metavar="B,...", help="btg tests (default 2,4,8)"
    )
    parser.add_argument(
        "-r", "--rounds", type=int, default=3, metavar="N", help="of each (default 3)"
    )
    parser.add_argument("--compare", action="store_true", help="with llama.cpp")
    add_json(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """A row a test: medians, and the median of the rounds' ratios."""
    tests = [("pp", 1, n) for n in _numbers("--prompt", args.prompt)]
    steps = _numbers("--steps", args.steps)
    tests += [("tg", 1, n) for n in steps]
    tests += [("btg", b, n) for b in _numbers("--batch", args.batch) for n in steps[:1]]
    if args.rounds < 1:
        raise ValueError(f"--rounds: expected at least 1, got {args.rounds}")
    options = context_options(args)
    model = open_model(args.model)
    engines: list[Engine] = [Plait(model, options)]
    if args.compare:
        from plait.cli.llama_cpp import LlamaCpp

        options.setdefault("threads", len(os.sched_getaffinity(0)))
        engines.append(LlamaCpp(model.path, options))
    rows = []
    with Progress("bench") as progress:
        for i, test in enumerate(tests):
            rows.append(_measure(engines, model.n_vocab, test, args.rounds))
            progress(i + 1, len(tests))
    if args.json:
        write_json({"model": model.path, "options": options, "tests": rows})
    else:
        write(_table(rows, [engine.name for engine in engines]))
    return 0


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise ValueError(f"{option}: expected numbers with commas between, got {text!r}") from None
    if any(n < 1 for n in found):
        raise ValueError(f"{option}: expected numbers of at least 1, got {text!r}")
    return found


def _measure(
    engines: list[Engine], n_vocab: int, test: tuple[str, int, int], rounds: int
) -> dict[str, Any]:
    """Rates of a test, engines in turn; a first round that is not counted warms up."""
    kind, n_seqs, n = test
    rates: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for turn in range(rounds + 1):
        for engine in engines if turn % 2 == 0 else engines[::-1]:
            rate = _rate(engine, n_vocab, test)
            if turn:
                rates[engine.name].append(rate)
    label = f"btg {n_seqs} x {n}" if kind == "btg" else f"{kind} {n}"
    return {"test": label, "tokens": n_seqs * n, "rates": rates}


def _rate(engine: Engine, n_vocab: int, test: tuple[str, int, int]) -> float:
    kind, n_seqs, n = test
    random = np.random.default_rng(0)

    def tokens(each: int) -> list[list[int]]:
        drawn: list[list[int]] = random.integers(0, n_vocab, (n_seqs, each)).tolist()
        return drawn

    depth = _DEPTH if kind == "btg" else 0
    engine.open(n_seqs, depth + n)
    try:
        if depth:
            engine.read(tokens(depth))
        pieces = [tokens(n)] if kind == "pp" else [tokens(1) for _ in range(n)]
        began = time.perf_counter()
        for piece in pieces:
            engine.read(piece)
        return n_seqs * n / (time.perf_counter() - began)
    finally:
        engine.close()


def _table(rows: list[dict[str, Any]], names: list[str]) -> str:
    head, lines = ["test", *(f"{name} t/s" for name in names)], []
    if len(names) > 1:
        head.append("ratio")
    for row in rows:
        line = [row["test"]]
        for name in names:
            rates = row["rates"][name]
            spread = (max(rates) - min(rates)) / 2
            line.append(f"{statistics.median(rates):,.1f} +/- {spread:,.1f}")
        if len(names) > 1:
            pairs = zip(*(row["rates"][name] for name in names), strict=True)
            line.append(f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}")
        lines.append(line)
    return table(head, lines)
