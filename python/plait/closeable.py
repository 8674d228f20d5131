"""Closeable: base class of objects with close(). And begun(), for generators that own resources."""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn, TypeVar

T = TypeVar("T", bound="Closeable")
Item = TypeVar("Item")


class Closeable:
    """An object with close(), which the end of a `with` block calls."""

    __slots__ = ()

    def close(self) -> None:
        """Release the resources of this object. Does nothing if it is already closed."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} objects cannot be copied or pickled; create another {name}")


def begun(items: Generator[Item | None, None, None]) -> Generator[Item, None, None]:
    """Run a generator to its first `yield`, so that its end frees its resources even if no item is taken.

    A generator that has not begun does not run its `finally` when it is closed or deleted.

    Args:
        items: A generator that yields None once, within the `try` or `with` that frees its resources, and then items.

    Returns:
        The generator, whose next value is the first item.
    """
    next(items)
    return items  # type: ignore[return-value]
