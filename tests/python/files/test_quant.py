"""Conversion between block formats and float32."""

import numpy as np
import plait
import pytest

BLOCKS = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20),
    "Q5_0": (32, 22), "Q5_1": (32, 24), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144),
    "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
    "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82), "IQ3_XXS": (256, 98), "IQ3_S": (256, 110),
    "IQ1_S": (256, 50), "IQ1_M": (256, 56), "TQ1_0": (256, 54), "TQ2_0": (256, 66), "NVFP4": (64, 36),
    "Q1_0": (128, 18), "Q2_0": (64, 18),
}  # fmt: skip


def test_types_are_those_in_files():
    assert set(plait.quant.types()) == set(BLOCKS)


@pytest.mark.parametrize("name", BLOCKS)
def test_shapes_follow_the_blocks(name):
    elements, size = BLOCKS[name]
    n = 512 // elements
    raw = np.zeros((2, 3, n * size), np.uint8)
    got = plait.quant.dequantize(raw, name.lower())
    assert got.shape == (2, 3, 512)
    assert got.dtype == np.float32
    assert plait.quant.dequantize(raw[:0], name).shape == (0, 3, 512)
    if size > 1:
        with pytest.raises(ValueError, match="expected a multiple of"):
            plait.quant.dequantize(raw[..., :-1], name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "IQ4_NL", "Q4_K", "Q6_K"])
def test_blocks_store_only_finite_numbers(name, value):
    values = np.ones((2, 256), np.float32)
    values[1, 3] = value
    if name.endswith(("16", "32")):
        back = plait.quant.dequantize(plait.quant.quantize(values, name), name)
        np.testing.assert_array_equal(back, values)
        return
    with pytest.raises(
        ValueError, match=rf"values: element 259 is {value}, but {name} stores only"
    ):
        plait.quant.quantize(values, name)


def test_rows_need_not_be_contiguous():
    raw = np.random.default_rng(0).integers(0, 255, (4, 2 * 34), np.uint8)
    np.testing.assert_array_equal(
        plait.quant.dequantize(raw[::2], "Q8_0"), plait.quant.dequantize(raw[::2].copy(), "Q8_0")
    )


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL"]
)
def test_requantising_dequantised_values_changes_little(name):
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    bits = {
        "F32": 24,
        "F16": 11,
        "BF16": 8,
        "Q8_0": 7,
        "Q5_1": 4,
        "Q5_0": 3,
        "Q4_1": 3,
        "Q4_0": 2,
        "IQ4_NL": 2,
    }[name]
    back = plait.quant.dequantize(plait.quant.quantize(values, name), name)
    assert np.abs(back - values).max() <= np.abs(values).max() * 2.0**-bits


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"Q4_K.*got \"Q9_Z\""):
        plait.quant.dequantize(np.zeros((1, 4), np.uint8), "Q9_Z")
    for raw in (np.zeros((1, 4), np.float32), np.zeros((1, 4), np.int64), None, "abc"):
        with pytest.raises(TypeError, match="uint8"):
            plait.quant.dequantize(raw, "F32")
    with pytest.raises(ValueError, match=r"\(rows, bytes\)"):
        plait.quant.dequantize(np.uint8(3), "F32")


SEARCHED = [name for name in BLOCKS if BLOCKS[name][0] > 1]


def weighted_error(values, name, importance, **options):
    back = plait.quant.dequantize(plait.quant.quantize(values, name, **options), name)
    return (importance * (back - values.astype(np.float64)) ** 2).sum()


@pytest.mark.parametrize("name", SEARCHED)
def test_weights_lower_the_weighted_error(name):
    rng = np.random.default_rng(1)
    values = rng.standard_normal((8, 512)).astype(np.float32)
    weights = np.exp(1.5 * rng.standard_normal(512)).astype(np.float32)
    ones = np.ones(512, np.float32)
    plain = weighted_error(values, name, weights)
    searched = weighted_error(values, name, weights, search=True)
    assert weighted_error(values, name, weights, weights=weights) < min(plain, searched)
    assert weighted_error(values, name, ones, search=True) <= weighted_error(values, name, ones)
    # Only the proportions of the weights count.
    a, b = (plait.quant.quantize(values, name, w) for w in (weights, 4 * weights))
    np.testing.assert_array_equal(a, b)
    # A row does not depend on the other rows.
    np.testing.assert_array_equal(plait.quant.quantize(values[3:5], name, weights), a[3:5])


@pytest.mark.parametrize("name", SEARCHED)
def test_codes_of_exact_values_are_found(name):
    rng = np.random.default_rng(2)
    values = rng.standard_normal((4, 512)).astype(np.float32)
    exact = plait.quant.dequantize(plait.quant.quantize(values, name, search=True), name)
    back = plait.quant.dequantize(plait.quant.quantize(exact, name, search=True), name)
    scale = np.abs(exact).max()
    assert np.abs(back - exact).mean() < 0.02 * scale
    zeros = np.zeros((1, 512), np.float32)
    np.testing.assert_array_equal(
        plait.quant.dequantize(plait.quant.quantize(zeros, name, search=True), name), zeros
    )


def test_columns_of_weight_zero_are_kept_where_they_cost_nothing():
    values = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    weights = np.ones(256, np.float32)
    weights[:32] = 0
    back = plait.quant.dequantize(plait.quant.quantize(values, "Q4_0", weights), "Q4_0")
    assert np.abs(back[:, :32] - values[:, :32]).mean() < 0.15
    nothing = plait.quant.quantize(values, "Q4_0", np.zeros(256, np.float32))
    np.testing.assert_array_equal(nothing, plait.quant.quantize(values, "Q4_0", search=True))


def test_wrong_weights_are_named():
    values = np.ones((2, 64), np.float32)
    quantize = plait.quant.quantize
    with pytest.raises(ValueError, match=r"weights: expected the shape \(64,\).*got \(32,\)"):
        quantize(values, "Q4_0", np.ones(32))
    with pytest.raises(ValueError, match=r"weights: expected the shape \(64,\).*got \(2, 64\)"):
        quantize(values, "Q4_0", np.ones((2, 64)))
    for bad in (-1, np.nan, np.inf):
        weights = np.ones(64)
        weights[5] = bad
        with pytest.raises(ValueError, match=r"weights: element 5 is .*expected finite"):
            quantize(values, "Q4_0", weights)
    with pytest.raises(TypeError, match="weights: expected an array of float32"):
        quantize(values, "Q4_0", "ones")
