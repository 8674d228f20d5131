"""The demo on a terminal: `python -m plait.demo`.

A story of the unseen split is decoded once and forked for each question; all answers are decoded in
one batch. Then the demo draws the cache, one character per row, and measures throughput and
accuracy on more stories. Colours and animation require a terminal.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, TextIO

import numpy as np

import plait

from . import ask, corpus

WIDTH = 78  # columns, on a terminal that has as many
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COLOURS = [31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96]  # ANSI foregrounds


class Screen:
    """Text output; on a terminal with colours, and with a block of lines that can be redrawn."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.live = out.isatty() and os.environ.get("TERM") != "dumb"
        self.colour = self.live and "NO_COLOR" not in os.environ
        columns = shutil.get_terminal_size().columns if self.live else WIDTH
        self.width = max(20, min(WIDTH, columns))

    def paint(self, text: str, code: int) -> str:
        """Return the text in a colour or in bold, given by its ANSI code."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def line(self, text: str = "") -> None:
        """Write one line."""
        self.out.write(text + "\n")

    def prose(self, text: str) -> None:
        """Write a text without colours, in as many lines as it needs."""
        for part in textwrap.wrap(text, self.width):
            self.line(part)

    def again(self, lines: Sequence[str], first: bool) -> None:
        """Write a block of lines; unless it is the first, over the previous one."""
        if not first:
            self.out.write(f"\x1b[{len(lines)}A")
        for text in lines:
            self.out.write(("\x1b[2K" if self.live else "") + text + "\n")
        self.out.flush()


def rows_of(cells: np.ndarray) -> list[tuple[int, tuple[int, ...]]]:
    """Return (row, sequences that hold it) of every used row, ordered by stream and row."""
    held = np.sort(cells[cells["seqs"].any(axis=1)], order=["stream", "row"])
    return [(int(c["row"]), tuple(np.flatnonzero(c["seqs"]).tolist())) for c in held]


def cache_map(cells: np.ndarray, story: int, forks: Sequence[int], screen: Screen) -> list[str]:
    """Draw one character per used row: `#` if the story's sequence holds it, else the letter of the question."""
    letter = {fork: i for i, fork in enumerate(forks)}
    marks, mine = [], [0] * len(forks)
    shared = holding = stored = without = 0
    for _, holders in rows_of(cells):
        stored += 1
        without += len(holders)
        if story in holders or len(holders) > 1:
            shared += 1
            holding = max(holding, len(holders))
            marks.append(screen.paint("#", 1))
        else:
            i = letter[holders[0]]
            mine[i] += 1
            marks.append(screen.paint(LETTERS[i % 26], COLOURS[i % len(COLOURS)]))
    room = screen.width - 2
    lines = ["".join(marks[i : i + room]) for i in range(0, len(marks), room)]
    lines.append("")
    lines.append(
        f"{screen.paint('#', 1)}  {shared} rows of the story, each in {holding} sequence{'s' * (holding > 1)}"
    )
    spans = [
        f"{screen.paint(LETTERS[i % 26], COLOURS[i % len(COLOURS)])} {n:<3}"
        for i, n in enumerate(mine)
    ]
    lines.append("   rows of each question:")
    per_line = max(1, room // 6)  # a letter, a number and spaces
    lines += [" ".join(spans[i : i + per_line]).rstrip() for i in range(0, len(spans), per_line)]
    lines.append(f"{stored} rows in use; without sharing it would be {without}")
    return lines


class Demo:
    """Shows stories on a screen and asks the model questions about them."""

    def __init__(self, model: plait.Model, ctx: plait.Context, screen: Screen, pace: float) -> None:
        self.tokenizer = model.tokenizer
        self.ctx, self.screen, self.pace = ctx, screen, pace

    def tell(self, story: corpus.Story, own: Sequence[str]) -> None:
        """Show one story and its answers; `own` are questions without a known answer."""
        screen, ctx = self.screen, self.ctx
        asked: list[tuple[str, str | None]] = [*story.questions, *((q, None) for q in own)]
        screen.prose(story.text)
        screen.line()
        questions = [q for q, _ in asked]
        with ExitStack() as stack:
            began = time.perf_counter()
            prefix = stack.enter_context(ask.read(ctx, self.tokenizer, story.text))
            reading = time.perf_counter() - began
            n_story = len(prefix)
            forks = [stack.enter_context(prefix.fork()) for _ in questions]
            said: list[list[int]] = [[] for _ in questions]
            if screen.live:
                screen.again(self._answers(asked, said, done=False), first=True)
            spent = reading
            began = time.perf_counter()
            for new in ask.steps(ctx, self.tokenizer, forks, questions):
                spent += time.perf_counter() - began
                for tokens, token in zip(said, new, strict=True):
                    if token is not None:
                        tokens.append(token)
                if screen.live:
                    screen.again(self._answers(asked, said, done=False), first=False)
                    time.sleep(self.pace)
                began = time.perf_counter()
            spent += time.perf_counter() - began
            screen.again(self._answers(asked, said, done=True), first=not screen.live)
            n_all = n_story + sum(len(fork) - n_story for fork in forks)
            screen.line()
            screen.line(f"{n_story} tokens of the story decoded in {reading * 1e3:.1f} ms,")
            screen.line(f"{n_all} with all questions and answers in {spent * 1e3:.1f} ms")
            screen.line()
            screen.line(f"The cache ({ctx.kv.kind}):")
            for text in cache_map(ctx.kv.cells(), prefix.id, [f.id for f in forks], screen):
                screen.line(f"  {text}".rstrip())

    def _answers(
        self, asked: Sequence[tuple[str, str | None]], said: list[list[int]], done: bool
    ) -> list[str]:
        widest = max(len(q) for q, _ in asked)
        lines = []
        for i, ((question, right), tokens) in enumerate(zip(asked, said, strict=True)):
            text = self.tokenizer.decode(tokens).strip()
            note = f"   (no: {right})" if done and right not in (None, text) else ""
            colour = COLOURS[i % len(COLOURS)]
            mark, answer = (
                self.screen.paint(LETTERS[i % 26], colour),
                self.screen.paint(text, colour),
            )
            if self.screen.width < WIDTH:  # a line each
                lines += [f"{mark}  {question}", f"   {answer}{note}"]
            else:
                lines.append(f"  {mark}  {question:{widest}}  {answer}{note}")
        return lines

    def measure(self, stories: Sequence[corpus.Story]) -> tuple[int, int, int, float]:
        """Return the numbers of right answers, questions and tokens, and the seconds, of many stories."""
        right = total = 0
        tokens, began = self.ctx.stats.tokens, time.perf_counter()
        for story in stories:
            with ask.read(self.ctx, self.tokenizer, story.text) as prefix:
                given = ask.answer(
                    self.ctx, self.tokenizer, prefix, [q for q, _ in story.questions]
                )
            right += sum(a == b for a, (_, b) in zip(given, story.questions, strict=True))
            total += len(story.questions)
        return right, total, self.ctx.stats.tokens - tokens, time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo with the arguments of a command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="plait.demo",
        description="A small model reads a story once and answers questions about it in one batch.",
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return show(args)
    except (plait.Error, ValueError) as error:
        parser.error(str(error))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the demo."""
    parser.add_argument("--seed", type=int, help="number of the story (default: random)")
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="QUESTION",
        help="another question; may be repeated",
    )
    parser.add_argument(
        "--more",
        type=int,
        default=20,
        metavar="N",
        help="stories for the measurement at the end (default 20)",
    )
    parser.add_argument(
        "--kv",
        choices=["unified", "streams"],
        default="unified",
        help="kind of cache (default unified)",
    )
    parser.add_argument("--backend", default="cpu", help="cpu, vulkan or auto (default cpu)")
    parser.add_argument("--threads", type=int, help="number of CPU threads")
    parser.add_argument(
        "--pace",
        type=float,
        default=0.12,
        metavar="S",
        help="seconds between steps on a terminal (default 0.12)",
    )


def show(args: argparse.Namespace) -> int:
    """Run the demo and return the exit status."""
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(100_000)
    story, *more = corpus.stories(seed, 1 + max(0, args.more), "unseen")
    screen = Screen(sys.stdout)
    model = plait.Model.demo()
    options: dict[str, Any] = {"kv": args.kv, "backend": args.backend, "threads": args.threads}
    with ask.context(model, questions=8 + len(args.ask), **options) as ctx:
        screen.prose(
            f"{model.arch}, {model.n_params / 1e6:.1f} million weights in {model.nbytes / 1e6:.1f} MB, "
            "trained from scratch for this demo."
        )
        screen.line(f"Story {seed} (--seed {seed}):")
        screen.line()
        demo = Demo(model, ctx, screen, args.pace)
        demo.tell(story, args.ask)
        screen.line()
        if more:
            right, total, tokens, seconds = demo.measure(more)
            screen.prose(
                f"{len(more)} more unseen stories: {right} of {total} answers right, "
                f"{tokens / seconds:.0f} tokens/s"
            )
        stats = ctx.stats
        why = ", ".join(f"{reason} {n}" for reason, n in stats.plan_misses.items())
        screen.prose(f"plans: {stats.plans_built} built ({why}), reused {stats.plans_reused} times")
    return 0
