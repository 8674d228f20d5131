"""Architectures without stored logits, compared with an architecture that computes the same, or with NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from reference.attend import attend
from reference.rms_norm import rms_norm
from reference.rope import rope

from python import gguf_writer

WIDTH, HEADS, KV_HEADS, HEAD_DIM, N_FFN, EXPERTS, EXPERT_FFN, LAYERS = 64, 4, 2, 16, 96, 6, 32, 3
TOKENS = np.random.default_rng(5).integers(3, gguf_writer.N_VOCAB, 40)

ATTENTION = {
    "attn_q": (HEADS * HEAD_DIM, WIDTH),
    "attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
    "attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD_DIM),
}
HEAD_NORMS = {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
ROW_NORMS = {"attn_q_norm": (HEADS * HEAD_DIM,), "attn_k_norm": (KV_HEADS * HEAD_DIM,)}
FEED_FORWARD = {"ffn_up": (N_FFN, WIDTH), "ffn_down": (WIDTH, N_FFN)}
GATED = FEED_FORWARD | {"ffn_gate": (N_FFN, WIDTH)}
MIXTURE = {
    "ffn_gate_inp": (EXPERTS, WIDTH),
    "ffn_gate_exps": (EXPERTS, EXPERT_FFN, WIDTH),
    "ffn_up_exps": (EXPERTS, EXPERT_FFN, WIDTH),
    "ffn_down_exps": (EXPERTS, WIDTH, EXPERT_FFN),
}
ROUTED = {"expert_count": EXPERTS, "expert_used_count": 2}
ROUTED_OWN_FFN = ROUTED | {"expert_feed_forward_length": EXPERT_FFN}
ROUTED_FFN = ROUTED | {"feed_forward_length": EXPERT_FFN}


def tensors(layer: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the random weights of a model, the same for equal arguments."""
    rng = np.random.default_rng(3)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(*shape: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)

    made = {"token_embd.weight": 8 * matrix(gguf_writer.N_VOCAB, WIDTH)}
    made["output_norm.weight"] = norm(WIDTH)
    shapes = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)} | layer
    for i in range(LAYERS):
        for name, shape in shapes.items():
            make = norm if "norm" in name else matrix
            made[f"blk.{i}.{name}.weight"] = make(*shape)
    return made


def logits(folder: Path, arch: str, keys: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """Return the logits of TOKENS, [n, n_vocab]."""
    own = {
        "block_count": LAYERS,
        "context_length": 256,
        "embedding_length": WIDTH,
        "feed_forward_length": N_FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    } | keys
    metadata = {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in own.items()}
    path = folder / f"{arch}.gguf"
    gguf_writer.write(path, metadata | gguf_writer.vocabulary(), weights)
    with plait.Context(plait.Model(path), n_ctx=64, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS, logits="all")
        return ctx.decode(batch).logits.copy()


# Name, keys, the architecture that computes the same, its keys, and the weights of a layer.
EQUAL = [
    ("internlm2", {}, "llama", {}, ATTENTION | GATED),
    ("ernie4_5", {}, "llama", {}, ATTENTION | GATED),
    (
        "deepseek", ROUTED_OWN_FFN | {"expert_weights_norm": True},
        "llama", ROUTED_FFN, ATTENTION | MIXTURE,
    ),
    (
        "dots1", ROUTED_OWN_FFN | {"expert_weights_norm": True},
        "qwen3moe", ROUTED_OWN_FFN, ATTENTION | HEAD_NORMS | MIXTURE,
    ),
    (
        "minimax-m2", ROUTED_OWN_FFN | {"expert_gating_func": 1, "expert_weights_norm": False},
        "olmoe", ROUTED_FFN, ATTENTION | ROW_NORMS | MIXTURE,
    ),
]  # fmt: skip
# Name, the weights of a layer, and what numpy_logits() computes.
NUMPY = [
    (
        "arcee", ATTENTION | FEED_FORWARD,
        {"interleaved": True, "squared_relu": True, "norm_after_rope": False},
    ),
    (
        "hunyuan-dense", ATTENTION | HEAD_NORMS | GATED,
        {"interleaved": False, "squared_relu": False, "norm_after_rope": True},
    ),
]  # fmt: skip
ARCHITECTURES = {case[0] for case in (*EQUAL, *NUMPY)}


@pytest.mark.parametrize(
    ("arch", "keys", "like", "like_keys", "layer"), EQUAL, ids=[case[0] for case in EQUAL]
)
def test_equal_computations_give_equal_bits(tmp_path, arch, keys, like, like_keys, layer):
    weights = tensors(layer)
    got = logits(tmp_path, arch, keys, weights)
    np.testing.assert_array_equal(got, logits(tmp_path, like, like_keys, weights))
    assert np.std(got) > 0.1


def numpy_logits(weights, *, interleaved: bool, squared_relu: bool, norm_after_rope: bool):
    """Return the logits of a pre-norm decoder in float64, [n, n_vocab]."""
    of = {name.removesuffix(".weight"): value.astype(float) for name, value in weights.items()}
    n = len(TOKENS)
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    table = np.stack([np.cos(angles), np.sin(angles)], -1)
    x = of["token_embd"][TOKENS]
    for i in range(LAYERS):
        layer = {k.removeprefix(f"blk.{i}."): v for k, v in of.items()}
        h = rms_norm(x, layer["attn_norm"], 1e-5)
        q, k, v = (h @ layer[f"attn_{name}"].T for name in "qkv")
        q, k = q.reshape(n, HEADS, HEAD_DIM), k.reshape(n, KV_HEADS, HEAD_DIM)
        q, k = (rope(value, table, interleaved=interleaved) for value in (q, k))
        if norm_after_rope:
            q = rms_norm(q, layer["attn_q_norm"], 1e-5)
            k = rms_norm(k, layer["attn_k_norm"], 1e-5)
        v = v.reshape(n, KV_HEADS, HEAD_DIM)
        y = attend(q, k, v, np.zeros(n, int), np.arange(1, n + 1), HEAD_DIM**-0.5)
        x = x + y.reshape(n, -1) @ layer["attn_output"].T
        h = rms_norm(x, layer["ffn_norm"], 1e-5)
        up = h @ layer["ffn_up"].T
        if squared_relu:
            hidden = np.maximum(up, 0) ** 2
        else:
            gate = h @ layer["ffn_gate"].T
            hidden = gate / (1 + np.exp(-gate)) * up
        x = x + hidden @ layer["ffn_down"].T
    return rms_norm(x, of["output_norm"], 1e-5) @ of["token_embd"].T


@pytest.mark.parametrize(("arch", "layer", "how"), NUMPY, ids=[case[0] for case in NUMPY])
def test_logits_equal_numpy(tmp_path, arch, layer, how):
    weights = tensors(layer)
    got = logits(tmp_path, arch, {}, weights)
    want = numpy_logits(weights, **how)
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
