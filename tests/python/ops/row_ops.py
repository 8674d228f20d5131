"""Ops that compute rows from rows, with their formulas in tests/reference; imported for its entries in OPS."""

from __future__ import annotations

import numpy as np
from python.ops.single_op import (
    ROPES,
    Case,
    Operand,
    native,
    op,
)
from reference import activate as activations
from reference.add import add
from reference.clamp import clamp
from reference.clamped_swiglu import clamped_swiglu
from reference.combine import combine
from reference.concat import concat
from reference.edit_rows import edit_rows
from reference.embed import embed
from reference.expert_linear import expert_linear
from reference.gate import gate
from reference.hadamard import hadamard
from reference.head_linear import head_linear
from reference.l2_norm import l2_norm
from reference.layer_norm import layer_norm
from reference.linear import linear
from reference.mix import mix
from reference.mul import mul
from reference.rms_norm import rms_norm
from reference.rope import rope
from reference.rope_table import rope_table
from reference.row_sum import row_sum
from reference.scale import scale
from reference.slice_ import slice_
from reference.softcap import softcap
from reference.sub import sub
from reference.temperature import temperature

ACTIVATIONS = tuple(activations.FUNCTIONS)  # in the order of plait::Activation
GATINGS = ("softmax", "sigmoid", "softmax_chosen")  # in the order of plait::Gating
FLOATS = ("F32", "F16", "BF16")
BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL")


def binary(name, formula):
    """Operands of equal shape, a vector for all rows, a number for each vector."""

    @op(name)
    def make(case: Case):
        m = case.size()
        a = case.rows(m)
        b = (case.rows(m), case.vector(m), case.rows(1))[case.random.integers(3)]
        return getattr(case.ops, name)(a.value, b.value), formula(a.array, b.array)

    return make


for name, formula in (("add", add), ("sub", sub), ("mul", mul)):
    binary(name, formula)


@op("scale")
def _(case: Case):
    x, factor, offset = case.rows(case.size()), -1.7, 0.3
    return case.ops.scale(x.value, factor, offset), scale(x.array, factor, offset)


@op("softcap")
def _(case: Case):
    x = case.rows(case.size())
    return case.ops.softcap(x.value, 0.7), softcap(x.array.astype(float), 0.7)


@op("clamp")
def _(case: Case):
    x = case.rows(case.size())
    return case.ops.clamp(x.value, 0.5), clamp(x.array, 0.5)


def activation(how):
    @op(f"activate {how}")
    def make_activate(case: Case):
        x, number = case.rows(case.size()), ACTIVATIONS.index(how)
        return case.ops.activate(x.value, number), activations.activate(x.array, how)

    @op(f"gate {how}")
    def make_gate(case: Case):
        m, number = case.size(), ACTIVATIONS.index(how)
        g, up = case.rows(m), case.rows(m)
        return case.ops.gate(g.value, up.value, number), gate(g.array, up.array, how)

    return make_activate, make_gate


for how in ACTIVATIONS:
    activation(how)


@op("clamped_swiglu")
def _(case: Case):
    m = case.size()
    g, up = case.rows(m), case.rows(m)
    made = case.ops.clamped_swiglu(g.value, up.value, 1.7, 0.9)
    return made, clamped_swiglu(g.array, up.array, 1.7, 0.9)


@op("slice", tolerance=0)
def _(case: Case):
    m = case.size()
    begin = int(case.random.integers(m))
    count = int(case.random.integers(1, m - begin + 1))
    x = case.rows(m)
    return case.ops.slice(x.value, begin, count), slice_(x.array, begin, count)


@op("concat", tolerance=0)
def _(case: Case):
    heads, shared = case.size(of=(1, 3, 4)), case.random.random() < 0.5
    a, b = case.rows(heads, case.size()), case.rows(1 if shared else heads, case.size())
    return case.ops.concat(a.value, b.value), concat(a.array, b.array)


@op("edit_rows", tolerance=0)
def _(case: Case):
    heads, m = case.size(of=(1, 3)), case.size()
    x = case.rows(heads, m) if heads > 1 else case.rows(m)
    random = case.random
    picks = np.stack([np.zeros(case.n), random.integers(0, 3, case.n)], axis=1).astype(np.int32)
    if random.random() < 0.5:  # a row for each row
        rows = case.rows(heads, m) if heads > 1 else case.rows(m)
    else:
        pool = case.normal(heads * m * 3 + 5)
        rows = Operand(case.graph.input(pool, case.ops.Extent.fixed), pool)
        picks[:, 0] = random.integers(0, 2 * heads * m + 5, case.n)
    picks[random.random(case.n) < 0.3, 0] = -1
    made = case.ops.edit_rows(x.value, rows.value, case.ints(picks).value)
    return made, edit_rows(x.array, rows.array, picks)


@op("row_sum")
def _(case: Case):
    x = case.rows(case.size())
    return case.ops.row_sum(x.value), row_sum(x.array)


@op("rms_norm")
def _(case: Case):
    heads, m = case.size(of=(1, 2, 5)), case.size()
    x, weight = case.rows(heads, m), case.vector(heads, m) if heads > 2 else case.vector(m)
    return case.ops.rms_norm(x.value, weight.value, 1e-3), rms_norm(x.array, weight.array, 1e-3)


@op("rms_norm without weight")
def _(case: Case):
    x = case.rows(case.size())
    return case.ops.rms_norm(x.value, None, 1e-6), rms_norm(x.array, None, 1e-6)


@op("layer_norm")
def _(case: Case):
    m = case.size(of=(5, 16, 33, 100))
    x, weight, bias = case.rows(m), case.vector(m), case.vector(m)
    made = case.ops.layer_norm(x.value, weight.value, bias.value, 1e-3)
    return made, layer_norm(x.array, weight.array, bias.array, 1e-3)


@op("layer_norm without bias")
def _(case: Case):
    m = case.size(of=(5, 16, 33, 100))
    x, weight = case.rows(m), case.vector(m)
    made = case.ops.layer_norm(x.value, weight.value, None, 1e-3)
    return made, layer_norm(x.array, weight.array, None, 1e-3)


@op("l2_norm")
def _(case: Case):
    x = case.rows(case.size(of=(2, 3)), case.size())
    return case.ops.l2_norm(x.value, 1e-6), l2_norm(x.array, 1e-6)


# -- products ---------------------------------------------------------------------------------


def product(dtype):
    block = 256 if dtype.endswith("_K") else 32
    blocks = dtype in BLOCKS
    tolerance = 2e-2 if dtype == "BF16" else 2e-5  # an instruction set may round rows of x to bf16
    sizes = (block, 2 * block, 3 * block) if blocks else (1, 3, 20, 32, 65, 129)

    def rounds(case: Case) -> bool:
        """Whether rows of x are rounded to int8; Vulkan multiplies floats."""
        return blocks and case.on != "vulkan"

    @op(f"linear {dtype}", tolerance=tolerance)
    def make_linear(case: Case):
        x = case.rows(columns := case.size(of=sizes))
        weight = case.weight(case.normal(outputs := case.size(), columns), dtype)
        bias = case.vector(outputs) if case.random.random() < 0.5 else None
        made = case.ops.linear(x.value, weight.value, bias and bias.value)
        return made, linear(x.array, weight.array, bias and bias.array, quantized=rounds(case))

    @op(f"head_linear {dtype}", tolerance=tolerance)
    def make_head_linear(case: Case):
        x = case.rows(heads := case.size(of=(1, 3)), columns := case.size(of=sizes))
        weight = case.weight(case.normal(heads, case.size(), columns), dtype)
        made = case.ops.head_linear(x.value, weight.value)
        return made, head_linear(x.array, weight.array, quantized=rounds(case))

    @op(f"expert_linear {dtype}", tolerance=tolerance)
    def make_expert_linear(case: Case):
        experts, used = 5, case.size(of=(1, 3))
        each = case.random.random() < 0.5  # x of a token's expert, or of the token
        x = case.rows(*(used,) * each, columns := case.size(of=sizes))
        weight = case.weight(case.normal(experts, outputs := case.size(), columns), dtype)
        bias = case.vector(experts, outputs) if case.random.random() < 0.5 else None
        chosen, _, routes = routes_of(case, experts, used)
        made = case.ops.expert_linear(x.value, weight.value, routes, bias and bias.value)
        want = expert_linear(x.array, weight.array, chosen, bias and bias.array, rounds(case))
        return made, want

    return make_linear, make_head_linear, make_expert_linear


def routes_of(case: Case, experts: int, used: int):
    """The experts and weights of each token, and the value as Route lays it out: expert, bits of its weight."""
    chosen = np.array([case.random.permutation(experts)[:used] for _ in range(case.n)], np.int32)
    weights = case.random.random((case.n, used)).astype(np.float32)
    return chosen, weights, case.ints(np.stack([chosen, weights.view(np.int32)], axis=-1)).value


for dtype in (*FLOATS, *BLOCKS):
    product(dtype)


@op("mix")
def _(case: Case):
    i, j = case.size(of=(1, 2, 4)), case.size(of=(1, 3, 4))
    x, weights = case.rows(j, case.size()), case.rows(i, j)
    return case.ops.mix(x.value, weights.value), mix(x.array, weights.array)


@op("combine")
def _(case: Case):
    used = case.size(of=(1, 2, 4))
    y = case.rows(used, case.size())
    _, weights, routes = routes_of(case, 7, used)
    return case.ops.combine(y.value, routes), combine(y.array, weights)


# -- positions --------------------------------------------------------------------------------


@op("rope_table")
def _(case: Case):
    how = ROPES[case.random.integers(len(ROPES))]
    shape = (case.n, 4) if any(how.sections) else (case.n,)
    positions = case.ints(case.random.integers(0, 5000, shape))
    factors = case.weight(1 + case.random.random(how.n_rot // 2).astype(np.float32))
    made = case.ops.rope_table(positions.value, native(case, how), factors.value)
    return made, rope_table(positions.array, how, factors.array)


@op("rope")
def _(case: Case):
    how = ROPES[case.random.integers(len(ROPES))]
    x = case.rows(case.size(of=(1, 3)), how.n_rot + case.size(of=(0, 2, 9)))
    table = case.given(rope_table(np.arange(case.n) * 37, how))
    made = case.ops.rope(x.value, table.value, native(case, how))
    return made, rope(x.array, table.array, how.interleaved)


@op("hadamard")
def _(case: Case):
    block = case.size(of=(16, 32))
    x = case.rows(case.size(of=(1, 3)), block * case.size(of=(1, 2, 3)))
    return case.ops.hadamard(x.value, block), hadamard(x.array, block)


@op("temperature")
def _(case: Case):
    positions = case.ints(case.random.integers(0, 10**6, case.n))
    made = case.ops.temperature(positions.value, 0.1, 8192, 1)
    return made, temperature(positions.array, 0.1, 8192, 1)


@op("embed", tolerance=0)
def _(case: Case):
    dtype = str(case.random.choice((*FLOATS, "Q8_0", "Q4_0", "IQ4_NL")))
    columns = 32 * case.size(of=(1, 2, 3))
    table = case.weight(case.normal(50, columns), dtype)
    tokens = case.ints(case.random.integers(0, 50, case.n))
    return case.ops.embed(table.value, tokens.value), embed(table.array, tokens.array)
