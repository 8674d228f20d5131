"""Block formats of GGUF weights: conversion from and to float32, importance matrices, and quantisation of files."""

from plait._core import dequantize, quantize
from plait._core import quant_types as types
from plait.evaluation.budget import choose_types
from plait.evaluation.importance import importance_matrix
from plait.files.imatrix import ImportanceMatrix
from plait.files.quantize import Quantized, quantize_file

__all__ = [
    "ImportanceMatrix",
    "Quantized",
    "choose_types",
    "dequantize",
    "importance_matrix",
    "quantize",
    "quantize_file",
    "types",
]
