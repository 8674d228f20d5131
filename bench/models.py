#!/usr/bin/env python3
"""Write a model with random weights in the shape of a well-known one, for measurements of speed.

    models.py qwen-0.5b:Q4_0 model.gguf

Speed depends on shapes and types, not on values. The output of such a model is meaningless.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hybrid_models import HYBRIDS
from python.gguf_writer import Raw

from python import gguf_writer


@dataclass(frozen=True)
class Shape:
    arch: str
    n_layer: int
    n_embd: int
    n_ffn: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    rope_base: float
    qkv_bias: bool = False
    n_expert: int = 0  # of n_ffn each
    n_expert_used: int = 0


SHAPES = {
    "stories-15m": Shape("llama", 6, 288, 768, 6, 6, 48, 32000, 1e4),
    "tiny-llama": Shape("llama", 8, 256, 768, 8, 4, 32, 4096, 1e4),
    "smol-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, 1e4),
    "qwen-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, 1e6, qkv_bias=True),
    "llama-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 5e5),
    "llama-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 5e5),
    "qwen-3b": Shape("qwen2", 36, 2048, 11008, 16, 2, 128, 151936, 1e6, qkv_bias=True),
    "danube-1.8b": Shape("llama", 24, 2560, 6912, 32, 8, 80, 32000, 1e4),
    "granite-1b-a400m": Shape(
        "llama", 24, 1024, 512, 16, 8, 64, 49152, 1e4, n_expert=32, n_expert_used=8
    ),
    "minilm": Shape("bert", 6, 384, 1536, 12, 12, 32, 30522, 0.0),
}
# Block types: offsets of the float16 scales, and the largest value of a code with scale 1.
BLOCKS = {
    "Q4_0": ((0,), 8),
    "Q4_1": ((0, 2), 15),
    "Q5_0": ((0,), 16),
    "Q5_1": ((0, 2), 31),
    "Q8_0": ((0,), 127),
    "Q2_K": ((80, 82), 3 * 15),
    "Q3_K": ((108,), 4 * 32),
    "Q4_K": ((0, 2), 15 * 63),
    "Q5_K": ((0, 2), 31 * 63),
    "Q6_K": ((208,), 32 * 127),
    "IQ4_NL": ((0,), 127),
    "IQ4_XS": ((0,), 127 * 32),
    "IQ3_S": ((0,), 15 * 31),
    "IQ3_XXS": ((0,), 62 * 8),
    "IQ2_S": ((0,), 43 * 4),
    "IQ2_XS": ((0,), 43 * 4),
    "IQ2_XXS": ((0,), 43 * 4),
    "IQ1_S": ((0,), 15),
    "TQ2_0": ((64,), 2),
    "TQ1_0": ((52,), 2),
    "MXFP4": ((), 6),  # a byte at 0, the exponent of 2 plus 127
    "NVFP4": ((), 6),  # four bytes at 0, numbers in E4M3
}
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.float32}
E4M3 = np.array(
    [f / 512 if e == 0 else (1 + f / 8) * 2.0 ** (e - 7) for e in range(16) for f in range(8)]
)


def matrix(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> np.ndarray | Raw:
    """Random weights of about 1 / sqrt(columns); blocks hold random codes, so nothing is quantised."""
    if dtype in FLOATS:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        values /= np.float32(np.sqrt(columns))
        if dtype == "BF16":  # the upper halves, little-endian
            return Raw(
                dtype, values.view(np.uint8).reshape(rows, columns, 4)[:, :, 2:].reshape(rows, -1)
            )
        return values.astype(FLOATS[dtype])
    _, elements, size = gguf_writer.BLOCK_TYPES[dtype]
    offsets, largest = BLOCKS[dtype]
    if columns % elements:
        return matrix(rng, rows, columns, "Q8_0")
    blocks = rng.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    scale = 2 / (largest * np.sqrt(columns))
    for offset in offsets:
        blocks[:, offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = 127 + round(np.log2(scale))
    if dtype == "NVFP4":
        blocks[:, :4] = np.abs(E4M3 - scale).argmin()
    return Raw(dtype, blocks.reshape(rows, -1))


def stack(tensor: np.ndarray | Raw, n: int) -> np.ndarray | Raw:
    """Return n copies of a matrix, stacked."""
    if isinstance(tensor, Raw):
        return Raw(tensor.type, tensor.data.reshape(n, -1, tensor.data.shape[1]))
    return tensor.reshape(n, -1, tensor.shape[1])


def write(name: str, path: Path, seed: int = 0, vocabulary: bool = False) -> Path:
    """Write the model `name`, which is shape:type. Norms and biases are F32. With `vocabulary`, include tokens."""
    shape_name, _, dtype = name.partition(":")
    names = ", ".join([*SHAPES, *HYBRIDS])
    if shape_name not in {*SHAPES, *HYBRIDS} or dtype not in {*BLOCKS, *FLOATS}:
        raise ValueError(
            f"{name!r}: expected one of {names}, then one of {', '.join([*FLOATS, *BLOCKS])}"
        )
    metadata: dict[str, Any] = {"general.name": name, "tokenizer.ggml.model": "no_vocab"}
    weight = partial(matrix, np.random.default_rng(seed), dtype=dtype)
    if shape_name in HYBRIDS:
        arch, keys, tensors = HYBRIDS[shape_name](weight)
        metadata |= {"general.architecture": arch}
        metadata |= {f"{arch}.{key}": value for key, value in keys.items()}
        if vocabulary:
            metadata |= tokens(keys["vocab_size"])
        return gguf_writer.write(path, metadata, tensors)
    s = SHAPES[shape_name]
    metadata |= {
        "general.architecture": s.arch,
        f"{s.arch}.vocab_size": s.n_vocab,
        f"{s.arch}.block_count": s.n_layer,
        f"{s.arch}.embedding_length": s.n_embd,
        f"{s.arch}.feed_forward_length": s.n_ffn,
        f"{s.arch}.attention.head_count": s.n_head,
        f"{s.arch}.attention.head_count_kv": s.n_head_kv,
    }
    of = encoder if s.arch == "bert" else decoder
    keys, tensors = of(s, weight)
    if vocabulary:
        metadata |= tokens(s.n_vocab)
    return gguf_writer.write(path, metadata | keys, tensors)


def tokens(n: int) -> dict[str, Any]:
    """Return the vocabulary of the tests, extended with more words."""
    keys: dict[str, Any] = gguf_writer.vocabulary()
    words = [f"word{i}" for i in range(len(keys["tokenizer.ggml.tokens"]), n)]
    more: dict[str, Any] = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": np.full(len(words), -1e4, np.float32),
        "tokenizer.ggml.token_type": np.full(len(words), 1, np.int32),
    }
    return keys | {
        name: keys[name] + words if isinstance(keys[name], list) else np.append(keys[name], added)
        for name, added in more.items()
    }


Tensors = dict[str, "np.ndarray | Raw"]


def decoder(
    s: Shape, weight: Callable[[int, int], np.ndarray | Raw]
) -> tuple[dict[str, Any], Tensors]:
    keys = {
        f"{s.arch}.context_length": 131072,
        f"{s.arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{s.arch}.rope.freq_base": s.rope_base,
        f"{s.arch}.rope.dimension_count": s.head_dim,
    }
    if s.n_expert:
        keys |= {
            f"{s.arch}.expert_count": s.n_expert,
            f"{s.arch}.expert_used_count": s.n_expert_used,
        }
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    one = np.ones(s.n_embd, np.float32)
    tensors = {"token_embd.weight": weight(s.n_vocab, s.n_embd), "output_norm.weight": one}
    for i in range(s.n_layer):
        layer = {
            "attn_q.weight": weight(n_q, s.n_embd),
            "attn_k.weight": weight(n_kv, s.n_embd),
            "attn_v.weight": weight(n_kv, s.n_embd),
            "attn_output.weight": weight(s.n_embd, n_q),
            "attn_norm.weight": one,
            "ffn_norm.weight": one,
        }
        if s.n_expert:
            layer["ffn_gate_inp.weight"] = matrix(
                np.random.default_rng(i), s.n_expert, s.n_embd, "F32"
            )
            for part, rows, columns in (
                ("gate", s.n_ffn, s.n_embd),
                ("up", s.n_ffn, s.n_embd),
                ("down", s.n_embd, s.n_ffn),
            ):
                layer[f"ffn_{part}_exps.weight"] = stack(
                    weight(s.n_expert * rows, columns), s.n_expert
                )
        else:
            layer |= {
                "ffn_gate.weight": weight(s.n_ffn, s.n_embd),
                "ffn_up.weight": weight(s.n_ffn, s.n_embd),
                "ffn_down.weight": weight(s.n_embd, s.n_ffn),
            }
        if s.qkv_bias:
            for part, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
                layer[f"attn_{part}.bias"] = np.zeros(n, np.float32)
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in layer.items()}
    return keys, tensors


def encoder(
    s: Shape, weight: Callable[[int, int], np.ndarray | Raw]
) -> tuple[dict[str, Any], Tensors]:
    keys = {
        "bert.context_length": 512,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,  # mean
        "tokenizer.ggml.token_type_count": 2,
    }

    def norm(name: str) -> Tensors:
        return {
            f"{name}.weight": np.ones(s.n_embd, np.float32),
            f"{name}.bias": np.zeros(s.n_embd, np.float32),
        }

    def linear(name: str, n_out: int, n_in: int) -> Tensors:
        return {f"{name}.weight": weight(n_out, n_in), f"{name}.bias": np.zeros(n_out, np.float32)}

    rng = np.random.default_rng(1)
    tensors = {
        "token_embd.weight": weight(s.n_vocab, s.n_embd),
        "token_types.weight": matrix(rng, 2, s.n_embd, "F32"),
        "position_embd.weight": matrix(rng, 512, s.n_embd, "F32"),
    } | norm("token_embd_norm")
    for i in range(s.n_layer):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors |= linear(f"blk.{i}.{part}", s.n_embd, s.n_embd)
        tensors |= linear(f"blk.{i}.ffn_up", s.n_ffn, s.n_embd)
        tensors |= linear(f"blk.{i}.ffn_down", s.n_embd, s.n_ffn)
        tensors |= norm(f"blk.{i}.attn_output_norm") | norm(f"blk.{i}.layer_output_norm")
    return keys, tensors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", help="shape:type, as in qwen-0.5b:Q4_0; shapes: " + ", ".join([*SHAPES, *HYBRIDS])
    )
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--vocabulary",
        action="store_true",
        help="include a vocabulary, so that text can be tokenized",
    )
    args = parser.parse_args()
    write(args.name, args.path, vocabulary=args.vocabulary)
