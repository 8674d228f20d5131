"""Output of commands: tables, JSON, messages and progress.

On a terminal, rich formats them (plait[terminal]). Without rich, and in files and pipes, the same text is plain.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

import numpy as np

_MIN_FOLDED: Final = 16  # characters to which a column may shrink

# A list of numbers as json.dumps() indents it. Strings contain no line breaks.
_NUMBERS = re.compile(r"\[\n *[-\w.+]+(,\n *[-\w.+]+)*\n *\]")


def write(text: str = "") -> None:
    """Write a line to standard output."""
    sys.stdout.write(text + "\n")


def flush() -> None:
    """Flush standard output. Raises BrokenPipeError if its reader has closed it."""
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write a value as indented JSON, with each list of numbers on one line.

    NumPy arrays become lists, NaN and infinities null, which JSON has instead; invalid Unicode is replaced.
    """
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    text = _NUMBERS.sub(
        lambda found: re.sub(r"\n *", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text
    )
    write(text.encode(errors="replace").decode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Write rows in columns to standard output: the first `left` columns are aligned left, the others right.

    On a narrow terminal, cells wrap to more lines.

    Args:
        head: The names of the columns; empty strings for a table without a head.
        rows: The cells of each row.
        left: Number of columns that are aligned left.
    """
    console = _console(sys.stdout)
    if console is None:
        write(table(head, rows, left))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        box=box.SIMPLE_HEAD, show_header=any(head), header_style="bold", show_edge=False, pad_edge=False,
        padding=(0, 1),
    )  # fmt: skip
    for i, name in enumerate(head):
        style = "cyan" if i == 0 else None
        shown.add_column(
            Text(name), justify="left" if i < left else "right", style=style, overflow="fold"
        )
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Format rows in columns as plain text; see write_table()."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    # The widest column that is aligned left gives way.
    widest = max(range(left), key=lambda i: widths[i], default=0)
    room = widths[widest] + _columns() - sum(widths) - 2 * (len(head) - 1)
    if left and _MIN_FOLDED <= room < widths[widest]:
        lines = [part for line in lines for part in _folded(line, widest, room)]
        widths[widest] = room
    if any(head):
        lines.insert(1, tuple("-" * width for width in widths))
    else:
        del lines[0]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@contextlib.contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Pass the warnings that the package logs inside a `with` block to a handler."""
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("plait")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write_error(source: str, text: str, hint: str | None = None) -> None:
    """Write an error message to standard error, unless that is closed, and a second line with what to try next.

    Args:
        source: What reports it, such as "plait generate".
        text: The message.
        hint: A command or an option to try. None: no second line.
    """
    if sys.stderr is None:
        return
    console = _console(sys.stderr)
    if console is None:
        sys.stderr.write(f"{source}: {text}\n" + (f"  try: {hint}\n" if hint else ""))
        return
    from rich.text import Text

    console.print(Text.assemble((f"{source}: ", "bold red"), text), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("  try: ", "dim"), (hint, "cyan")), soft_wrap=True)


def _console(out: TextIO | None) -> Any:
    """Return a rich console for a terminal; None for other or closed outputs and dumb terminals, and without rich."""
    if out is None or not out.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    return None if console.is_dumb_terminal else console


def _columns() -> int:
    """Return the width of the terminal; the width of files is unlimited."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _folded(line: tuple[str, ...], column: int, room: int) -> Iterator[tuple[str, ...]]:
    """Yield the line with one of its cells wrapped to several lines."""
    first, *others = textwrap.wrap(line[column], room) or [""]
    yield (*line[:column], first, *line[column + 1 :])
    for text in others:
        yield tuple(text if i == column else "" for i in range(len(line)))


def size(n: float) -> str:
    """Format a number of bytes: 2.75 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1000
    raise AssertionError


class Progress:
    """A progress bar on standard error, shown only if that is a terminal.

    Call it with (done, total).

    Args:
        what: What is in progress.
    """

    WIDTH: Final = 30  # of a bar without rich, in characters

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = 0.0
        self._began = time.perf_counter()
        self._rich: Any = None
        console = _console(sys.stderr)
        if console is not None:
            from rich import progress

            self._rich = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(self.WIDTH),
                progress.TextColumn("{task.percentage:3.0f}%, {task.fields[left]:.0f} s left"),
                console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip

    def __call__(self, done: float, total: float) -> None:
        """Redraw the bar, at most ten times per second.

        Args:
            done: Amount that is done.
            total: Amount in all, in the same unit.
        """
        now = time.perf_counter()
        if not self._shown or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        part = done / total if total else 1.0
        left = (now - self._began) * (1 - part) / part if part > 0 else 0.0
        if self._rich is not None:
            if not self._rich.tasks:
                self._rich.start()
                self._rich.add_task(self._what, total=1.0, left=left)
            self._rich.update(self._rich.tasks[0].id, completed=part, left=left)
            return
        full = int(part * self.WIDTH)
        bar = "#" * full + "." * (self.WIDTH - full)
        sys.stderr.write(f"\r\x1b[2K{self._what} [{bar}] {part:4.0%}, {left:.0f} s left")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._shown and self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
