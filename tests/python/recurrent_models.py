"""Tiny random models of recurrent and hybrid architectures, with NumPy reference implementations where available."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from reference.models import mamba, plamo, rwkv

from python import gguf_writer

N_VOCAB, WIDTH, N_LAYERS, N_FFN, EPSILON = gguf_writer.N_VOCAB, 48, 3, 80, 1e-5
INNER, N_STATE, KERNEL, RANK = 96, 12, 4, 6
HEAD = 16
HALVE_EVERY = 2


class Random:
    """Return weights such that logits have a standard deviation of about 2."""

    def __init__(self, seed: int = 1):
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        noise = gain * self.rng.standard_normal(shape) / np.sqrt(shape[-1])
        return noise.astype(np.float32)

    def vector(self, *shape: int, about: float = 0.0) -> np.ndarray:
        return (about + 0.2 * self.rng.standard_normal(shape)).astype(np.float32)

    def norm(self, name: str, bias: bool = False, width: int = WIDTH) -> dict[str, np.ndarray]:
        weights = {f"{name}.weight": self.vector(width, about=1.0)}
        return weights | ({f"{name}.bias": self.vector(width)} if bias else {})

    def ends(self, bias: bool = False) -> dict[str, np.ndarray]:
        return {
            "token_embd.weight": self.matrix(N_VOCAB, WIDTH, gain=WIDTH**0.5),
            "output.weight": self.matrix(N_VOCAB, WIDTH, gain=2.0),
            **self.norm("output_norm", bias),
        }


def layers(make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {f"blk.{i}.{name}": x for i in range(N_LAYERS) for name, x in make().items()}


def mamba_weights(random: Random) -> dict[str, np.ndarray]:
    def layer() -> dict[str, np.ndarray]:
        return {
            **random.norm("attn_norm"),
            "ssm_in.weight": random.matrix(2 * INNER, WIDTH),
            "ssm_conv1d.weight": random.matrix(INNER, KERNEL),
            "ssm_conv1d.bias": random.vector(INNER),
            "ssm_x.weight": random.matrix(RANK + 2 * N_STATE, INNER),
            "ssm_dt.weight": random.matrix(INNER, RANK),
            "ssm_dt.bias": random.vector(INNER, about=-1.0),
            "ssm_a": -np.exp(random.vector(INNER, N_STATE)),
            "ssm_d": random.vector(INNER, about=1.0),
            "ssm_out.weight": random.matrix(WIDTH, INNER),
        }

    return random.ends() | layers(layer)


def rwkv_layer(random: Random, n_mixed: int, square: Sequence[str]) -> dict[str, np.ndarray]:
    return {
        **random.norm("attn_norm", True), **random.norm("attn_norm_2", True), **random.norm("time_mix_ln", True),
        "time_mix_lerp_fused.weight": random.vector(n_mixed, 1, 1, WIDTH, about=0.5),
        **{f"time_mix_{name}.weight": random.matrix(WIDTH, WIDTH) for name in square},
        "channel_mix_lerp_k.weight": random.vector(WIDTH, about=0.5),
        "channel_mix_key.weight": random.matrix(N_FFN, WIDTH),
        "channel_mix_value.weight": random.matrix(WIDTH, N_FFN),
    }  # fmt: skip


def rwkv6_mix(random: Random) -> dict[str, np.ndarray]:
    """The weights that mix a token with the previous one."""
    return {
        "time_mix_lerp_x.weight": random.vector(WIDTH, about=0.5),
        "time_mix_w1.weight": random.matrix(5 * 8, WIDTH),
        "time_mix_w2.weight": random.matrix(5, WIDTH, 8),
        "time_mix_decay.weight": random.vector(WIDTH, about=-1.0),
        "time_mix_decay_w1.weight": random.matrix(12, WIDTH),
        "time_mix_decay_w2.weight": random.matrix(WIDTH, 12),
    }


def rwkv6_qwen2_weights(random: Random) -> dict[str, np.ndarray]:
    rows = {"receptance": WIDTH, "key": HEAD, "value": HEAD, "gate": WIDTH, "output": WIDTH}

    def layer() -> dict[str, np.ndarray]:
        return {
            **random.norm("attn_norm"), **random.norm("ffn_norm"), **rwkv6_mix(random),
            "time_mix_lerp_fused.weight": random.vector(5, 1, 1, WIDTH, about=0.5),
            **{f"time_mix_{name}.weight": random.matrix(n, WIDTH) for name, n in rows.items()},
            **{f"time_mix_{name}.bias": random.vector(rows[name]) for name in ("receptance", "key", "value")},
            "ffn_gate.weight": random.matrix(N_FFN, WIDTH),
            "ffn_up.weight": random.matrix(N_FFN, WIDTH),
            "ffn_down.weight": random.matrix(WIDTH, N_FFN),
        }  # fmt: skip

    return random.ends() | layers(layer)


def rwkv6_weights(random: Random) -> dict[str, np.ndarray]:
    def layer() -> dict[str, np.ndarray]:
        return {
            **rwkv_layer(random, 5, ["key", "value", "receptance", "gate", "output"]),
            **rwkv6_mix(random),
            "time_mix_first.weight": random.vector(WIDTH // HEAD, HEAD),
            "channel_mix_lerp_r.weight": random.vector(WIDTH, about=0.5),
            "channel_mix_receptance.weight": random.matrix(WIDTH, WIDTH),
        }

    return random.ends(True) | random.norm("token_embd_norm", True) | layers(layer)


def rwkv7_weights(random: Random) -> dict[str, np.ndarray]:
    ranks = {"w": 8, "a": 10, "v": 10, "g": 12}  # in the first layer, v is an unused copy of a

    def layer() -> dict[str, np.ndarray]:
        low_ranks = {
            f"time_mix_{name}{part}.weight": x
            for name, rank in ranks.items()
            for part, x in [
                (0, random.vector(WIDTH)),
                (1, random.matrix(rank, WIDTH)),
                (2, random.matrix(WIDTH, rank)),
            ]
        }
        del low_ranks["time_mix_g0.weight"]
        return {
            **rwkv_layer(random, 6, ["key", "value", "receptance", "output"]),
            **low_ranks,
            **{f"time_mix_{c}.weight": random.vector(WIDTH, about=0.5) for c in ("k_k", "k_a", "r_k")},
        }  # fmt: skip

    return random.ends(True) | random.norm("token_embd_norm", True) | layers(layer)


def falcon_h1_weights(random: Random) -> dict[str, np.ndarray]:
    heads, groups = INNER // HEAD, 2
    channels = INNER + 2 * groups * N_STATE

    def layer() -> dict[str, np.ndarray]:
        return {
            **random.norm("attn_norm"),
            "ffn_norm": random.vector(WIDTH, about=1.0),
            "attn_q.weight": random.matrix(4 * HEAD, WIDTH, gain=1.5),
            "attn_k.weight": random.matrix(2 * HEAD, WIDTH, gain=1.5),
            "attn_v.weight": random.matrix(2 * HEAD, WIDTH),
            "attn_output.weight": random.matrix(WIDTH, 4 * HEAD),
            "ssm_in.weight": random.matrix(INNER + channels + heads, WIDTH),
            "ssm_conv1d.weight": random.matrix(channels, KERNEL),
            "ssm_conv1d.bias": random.vector(channels),
            "ssm_dt.bias": random.vector(heads, about=-1.0),
            "ssm_a": -np.exp(random.vector(heads, 1)),
            "ssm_d": random.vector(heads, 1, about=1.0),
            "ssm_norm.weight": random.vector(groups, INNER // groups, about=1.0),
            "ssm_out.weight": random.matrix(WIDTH, INNER),
            "ffn_gate.weight": random.matrix(N_FFN, WIDTH),
            "ffn_up.weight": random.matrix(N_FFN, WIDTH),
            "ffn_down.weight": random.matrix(WIDTH, N_FFN),
        }

    return random.ends() | layers(layer)


def plamo2_weights(random: Random) -> dict[str, np.ndarray]:
    heads, rank = INNER // HEAD, 64
    weights = random.ends()
    for i in range(N_LAYERS):
        layer = {
            **random.norm("attn_norm"),
            "post_attention_norm": random.vector(WIDTH, about=0.5),
            **random.norm("ffn_norm"),
            "post_ffw_norm": random.vector(WIDTH, about=0.5),
            "ffn_up.weight": random.matrix(2 * N_FFN, WIDTH),
            "ffn_down.weight": random.matrix(WIDTH, N_FFN),
        }
        if i == 0:
            layer |= {
                "attn_qkv.weight": random.matrix(8 * HEAD, WIDTH, gain=1.5),
                "attn_q_norm.weight": random.vector(4, HEAD, about=1.0),
                "attn_k_norm.weight": random.vector(2, HEAD, about=1.0),
                "attn_output.weight": random.matrix(WIDTH, 4 * HEAD),
            }
        else:
            layer |= {
                "ssm_in.weight": random.matrix(2 * INNER, WIDTH),
                "ssm_conv1d.weight": random.matrix(INNER, KERNEL),
                "ssm_x.weight": random.matrix(2 * N_STATE + rank, INNER),
                "ssm_b_norm": random.vector(N_STATE, about=1.0),
                "ssm_c_norm": random.vector(N_STATE, about=1.0),
                "ssm_dt_norm": random.vector(rank, about=1.0),
                "ssm_dt.weight": random.matrix(heads, rank),
                "ssm_dt.bias": random.vector(heads, about=-1.0),
                "ssm_a": -np.exp(random.vector(heads, 1)),
                "ssm_d": random.vector(heads, about=1.0),
                "ssm_out.weight": random.matrix(WIDTH, INNER),
            }
        weights |= {f"blk.{i}.{name}": value for name, value in layer.items()}
    return weights


SSM = {
    "ssm.conv_kernel": KERNEL, "ssm.inner_size": INNER, "ssm.state_size": N_STATE,
    "attention.layer_norm_rms_epsilon": EPSILON,
}  # fmt: skip
RWKV = {
    "wkv.head_size": HEAD,
    "feed_forward_length": N_FFN,
    "attention.layer_norm_epsilon": EPSILON,
}


@dataclass(frozen=True)
class Tiny:
    """A model: its metadata, its weights, and its logits computed with NumPy."""

    arch: str
    kind: str  # kind of its memory
    keys: dict[str, Any]
    weights: Callable[[Random], dict[str, np.ndarray]]
    logits: Callable[[dict[str, np.ndarray], Sequence[int]], np.ndarray] | None = None

    def write(self, path: Path) -> Path:
        keys = {
            "block_count": N_LAYERS, "embedding_length": WIDTH, "context_length": 1 << 20, "vocab_size": N_VOCAB,
            **self.keys,
        }  # fmt: skip
        named = {f"{self.arch}.{key}": value for key, value in keys.items()}
        metadata = {"general.architecture": self.arch, **named, **gguf_writer.vocabulary()}
        return gguf_writer.write(path, metadata, self.weights(Random()))

    def reference(self, ids: Sequence[int]) -> np.ndarray:
        assert self.logits is not None
        return self.logits(self.weights(Random()), ids)


MODELS = [
    Tiny(
        "mamba", "recurrent", SSM | {"ssm.time_step_rank": RANK}, mamba_weights,
        lambda w, ids: mamba.logits(w, ids, EPSILON),
    ),
    Tiny(
        "rwkv6", "recurrent",
        RWKV | {"time_mix_extra_dim": 8, "time_decay_extra_dim": 12, "rescale_every_n_layers": HALVE_EVERY},
        rwkv6_weights, lambda w, ids: rwkv.logits_6(w, ids, HEAD, EPSILON, HALVE_EVERY),
    ),
    Tiny(
        "rwkv6qwen2", "recurrent",
        {
            "wkv.head_size": HEAD, "feed_forward_length": N_FFN, "attention.layer_norm_rms_epsilon": EPSILON,
            "time_mix_extra_dim": 8, "time_decay_extra_dim": 12, "token_shift_count": 1,
            "attention.head_count": 0, "attention.head_count_kv": 1,
        },
        rwkv6_qwen2_weights, lambda w, ids: rwkv.logits_6_qwen2(w, ids, HEAD, EPSILON),
    ),
    Tiny(
        "rwkv7", "recurrent",
        RWKV | {
            "attention.decay_lora_rank": 8, "attention.iclr_lora_rank": 10,
            "attention.value_residual_mix_lora_rank": 10, "attention.gate_lora_rank": 12,
        },
        rwkv7_weights, lambda w, ids: rwkv.logits_7(w, ids, HEAD, EPSILON),
    ),
    Tiny(
        "falcon-h1", "hybrid",
        SSM | {
            "ssm.time_step_rank": INNER // HEAD, "ssm.group_count": 2, "feed_forward_length": N_FFN,
            "attention.head_count": 4, "attention.head_count_kv": 2,
            "attention.key_length": HEAD, "attention.value_length": HEAD,
        },
        falcon_h1_weights,
    ),
    Tiny(
        "plamo2", "hybrid",
        SSM | {
            "ssm.time_step_rank": INNER // HEAD, "ssm.group_count": 0, "feed_forward_length": N_FFN,
            "attention.head_count": np.int32([4, 0, 0]), "attention.head_count_kv": np.int32([2, 0, 0]),
            "attention.key_length": HEAD, "attention.value_length": HEAD,
        },
        plamo2_weights, lambda w, ids: plamo.logits(w, ids, EPSILON),
    ),
]  # fmt: skip
