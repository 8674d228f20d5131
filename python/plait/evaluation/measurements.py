"""Keeps measured numbers in a file, so that an interrupted series of measurements continues."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path


class Measurements:
    """Measured numbers by the conditions under which they were measured.

    The file has a line of JSON for each number, {"key": SHA-256 of the conditions, "value": number}. A number is
    written as soon as it is known. Several threads may measure. A last line without a line end, from an interrupted
    write, is removed.

    Args:
        path: The file; it is created by the first number. None: numbers are kept in memory only.
        conditions: A text that names what all numbers of this object depend on. A file may contain numbers measured
            under other conditions; they are kept and ignored.

    Raises:
        ValueError: The file contains something else.
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, conditions: str) -> None:
        self._path = None if path is None else Path(path)
        self._conditions = conditions
        self._values: dict[str, float] = {}
        self._lock = threading.Lock()
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def _read(self, path: Path) -> None:
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        unfinished = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        try:
            for line in lines:
                entry = json.loads(line)
                self._values[str(entry["key"])] = float(entry["value"])
            if unfinished and not unfinished.startswith(b'{"key"'[: len(unfinished)]):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path} is not a file of measurements; expected lines such as "
                '{"key": "...", "value": 0.25}. Pass the name of a new file'
            ) from None
        if unfinished:
            os.truncate(path, len(whole) - len(unfinished))

    def get(self, what: str, measure: Callable[[], float]) -> float:
        """Return a number, measured unless it is known.

        Args:
            what: A text that names the number among those with the same conditions.
            measure: Returns the number.
        """
        key = hashlib.sha256(f"{self._conditions}\n{what}".encode()).hexdigest()
        if key not in self._values:
            value = measure()
            with self._lock:
                if self._path is not None:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": key, "value": value}) + "\n")
                self._values[key] = value
        return self._values[key]
