"""Writes GGUF files, including models that are small enough for any test.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}
NUMPY_TYPES = {
    "uint8": U8, "int8": I8, "uint16": U16, "int16": I16, "uint32": U32, "int32": I32,
    "float32": F32, "bool": BOOL, "uint64": U64, "int64": I64, "float64": F64,
}  # fmt: skip
TENSOR_TYPES = {"float32": 0, "float16": 1, "int32": 26}
# type id, elements per block, bytes per block
BLOCK_TYPES = {
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
    "IQ2_XXS": (16, 256, 66),
    "IQ2_XS": (17, 256, 74),
    "IQ2_S": (22, 256, 82),
    "IQ3_XXS": (18, 256, 98),
    "IQ3_S": (21, 256, 110),
    "IQ1_S": (19, 256, 50),
    "IQ1_M": (29, 256, 56),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
    "NVFP4": (40, 64, 36),
    "Q1_0": (41, 128, 18),
    "Q2_0": (42, 64, 18),
}


@dataclass
class Typed:
    """A metadata value of a given GGUF type."""

    type: int
    value: Any


@dataclass
class Raw:
    """A tensor of a block format: uint8 (rows, bytes), or (matrices, rows, bytes)."""

    type: str
    data: np.ndarray


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> tuple[int, bytes]:
    match value:
        case Typed(type, value):
            return type, struct.pack("<" + FORMATS[type], value)
        case bool():
            return BOOL, struct.pack("<?", value)
        case int():
            return U32, struct.pack("<I", value)
        case float():
            return F32, struct.pack("<f", value)
        case str() | bytes():
            return STRING, string(value)
        case np.ndarray():
            return ARRAY, struct.pack(
                "<IQ", NUMPY_TYPES[value.dtype.name], value.size
            ) + value.tobytes()
        case list():
            return ARRAY, struct.pack("<IQ", STRING, len(value)) + b"".join(map(string, value))
    raise TypeError(f"no GGUF type for {value!r}")


def describe(tensor: np.ndarray | Raw) -> tuple[int, tuple[int, ...], bytes]:
    """Return the type id, the shape (outermost axis first) and the bytes."""
    if isinstance(tensor, Raw):
        type_id, elements, size = BLOCK_TYPES[tensor.type]
        *outer, width = tensor.data.shape
        return type_id, (*outer, width // size * elements), tensor.data.tobytes()
    return TENSOR_TYPES[tensor.dtype.name], tensor.shape, np.ascontiguousarray(tensor).tobytes()


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray | Raw]) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        type_id, data = typed(value)
        head += string(key) + struct.pack("<I", type_id) + data
    body, end = [], 0
    for name, tensor in tensors.items():
        type_id, shape, data = describe(tensor)
        body += [bytes(-end % ALIGNMENT), data]
        begin = end + len(body[-2])
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", type_id, begin)
        end = begin + len(data)
    path.write_bytes(b"".join([head, bytes(-len(head) % ALIGNMENT), *body]))
    return path


N_VOCAB, WIDTH, N_LAYERS, N_HEADS, N_HEADS_KV, HEAD, N_FFN = 288, 64, 2, 4, 2, 16, 96
EPSILON, ROPE_BASE, N_CTX_TRAIN = 1e-5, 10000.0, 256
BOS, EOS, FIRST_BYTE = 1, 2, 3


def vocabulary() -> dict[str, Any]:
    """Return a SentencePiece vocabulary with a token per byte and some pieces."""
    pieces = [
        "\u2581",
        *"etaoinshrdlu",
        "\u2581t",
        "th",
        "he",
        "\u2581th",
        "\u2581the",
        "in",
        "an",
        "er",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    tokens += [f"word{i}" for i in range(N_VOCAB - len(tokens))]
    n_bytes = FIRST_BYTE + 256
    types = [2, 3, 3] + [6] * 256 + [1] * (N_VOCAB - n_bytes)
    scores = [0.0] * n_bytes + [-float(i) for i in range(N_VOCAB - n_bytes)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def llama_metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": N_LAYERS,
        "llama.context_length": N_CTX_TRAIN,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": N_FFN,
        "llama.attention.head_count": N_HEADS,
        "llama.attention.head_count_kv": N_HEADS_KV,
        "llama.attention.layer_norm_rms_epsilon": EPSILON,
        "llama.rope.freq_base": ROPE_BASE,
        "llama.rope.dimension_count": HEAD,
        "llama.vocab_size": N_VOCAB,
    }


def llama_weights(seed: int = 1) -> dict[str, np.ndarray]:
    """Return random weights: logits have a standard deviation of about 2, and attention is not uniform."""
    rng = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        values: np.ndarray = gain * rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)
        return values.astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)

    weights = {"token_embd.weight": matrix(N_VOCAB, WIDTH, gain=8.0)}
    for i in range(N_LAYERS):
        weights |= {
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": matrix(N_HEADS * HEAD, WIDTH, gain=1.5),
            f"blk.{i}.attn_k.weight": matrix(N_HEADS_KV * HEAD, WIDTH, gain=1.5),
            f"blk.{i}.attn_v.weight": matrix(N_HEADS_KV * HEAD, WIDTH),
            f"blk.{i}.attn_output.weight": matrix(WIDTH, N_HEADS * HEAD),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": matrix(N_FFN, WIDTH),
            f"blk.{i}.ffn_up.weight": matrix(N_FFN, WIDTH),
            f"blk.{i}.ffn_down.weight": matrix(WIDTH, N_FFN),
        }
    return weights | {
        "output_norm.weight": norm(),
        "output.weight": matrix(N_VOCAB, WIDTH, gain=2.0),
    }


def tiny_llama(path: Path, seed: int = 1) -> Path:
    return write(path, llama_metadata() | vocabulary(), llama_weights(seed))
