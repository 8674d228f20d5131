"""The argument `progress` of functions that process many items."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

from plait.arguments import kind
from plait.closeable import Closeable

ProgressOption = bool | Callable[[int, int], object] | None

_MIN_FOR_BAR: Final = 16  # items from which on a bar is shown by default


def check_progress(progress: ProgressOption, function: str) -> None:
    """Raise TypeError, which names `function`, if `progress` is neither a bool, None nor a callable."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"{function}: progress: expected a bool, None or a callable, got {kind(progress)}"
        )


class Progress(Closeable):
    """Reports progress to a function or with a tqdm bar, if tqdm is installed.

    Args:
        progress: True or False to show a bar or not; None shows it for 16 or more items when stderr is a terminal or a
            notebook; a callable receives (done, total).
        total: Number of items.
        unit: What an item is.

    Attributes:
        done: Number of items done.
    """

    def __init__(self, progress: ProgressOption, total: int, unit: str) -> None:
        self.done = 0
        self._total = total
        self._function = progress if callable(progress) else None
        if progress is None:
            on_terminal = sys.stderr is not None and sys.stderr.isatty()  # None if it is closed
            progress = total >= _MIN_FOR_BAR and (on_terminal or "ipykernel" in sys.modules)
        self._bar = _bar(total, unit) if progress is True else None

    def update(self, n: int = 1) -> None:
        """Report that `n` more items are done."""
        self.done += n
        if self._bar is not None:
            self._bar.update() if n == 1 else self._bar.update(n)
        if self._function is not None:
            self._function(self.done, self._total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def _bar(total: int, unit: str) -> Any:
    try:
        with warnings.catch_warnings():
            # tqdm recommends ipywidgets; its text bar is sufficient.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=unit, delay=2.0)
