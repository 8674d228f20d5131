"""A model with weights of each type, compared with the same model with dequantised weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import feed, tokens

from python import gguf_writer

# Where a block has halves that scale it, and what makes weights of about 0.1 of them.
SCALES = {
    "Q8_0": {0: 1e-3}, "Q4_0": {0: 0.02}, "Q4_1": {0: 0.01, 2: -0.1}, "Q5_0": {0: 0.01}, "Q5_1": {0: 5e-3, 2: -0.1},
    "Q2_K": {80: 5e-3, 82: 5e-3}, "Q3_K": {108: 1e-3}, "Q4_K": {0: 4e-4, 2: 2e-3}, "Q5_K": {0: 2e-4, 2: 2e-3},
    "Q6_K": {208: 3e-5}, "IQ4_NL": {0: 2e-3}, "IQ4_XS": {0: 1e-4}, "MXFP4": {},
    "IQ2_XXS": {0: 2e-3}, "IQ2_XS": {0: 2e-3}, "IQ2_S": {0: 2e-3}, "IQ3_XXS": {0: 1e-3}, "IQ3_S": {0: 1e-3},
    "IQ1_S": {0: 0.02}, "IQ1_M": {}, "TQ1_0": {52: 0.1}, "TQ2_0": {64: 0.1}, "NVFP4": {}, "Q1_0": {0: 0.1},
    "Q2_0": {0: 0.1},
}  # fmt: skip
EMBEDDING, FFN = 256, 288


def random_blocks(type_: str, n_rows: int, width: int, random: np.random.Generator) -> np.ndarray:
    """Return rows of blocks with random bits as codes."""
    _, elements, size = gguf_writer.BLOCK_TYPES[type_]
    raw = random.integers(0, 256, (n_rows * width // elements, size), dtype=np.uint8)
    for at, scale in SCALES[type_].items():
        halves = (scale * random.uniform(0.5, 1.5, len(raw))).astype(np.float16)
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if type_ == "MXFP4":
        raw[:, 0] = random.integers(121, 124, len(raw))
    if type_ == "NVFP4":
        raw[:, :4] = random.integers(16, 24, (len(raw), 4))
    if type_ == "IQ1_M":  # the scale is the upper nibble of every second byte of the last eight
        half = int(np.float16(0.02).view(np.uint16))
        for i in range(4):
            raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (half >> (4 * i) & 15) << 4
    return raw.reshape(n_rows, -1)


def two_files(type_: str, folder: Path) -> list[Path]:
    """A model with weights of that type, and the same model with dequantised weights."""
    random = np.random.default_rng(5)
    shapes = {
        "token_embd": (gguf_writer.N_VOCAB, EMBEDDING),
        "output": (gguf_writer.N_VOCAB, EMBEDDING),
    }
    shapes |= {f"blk.0.attn_{name}": (EMBEDDING, EMBEDDING) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (FFN, EMBEDDING) for name in ("gate", "up")}
    norms = {
        f"{name}.weight": np.ones(EMBEDDING, np.float32)
        for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    }
    down = {
        "blk.0.ffn_down.weight": (0.1 * random.standard_normal((EMBEDDING, FFN))).astype(np.float32)
    }
    stored, plain = {}, {}
    for name, (n_rows, width) in shapes.items():
        raw = random_blocks(type_, n_rows, width, random)
        stored[f"{name}.weight"] = gguf_writer.Raw(type_, raw)
        plain[f"{name}.weight"] = plait.quant.dequantize(raw, type_).reshape(n_rows, width)
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {
        "llama.block_count": 1, "llama.embedding_length": EMBEDDING, "llama.feed_forward_length": FFN,
        "llama.attention.head_count_kv": gguf_writer.N_HEADS, "llama.rope.dimension_count": 64,
    }  # fmt: skip
    return [
        gguf_writer.write(folder / f"{name}.gguf", metadata, tensors | norms | down)
        for name, tensors in (("stored", stored), ("plain", plain))
    ]


def results_of(path: Path, backend: str) -> list[np.ndarray]:
    """Return the logits of a prompt, a short step and a single token."""
    with plait.Context(plait.Model(path), n_ctx=64, backend=backend) as ctx:
        return [feed(ctx, tokens(17)), feed(ctx, tokens(2, seed=1)), feed(ctx, [4])]


# S2-34
@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
@pytest.mark.parametrize("type_", SCALES)
def test_weights_of_every_type_equal_their_dequantised_values(
    type_: str, backend: str, tmp_path: Path
) -> None:
    devices = [d for d in plait.devices() if d.name.partition(":")[0] == backend]
    if not devices:
        pytest.skip("no Vulkan device, or a build without Vulkan")
    # The CPU rounds activations to int8. Cooperative matrices round both factors to halves, unless
    # the weights are F32.
    rounds = any(feature.startswith("cooperative_matrix ") for feature in devices[0].features)
    tolerance = 5e-2 if backend == "cpu" else 3e-3 if rounds else 1e-5
    stored, plain = two_files(type_, tmp_path)
    for got, wanted in zip(results_of(stored, backend), results_of(plain, backend), strict=True):
        assert wanted.std() > 0.01
        assert np.linalg.norm(got - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("n_ffn", [40, 96])  # with and without a remainder of whole blocks
def test_a_matrix_of_integers_is_refused(tmp_path, n_ffn):
    weights = gguf_writer.llama_weights()
    for name in [name for name in weights if ".ffn_gate" in name or ".ffn_up" in name]:
        weights[name] = weights[name][:n_ffn]
    for name in [name for name in weights if ".ffn_down" in name]:
        weights[name] = np.ones((weights[name].shape[0], n_ffn), np.int32)
    keys = gguf_writer.llama_metadata() | {
        "llama.feed_forward_length": n_ffn,
        "tokenizer.ggml.model": "no_vocab",
    }
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", keys, weights))
    with pytest.raises(plait.UnsupportedError, match="type I32 cannot be multiplied"):
        plait.Context(model, n_ctx=16)
