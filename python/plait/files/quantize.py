"""A model file with its weights stored in fewer bits."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plait import _core
from plait.arguments import expect_model
from plait.errors import UnsupportedError
from plait.files import gguf

if TYPE_CHECKING:
    from plait._core import Model, TensorInfo

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}
"""general.file_type of a file of each type, as llama.cpp numbers them."""

_FLOATS = ("F32", "F16", "BF16")
# Few numbers, on which much depends, or which no product reads: routers, positions, convolutions, recurrences.
_KEPT = (
    "*_norm.weight", "*ffn_gate_inp*", "position_embd*", "token_types*", "*conv1d*", "*shortconv.conv*", "*.ssm_a",
    "*time_mix_*", "*attn_rel_b*", "cls*", "*attn_sinks*",
)  # fmt: skip
_AT_ONCE = 1 << 22  # numbers that one thread encodes at a time


@dataclass(frozen=True, slots=True)
class Quantized:
    """What quantize_file() did: bytes before and after, and bytes by element type in the new file."""

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
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Quantized:
    """Write a model's file again with its matrices in another element type.

    `type`: Q8_0, Q4_0, Q4_K or Q6_K, for every matrix but those that are few and matter: routers, positions and
    convolutions stay as they are, and so do vectors. `output_type`, for the output matrix (or the embeddings where
    they are the output too): None is Q6_K for the types of four bits, else `type`. Rows that are no multiple of a
    type's block take Q8_0 if that fits, else stay. Metadata stays to the byte, but for general.file_type and
    general.quantization_version; a split model becomes one file. `requantize`: also matrices that are quantised
    already, which loses more than starting from the floats. `progress` is told how many of how many bytes are read.
    The file is there as a whole at the end or not at all.

    Raises ValueError for an unknown type and for a path that is the model's own, UnsupportedError for a model whose
    matrices are quantised already unless `requantize`, OSError where the file cannot be written.
    """
    expect_model(model, "quantize_file")
    kind = _checked(type)
    head = gguf.read_head(model.path)
    if any(Path(path).resolve() == tensor.path.resolve() for tensor in head.tensors):
        raise ValueError(f"quantize_file: {os.fspath(path)} is the model's own file")
    output = _checked(output_type) if output_type else "Q6_K" if kind.startswith("Q4") else kind
    plan = {t.name: _new_type(model, t.name, kind, output, requantize) for t in head.tensors}
    quantised = sorted({model.tensors[name].dtype for name in plan} - {*_FLOATS, "I32"})
    if quantised and not requantize:
        raise UnsupportedError(
            f"quantize_file: {model.path} holds {', '.join(quantised)} already, which loses more than starting from "
            "F32, F16 or BF16; with `requantize` it is done all the same"
        )
    sizes = {name: _n_bytes(model.tensors[name], dtype) for name, dtype in plan.items()}
    metadata = {
        key: value for key, value in head.metadata.items() if not key.startswith("split.")
    } | {
        "general.file_type": gguf.Value.uint32(FILE_TYPES[kind]),
        "general.quantization_version": gguf.Value.uint32(2),
    }
    listed = [
        (t.name, t.shape, gguf.TENSOR_TYPES[plan[t.name]], sizes[t.name]) for t in head.tensors
    ]
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        chunks = _contents(model, head, plan, pool, progress)
        gguf.write_file(path, metadata, listed, chunks)
    by_type = Counter[str]()
    for name, dtype in plan.items():
        by_type[dtype] += sizes[name]
    return Quantized(model.nbytes, sum(sizes.values()), dict(by_type.most_common()))


def _checked(type_name: str) -> str:
    if not isinstance(type_name, str):
        raise TypeError(f"type: expected a str, got {type_name!r}")
    name = type_name.upper()
    if name not in FILE_TYPES:
        raise ValueError(f'type: expected one of {", ".join(FILE_TYPES)}, got "{type_name}"')
    return name


def _new_type(model: Model, name: str, kind: str, output: str, requantize: bool) -> str:
    tensor = model.tensors[name]
    is_matrix = len(tensor.shape) >= 2 and name.endswith(".weight")
    if not is_matrix or any(fnmatchcase(name, pattern) for pattern in _KEPT):
        return tensor.dtype
    if tensor.dtype not in _FLOATS and not (requantize and tensor.dtype != "I32"):
        return tensor.dtype
    tied = "output.weight" not in model.tensors
    wanted = output if name == ("token_embd.weight" if tied else "output.weight") else kind
    for dtype in (wanted, "Q8_0"):
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
    progress: Callable[[int, int], object] | None,
) -> Iterator[bytes]:
    done = 0
    for tensor in head.tensors:
        info = model.tensors[tensor.name]
        if plan[tensor.name] == info.dtype:
            with tensor.path.open("rb") as file:
                file.seek(tensor.offset)
                yield file.read(info.nbytes)
        else:
            rows = model.tensor(tensor.name).reshape(-1, info.shape[-1])
            dtype, step = plan[tensor.name], max(1, _AT_ONCE // info.shape[-1])
            parts = [rows[i : i + step] for i in range(0, len(rows), step)]
            for part in pool.map(_core.quantize, parts, [dtype] * len(parts)):
                yield part.tobytes()
        done += info.nbytes
        if progress is not None:
            progress(done, model.nbytes)
