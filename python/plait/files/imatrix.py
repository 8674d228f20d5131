"""Files of importance matrices: how much each input column of each weight matrix matters."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plait._core import read_metadata
from plait.arguments import integer
from plait.files import gguf

Floats = npt.NDArray[np.float32]

_MAX_COUNT = (1 << 32) - 1


@dataclass
class ImportanceMatrix:
    """Sums of the squares of the inputs of weight matrices, in the format of llama.cpp's llama-imatrix.

    Attributes:
        sums: By tensor name: float32 (n_matrices, n_columns), the sum of the squared inputs of each column.
            n_matrices is the number of experts, else 1.
        counts: By tensor name: float32 (n_matrices,), the number of summed rows.
        datasets: Names of the texts.
        chunk_count: Number of windows of text.
        chunk_size: Length of a window in tokens.
    """

    sums: dict[str, Floats]
    counts: dict[str, Floats]
    datasets: list[str] = field(default_factory=list)
    chunk_count: int = 0
    chunk_size: int = 512

    def weights(self, name: str, n_matrices: int, n_columns: int) -> Floats | None:
        """Return the mean squared inputs of a tensor, or None if the matrix has no entry for it.

        Args:
            name: Name of the tensor.
            n_matrices: Number of matrices in the tensor, which is 1 unless it stacks experts.
            n_columns: Length of its rows.

        Returns:
            float32 (n_matrices, n_columns). Matrices without data have weight 1 everywhere.

        Raises:
            ValueError: The entry has another shape.
        """
        if name not in self.sums:
            return None
        sums, counts = self._entry(name)
        if sums.shape[0] not in (1, n_matrices) or sums.shape[1] != n_columns:
            raise ValueError(
                f"the importance matrix has {sums.shape[0]} x {sums.shape[1]} values for {name}; expected "
                f"{n_matrices} x {n_columns}: it was made for another model"
            )
        counts = np.broadcast_to(counts, (sums.shape[0],))[:, None]
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.float32(1))
        return np.ascontiguousarray(
            np.broadcast_to(means, (n_matrices, n_columns)), dtype=np.float32
        )

    def _entry(self, name: str) -> tuple[Floats, Floats]:
        """Return the sums and counts of a tensor, or raise ValueError if their shapes do not fit."""
        sums = np.asarray(self.sums[name], "<f4")
        counts = np.asarray(self.counts.get(name, ()), "<f4").reshape(-1)
        if sums.ndim != 2 or len(counts) not in (1, len(sums)):
            raise ValueError(
                f"the importance matrix has sums of shape {sums.shape} and {len(counts)} counts for {name}; expected "
                "the shape (n_matrices, n_columns) and a count per matrix"
            )
        return sums, counts

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matrix as a GGUF file that llama-quantize reads. The file is complete at the end, or not created.

        Args:
            path: The file.

        Raises:
            TypeError: `chunk_count` or `chunk_size` is not an integer.
            ValueError: The sums and counts of a tensor have other shapes than stated above, or `chunk_count` or
                `chunk_size` is not from 0 to 2^32 - 1.
            OSError: The file cannot be written.
        """
        names = b"".join(_string(name) for name in self.datasets)
        metadata = {
            "general.type": gguf.Value(gguf.STRING, _string("imatrix")),
            "imatrix.datasets": gguf.Value(
                gguf.ARRAY, struct.pack("<IQ", gguf.STRING, len(self.datasets)) + names
            ),
        }
        for key in ("chunk_count", "chunk_size"):
            value = integer(getattr(self, key), f"ImportanceMatrix: {key}", 0, _MAX_COUNT)
            metadata[f"imatrix.{key}"] = gguf.Value.uint32(value)
        arrays = dict[str, Floats]()
        for name in sorted(self.sums):
            sums, counts = self._entry(name)
            arrays[f"{name}.in_sum2"] = sums
            arrays[f"{name}.counts"] = counts[:, None]
        f32 = gguf.TENSOR_TYPES["F32"]
        listed = [(name, array.shape, f32, array.nbytes) for name, array in arrays.items()]
        chunks = (array.tobytes() for array in arrays.values())
        gguf.write_file(path, metadata, listed, chunks)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ImportanceMatrix:
        """Read a file of save() or of llama-imatrix in its GGUF format.

        Args:
            path: The file.

        Returns:
            The matrix.

        Raises:
            ValueError: The file is no importance matrix, or damaged.
            OSError: The file cannot be read.
        """
        metadata = read_metadata(path)
        if metadata.get("general.type") != "imatrix":
            raise ValueError(
                f"{os.fspath(path)} is not an importance matrix: general.type is "
                f'{metadata.get("general.type")!r}, expected "imatrix"'
            )
        arrays = dict(_arrays(Path(path)))
        sums, counts = dict[str, Floats](), dict[str, Floats]()
        for key, array in arrays.items():
            name, _, part = key.rpartition(".")
            if part == "in_sum2":
                pair = arrays.get(f"{name}.counts")
                if pair is None or array.ndim != 2 or pair.size not in (1, len(array)):
                    raise ValueError(
                        f"{os.fspath(path)}: {name} needs sums of shape (n_matrices, n_columns) and a count per matrix"
                    )
                if not (
                    np.isfinite(array).all() and np.isfinite(pair).all() and (array >= 0).all()
                ):
                    raise ValueError(
                        f"{os.fspath(path)}: {name} has values that are negative, infinite or NaN"
                    )
                sums[name], counts[name] = array, pair.reshape(-1)
        datasets = metadata.get("imatrix.datasets", [])
        if not isinstance(datasets, list):
            raise ValueError(
                f"{os.fspath(path)}: imatrix.datasets: expected a list of strings, got {datasets!r}"
            )
        n_chunks, chunk_size = (
            _count(metadata, f"imatrix.{key}", path) for key in ("chunk_count", "chunk_size")
        )
        return cls(sums, counts, datasets, n_chunks, chunk_size)


def _string(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _count(metadata: Mapping[str, object], key: str, path: str | os.PathLike[str]) -> int:
    value = metadata.get(key, 0)
    if not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise ValueError(
            f"{os.fspath(path)}: {key}: expected an integer from 0 to 2^32 - 1, got {value!r}"
        )
    return value


def _arrays(path: Path) -> Iterator[tuple[str, Floats]]:
    """Yield names and contents of the tensors of a file, and of the other parts if it is split."""
    for tensor in gguf.read_head(path).tensors:
        n_bytes = 4 * int(np.prod(tensor.shape, dtype=object))
        size = tensor.path.stat().st_size
        if tensor.type != gguf.TENSOR_TYPES["F32"] or tensor.offset + n_bytes > size:
            raise ValueError(f"{tensor.path}: {tensor.name} is not F32, or the file is truncated")
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            yield tensor.name, np.frombuffer(file.read(n_bytes), "<f4").reshape(tensor.shape)
