"""The exceptions of plait. Each derives from Error and from a built-in exception.

The package exports those that callers need to tell apart. The last ones are also one of Python's own exceptions.
"""

from __future__ import annotations

import errno


class Error(Exception):
    """Base class of all exceptions that plait defines."""


class ModelError(Error, ValueError):
    """A file is damaged or inconsistent. The message names the file, the field and the defect."""


class BatchError(Error, ValueError):
    """A batch is invalid. Nothing was computed, and the cache is unchanged."""


class CacheFull(Error, RuntimeError):
    """The KV cache has too little free room for the call.

    The cache is unchanged; free a sequence and try again.

    Attributes:
        needed: Number of cells that the call needs.
        free: Number of free cells.
    """

    def __init__(self, message: str, needed: int = 0, free: int = 0) -> None:
        super().__init__(message, needed, free)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return str(self.args[0])


class StateError(Error, ValueError):
    """A saved state is damaged or does not fit the context. The cache is unchanged."""


class BackendError(Error, RuntimeError):
    """A device failed or ran out of memory. The cache is as it was before the call."""


class UnsupportedError(Error, NotImplementedError):
    """The model, the kind of cache or the build does not support the operation."""


class ReceiptError(Error, ValueError):
    """A receipt is damaged, or was recorded with another model, instruction set or device. Nothing was computed."""


class VerificationError(Error, RuntimeError):
    """A replayed call has another result than the receipt states.

    Attributes:
        call: Index of the call in `Receipt.calls`, from 0.
        expected: SHA-256 of the result in the receipt, or its value.
        found: SHA-256 of the result of the replayed call, its value, or the error that it raised.
    """

    def __init__(self, message: str, call: int = 0, expected: str = "", found: str = "") -> None:
        super().__init__(message, call, expected, found)
        self.call = call
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return str(self.args[0])


class _NotFound(FileNotFoundError):
    """A FileNotFoundError whose message is the text that it was created with."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.errno = errno.ENOENT

    def __str__(self) -> str:
        return str(self.args[0])


class ModelNotFoundError(_NotFound, ModelError):
    """A model file does not exist."""


class StateNotFoundError(_NotFound, StateError):
    """The file of a saved state does not exist."""


class ReceiptNotFoundError(_NotFound, ReceiptError):
    """The file of a receipt does not exist."""


class OutOfMemoryError(BackendError, MemoryError):
    """There is too little memory. The cache is as it was before the call."""
