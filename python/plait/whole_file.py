"""Replaces files as a whole."""

from __future__ import annotations

import contextlib
import os
import threading


def replace_file(
    path: str | bytes | os.PathLike[str],
    *parts: bytes | memoryview,
    temporary: str | os.PathLike[str] | None = None,
) -> None:
    """Write a file under another name, then rename it. If writing fails, a file at `path` stays as it is.

    It is not synchronised with the disk: after a power failure it may be damaged.

    Args:
        path: Path of the file.
        parts: The contents.
        temporary: The other name, in the same folder. No such file is left. None: a name that no other thread or
            process uses for this file.

    Raises:
        OSError: The file cannot be written.
    """
    if temporary is None:
        temporary = f"{os.fsdecode(path)}.{os.getpid()}.{threading.get_ident()}.plait-tmp"
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
