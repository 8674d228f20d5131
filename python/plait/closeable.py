"""What is closed at the end of a `with`."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T", bound="Closeable")


class Closeable:
    """Has close(), and `with` calls it."""

    __slots__ = ()

    def close(self) -> None:
        """Give back what is held. Harmless when closed already."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
