"""Export of keys and values to .npz and .safetensors files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.errors import UnsupportedError

if TYPE_CHECKING:
    from plait._core import KVCache


def export(kv: KVCache, path: str | os.PathLike[str], seq: SupportsIndex, layers: range) -> None:
    """Write the keys and values of every layer that has them; see KVCache.export()."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"export: path: expected a path, got {type(path).__name__}")
    target = Path(path)
    arrays: dict[str, npt.NDArray[np.float32]] = {}
    for layer in layers:
        try:
            arrays[f"blk.{layer}.keys"] = kv.keys(layer, seq)
            arrays[f"blk.{layer}.values"] = kv.values(layer, seq)
        except UnsupportedError:
            continue  # a layer without rows
    if not arrays:
        raise UnsupportedError(f"export: no layer of this {kv.kind} memory keeps keys and values")
    if target.suffix == ".npz":
        np.savez(target, **arrays)  # type: ignore[arg-type]
    elif target.suffix == ".safetensors":
        try:
            from safetensors.numpy import save_file
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "exporting to .safetensors needs safetensors: pip install safetensors",
                name="safetensors",
            ) from None
        save_file({name: np.ascontiguousarray(rows) for name, rows in arrays.items()}, target)
    else:
        raise ValueError(
            f"export: path: expected a path that ends in .npz or .safetensors, got {path}"
        )
