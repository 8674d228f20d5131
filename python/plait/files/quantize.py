"""Quantisation of model files."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plait import _core
from plait.arguments import expect_model, flag, integer, string
from plait.arguments import kind as type_of
from plait.errors import UnsupportedError
from plait.files import gguf
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from plait._core import Model, TensorInfo

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}
"""Maps element types to the values of general.file_type that llama.cpp uses."""

_FLOATS = ("F32", "F16", "BF16")
# Small tensors with a large effect, or tensors that no matrix product reads: routers, positions, convolutions,
# recurrences.
_KEPT = (
    "*_norm.weight", "*ffn_gate_inp*", "position_embd*", "token_types*", "*conv1d*", "*shortconv.conv*", "*.ssm_a",
    "*time_mix_*", "*attn_rel_b*", "cls*", "*attn_sinks*",
)  # fmt: skip
_CHUNK = 1 << 22  # numbers that a thread encodes at a time


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
    requantize: bool = False,
    allow_fallback: bool = False,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> Quantized:
    """Write a copy of a model file with its matrices in another element type.

    Vectors and small matrices with a large effect (routers, positions, convolutions) keep their
    type. Matrices whose row length is not a multiple of the block size of the type are stored as
    Q8_0 if possible, else they keep their type; a warning reports their number. Metadata is copied
    byte for byte, except general.file_type, which becomes the type that most bytes have, and
    general.quantization_version. A split model becomes one file. The file is complete at the end of
    the call, or not created.

    Args:
        model: The model.
        path: The file to write.
        type: Q8_0, Q4_0, Q4_K or Q6_K.
        output_type: Type of the output matrix, or of the embeddings if they are also the output.
            None: Q6_K for 4-bit types, else `type`.
        requantize: Also convert matrices that are already quantised, which loses more accuracy than
            starting from floats.
        allow_fallback: Write the file even if no matrix can have the type.
        threads: Number of threads. None: all cores that the process may use.
        progress: Called with (done, total), in bytes. True shows a tqdm progress bar; None shows it when stderr is a
            terminal or a notebook.

    Returns:
        The sizes before and after, in bytes, and the bytes of each element type.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The type is unknown, `path` is the model's own file, or a weight is NaN or
            infinite.
        UnsupportedError: The matrices are already quantised, or none can have the type.
        OSError: The file cannot be written.
    """
    expect_model(model, "quantize_file")
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"quantize_file: path: expected a path, got {type_of(path)}")
    requantize = flag(requantize, "quantize_file: requantize")
    allow_fallback = flag(allow_fallback, "quantize_file: allow_fallback")
    if threads is not None:
        threads = integer(threads, "quantize_file: threads", 1)
    check_progress(progress, "quantize_file")
    kind = _checked(type, "type")
    head = gguf.read_head(model.path)
    if any(Path(path).resolve() == tensor.path.resolve() for tensor in head.tensors):
        raise ValueError(
            f"quantize_file: {os.fspath(path)} is the model's own file; choose another path"
        )
    output = (
        _checked(output_type, "output_type")
        if output_type is not None
        else "Q6_K"
        if kind.startswith("Q4")
        else kind
    )
    plan = {t.name: _new_type(model, t.name, kind, output, requantize) for t in head.tensors}
    quantised = sorted({model.tensors[name].dtype for name in plan} - {*_FLOATS, "I32"})
    if quantised and not requantize:
        raise UnsupportedError(
            f"quantize_file: {model.path} is already quantised ({', '.join(quantised)}), and quantising it again loses "
            "more accuracy than starting from F32, F16 or BF16; pass requantize=True to do it anyway"
        )
    _check_fallbacks(model, plan, kind, output, allow_fallback)
    sizes = {name: _n_bytes(model.tensors[name], dtype) for name, dtype in plan.items()}
    metadata = {
        key: value for key, value in head.metadata.items() if not key.startswith("split.")
    } | {
        "general.file_type": gguf.Value.uint32(_file_type(model, plan, sizes, kind)),
        "general.quantization_version": gguf.Value.uint32(2),
    }
    listed = [
        (t.name, t.shape, gguf.TENSOR_TYPES[plan[t.name]], sizes[t.name]) for t in head.tensors
    ]
    with (
        ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool,
        Progress(progress, model.nbytes, "byte") as bar,
    ):
        chunks = _contents(model, head, plan, pool, bar)
        gguf.write_file(path, metadata, listed, chunks)
    by_type = Counter[str]()
    for name, dtype in plan.items():
        by_type[dtype] += sizes[name]
    return Quantized(model.nbytes, sum(sizes.values()), dict(by_type.most_common()))


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


def _is_quantisable(tensor: TensorInfo, requantize: bool) -> bool:
    is_matrix = len(tensor.shape) >= 2 and tensor.name.endswith(".weight")
    if not is_matrix or any(fnmatchcase(tensor.name, pattern) for pattern in _KEPT):
        return False
    return tensor.dtype in _FLOATS or (requantize and tensor.dtype != "I32")


def _check_fallbacks(
    model: Model, plan: dict[str, str], kind: str, output: str, allow_fallback: bool
) -> None:
    """Warn if some matrices cannot have the requested type. Raise UnsupportedError if none can."""
    fallbacks, n = Counter[str](), 0
    for name, dtype in plan.items():
        tensor = model.tensors[name]
        if _is_quantisable(tensor, requantize=True):
            n += 1
            if dtype != (output if _is_output(model, name) else kind):
                fallbacks[dtype] += 1
    if not fallbacks:
        return
    count = sum(fallbacks.values())
    stored = ", ".join(f"{m} as {dtype}" for dtype, m in fallbacks.most_common())
    if kind not in plan.values() and not allow_fallback:
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
    if not _is_quantisable(tensor, requantize):
        return tensor.dtype
    for dtype in (output if _is_output(model, name) else kind, "Q8_0"):
        if tensor.shape[-1] % (256 if dtype.endswith("_K") else 32) == 0:
            return dtype
    return tensor.dtype


def _n_bytes(tensor: TensorInfo, dtype: str) -> int:
    if dtype == tensor.dtype:
        return tensor.nbytes
    of_256 = _core.quantize(np.zeros(256, np.float32), dtype).size
    return math.prod(tensor.shape) * of_256 // 256


def _contents(
    model: Model,
    head: gguf.Head,
    plan: dict[str, str],
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> Iterator[bytes]:
    for tensor in head.tensors:
        info = model.tensors[tensor.name]
        if plan[tensor.name] == info.dtype:
            with tensor.path.open("rb") as file:
                file.seek(tensor.offset)
                yield file.read(info.nbytes)
        else:
            rows = model.tensor(tensor.name).reshape(-1, info.shape[-1])
            dtype, step = plan[tensor.name], max(1, _CHUNK // info.shape[-1])
            parts = [rows[i : i + step] for i in range(0, len(rows), step)]
            try:
                for part in pool.map(_core.quantize, parts, [dtype] * len(parts)):
                    yield part.tobytes()
            except ValueError as error:
                raise ValueError(f"quantize_file: {tensor.name}: {error}") from None
        progress.update(info.nbytes)
