"""Closeable: base class of objects with close()."""

from __future__ import annotations

from typing import NoReturn, TypeVar

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

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} objects cannot be copied or pickled; create another {name}")
