"""Headers of GGUF files, read and written without changing values that are not meant to change.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
plait.Model validates files; these functions expect a file that it has opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
UNFINISHED = ".plait-tmp"  # suffix of files while they are written

UINT16, UINT32, STRING, ARRAY = 2, 4, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

TENSOR_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "I32": 26, "BF16": 30, "MXFP4": 39,
    "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29,
    "TQ1_0": 34, "TQ2_0": 35, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42,
}  # fmt: skip
"""Maps element types to their numbers in files."""


@dataclass(frozen=True)
class Value:
    """A metadata value as stored in the file.

    Attributes:
        type: The type's number.
        data: The bytes of the value.
    """

    type: int
    data: bytes

    @classmethod
    def uint32(cls, number: int) -> Value:
        """Create an unsigned 32-bit integer.

        Args:
            number: The integer.

        Returns:
            The value.
        """
        return cls(UINT32, struct.pack("<I", number))


@dataclass(frozen=True)
class Tensor:
    """The description of a tensor.

    Attributes:
        name: The name.
        shape: The shape, outermost axis first.
        type: Number of the element type.
        path: The file.
        offset: Offset of the contents from the start of the file, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    path: Path
    offset: int


@dataclass(frozen=True)
class Head:
    """The header of a file.

    Attributes:
        metadata: Keys and values.
        tensors: The descriptions of the tensors.
    """

    metadata: dict[str, Value]
    tensors: list[Tensor]


def read_head(path: str | os.PathLike[str]) -> Head:
    """Read the header of a file; if it is the first part of a split model, with the tensors of all parts.

    Args:
        path: The file.

    Returns:
        The metadata, and the name, type, shape and place of each tensor.

    Raises:
        ValueError: The file is not GGUF version 2 or 3.
    """
    head = _read_one(Path(path))
    for other in _other_parts(Path(path), head.metadata):
        head = replace(head, tensors=head.tensors + _read_one(other).tensors)
    return head


def _other_parts(path: Path, metadata: dict[str, Value]) -> list[Path]:
    """Return the paths of the parts after the first: name-00001-of-00003.gguf has two, if split.count is 3."""
    stored = metadata.get("split.count")
    count = int.from_bytes(stored.data, "little") if stored else 1
    stem = path.name.removesuffix(f"-00001-of-{count:05}.gguf")
    return [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]


def _read_one(path: Path) -> Head:
    with path.open("rb") as file:
        magic, version, n_tensors, n_values = struct.unpack("<4sIQQ", file.read(24))
        if magic != MAGIC or version not in (2, 3):
            raise ValueError(f"{path} is not a GGUF file of version 2 or 3")
        metadata = dict(_read_value(file) for _ in range(n_values))
        infos = [_read_tensor(file) for _ in range(n_tensors)]
        alignment = alignment_of(metadata)
        begin = -(-file.tell() // alignment) * alignment
    tensors = [
        Tensor(name, shape, type_id, path, begin + offset) for name, shape, type_id, offset in infos
    ]
    return Head(metadata, tensors)


def alignment_of(metadata: dict[str, Value]) -> int:
    """Return the alignment of tensor offsets in bytes.

    Args:
        metadata: The metadata of the file.
    """
    value = metadata.get(ALIGNMENT_KEY)
    return struct.unpack("<I", value.data)[0] if value else DEFAULT_ALIGNMENT


def _read_number(file: BinaryIO, form: str) -> int:
    number: int = struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]
    return number


def _read_string(file: BinaryIO) -> str:
    return file.read(_read_number(file, "Q")).decode(errors="surrogateescape")


def _read_value(file: BinaryIO) -> tuple[str, Value]:
    key = _read_string(file)
    type_id = _read_number(file, "I")
    begin = file.tell()
    _skip(file, type_id)
    length = file.tell() - begin
    file.seek(begin)
    return key, Value(type_id, file.read(length))


def _skip(file: BinaryIO, type_id: int) -> None:
    if type_id == STRING:
        file.seek(_read_number(file, "Q"), os.SEEK_CUR)
    elif type_id == ARRAY:
        element, n = _read_number(file, "I"), _read_number(file, "Q")
        if element in _SIZES:
            file.seek(n * _SIZES[element], os.SEEK_CUR)
        else:
            for _ in range(n):
                _skip(file, element)
    else:
        file.seek(_SIZES[type_id], os.SEEK_CUR)


def _read_tensor(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _read_string(file)
    n_axes = _read_number(file, "I")
    shape = tuple(_read_number(file, "Q") for _ in range(n_axes))
    return name, shape[::-1], _read_number(file, "I"), _read_number(file, "Q")


class UnfinishedFile:
    """A GGUF file while it is written, under another name until it is complete. A context manager.

    Args:
        path: The file.
        metadata: Keys and values.
        tensors: Tuples (name, shape, type, size in bytes).
        identity: A text that names what decides the contents. With it, an unfinished file is kept, and a later one
            with the same path, header and identity continues it, unless not even the header was written. None: an
            unfinished file is deleted.

    Attributes:
        n_complete: Number of tensors whose contents are complete.

    Raises:
        OSError: The file cannot be written, for example because the disk is full. A file at `path` stays as it is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: dict[str, Value],
        tensors: Iterable[tuple[str, tuple[int, ...], int, int]],
        identity: str | None = None,
    ) -> None:
        listed, self._alignment = list(tensors), alignment_of(metadata)
        head = _head(metadata, listed, self._alignment)
        self._sizes = [n_bytes for *_, n_bytes in listed]
        self._path, self._kept = Path(path), identity is not None
        suffix = ""
        if identity is not None:
            suffix = "." + hashlib.sha256(identity.encode() + head).hexdigest()[:16]
        self._unfinished = Path(f"{os.fspath(path)}{suffix}{UNFINISHED}")
        self._ends = [len(head)]
        for n_bytes in self._sizes:
            self._ends.append(self._ends[-1] + n_bytes + -n_bytes % self._alignment)
        self.n_complete = 0
        self._file: BinaryIO
        self._head = head
        self._left = 0

    def __enter__(self) -> UnfinishedFile:
        written = self._n_written()
        resumes = self._kept and written >= len(self._head)
        self._file = self._unfinished.open("r+b" if resumes else "wb")
        try:
            with self._names_itself():
                if resumes:
                    self.n_complete = max(i for i, end in enumerate(self._ends) if end <= written)
                    self._file.truncate(self._ends[self.n_complete])
                    self._file.seek(0, os.SEEK_END)
                else:
                    self._file.write(self._head)
                self._left = self._size()
                self._skip_empty()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                assert self.n_complete == len(self._sizes)
                with self._names_itself():
                    self._file.close()
                self._unfinished.replace(self._path)
        finally:
            with contextlib.suppress(OSError):  # an error is being raised already
                self._file.close()
            if not self._kept or self._n_written() < len(self._head):
                self._unfinished.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Write the next bytes of the tensor after the complete ones.

        Args:
            chunk: The bytes; they must not exceed the tensor.
        """
        assert len(chunk) <= self._left
        with self._names_itself():
            self._file.write(chunk)
            self._left -= len(chunk)
            if self._left == 0 and chunk:
                self._finish_tensor()
                self._skip_empty()

    @contextlib.contextmanager
    def _names_itself(self) -> Iterator[None]:
        """Add the name of the file to errors of writing, which have none."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = os.fspath(self._unfinished)
            raise

    def _n_written(self) -> int:
        """Return the size of the unfinished file in bytes; 0 if there is none."""
        return self._unfinished.stat().st_size if self._unfinished.exists() else 0

    def _size(self) -> int:
        return self._sizes[self.n_complete] if self.n_complete < len(self._sizes) else 0

    def _finish_tensor(self) -> None:
        self._file.write(bytes(-self._sizes[self.n_complete] % self._alignment))
        self.n_complete += 1
        self._left = self._size()

    def _skip_empty(self) -> None:
        while self.n_complete < len(self._sizes) and self._left == 0:
            self._finish_tensor()


def _head(
    metadata: dict[str, Value], tensors: list[tuple[str, tuple[int, ...], int, int]], alignment: int
) -> bytes:
    """Return the bytes before the contents of the tensors."""
    head = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + struct.pack("<I", value.type) + value.data
    offset = 0
    for name, shape, type_id, n_bytes in tensors:
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", type_id, offset)
        offset += -(-n_bytes // alignment) * alignment
    return head + bytes(-len(head) % alignment)


def write_file(
    path: str | os.PathLike[str],
    metadata: dict[str, Value],
    tensors: Iterable[tuple[str, tuple[int, ...], int, int]],
    chunks: Iterator[bytes],
) -> None:
    """Write a GGUF file. It is complete at the end of the call, or not created.

    Args:
        path: The file.
        metadata: Keys and values.
        tensors: Tuples (name, shape, type, size in bytes).
        chunks: The contents of the tensors in the same order. A chunk must not span two tensors.
    """
    with UnfinishedFile(path, metadata, tensors) as file:
        for chunk in chunks:
            file.write(chunk)


def _string(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    return struct.pack("<Q", len(data)) + data
