"""Replaces files as a whole."""

from __future__ import annotations

import contextlib
import os
import threading


def replace_file(
    path: str | bytes | os.PathLike[str],
    temporary: str | os.PathLike[str],
    *parts: bytes | memoryview,
) -> None:
    """Write a file under another name, then rename it. If writing fails, a file at `path` stays as it is.

    It is not synchronised with the disk: after a power failure it may be damaged.

    Args:
        path: Path of the file.
        temporary: The other name, in the same folder. No such file is left.
        parts: The contents.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # for example, the disk is full
            error.filename = os.fsdecode(path)
        raise


def draft_of(path: str | bytes | os.PathLike[str]) -> str:
    """Return a temporary name for replace_file() that no other thread or process uses for this file."""
    return f"{os.fsdecode(path)}.{os.getpid()}.{threading.get_ident()}.plait-tmp"
