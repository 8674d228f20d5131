"""Files in NumPy's .npy format that grow row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

_HEADER_BYTES = 128


class NpyFiles:
    """A directory with one .npy file of float32 rows for each name.

    create() makes the files, and calling the object appends rows. A file is complete after each call, so
    np.load(mmap_mode="r") can read it at any time. If a call fails, the rows that it wrote are not counted, and the
    next call overwrites them.

    Args:
        folder: The directory.
        shapes: The shape of one row, by name. The file of a name is `name`.npy.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._folder = folder
        self._shapes = dict(shapes)
        self._n_rows = dict.fromkeys(shapes, 0)

    def create(self) -> None:
        """Create the directory if needed, and files without rows. Existing files of these names are replaced.

        Raises:
            OSError: A file cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in self._shapes:
            self._path(name).write_bytes(self._header(name, 0))
            self._n_rows[name] = 0

    def __call__(self, rows: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Append the rows of each name.

        Raises:
            OSError: A file cannot be written.
        """
        for name, array in rows.items():
            row_bytes = 4 * int(np.prod(self._shapes[name], dtype=np.int64))
            with self._path(name).open("r+b") as file:
                file.seek(_HEADER_BYTES + self._n_rows[name] * row_bytes)
                file.write(np.ascontiguousarray(array, "<f4").data)
        for name, array in rows.items():
            with self._path(name).open("r+b") as file:
                file.write(self._header(name, self._n_rows[name] + len(array)))
        for name, array in rows.items():
            self._n_rows[name] += len(array)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def _header(self, name: str, n_rows: int) -> bytes:
        """Return a header of version 1.0; its length does not depend on the number of rows."""
        shape = (n_rows, *self._shapes[name])
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        magic = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        return magic + text.encode("latin1").ljust(_HEADER_BYTES - 11) + b"\n"
