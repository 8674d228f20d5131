"""Ops that compute rows from rows, against the formulas in tests/reference, on every device of this machine."""

from __future__ import annotations

import numpy as np
import pytest
from python.ops.row_ops import GATINGS
from python.ops.single_op import DEVICES, INFINITE, OPS, Case, check, device
from reference.route import route

# What GLSL leaves undefined for NaN: max(), min() and clamp(). These give a number on some devices.
WITHOUT_NAN = {"clamp", "clamped_swiglu"} | {
    f"{op} {how}" for op in ("activate", "gate") for how in ("relu", "relu_squared")
}


def seeds(on: str) -> range:
    """Fewer on Vulkan, where most cases compile a shader of their own."""
    return range(3 if on == "vulkan" else 8)


# The CPU also with the ops as they are, without those that it fuses.
LOWERED = [(on, True) for on in DEVICES] + [(on, False) for on in DEVICES if on != "vulkan"]


@pytest.mark.parametrize(
    ("on", "fuse"), LOWERED, ids=[f"{on}-{'lowered' if fuse else 'plain'}" for on, fuse in LOWERED]
)
@pytest.mark.parametrize("name", OPS)
def test_an_op_computes_its_formula(name, on, fuse):
    device(on)
    tested = OPS[name]
    for seed in seeds(on):
        case = Case(np.random.default_rng(seed), on=on)
        value, want = tested.make(case)
        check(case.run(on, value, fuse), want, tested.tolerance, f"{name}, seed {seed}")


@pytest.mark.parametrize("on", DEVICES)
@pytest.mark.parametrize("name", OPS)
def test_nan_and_infinities_give_what_the_formula_gives(name, on):
    device(on)
    special = INFINITE if on == "vulkan" and name in WITHOUT_NAN else (np.nan, *INFINITE)
    tested = OPS[name]
    for seed in seeds(on):
        case = Case(np.random.default_rng(100 + seed), special, on)
        with np.errstate(all="ignore"):
            value, want = tested.make(case)
        check(case.run(on, value), want, tested.tolerance, f"{name}, seed {seed}")


@pytest.mark.parametrize("on", DEVICES)
@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize(("groups", "best"), [(1, 2), (4, 1), (4, 2)])
def test_experts_are_chosen_by_the_formula(on, gating, groups, best):
    device(on)
    for seed in range(8):
        case = Case(np.random.default_rng(seed))
        logits = case.rows(experts := 4 * case.size(of=(2, 5, 9)))
        bias = case.vector(experts) if seed % 2 else None
        n_used, kept = case.size(of=(1, 2, 4)), 2 if groups > 1 else 1
        renormalize = bool(seed & 2)
        value = case.ops.route(
            logits.value,
            n_used,
            renormalize,
            1.5,
            GATINGS.index(gating),
            bias and bias.value,
            groups,
            kept,
            best,
        )
        got = case.run(on, value).view(np.int32)
        chosen, weights = route(
            logits.array, n_used, renormalize, 1.5, gating, bias and bias.array, groups, kept, best
        )
        assert np.array_equal(got[..., 0], chosen)
        check(got[..., 1].view(np.float32), weights, 1e-5, f"seed {seed}")


def test_experts_of_equal_score_are_taken_in_their_order():
    case = Case(np.random.default_rng(1), lengths=[3])
    logits = case.given(np.array([[0, 1, 1, 1, 0], [2, 2, 2, 2, 2], [-1, 0, 0, -1, 0]]))
    value = case.ops.route(logits.value, 3, False, 1.0, 0, None, 1, 1, 2)
    got = case.run("scalar", value).view(np.int32)[..., 0]
    assert np.array_equal(got, route(logits.array, 3, False, 1.0)[0])
    assert got.tolist() == [[1, 2, 3], [0, 1, 2], [1, 2, 4]]
