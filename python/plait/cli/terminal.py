"""Output of commands: tables, JSON and progress."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

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

    NumPy arrays become lists; invalid Unicode is replaced.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    text = _NUMBERS.sub(
        lambda found: re.sub(r"\n *", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text
    )
    write(text.encode(errors="replace").decode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Format rows in columns: the first `left` columns are aligned left, the others right.

    On a narrow terminal, a last column that is aligned left wraps to more lines.
    """
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    room = _columns() - sum(widths[:-1]) - 2 * (len(head) - 1)
    if left == len(head) and 20 <= room < widths[-1]:
        lines = [part for line in lines for part in _folded(line, room)]
        widths[-1] = room
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _columns() -> int:
    """Return the width of the terminal; the width of files is unlimited."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _folded(line: tuple[str, ...], room: int) -> Iterator[tuple[str, ...]]:
    first, *others = textwrap.wrap(line[-1], room) or [""]
    yield *line[:-1], first
    for text in others:
        yield *("" for _ in line[:-1]), text


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
    """

    WIDTH = 30

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()
        self._drawn = 0.0
        self._began = time.perf_counter()

    def __call__(self, done: float, total: float) -> None:
        """Redraw the bar, at most ten times per second."""
        now = time.perf_counter()
        if not self._shown or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        part = done / total if total else 1.0
        full = int(part * self.WIDTH)
        left = (now - self._began) * (1 - part) / part if part > 0 else 0.0
        bar = "#" * full + "." * (self.WIDTH - full)
        sys.stderr.write(f"\r\x1b[2K{self._what} [{bar}] {part:4.0%}, {left:.0f} s left")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
