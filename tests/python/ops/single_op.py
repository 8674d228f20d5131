"""Graphs of one op with random operands, run on every device of this machine and compared with tests/reference.

The module `plait_ops` (tests/ops) builds and runs the graphs; it is compiled with the C++ tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plait
import plait.quant
import pytest
from python.instruction_sets import ISAS
from reference.rope_table import Rope

BUILD = Path(
    os.environ.get("PLAIT_OPS_DIR") or Path(__file__).parents[3] / "build" / "release" / "tests"
)
SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 129)
DEVICES = (*ISAS, "vulkan")
INFINITE = (np.inf, -np.inf, 0.0, -0.0)  # the CPU's kernels treat denormal floats as zeros


@functools.cache
def module() -> Any:
    """Import plait_ops from the build folder, or skip the test."""
    found = sorted(BUILD.glob(f"plait_ops.*{sys.implementation.cache_tag[-3:]}*.so"))
    if not found:
        pytest.skip(f"no plait_ops in {BUILD}: cmake --build build/release --target plait_ops")
    spec = importlib.util.spec_from_file_location("plait_ops", found[0])
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@functools.cache
def device(name: str) -> Any:
    """Return "vulkan", or the CPU with the named instruction set, or skip the test."""
    ops = module()
    if name == "vulkan":
        if not any(d.name.startswith("vulkan") for d in plait.devices()):
            pytest.skip("no Vulkan device, or a build without Vulkan")
        return ops.Device("vulkan", "", 1)
    if name not in plait.build_info()["isas"]:
        pytest.skip(f"this machine does not run {name}")
    return ops.Device("cpu", name, 2)


def raw_bytes(array: np.ndarray, dtype: str) -> np.ndarray:
    return plait.quant.quantize(np.ascontiguousarray(array, np.float32), dtype).reshape(-1)


def values_of(raw: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    return np.asarray(plait.quant.dequantize(raw.reshape(-1), dtype)).reshape(shape)


@dataclass
class Operand:
    """An operand as the graph has it, and as the formula reads it."""

    value: Any
    array: np.ndarray


class Case:
    """One graph with random operands.

    `special`: numbers that stand here and there in the operands that rows() makes. `on`: the device to run on, for
    formulas that differ.
    """

    def __init__(
        self,
        random: np.random.Generator,
        special: Sequence[float] = (),
        on: str = "scalar",
        lengths: Sequence[int] | None = None,
        outputs: int = 0,
        moves: int = 0,
    ) -> None:
        self.ops = module()
        self.random = random
        self.special = special
        self.on = on
        self.lengths = list(lengths or [int(random.integers(1, 12))])
        self.n = sum(self.lengths)
        self.graph = self.ops.Graph(
            tokens=self.n,
            outputs=outputs or self.n,
            sequences=len(self.lengths),
            moves=moves,
            room=int(random.integers(0, 4)),
        )
        self.caches: list[tuple[str, tuple[int, ...]]] = []
        self.after: list[np.ndarray] = []  # the bytes of each cache after run()

    def size(self, *, of: Sequence[int] = SIZES) -> int:
        return int(self.random.choice(of))

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape).astype(np.float32)

    def given(self, array: np.ndarray) -> Operand:
        """Floats, a row for each token."""
        array = np.ascontiguousarray(array, np.float32)
        return Operand(self.graph.input(array, self.ops.Extent.tokens), array)

    def rows(self, *axes: int) -> Operand:
        """Random floats [tokens, axes]."""
        array = self.normal(self.n, *axes)
        if len(self.special) > 0:
            there = self.random.random(array.shape) < 1 / (1 + 2 * np.prod(axes))
            array[there] = self.random.choice(self.special, size=int(there.sum()))
        return self.given(array)

    def ints(self, values: Any, extent: str = "tokens") -> Operand:
        array = np.ascontiguousarray(values, np.int32)
        return Operand(self.graph.input(array, getattr(self.ops.Extent, extent)), array)

    def weight(self, array: np.ndarray, dtype: str = "F32") -> Operand:
        """A weight of any type, and what it holds after rounding to that type."""
        raw = raw_bytes(array, dtype)
        value = self.graph.weight(raw, dtype, list(array.shape))
        return Operand(value, values_of(raw, dtype, array.shape))

    def vector(self, *shape: int) -> Operand:
        return self.weight(self.normal(*shape))

    def cache(self, array: np.ndarray, dtype: str = "F32") -> Operand:
        """A cache that holds the rows of `array` before the run."""
        raw = raw_bytes(array, dtype)
        self.caches.append((dtype, array.shape))
        value = self.graph.cache(raw, dtype, list(array.shape))
        return Operand(value, values_of(raw, dtype, array.shape))

    def run(self, name: str, result: Any, fuse: bool = True) -> np.ndarray:
        values, self.after = self.graph.run(device(name), result, fuse)
        return values

    def cached(self, index: int = 0) -> np.ndarray:
        """The values in a cache after the run."""
        dtype, shape = self.caches[index]
        return values_of(self.after[index], dtype, shape)


def check(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> None:
    """Compare rows: the same NaNs and infinities, other values within `tolerance` of their row's largest."""
    with np.errstate(all="ignore"):
        want = np.asarray(want, np.float64).astype(np.float32)
    assert got.shape == want.shape, what
    assert np.array_equal(np.isnan(got), np.isnan(want)), f"{what}: other NaNs"
    infinite = np.isinf(want)
    assert np.array_equal(got[infinite], want[infinite]), f"{what}: other infinities"
    assert np.array_equal(np.isinf(got), infinite), f"{what}: other infinities"
    finite = np.where(np.isfinite(want), want, 0).astype(np.float64)
    largest = np.abs(finite.reshape(len(finite), -1)).max(axis=1, initial=0)
    off = np.abs(np.where(np.isfinite(want), got, 0) - finite).reshape(len(finite), -1)
    worst = (off.max(axis=1, initial=0) - tolerance * (1 + largest)).max(initial=-1)
    assert worst <= 0, f"{what}: {off.max()} off where the largest value is {largest.max()}"


ROPES = (
    Rope(n_rot=8),
    Rope(n_rot=16, scale=0.25, interleaved=True, base=500000.0),
    Rope(n_rot=20, magnitude=1.3, extrapolation=1.0, n_ctx_original=4096, scale=0.125),
    Rope(n_rot=24, sections=(5, 4, 3, 0)),
)


def native(case: Case, how: Rope) -> Any:
    """The parameters of a rotation as plait_ops takes them."""
    made = case.ops.Rope()
    for field in vars(how):
        setattr(made, field, getattr(how, field))
    return made


@dataclass
class Op:
    """How a test makes a graph of one op and computes its result by the formula."""

    name: str
    make: Callable[[Case], tuple[Any, np.ndarray]]
    tolerance: float


OPS: dict[str, Op] = {}


def op(
    name: str, tolerance: float = 1e-5
) -> Callable[[Callable[[Case], tuple[Any, np.ndarray]]], Callable[[Case], Any]]:
    """Register `make(case) -> (value, formula's result)` for the tests of every op."""

    def register(make: Callable[[Case], tuple[Any, np.ndarray]]) -> Callable[[Case], Any]:
        assert name not in OPS
        OPS[name] = Op(name, make, tolerance)
        return make

    return register
