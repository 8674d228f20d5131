"""Interrupted calls keep what they have computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keeping(partial: Callable[[], object]) -> Iterator[None]:
    """Set the attribute `partial` of a KeyboardInterrupt that leaves the `with` block.

    Args:
        partial: Returns what the interrupted call would have returned for the work done so far.

    Raises:
        KeyboardInterrupt: The one that left the block.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.partial = partial()  # type: ignore[attr-defined]
        raise
