"""Chooses the type of each tensor for a given size, by the measured KL divergence."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core
from plait._core import Batch
from plait.arguments import expect_model, integer
from plait.arguments import kind as type_of
from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.measurements import Measurements
from plait.evaluation.texts import Text, token_ids
from plait.files.imatrix import ImportanceMatrix
from plait.files.quantize import (
    BLOCKS,
    identity,
    is_quantisable,
    n_bytes,
    n_usable_cores,
    storable_types,
    write_plan,
)
from plait.model import Model
from plait.numerics import log_softmax
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from plait._core import TensorInfo

CANDIDATES = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K",
    "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
"""Types that choose_types() chooses from."""

_MAX_SAMPLE = 1 << 15  # numbers of a tensor whose error is computed
_MAX_LOGITS = 1 << 26  # numbers of the reference
_PROBE_BITS = 4.5
_MAX_BITS = 64.0  # more than any type has
_NOT_FINITE = 1e6  # nats per token: the divergence of a choice whose output is NaN or infinite
_LEAST_SHARE = 0.8  # of the budget that a choice of one type for all matrices uses

Plan = dict[str, str]


def choose_types(
    model: Model,
    text: Text,
    bits_per_weight: float,
    *,
    imatrix: ImportanceMatrix | None = None,
    window: SupportsIndex | None = None,
    measurements: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> dict[str, str]:
    """Choose an element type for each matrix so that the whole model has at most the given size.

    For each matrix, the KL divergence from the model is measured on the text with only this matrix quantised to a type
    of about 4.5 bits. The divergence of other types is taken as proportional to their squared error, and that of many
    matrices as the sum. Of the resulting choice and all single types of at most the given size and at least 80 % of it,
    the one with the least measured divergence is returned. Types of less than half the given bits are considered only
    if no other choice is small enough. Types that cannot store all weights of a matrix, because its rows are not whole
    blocks or a weight is too large, are not considered for it. Needs room for one copy of the model in the folder for
    temporary files, and time for one pass over the text per matrix. Nothing is kept in the folder of packed weights.

    Args:
        model: The model. Matrices that are quantised already keep their type.
        text: Text or token ids of the kind that the model will read, typically some thousand tokens. The output for all
            of them is kept in memory, so only the first 2**26 / n_vocab tokens are used, which are 441 for a vocabulary
            of 151,936; a warning reports it if the text is longer.
        bits_per_weight: Size of all tensors in bits, divided by the number of their elements.
        imatrix: As in quantize_file().
        window: Length of the windows of text in tokens. None: 512, or the model's training length if that is shorter.
        measurements: A file in which each measurement is kept as soon as it is made, as a line of JSON. A later call,
            for example after an interruption or with another size, reads those of the same model file, text, window and
            matrix instead of repeating them. None: they are not kept.
        threads: Number of threads. None: the default of quantize_file() and of Context.
        progress: Called with (done, total), in measurements. True shows a tqdm progress bar.

    Returns:
        Types of all matrices by tensor name, for quantize_file(tensor_types=...).

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The text is too short, the model's output for it is NaN or infinite, no choice is as small as
            `bits_per_weight`, or `measurements` is another kind of file.
        ModelError: A file of the model was modified or replaced since it was opened.
        OSError: `measurements` cannot be read or written.
        UnsupportedError: All matrices are quantised already.
    """
    expect_model(model, "choose_types")
    check_progress(progress, "choose_types")
    if window is not None:
        window = integer(window, "choose_types: window", 2)
    if threads is not None:
        threads = integer(threads, "choose_types: threads", 1)
    if imatrix is not None and not isinstance(imatrix, ImportanceMatrix):
        raise TypeError(
            f"choose_types: imatrix: expected an ImportanceMatrix, got {type_of(imatrix)}"
        )
    numbers = (int, float, np.integer, np.floating)
    if isinstance(bits_per_weight, bool) or not isinstance(bits_per_weight, numbers):
        raise TypeError(
            f"choose_types: bits_per_weight: expected a number, got {type_of(bits_per_weight)}"
        )
    if not 0 < bits_per_weight < math.inf:
        raise ValueError(
            f"choose_types: bits_per_weight is {bits_per_weight}; expected a positive number"
        )
    if measurements is not None and not isinstance(measurements, str | os.PathLike):
        raise TypeError(
            f"choose_types: measurements: expected a path or None, got {type_of(measurements)}"
        )
    tensors = {
        name: tensor for name, tensor in model.tensors.items() if is_quantisable(tensor, False)
    }
    if not tensors:
        raise UnsupportedError("choose_types: the model has no matrix with float weights")
    n_elements = sum(math.prod(tensor.shape) for tensor in model.tensors.values())
    bits_per_weight = float(min(bits_per_weight, _MAX_BITS))
    budget = int(bits_per_weight * n_elements / 8)
    storable = {
        name: storable_types(model, name, _smaller_types(tensor), imatrix)
        for name, tensor in tensors.items()
    }
    allowed = _allowed(model, storable, bits_per_weight / 2)
    if _smallest_size(model, allowed) > budget:
        allowed = _allowed(model, storable, 0)
        _check_budget(model, allowed, budget)
    with tempfile.TemporaryDirectory(prefix="plait-budget-") as folder:
        meter = _Meter(model, text, window, imatrix, Path(folder), measurements, threads)
        uniform = [
            plan
            for dtype in CANDIDATES
            if (plan := _uniform(model, allowed, dtype))
            and _LEAST_SHARE * budget <= _size(model, plan) <= budget
        ]
        with Progress(progress, len(tensors) + len(uniform) + 1, "measurement") as bar:
            with ThreadPoolExecutor(threads or n_usable_cores()) as pool:
                costs = _costs(model, allowed, meter, imatrix, pool, bar)
            plans = [_cheapest(model, costs, budget), *uniform]
            measured = []
            for plan in plans:
                measured.append(meter.divergence(plan))
                bar.update()
    own_types = {
        name: tensor.dtype for name, tensor in model.tensors.items() if is_quantisable(tensor, True)
    }
    return own_types | plans[int(np.argmin(measured))]


def _smaller_types(tensor: TensorInfo) -> list[str]:
    """Return the types with which a tensor is smaller than with its own."""
    return [
        dtype
        for dtype in CANDIDATES
        if tensor.shape[-1] % BLOCKS[dtype][0] == 0 and n_bytes(tensor, dtype) < tensor.nbytes
    ]


def _allowed(
    model: Model, storable: Mapping[str, list[str]], min_bits: float
) -> dict[str, list[str]]:
    """Return the storable types of each matrix that have at least `min_bits` bits per weight, and its own type last."""
    allowed = {}
    for name, types in storable.items():
        tensor = model.tensors[name]
        min_bytes = min_bits * math.prod(tensor.shape) / 8
        allowed[name] = [dtype for dtype in types if n_bytes(tensor, dtype) >= min_bytes]
        allowed[name].append(tensor.dtype)
    return allowed


def _size(model: Model, plan: Mapping[str, str]) -> int:
    return sum(n_bytes(t, plan.get(name, t.dtype)) for name, t in model.tensors.items())


def _smallest_size(model: Model, allowed: dict[str, list[str]]) -> int:
    """Return the size of the model with the smallest allowed types, in bytes."""
    least = {
        name: min(types, key=lambda dtype, name=name: n_bytes(model.tensors[name], dtype))  # type: ignore[misc]
        for name, types in allowed.items()
    }
    return _size(model, least)


def _check_budget(model: Model, allowed: dict[str, list[str]], budget: int) -> None:
    smallest = _smallest_size(model, allowed)
    if smallest > budget:
        n_elements = sum(math.prod(tensor.shape) for tensor in model.tensors.values())
        raise ValueError(
            f"choose_types: bits_per_weight is {8 * budget / n_elements:.2f}, which is too few; the smallest types "
            f"that this model can have take {8 * smallest / n_elements:.2f}"
        )


def _uniform(model: Model, allowed: dict[str, list[str]], dtype: str) -> Plan | None:
    """Return the plan with one type where it is possible, or None if none has it."""
    plan = {
        name: dtype if dtype in types else "Q8_0" if "Q8_0" in types else types[-1]
        for name, types in allowed.items()
    }
    return plan if dtype in plan.values() else None


class _Meter:
    """Measures the divergence of files with other types.

    Attributes:
        measurements: What was measured for the model.
    """

    def __init__(
        self,
        model: Model,
        text: Text,
        window: int | None,
        imatrix: ImportanceMatrix | None,
        folder: Path,
        measurements: str | os.PathLike[str] | None,
        threads: int | None,
    ) -> None:
        ids = token_ids(model, text, "text", True, True)
        size = min(512, model.n_ctx_train or 512) if window is None else window
        limit = max(1, _MAX_LOGITS // model.n_vocab)
        if len(ids) > limit:
            warnings.warn(
                f"choose_types: the text has {len(ids)} tokens; only the first {limit} are used, because their output "
                f"for the {model.n_vocab} tokens of the vocabulary is kept in memory",
                stacklevel=3,
            )
        ids = ids[:limit]
        if len(ids) < 2:
            raise ValueError(
                f"choose_types: the text has {len(ids)} tokens; it must have at least 2"
            )
        self._windows = [ids[i : i + size] for i in range(0, len(ids), size)]
        self._model, self._imatrix, self._folder = model, imatrix, folder
        self._threads = threads
        self._own_types = {name: tensor.dtype for name, tensor in model.tensors.items()}
        self.measurements = Measurements(measurements, f"{identity(model, imatrix)} {size} {ids}")

    @cached_property
    def _reference(self) -> list[npt.NDArray[np.float32]]:
        found = self._logprobs(self._model)
        if found is None:
            raise ValueError(
                "choose_types: the model's output for the text is NaN or infinite, so that no divergence from it can "
                "be measured; expected finite logits"
            )
        return found

    def _logprobs(self, model: Model) -> list[npt.NDArray[np.float32]] | None:
        """Return the log-probabilities of each window, or None if a logit is NaN or infinite."""
        found = []
        longest = max(map(len, self._windows))
        with closing(
            Context(
                model,
                n_ctx=longest,
                n_batch=longest,
                type_k="f32",
                type_v="f32",
                threads=self._threads,
            )
        ) as ctx:
            for tokens in self._windows:
                with ctx.sequence() as seq:
                    batch = Batch()
                    batch.add_sequence(tokens, seq=seq, logits="all")
                    logits = ctx.decode(batch).logits
                    if not np.isfinite(logits).all():
                        return None
                    found.append(log_softmax(logits).astype(np.float32))
        return found

    def divergence(self, plan: Plan) -> float:
        """Return the mean KL divergence of the model with the types of a plan, in nats per token."""
        types = self._own_types | plan
        found = self.measurements.get(f"kl {sorted(types.items())}", lambda: self._measured(types))
        return min(found, _NOT_FINITE)

    def _measured(self, types: Plan) -> float:
        reference, path = self._reference, self._folder / "candidate.gguf"
        write_plan(self._model, path, types, self._imatrix, self._threads)
        candidate = self._logprobs(Model(path, packed_cache=False))
        path.unlink()
        if candidate is None:
            return math.inf
        total = sum(
            float((np.exp(p) * (p.astype(np.float64) - q)).sum())
            for p, q in zip(reference, candidate, strict=True)
        )
        return total / sum(map(len, self._windows))


def _costs(
    model: Model,
    allowed: dict[str, list[str]],
    meter: _Meter,
    imatrix: ImportanceMatrix | None,
    pool: ThreadPoolExecutor,
    bar: Progress,
) -> dict[str, dict[str, float]]:
    """Return the estimated divergence of each type of each tensor."""
    costs = {}
    for name, types in allowed.items():
        errors = _errors(model, name, types, imatrix, meter.measurements, pool)
        probe = min(
            types, key=lambda dtype: abs(8 * BLOCKS[dtype][1] / BLOCKS[dtype][0] - _PROBE_BITS)
        )
        measured = meter.divergence({name: probe}) if errors[probe] > 0 else 0.0
        scale = max(measured, 1e-12) / errors[probe] if errors[probe] > 0 else 0.0
        costs[name] = {dtype: scale * error for dtype, error in errors.items()}
        bar.update()
    return costs


def _errors(
    model: Model,
    name: str,
    types: list[str],
    imatrix: ImportanceMatrix | None,
    measurements: Measurements,
    pool: ThreadPoolExecutor,
) -> dict[str, float]:
    """Return the weighted squared error of each type, from a sample of the rows."""
    tensor = model.tensors[name]
    rows = model.tensor(name).reshape(-1, tensor.shape[-1])
    sample = np.ascontiguousarray(rows[:: max(1, rows.size // _MAX_SAMPLE)])
    found = (
        imatrix.weights(name, math.prod(tensor.shape[:-2]), tensor.shape[-1]) if imatrix else None
    )
    weights = found.mean(axis=0) if found is not None else None
    importance = np.ones(1) if weights is None else weights.astype(np.float64)

    def error(dtype: str) -> float:
        if dtype == tensor.dtype:
            return 0.0
        raw = _core.quantize(sample, dtype, weights, search=True)
        lost = _core.dequantize(raw, dtype).astype(np.float64) - sample
        return float((importance * lost**2).sum())

    def known(dtype: str) -> float:
        return measurements.get(f"error {name} {dtype}", partial(error, dtype))

    return dict(zip(types, pool.map(known, types), strict=True))


def _cheapest(model: Model, costs: dict[str, dict[str, float]], budget: int) -> Plan:
    """Return the plan of least total cost whose size is at most the budget, to a good approximation.

    Starts from the smallest types and takes the upgrades with the largest gain per byte first. An upgrade goes to the
    type on the lower convex hull of size and cost, so that a later upgrade of the same tensor never gains more.
    """
    sizes = {
        name: {dtype: n_bytes(model.tensors[name], dtype) for dtype in types}
        for name, types in costs.items()
    }
    plan = {
        name: min(types, key=lambda dtype, name=name: (sizes[name][dtype], types[dtype]))  # type: ignore[misc]
        for name, types in costs.items()
    }
    left = budget - _size(model, plan)
    while True:
        best: tuple[float, str, str] | None = None
        for name, types in costs.items():
            size, cost = sizes[name][plan[name]], types[plan[name]]
            for dtype in types:
                more, gain = sizes[name][dtype] - size, cost - types[dtype]
                if gain <= 0 or more > left:
                    continue
                rate = gain / more if more > 0 else math.inf
                if best is None or rate > best[0]:
                    best = rate, name, dtype
        if best is None:
            return plan
        _, name, dtype = best
        left -= sizes[name][dtype] - sizes[name][plan[name]]
        plan[name] = dtype
