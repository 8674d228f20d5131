"""Closeable: base class of objects with close()."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T", bound="Closeable")


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
