"""The block formats in which GGUF files store weights, to and from float32."""

from plait._core import dequantize, quantize
from plait._core import quant_types as types

__all__ = ["dequantize", "quantize", "types"]
