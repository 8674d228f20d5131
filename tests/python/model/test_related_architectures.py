"""Architectures without stored logits, compared with an architecture that computes the same, or with NumPy."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from reference.attend import alibi, attend
from reference.layer_norm import layer_norm
from reference.models import llama
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


def model(
    folder: Path, arch: str, keys: dict[str, Any], weights: dict[str, np.ndarray]
) -> plait.Model:
    """Return a model; keys that begin with "xielu." do not begin with the architecture's name."""
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
    metadata = {k if k.startswith("xielu") else f"{arch}.{k}": v for k, v in own.items()}
    path = folder / f"{arch}.gguf"
    gguf_writer.write(
        path, {"general.architecture": arch} | metadata | gguf_writer.vocabulary(), weights
    )
    return plait.Model(path)


def logits(folder: Path, arch: str, keys: dict[str, Any], weights: dict[str, np.ndarray]) -> Any:
    """Return the logits of TOKENS, [n, n_vocab]."""
    with plait.Context(
        model(folder, arch, keys, weights), n_ctx=64, type_k="f32", type_v="f32"
    ) as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS, logits="all")
        return ctx.decode(batch).logits.copy()


def hidden_states(
    folder: Path, arch: str, keys: dict[str, Any], weights: dict[str, np.ndarray]
) -> Any:
    """Return the embeddings of TOKENS, [n, WIDTH]."""
    with plait.Context(model(folder, arch, keys, weights), n_ctx=64, pooling="none") as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS, logits="all")
        return ctx.encode(batch).embeddings.copy()


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


@dataclass(frozen=True)
class How:
    """What numpy_hidden() computes."""

    ffn: str = "swiglu"
    interleaved: bool = True
    rotates: bool = True
    head_norm: str = ""  # "before" or "after" the rotation
    layer_norm: bool = False
    clamp: float = np.inf
    alibi: float = 0.0
    causal: bool = True
    sub_norms: bool = False  # before the output matrices


LAYER_NORM_KEYS = {"attention.layer_norm_epsilon": 1e-5}
XIELU_KEYS = {
    "xielu.alpha_p": 0.3,
    "xielu.alpha_n": np.float32([0.1, 0.5, -0.2]),
    "xielu.beta": 0.5,
    "xielu.eps": -1e-6,
}
FUSED = {
    "attn_qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD_DIM),
}
# Name, keys, the weights of a layer, and what numpy_hidden() computes.
NUMPY = [
    ("arcee", {}, ATTENTION | FEED_FORWARD, How(ffn="relu squared")),
    ("hunyuan-dense", {}, ATTENTION | HEAD_NORMS | GATED, How(interleaved=False, head_norm="after")),
    (
        "olmo", LAYER_NORM_KEYS | {"attention.clamp_kqv": 0.7}, ATTENTION | GATED,
        How(layer_norm=True, clamp=0.7),
    ),
    (
        "mpt", LAYER_NORM_KEYS | {"attention.clamp_kqv": 0.7, "attention.max_alibi_bias": 8.0},
        FUSED | FEED_FORWARD, How(ffn="gelu", rotates=False, layer_norm=True, clamp=0.7, alibi=8.0),
    ),
    (
        "apertus", XIELU_KEYS, ATTENTION | HEAD_NORMS | FEED_FORWARD,
        How(ffn="xielu", interleaved=False, head_norm="before"),
    ),
    (
        "bitnet", {}, ATTENTION | GATED | {"attn_sub_norm": (HEADS * HEAD_DIM,), "ffn_sub_norm": (N_FFN,)},
        How(interleaved=False, sub_norms=True),
    ),
    ("eurobert", {}, ATTENTION | GATED, How(interleaved=False, causal=False)),
    (
        "neo-bert", {}, FUSED | {"ffn_up": (2 * N_FFN, WIDTH), "ffn_down": (WIDTH, N_FFN)},
        How(ffn="gate in up", causal=False),
    ),
    (
        "smallthinker", ROUTED_OWN_FFN | {"expert_gating_func": 2}, ATTENTION | MIXTURE,
        How(ffn="relu experts", interleaved=False),
    ),
]  # fmt: skip
ARCHITECTURES = {case[0] for case in (*EQUAL, *NUMPY)} | {"cohere2moe"}


@pytest.mark.parametrize(
    ("arch", "keys", "like", "like_keys", "layer"), EQUAL, ids=[case[0] for case in EQUAL]
)
def test_equal_computations_give_equal_bits(tmp_path, arch, keys, like, like_keys, layer):
    weights = tensors(layer)
    got = logits(tmp_path, arch, keys, weights)
    np.testing.assert_array_equal(got, logits(tmp_path, like, like_keys, weights))
    assert np.std(got) > 0.1


def feed_forward(
    layer: dict[str, np.ndarray], i: int, how: How, h: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """h: the normalised input of the block; x: the input of the layer."""
    if how.ffn == "relu experts":
        p = 1 / (1 + np.exp(-(x @ layer["ffn_gate_inp"].T)))
        chosen = np.argsort(-p, axis=1)[:, :2]
        y = np.zeros_like(h)
        for t in range(len(h)):
            for e in chosen[t]:
                hidden = np.maximum(h[t] @ layer["ffn_gate_exps"][e].T, 0) * (
                    h[t] @ layer["ffn_up_exps"][e].T
                )
                y[t] += p[t, e] / p[t, chosen[t]].sum() * (hidden @ layer["ffn_down_exps"][e].T)
        return y
    up = h @ layer["ffn_up"].T
    if how.ffn == "relu squared":
        hidden = np.maximum(up, 0) ** 2
    elif how.ffn == "gelu":
        hidden = up * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(up)
    elif how.ffn == "xielu":
        positive, beta = np.log1p(np.exp(0.3)), 0.5
        negative = beta + np.log1p(np.exp(XIELU_KEYS["xielu.alpha_n"][i]))
        below = negative * (np.expm1(np.minimum(up, -1e-6)) - up)
        hidden = beta * up + np.where(up > 0, positive * up**2, below)
    else:
        gate, up = (
            np.split(up, 2, axis=1) if how.ffn == "gate in up" else (h @ layer["ffn_gate"].T, up)
        )
        hidden = gate / (1 + np.exp(-gate)) * up
    if how.sub_norms:
        hidden = rms_norm(hidden, layer["ffn_sub_norm"], 1e-5)
    return hidden @ layer["ffn_down"].T * layer.get("ffn_down.scale", 1.0)


def numpy_hidden(weights: dict[str, np.ndarray], how: How) -> np.ndarray:
    """Return the last normalised hidden states of a pre-norm transformer in float64, [n, WIDTH]."""
    of = {name.removesuffix(".weight"): value.astype(float) for name, value in weights.items()}
    n = len(TOKENS)
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    table = np.stack([np.cos(angles), np.sin(angles)], -1)
    ends = np.arange(1, n + 1) if how.causal else np.full(n, n)
    bias = (
        np.stack([alibi(np.arange(n) - t, HEADS, how.alibi) for t in range(n)])
        if how.alibi
        else None
    )

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return layer_norm(x, weight, 0.0, 1e-5) if how.layer_norm else rms_norm(x, weight, 1e-5)

    x = of["token_embd"][TOKENS]
    for i in range(LAYERS):
        layer = {k.removeprefix(f"blk.{i}."): v for k, v in of.items()}
        h = norm(x, layer.get("attn_norm", 1.0))
        cuts = np.cumsum([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM])
        fused = "attn_qkv" in layer
        q, k, v = (
            np.split(h @ layer["attn_qkv"].T, cuts, axis=1)
            if fused
            else (h @ layer[f"attn_{c}"].T for c in "qkv")
        )
        q, k, v = (np.clip(value, -how.clamp, how.clamp) for value in (q, k, v))
        q, k = q.reshape(n, HEADS, HEAD_DIM), k.reshape(n, KV_HEADS, HEAD_DIM)
        for turn in ("before", "rotation", "after"):
            if turn == "rotation" and how.rotates:
                q, k = (rope(value, table, interleaved=how.interleaved) for value in (q, k))
            elif turn == how.head_norm:
                q, k = (
                    rms_norm(q, layer["attn_q_norm"], 1e-5),
                    rms_norm(k, layer["attn_k_norm"], 1e-5),
                )
        v = v.reshape(n, KV_HEADS, HEAD_DIM)
        y = attend(q, k, v, np.zeros(n, int), ends, HEAD_DIM**-0.5, bias=bias)
        y = y.reshape(n, -1)
        if how.sub_norms:
            y = rms_norm(y, layer["attn_sub_norm"], 1e-5)
        s = x + y @ layer["attn_output"].T
        x = s + feed_forward(layer, i, how, norm(s, layer.get("ffn_norm", 1.0)), x)
    return norm(x, of.get("output_norm", of.get("enc.output_norm", 1.0)))


@pytest.mark.parametrize(("arch", "keys", "layer", "how"), NUMPY, ids=[case[0] for case in NUMPY])
def test_outputs_equal_numpy(tmp_path, arch, keys, layer, how):
    weights = tensors(layer)
    if arch == "olmo":
        weights = {name: value for name, value in weights.items() if "norm" not in name}
    if arch == "bitnet":
        weights |= {f"blk.{i}.ffn_down.scale": np.float32([0.7]) for i in range(LAYERS)}
    if arch == "neo-bert":
        weights["enc.output_norm.weight"] = weights.pop("output_norm.weight")
    want = numpy_hidden(weights, how)
    if how.causal:
        got = logits(tmp_path, arch, keys, weights)
        want = want @ weights["token_embd.weight"].T
    else:
        got = hidden_states(tmp_path, arch, keys, weights)
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_cohere2moe_is_the_mean_of_its_experts(tmp_path):
    """With one expert, equal to the shared one, it is cohere2 with this expert as its block."""
    weights = tensors(ATTENTION | GATED)
    weights = {name: value for name, value in weights.items() if "ffn_norm" not in name}
    keys = LAYER_NORM_KEYS | {"logit_scale": 0.5, "attention.sliding_window": 12}
    keys["attention.layer_norm_rms_epsilon"] = 0.0
    first_is_full = {"attention.sliding_window_pattern": np.array([False, True, True])}
    want = logits(tmp_path, "cohere2", keys | first_is_full, weights)
    for i in range(LAYERS):
        for part in ("gate", "up", "down"):
            matrix = weights.pop(f"blk.{i}.ffn_{part}.weight")
            weights[f"blk.{i}.ffn_{part}_exps.weight"] = matrix[None]
            weights[f"blk.{i}.ffn_{part}_shexp.weight"] = matrix
        weights[f"blk.{i}.ffn_gate_inp.weight"] = np.ones((1, WIDTH), np.float32)
    routed = {
        "expert_count": 1, "expert_used_count": 1, "expert_shared_count": 1,
        "expert_feed_forward_length": N_FFN, "expert_weights_norm": True,
    }  # fmt: skip
    got = logits(tmp_path, "cohere2moe", keys | routed, weights)
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


MOBILE = {
    "attention.sliding_window": 0, "interleave_moe_layer_step": 0, "expert_feed_forward_length": N_FFN,
    "rope.dimension_count": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-2,
}  # fmt: skip


def test_llama4_without_windows_and_experts_is_mobilellm(tmp_path):
    weights = tensors(ATTENTION | GATED)
    got = logits(tmp_path, "llama4", MOBILE, weights)
    x = weights["token_embd.weight"][TOKENS].astype(np.float64)
    want = llama.hidden(weights, x, LAYERS, HEAD_DIM, 1e-2, 10000.0, norms_heads=True)
    np.testing.assert_allclose(got, want @ weights["token_embd.weight"].T, atol=2e-3)


def test_llama4_without_the_step_of_its_experts_is_refused(tmp_path):
    keys = {key: value for key, value in MOBILE.items() if key != "interleave_moe_layer_step"}
    with pytest.raises(plait.ModelError, match=r"llama4\.interleave_moe_layer_step"):
        model(tmp_path, "llama4", keys, tensors(ATTENTION | GATED))
