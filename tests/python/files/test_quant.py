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
    with pytest.raises(plait.UnsupportedError):
        plait.quant.quantize(np.zeros((1, 256), np.float32), "Q5_K")
