"""The exceptions of plait. Every one is an `Error` and one of Python's own kinds."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors that are plait's own."""


class ModelError(Error, ValueError):
    """A file is not what it claims to be; the message names the file, the field and the defect."""


class BatchError(Error, ValueError):
    """A batch that cannot be decoded as it is. Nothing has run."""


class CacheFull(Error, RuntimeError):
    """There is no room in the KV cache. Nothing has changed; free a sequence and try again.

    `needed` is the number of cells asked for, `free` the number there was.
    """

    def __init__(self, message: str, needed: int = 0, free: int = 0) -> None:
        super().__init__(message, needed, free)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return str(self.args[0])


class StateError(Error, ValueError):
    """A saved state that does not fit this context, or is damaged. Nothing has changed."""


class BackendError(Error, RuntimeError):
    """A device refused work or memory. The cache is as it was before the call."""


class UnsupportedError(Error, NotImplementedError):
    """Something that this model, this kind of cache or this build cannot do."""
