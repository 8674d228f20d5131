"""The block formats in which GGUF files store weights, to and from float32, and files written anew in one of them."""

from plait._core import dequantize, quantize
from plait._core import quant_types as types
from plait.files.quantize import Quantized, quantize_file

__all__ = ["Quantized", "dequantize", "quantize", "quantize_file", "types"]
