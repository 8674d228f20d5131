"""Headers of GGUF files, read and written without changing values that are not meant to change.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
plait.Model validates files; these functions expect a file that it has opened.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

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
    """Read the header of a file; for the first file of a split model, with the tensors of all parts.

    Args:
        path: The file.

    Returns:
        The metadata, and the name, type, shape and place of each tensor.

    Raises:
        ValueError: The file is not GGUF version 2 or 3.
    """
    first, *others = _parts(Path(path))
    head = _read_one(first)
    for other in others:
        head = replace(head, tensors=head.tensors + _read_one(other).tensors)
    return head


def _parts(path: Path) -> list[Path]:
    """Return the paths of all parts: name-00001-of-00003.gguf has three."""
    found = re.fullmatch(r"(.*-)00001(-of-(\d{5})\.gguf)", path.name)
    if not found:
        return [path]
    return [path.with_name(f"{found[1]}{i + 1:05}{found[2]}") for i in range(int(found[3]))]


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
    listed, alignment = list(tensors), alignment_of(metadata)
    head = MAGIC + struct.pack("<IQQ", VERSION, len(listed), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + struct.pack("<I", value.type) + value.data
    offset = 0
    for name, shape, type_id, n_bytes in listed:
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", type_id, offset)
        offset += -(-n_bytes // alignment) * alignment
    unfinished = Path(f"{os.fspath(path)}.plait-tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(head + bytes(-len(head) % alignment))
            for *_, n_bytes in listed:
                left = n_bytes
                while left > 0:
                    left -= file.write(next(chunks))
                assert left == 0
                file.write(bytes(-n_bytes % alignment))
            assert next(chunks, None) is None
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _string(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    return struct.pack("<Q", len(data)) + data
