"""Block formats of GGUF weights: conversion from and to float32, and quantisation of files."""

from plait._core import dequantize, quantize
from plait._core import quant_types as types
from plait.files.quantize import Quantized, quantize_file

__all__ = ["Quantized", "dequantize", "quantize", "quantize_file", "types"]
