"""Quantisation of model files."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import expect_model, flag, integer, string
from plait.arguments import kind as type_of
from plait.errors import UnsupportedError
from plait.files import gguf
from plait.files.imatrix import ImportanceMatrix
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from plait._core import Model, TensorInfo

_log = logging.getLogger("plait")

FILE_TYPES = {
    "Q8_0": 7, "Q6_K": 18, "Q5_K": 16, "Q5_1": 9, "Q5_0": 8, "Q4_K": 14, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 25,
    "IQ4_XS": 30, "MXFP4": 38, "NVFP4": 39, "Q3_K": 11, "Q2_K": 10, "Q2_0": 41, "TQ2_0": 37, "TQ1_0": 36, "Q1_0": 40,
    "IQ3_S": 26, "IQ3_XXS": 23, "IQ2_S": 28, "IQ2_XS": 20, "IQ2_XXS": 19, "IQ1_M": 31, "IQ1_S": 24,
    "F16": 1, "BF16": 32,
}  # fmt: skip
"""Maps element types to the values of general.file_type that llama.cpp uses."""

BLOCKS = {
    "Q8_0": (32, 34), "Q6_K": (256, 210), "Q5_K": (256, 176), "Q5_1": (32, 24), "Q5_0": (32, 22), "Q4_K": (256, 144),
    "Q4_1": (32, 20), "Q4_0": (32, 18), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17), "NVFP4": (64, 36),
    "Q3_K": (256, 110), "Q2_K": (256, 84), "Q2_0": (64, 18), "TQ2_0": (256, 66), "TQ1_0": (256, 54), "Q1_0": (128, 18),
    "IQ3_S": (256, 110), "IQ3_XXS": (256, 98), "IQ2_S": (256, 82), "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66),
    "IQ1_M": (256, 56), "IQ1_S": (256, 50), "F16": (1, 2), "BF16": (1, 2), "F32": (1, 4),
}  # fmt: skip
"""Maps element types to the elements and bytes of a block."""

_FLOATS = ("F32", "F16", "BF16")
# Small tensors with a large effect, or tensors that no matrix product reads: routers, positions, convolutions, and the
# small matrices of recurrences.
_KEPT = (
    "*_norm.weight", "*ffn_gate_inp*", "*altup_router*", "*altup_*_coef*", "position_embd*", "token_types*", "*conv1d*",
    "*shortconv.conv*", "*.ssm_a", "*time_mix_first*", "*time_mix_lerp*", "*time_mix_[wavg][0-9]*", "*time_mix_decay*",
    "*attn_rel_b*", "cls*", "*attn_sinks*",
)  # fmt: skip
_STORABLE = 2.0**15  # every type of choose_types() can store weights up to this absolute value
_CHUNK = 1 << 18  # numbers that a thread encodes at a time


@dataclass(frozen=True, slots=True)
class Quantized:
    """The result of quantize_file().

    Attributes:
        bytes_before: Size of the tensors before, in bytes.
        bytes_after: Size of the tensors after, in bytes.
        types: Size by element type in the new file, in bytes.
    """

    bytes_before: int
    bytes_after: int
    types: dict[str, int]


def quantize_file(
    model: Model,
    path: str | os.PathLike[str],
    type: str = "Q4_K",  # noqa: A002
    *,
    output_type: str | None = None,
    imatrix: ImportanceMatrix | None = None,
    tensor_types: Mapping[str, str] | None = None,
    requantize: bool = False,
    allow_fallback: bool = False,
    resume: bool = False,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> Quantized:
    """Write a copy of a model file with its matrices in another element type.

    Vectors, routers, positions, convolutions and the small matrices of recurrences keep their
    type. Matrices whose row length is not a multiple of the block size of the type are stored
    as Q8_0 if possible, else they keep their type; a warning reports their number. Metadata is
    copied byte for byte, except general.file_type, which becomes the type that most bytes have,
    and general.quantization_version. A split model becomes one file. The file is complete at
    the end of the call, or not created. While it is written, it has the suffix .plait-tmp; an
    existing file of that name is replaced. A warning is logged for each matrix that is not zero and
    whose values are all too small for its type.

    Args:
        model: The model.
        path: The file to write.
        type: Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q3_K, Q2_K, Q2_0, TQ2_0,
            TQ1_0, Q1_0, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S, F16 or BF16. The IQ1, IQ2 and IQ3 types
            take the longest, and need an importance matrix to be of use.
        output_type: Type of the output matrix, or of the embeddings if they are also the output.
            None: Q6_K for types of less than 6.5 bits per weight, else `type`.
        imatrix: Weights of the columns, from importance_matrix(). Block types minimise the squared error weighted by
            them; without it, or for tensors it has no entry for, all columns count the same.
        tensor_types: Types of single tensors by name, instead of `type`, as choose_types() returns them.
        requantize: Also convert matrices that are already quantised, which loses more accuracy than
            starting from floats. Not needed if `tensor_types` names their own type for all of them.
        allow_fallback: Write the file even if no matrix can have the type.
        resume: If the call is interrupted or fails, keep the unfinished file, which is `path` with a suffix. The next
            call with the same model, path, types and matrix continues it.
        threads: Number of threads. None: all cores that the process may use.
        progress: Called with (done, total), in bytes. True shows a tqdm progress bar; None shows it when stderr is a
            terminal or a notebook.

    Returns:
        The sizes before and after, in bytes, and the bytes of each element type.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The type is unknown, `path` or its name with the suffix is the model's own
            file, a weight is NaN, infinite or too large for its type, or `imatrix` or
            `tensor_types` do not fit the model.
        UnsupportedError: The matrices are already quantised, or none can have the type.
        ModelError: A file of the model was modified or replaced since it was opened.
        OSError: The file cannot be written.
    """
    expect_model(model, "quantize_file")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"quantize_file: path: expected a path, got {type_of(path)}")
    requantize = flag(requantize, "quantize_file: requantize")
    allow_fallback = flag(allow_fallback, "quantize_file: allow_fallback")
    resume = flag(resume, "quantize_file: resume")
    if imatrix is not None and not isinstance(imatrix, ImportanceMatrix):
        raise TypeError(
            f"quantize_file: imatrix: expected an ImportanceMatrix, got {type_of(imatrix)}"
        )
    if threads is not None:
        threads = integer(threads, "quantize_file: threads", 1)
    check_progress(progress, "quantize_file")
    kind = _checked(type, "type")
    head = _read_head(model)
    check_target(model, path)
    output = _checked(output_type, "output_type") if output_type is not None else _output_of(kind)
    plan = {t.name: _new_type(model, t.name, kind, output, requantize) for t in head.tensors}
    named = {} if tensor_types is None else _checked_types(model, tensor_types)
    _check_sources(model, named, requantize)
    unnamed = {name: dtype for name, dtype in plan.items() if name not in named}
    _check_fallbacks(model, unnamed, kind, output, allow_fallback)
    return _write(model, path, head, plan | named, kind, imatrix, resume, threads, progress)


def _read_head(model: Model) -> gguf.Head:
    """Read the header of a model's files, or raise ModelError if they are no longer those that it opened."""
    try:
        head = gguf.read_head(model.path)
    except (ValueError, KeyError, MemoryError, OverflowError, struct.error):  # another kind of file
        _core.check_unchanged(model)
        raise
    _core.check_unchanged(model)
    return head


def check_target(model: Model, path: str | os.PathLike[str]) -> None:
    """Raise an error if a file cannot be written, or not without writing to one of the model's files.

    Args:
        model: The model.
        path: The file to write.

    Raises:
        ValueError: `path` or its name with the suffix of unfinished files is the model's own file.
        ModelError: A file of the model was modified or replaced since it was opened.
        IsADirectoryError: `path` is a directory.
        FileNotFoundError: The folder of `path` does not exist.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"quantize_file: {path} is a directory; expected a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"quantize_file: the folder {path.parent} does not exist")
    sources = {Path(model.path), *(tensor.path for tensor in _read_head(model).tensors)}
    for target in (path, path.with_name(path.name + gguf.UNFINISHED)):
        if target.exists() and any(target.samefile(source) for source in sources):
            raise ValueError(
                f"quantize_file: {target} is the model's own file and would be replaced; choose another path"
            )


def _output_of(kind: str) -> str:
    elements, size = BLOCKS[kind]
    return "Q6_K" if 8 * size / elements < 6.5 else kind


def _check_sources(model: Model, named: dict[str, str], requantize: bool) -> None:
    """Raise UnsupportedError if matrices are quantised already, unless they are named with their own type."""
    converted = {
        tensor.dtype
        for name, tensor in model.tensors.items()
        if is_quantisable(tensor, requantize=True) and named.get(name) != tensor.dtype
    }
    quantised = sorted(converted.difference(_FLOATS))
    if quantised and not requantize:
        raise UnsupportedError(
            f"quantize_file: {model.path} is already quantised ({', '.join(quantised)}), and quantising it again loses "
            "more accuracy than starting from F32, F16 or BF16; pass requantize=True to do it anyway"
        )


def _checked_types(model: Model, tensor_types: Mapping[str, str]) -> dict[str, str]:
    """Return the types of single tensors in upper case, or raise ValueError for one that does not fit."""
    if not isinstance(tensor_types, Mapping):
        raise TypeError(
            f"quantize_file: tensor_types: expected a mapping, got {type_of(tensor_types)}"
        )
    found = dict[str, str]()
    for name, given in tensor_types.items():
        if name not in model.tensors:
            raise ValueError(f'quantize_file: tensor_types: the model has no tensor "{name}"')
        tensor = model.tensors[name]
        dtype = string(given, f"quantize_file: tensor_types: {name}").upper()
        if dtype != tensor.dtype:
            dtype = _checked(dtype, f"tensor_types: {name}")
            if not is_quantisable(tensor, requantize=True):
                raise ValueError(
                    f"quantize_file: tensor_types: {name} is no matrix that can be quantised; it keeps {tensor.dtype}"
                )
            if tensor.shape[-1] % BLOCKS[dtype][0] != 0:
                raise ValueError(
                    f"quantize_file: tensor_types: {name} has rows of {tensor.shape[-1]}, which are not whole blocks "
                    f"of {dtype} ({BLOCKS[dtype][0]})"
                )
        found[name] = dtype
    return found


def _write(
    model: Model,
    path: str | os.PathLike[str],
    head: gguf.Head,
    plan: dict[str, str],
    kind: str,
    imatrix: ImportanceMatrix | None,
    resume: bool,
    threads: int | None,
    progress: ProgressOption,
) -> Quantized:
    """Write the file with the types of a plan."""
    weights = {
        name: found
        for name, found in _column_weights(model, imatrix).items()
        if plan[name] != model.tensors[name].dtype
    }
    sizes = {name: n_bytes(model.tensors[name], dtype) for name, dtype in plan.items()}
    metadata = {
        key: value for key, value in head.metadata.items() if not key.startswith("split.")
    } | {
        "general.file_type": gguf.Value.uint32(_file_type(model, plan, sizes, kind)),
        "general.quantization_version": gguf.Value.uint32(2),
    }
    listed = [
        (t.name, t.shape, gguf.TENSOR_TYPES[plan[t.name]], sizes[t.name]) for t in head.tensors
    ]
    file = gguf.UnfinishedFile(path, metadata, listed, _identity(head, weights) if resume else None)
    with (
        file,
        ThreadPoolExecutor(threads or n_usable_cores()) as pool,
        Progress(progress, model.nbytes, "byte") as bar,
    ):
        for tensor in head.tensors[: file.n_complete]:
            bar.update(model.tensors[tensor.name].nbytes)
        for tensor in head.tensors[file.n_complete :]:
            for chunk in _contents(
                model, tensor, plan[tensor.name], weights.get(tensor.name), pool
            ):
                file.write(chunk)
            bar.update(model.tensors[tensor.name].nbytes)
        _core.check_unchanged(model)
    by_type = Counter[str]()
    for name, dtype in plan.items():
        by_type[dtype] += sizes[name]
    return Quantized(model.nbytes, sum(sizes.values()), dict(by_type.most_common()))


def write_plan(
    model: Model,
    path: str | os.PathLike[str],
    plan: dict[str, str],
    imatrix: ImportanceMatrix | None = None,
    threads: int | None = None,
) -> None:
    """Write a copy of a model file with a type for each tensor.

    Args:
        model: The model.
        path: The file to write.
        plan: The types of all tensors by name.
        imatrix: As in quantize_file().
        threads: As in quantize_file().

    Raises:
        ModelError: A file of the model was modified or replaced since it was opened.
    """
    _write(model, path, _read_head(model), plan, "Q8_0", imatrix, False, threads, False)


def n_usable_cores() -> int:
    """Return the number of logical processors that the process may use, or of all where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _matrices(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of matrices that a tensor stacks, and the length of its rows."""
    return math.prod(shape[:-2]), shape[-1]


def _column_weights(
    model: Model, imatrix: ImportanceMatrix | None
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the importance of the columns of each tensor that the matrix has an entry for."""
    if imatrix is None:
        return {}
    weights = {
        name: found
        for name, tensor in model.tensors.items()
        if len(tensor.shape) >= 2
        and (found := imatrix.weights(name, *_matrices(tensor.shape))) is not None
    }
    if not weights:
        raise ValueError(
            f"the importance matrix has no entry for any matrix of {model.path}: it was made for another model"
        )
    return weights


def identity(model: Model, imatrix: ImportanceMatrix | None) -> str:
    """Return a hash of the paths, sizes and times of a model's files, and of an importance matrix.

    Args:
        model: The model.
        imatrix: The matrix. None: none.

    Raises:
        ModelError: A file of the model was modified or replaced since it was opened.
    """
    return _identity(_read_head(model), _column_weights(model, imatrix))


def _identity(head: gguf.Head, weights: dict[str, npt.NDArray[np.float32]]) -> str:
    """Return a hash of what decides the contents of the new file, apart from its header."""
    found = hashlib.sha256()
    for path in sorted({tensor.path for tensor in head.tensors}):
        status = path.stat()
        found.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    for name in sorted(weights):
        found.update(name.encode() + weights[name].tobytes())
    return found.hexdigest()


def _checked(type_name: str, argument: str) -> str:
    name = string(type_name, f"quantize_file: {argument}").upper()
    if name not in FILE_TYPES:
        raise ValueError(
            f'quantize_file: {argument} is "{type_name}"; expected one of {", ".join(FILE_TYPES)}'
        )
    return name


def _is_output(model: Model, name: str) -> bool:
    tied = "output.weight" not in model.tensors
    return name == ("token_embd.weight" if tied else "output.weight")


def is_quantisable(tensor: TensorInfo, requantize: bool) -> bool:
    """Return whether quantize_file() converts a tensor.

    Args:
        tensor: The tensor.
        requantize: Whether matrices that are quantised already are converted.
    """
    is_matrix = len(tensor.shape) >= 2 and tensor.name.endswith(".weight")
    if not is_matrix or any(fnmatchcase(tensor.name, pattern) for pattern in _KEPT):
        return False
    return tensor.dtype in _FLOATS or (requantize and tensor.dtype != "I32")


def _check_fallbacks(
    model: Model, plan: dict[str, str], kind: str, output: str, allow_fallback: bool
) -> None:
    """Warn if some matrices of a plan cannot have the requested type. Raise UnsupportedError if none can."""
    requested = {
        name: output if _is_output(model, name) else kind
        for name in plan
        if is_quantisable(model.tensors[name], requantize=True)
    }
    fallbacks = Counter(plan[name] for name, dtype in requested.items() if plan[name] != dtype)
    if not fallbacks:
        return
    count, n = sum(fallbacks.values()), len(requested)
    stored = ", ".join(f"{m} as {dtype}" for dtype, m in fallbacks.most_common())
    if kind in requested.values() and kind not in plan.values() and not allow_fallback:
        raise UnsupportedError(
            f"quantize_file: no matrix of {model.path} can be stored as {kind}: row lengths are not multiples of "
            f"its block size; {count} of {n} would be stored differently ({stored}). Choose another type, or pass "
            "allow_fallback=True"
        )
    warnings.warn(
        f"quantize_file: {count} of {n} matrices cannot be stored as {kind}, because their row lengths are not "
        f"multiples of its block size; they are stored differently ({stored})",
        stacklevel=3,
    )


def _file_type(model: Model, plan: dict[str, str], sizes: dict[str, int], kind: str) -> int:
    """Return general.file_type: the type that most bytes of matrices other than the output have."""
    by_type = Counter[str]()
    for name, dtype in plan.items():
        if dtype in FILE_TYPES and not _is_output(model, name):
            by_type[dtype] += sizes[name]
    return FILE_TYPES[by_type.most_common(1)[0][0] if by_type else kind]


def _new_type(model: Model, name: str, kind: str, output: str, requantize: bool) -> str:
    tensor = model.tensors[name]
    if not is_quantisable(tensor, requantize):
        return tensor.dtype
    for dtype in (output if _is_output(model, name) else kind, "Q8_0"):
        if tensor.shape[-1] % BLOCKS[dtype][0] == 0:
            return dtype
    return tensor.dtype


def n_bytes(tensor: TensorInfo, dtype: str) -> int:
    """Return the size of a tensor in another type, in bytes.

    Args:
        tensor: The tensor.
        dtype: The type; rows must be whole blocks of it.
    """
    if dtype == tensor.dtype:
        return tensor.nbytes
    elements, size = BLOCKS[dtype]
    return math.prod(tensor.shape) // elements * size


def storable_types(
    model: Model, name: str, types: Sequence[str], imatrix: ImportanceMatrix | None
) -> list[str]:
    """Return those of some types that can store all weights of a tensor.

    Args:
        model: The model.
        name: The name of the tensor.
        types: The types; rows must be whole blocks of each.
        imatrix: As in quantize_file().
    """
    tensor, values = model.tensors[name], model.tensor(name)
    rows = values.reshape(-1, tensor.shape[-1])
    is_small = (rows.max(axis=1) <= _STORABLE) & (rows.min(axis=1) >= -_STORABLE)
    if is_small.all():  # not if a weight is NaN
        return list(types)
    found = imatrix.weights(name, *_matrices(tensor.shape)) if imatrix else None
    n_per_matrix = len(rows) if found is None else len(rows) // len(found)

    def is_storable(dtype: str) -> bool:
        if dtype == tensor.dtype:
            return True
        for i in np.flatnonzero(~is_small):
            importance = None if found is None else found[i // n_per_matrix]
            try:
                encoded = _core.quantize(rows[i], dtype, importance, search=True)
            except ValueError:  # a weight is NaN or infinite
                return False
            if not np.isfinite(_core.dequantize(encoded, dtype)).all():
                return False
        return True

    return [dtype for dtype in types if is_storable(dtype)]


def _contents(
    model: Model,
    tensor: gguf.Tensor,
    dtype: str,
    weights: npt.NDArray[np.float32] | None,
    pool: ThreadPoolExecutor,
) -> Iterator[bytes]:
    """Yield the contents of a tensor in its new type, in order."""
    info = model.tensors[tensor.name]
    if dtype == info.dtype:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            yield file.read(info.nbytes)
        return
    values, largest = model.tensor(tensor.name), 0.0
    try:
        for encoded, largest_of_part in encode(values, dtype, weights, pool):
            largest = max(largest, largest_of_part)
            yield encoded.tobytes()
    except ValueError as error:
        raise ValueError(f"quantize_file: {tensor.name}: {error}") from None
    if largest == 0 and values.any():
        _log.warning(
            "quantize_file: %s: all values become zero as %s; choose another type for it",
            tensor.name,
            dtype,
        )


def encode(
    values: npt.NDArray[np.float32],
    dtype: str,
    weights: npt.NDArray[np.float32] | None,
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[npt.NDArray[np.uint8], float]]:
    """Yield the rows of a tensor in another type, in parts that threads encode, and the largest absolute value of each.

    Args:
        values: float32 (..., n).
        dtype: The type.
        weights: float32 (n_matrices, n), importance of the columns of each matrix. None: all the same.
        pool: The threads.

    Raises:
        ValueError: A value is not finite, or not in the other type.
    """
    n_matrices = 1 if weights is None else len(weights)
    matrices = values.reshape(n_matrices, -1, values.shape[-1])
    step = max(1, _CHUNK // values.shape[-1])
    parts = [
        (matrix[i : i + step], None if weights is None else weights[k])
        for k, matrix in enumerate(matrices)
        for i in range(0, len(matrix), step)
    ]

    def encode_part(part: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]) -> Any:
        rows, importance = part
        encoded = _core.quantize(rows, dtype, importance, search=True)
        largest = float(np.abs(_core.dequantize(encoded, dtype)).max(initial=0))
        if not math.isfinite(largest):
            before = float(np.abs(rows).max())
            if not math.isfinite(before):
                raise ValueError(f"values: an element is {before}; expected finite numbers")
            raise ValueError(
                f"values up to {before:g} are not finite as {dtype}; choose another type for this tensor"
            )
        return encoded, largest

    yield from pool.map(encode_part, parts)
