"""The derivatives of ops, against finite differences of the formulas in tests/reference, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from python.ops import row_ops  # registers the ops
from python.ops.single_op import OPS, Case, Operand, device
from reference.attend import attend
from reference.combine import combine
from reference.expert_linear import expert_linear
from reference.head_linear import head_linear
from reference.linear import linear
from reference.route import route
from reference.select_rows import select_rows

STEP = 1e-5
DIFFERENTIABLE = (
    "add", "sub", "mul", "scale", "softcap", "clamp", "clamped_swiglu", "slice", "concat", "row_sum", "rms_norm",
    "rms_norm without weight", "layer_norm", "layer_norm without bias", "l2_norm", "mix", "rope", "hadamard",
    "combine", "edit_rows",
)  # fmt: skip


class Shifted(Case):
    """A case whose operand number `operand` of rows() is moved along a direction, in float64."""

    def __init__(self, seed: int, operand: int = -1, shift: float = 0.0, **options: Any) -> None:
        super().__init__(np.random.default_rng(seed), **options)
        self.operand, self.shift = operand, shift
        self.moved: list[Operand] = []

    def rows(self, *axes: int) -> Operand:
        made = super().rows(*axes)
        made.array = made.array.astype(np.float64)
        if len(self.moved) == self.operand:
            made.array += self.shift * direction(self.operand, made.array.shape)
        self.moved.append(made)
        return made


def direction(operand: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(operand).normal(size=shape)


def agree(make: Callable[[Case], tuple[Any, np.ndarray]], seed: int, **options: Any) -> None:
    """Compare the gradient of each operand that rows() makes, along one direction, with a difference."""
    case = Shifted(seed, **options)
    value, want = make(case)
    weights = np.random.default_rng(99).normal(size=want.shape).astype(np.float32)
    wanted = [operand.value for operand in case.moved]
    found = case.graph.gradient(device("scalar"), value, wanted, weights)
    assert len(case.moved) > 0
    for i, gradient in enumerate(found):
        up, down = (
            float((make(Shifted(seed, i, shift, **options))[1] * weights).sum())
            for shift in (STEP, -STEP)
        )
        along_it = direction(i, case.moved[i].array.shape)
        along = float((gradient.reshape(along_it.shape).astype(np.float64) * along_it).sum())
        size = np.linalg.norm(gradient) * np.linalg.norm(along_it)
        assert abs(along - (up - down) / (2 * STEP)) <= 1e-4 * (abs(along) + 0.02 * size), (i, seed)
        assert size > 0 or up == down


def names() -> list[str]:
    activations = [name for name in OPS if name.startswith(("activate ", "gate "))]
    return sorted([name for name in OPS if name in DIFFERENTIABLE] + activations)


@pytest.mark.parametrize("name", names())
def test_derivatives_of_row_ops(name):
    for seed in range(12):
        agree(OPS[name].make, seed)


def test_every_listed_op_is_registered():
    assert set(DIFFERENTIABLE) <= set(OPS), sorted(set(DIFFERENTIABLE) - set(OPS))


# The product with a weight of a block type rounds its operand; its derivative is that of the dequantised weight.
@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("n_out", [1, 3, 67])
def test_derivatives_of_products(dtype, n_out):
    block = 256 if dtype == "Q4_K" else 32

    def make(case):
        n_in = 33 if dtype in ("F32", "F16") else 3 * block
        x, weight = case.rows(n_in), case.weight(case.normal(n_out, n_in), dtype)
        return case.ops.linear(x.value, weight.value, None), linear(x.array, weight.array)

    def make_heads(case):
        n_in = 33 if dtype in ("F32", "F16") else block
        x, weight = case.rows(3, n_in), case.weight(case.normal(3, n_out, n_in), dtype)
        return case.ops.head_linear(x.value, weight.value), head_linear(x.array, weight.array)

    for seed in range(3):
        agree(make, seed)
        agree(make_heads, seed)


@pytest.mark.parametrize("per_expert", [False, True])
@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_derivatives_of_products_of_experts(dtype, per_expert):
    def make(case):
        experts, used, n_in = 5, 3, 64
        x = case.rows(*(used,) * per_expert, n_in)
        weight = case.weight(case.normal(experts, 7, n_in), dtype)
        chosen, _, routes = row_ops.routes_of(case, experts, used)
        made = case.ops.expert_linear(x.value, weight.value, routes, None)
        return made, expert_linear(x.array, weight.array, chosen)

    for seed in range(4):
        agree(make, seed)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("gating", row_ops.GATINGS)
@pytest.mark.parametrize("biased", [False, True])
def test_derivatives_of_routes(gating, renormalize, biased):
    """The weights of the chosen experts have derivatives; the choice is a constant."""

    def make(case):
        logits, y = case.rows(8), case.rows(3, 5)
        bias = case.vector(8) if biased else None
        how = (3, renormalize, 1.7, row_ops.GATINGS.index(gating))
        routes = case.ops.route(logits.value, *how, bias and bias.value, 4, 2, 2)
        _, weights = route(logits.array, *how[:3], gating, bias and bias.array, 4, 2)
        return case.ops.combine(y.value, routes), combine(y.array, weights)

    for seed in range(6):
        agree(make, seed)


def test_derivatives_of_selected_rows():
    def make(case):
        x = case.rows(7)
        rows = case.ints(np.r_[case.random.permutation(case.n)[:2], 1, 1], "outputs")
        return case.ops.select_rows(x.value, rows.value), select_rows(x.array, rows.array)

    for seed in range(4):
        agree(make, seed, lengths=[6], outputs=4)


VARIANTS = [
    {},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 4},
    {"values_in_keys": True},
    {"heads": 3, "kv_heads": 3, "softcap": 1.5, "sinks": True, "earlier": 0},
    {"lengths": [1]},
    {"lengths": [5, 1, 9]},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_derivatives_of_attention(variant):
    """Keys and values of this step have a gradient; those of earlier steps are constants."""
    how = {"heads": 6, "kv_heads": 2, "earlier": 3, "window": 1000, "lengths": [7]} | variant
    heads, kv_heads, earlier, lengths = (
        how[k] for k in ("heads", "kv_heads", "earlier", "lengths")
    )
    key_dim, value_dim = 13, 5

    def make(case):
        q, k = case.rows(heads, key_dim), case.rows(kv_heads, key_dim)
        v = None if "values_in_keys" in how else case.rows(kv_heads, value_dim)
        counts = [earlier + n for n in lengths]
        order = case.random.permutation(sum(counts) + 5)[: sum(counts)].astype(np.int32)
        key_begin = np.concatenate([[0], np.cumsum(counts)])
        token_begin = np.concatenate([[0], np.cumsum(lengths)])
        rows = [order[key_begin[s] : key_begin[s + 1]] for s in range(len(lengths))]
        written = np.concatenate([of[earlier:] for of in rows])
        last = np.concatenate([earlier + 1 + np.arange(n) for n in lengths])
        first = np.maximum(last - how["window"], 0)
        runs = np.array([(row, 1, j, j) for of in rows for j, row in enumerate(of)])
        at = case.ints(written)

        def stored(x):
            width = int(np.prod(x.array.shape[1:]))
            cache = case.cache(case.normal(sum(counts) + 5, width))
            now = np.array(cache.array, np.float64)
            now[written] = x.array.reshape(len(written), -1)
            return case.ops.store_rows(cache.value, x.value, at.value), now

        keys, key_rows = stored(k)
        values, value_rows = (None, None) if v is None else stored(v)
        step = [token_begin, runs, key_begin]
        inputs = [case.ints(each, "fixed").value for each in step]
        inputs += [case.ints(first).value, case.ints(last).value]
        sinks = case.vector(heads) if how.get("sinks") else None
        made = case.ops.attend(
            q.value, keys, values, inputs, sinks and sinks.value, [], None,
            n_heads=heads, n_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, scale=0.4,
            softcap=how.get("softcap", 0.0), flash=True, position_bias=0, max_bias=0.0, max_distance=0,
            both_directions=False,
        )  # fmt: skip
        results = []
        for s, of in enumerate(rows):
            tokens = slice(token_begin[s], token_begin[s + 1])
            held = value_dim if v is None else value_rows[of].reshape(len(of), kv_heads, -1)
            results.append(
                attend(
                    q.array[tokens],
                    key_rows[of].reshape(len(of), kv_heads, -1),
                    held,
                    first[tokens],
                    last[tokens],
                    0.4,
                    how.get("softcap", 0.0),
                    sinks and sinks.array,
                )
            )
        return made, np.concatenate(results)

    for seed in range(3):
        agree(make, seed, lengths=lengths)
