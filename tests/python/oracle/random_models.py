"""Tiny models with random weights of architectures whose logits no reference data stores, for llama.cpp to run too.

A model is a line of MODELS: an architecture, metadata without its prefix, and the tensors of its layers by shape. The
shapes use what real files have: fewer heads of keys, heads that are not a fraction of the width, rotation of a part,
biases, scaled rotation, groups of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from python import gguf_writer

WIDTH, N_FFN, N_EXPERTS, N_EXPERT_FFN, N_VOCAB = 64, 96, 8, 32, 320
Shapes = dict[str, tuple[int, ...]]


def attention(
    heads: int = 4, kv: int = 2, dim: int = 16, *, fused: bool = False, bias: str = ""
) -> Shapes:
    """The matrices of attention; `bias` has the letters of those with a bias: q, k, v, o."""
    q, k = heads * dim, kv * dim
    shapes: Shapes = {"attn_output.weight": (WIDTH, q)}
    if fused:
        shapes["attn_qkv.weight"] = (q + 2 * k, WIDTH)
        if "q" in bias:
            shapes["attn_qkv.bias"] = (q + 2 * k,)
    else:
        for letter, n in (("q", q), ("k", k), ("v", k)):
            shapes[f"attn_{letter}.weight"] = (n, WIDTH)
            if letter in bias:
                shapes[f"attn_{letter}.bias"] = (n,)
    if "o" in bias:
        shapes["attn_output.bias"] = (WIDTH,)
    return shapes


def matrices(shapes: Mapping[str, tuple[int, int]], bias: bool = False) -> Shapes:
    made: Shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    if bias:
        made |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    return made


def norms(*names: str, width: int = WIDTH, bias: bool = False) -> Shapes:
    made: Shapes = {f"{name}.weight": (width,) for name in names}
    return made | ({f"{name}.bias": (width,) for name in names} if bias else {})


def plain(n_ffn: int = N_FFN, *, bias: bool = False) -> Shapes:
    return matrices({"ffn_up": (n_ffn, WIDTH), "ffn_down": (WIDTH, n_ffn)}, bias)


def gated(n_ffn: int = N_FFN, suffix: str = "") -> Shapes:
    shapes = {"gate": (n_ffn, WIDTH), "up": (n_ffn, WIDTH), "down": (WIDTH, n_ffn)}
    return matrices({f"ffn_{name}{suffix}": shape for name, shape in shapes.items()})


def experts(n: int = N_EXPERTS, n_ffn: int = N_EXPERT_FFN, *, bias: bool = False) -> Shapes:
    shapes: Shapes = {
        "ffn_gate_inp.weight": (n, WIDTH),
        "ffn_gate_exps.weight": (n, n_ffn, WIDTH),
        "ffn_up_exps.weight": (n, n_ffn, WIDTH),
        "ffn_down_exps.weight": (n, WIDTH, n_ffn),
    }
    return shapes | ({"exp_probs_b.bias": (n,)} if bias else {})


def shared(n_ffn: int = N_EXPERT_FFN) -> Shapes:
    return gated(n_ffn, "_shexp")


PRE_NORM = norms("attn_norm", "ffn_norm")
HEAD_NORMS = norms("attn_q_norm", "attn_k_norm", width=16)
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
ROUTED = {
    "expert_count": N_EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": N_EXPERT_FFN,
}
LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}


@dataclass(frozen=True)
class Random:
    """A model. `layer` has the tensors of all layers, or returns those of layer i."""

    name: str
    arch: str
    keys: Mapping[str, Any]
    layer: Shapes | Callable[[int], Shapes]
    others: Shapes = field(default_factory=lambda: norms("output_norm"))
    n_layers: int = 4
    tied: bool = False
    shifts: bool = True  # llama.cpp's shift is the rotation
    recurrent: bool = False
    encoder: bool = False
    tolerance: float = 5e-5  # of the largest value; larger with GELU, which llama.cpp tabulates

    def shapes(self) -> Shapes:
        made: Shapes = {"token_embd.weight": (N_VOCAB, WIDTH)} | self.others
        if not self.tied and not self.encoder:
            made["output.weight"] = (N_VOCAB, WIDTH)
        for i in range(self.n_layers):
            layer = self.layer(i) if callable(self.layer) else self.layer
            made |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        return made

    def write(self, folder: Path) -> Path:
        rng = np.random.default_rng(len(self.name))
        tensors = {}
        for name, shape in self.shapes().items():
            value = rng.standard_normal(shape)
            if name.startswith(("rope_f", "blk.0.rope_f")):
                value = np.exp(np.abs(value))
            elif ("norm" in name and name.endswith("weight")) or "norm" in name.split(".")[-1]:
                value = 1 + 0.2 * value
            elif name.endswith(".scale"):
                value = np.exp(0.3 * value)
            elif len(shape) == 1:
                value = 0.3 * value
            elif name == "token_embd.weight":
                value = 2.0 * value / np.sqrt(shape[-1])
            else:
                value = 1.5 * value / np.sqrt(shape[-1])
            tensors[name] = value.astype(np.float32)
        own = {
            "vocab_size": N_VOCAB,
            "block_count": self.n_layers,
            "context_length": 256,
            "embedding_length": WIDTH,
            "feed_forward_length": N_FFN,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "attention.layer_norm_rms_epsilon": 1e-5,
        } | self.keys
        metadata = {
            key if key.startswith("xielu") else f"{self.arch}.{key}": value
            for key, value in own.items()
            if value is not None
        }
        metadata |= {"general.architecture": self.arch, "tokenizer.ggml.model": "no_vocab"}
        return gguf_writer.write(folder / f"{self.name}.gguf", metadata, tensors)


def dense_first(n_dense: int, layer: Shapes, block: Shapes, mixture: Shapes) -> Callable:
    return lambda i: layer | (block if i < n_dense else mixture)


def qrwkv_layer(i: int, heads: int, kv: int, size: int) -> Shapes:
    extra, decay, width = 16, 12, heads * size
    del i
    return PRE_NORM | gated() | {
        "time_mix_w1.weight": (5 * extra, WIDTH),
        "time_mix_w2.weight": (5, WIDTH, extra),
        "time_mix_lerp_x.weight": (1, 1, WIDTH),
        "time_mix_lerp_fused.weight": (5, 1, 1, WIDTH),
        "time_mix_decay.weight": (WIDTH,),
        "time_mix_decay_w1.weight": (decay, WIDTH),
        "time_mix_decay_w2.weight": (width, decay),
        "time_mix_key.weight": (kv * size, WIDTH),
        "time_mix_value.weight": (kv * size, WIDTH),
        "time_mix_receptance.weight": (width, WIDTH),
        "time_mix_gate.weight": (width, WIDTH),
        "time_mix_output.weight": (WIDTH, width),
        "time_mix_key.bias": (kv * size,),
        "time_mix_value.bias": (kv * size,),
        "time_mix_receptance.bias": (width,),
    }  # fmt: skip


WIDE = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}
OUTPUT_BIAS = norms("output_norm", bias=True)
RWKV = {
    "attention.head_count_kv": 2, "wkv.head_size": 16, "time_mix_extra_dim": 16, "time_decay_extra_dim": 12,
    "token_shift_count": 1,
}  # fmt: skip
LONG = {
    "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.2,
}  # fmt: skip
LONG_FACTORS: Shapes = {"rope_factors_long.weight": (8,), "rope_factors_short.weight": (8,)}
XIELU = {"xielu.alpha_p": 0.3, "xielu.alpha_n": 0.5, "xielu.beta": 0.5, "xielu.eps": -1e-6}
XIELU_BY_LAYER = {
    "xielu.alpha_p": np.float32([0.3, 0.1, 0.2, 0.9]), "xielu.alpha_n": np.float32([0.1, 0.5, -0.2, 0.4]),
    "xielu.beta": np.float32([0.5, 0.6, 0.4, 0.5]), "xielu.eps": np.float32([-1e-6] * 4),
}  # fmt: skip
LEAD = ROUTED | {"leading_dense_block_count": 1, "expert_shared_count": 2}

MODELS = [
    Random("arcee", "arcee", {}, PRE_NORM | attention() | plain()),
    Random("arcee-wide", "arcee", WIDE | {"attention.head_count_kv": 1},
           PRE_NORM | attention(4, 1, 32, bias="qkv") | plain(), tied=True,
           others=norms("output_norm") | {"rope_freqs.weight": (16,)}),
    Random("arcee-yarn", "arcee", YARN, PRE_NORM | attention() | plain(), shifts=False),
    Random("apertus", "apertus", XIELU, PRE_NORM | attention() | HEAD_NORMS | plain()),
    Random("apertus-layers", "apertus", XIELU_BY_LAYER | WIDE,
           PRE_NORM | attention(4, 2, 32, bias="o") | norms("attn_q_norm", "attn_k_norm", width=32) | plain(),
           others=norms("output_norm") | {"rope_freqs.weight": (16,)}),
    Random("apertus-long", "apertus", XIELU | LONG, PRE_NORM | attention() | HEAD_NORMS | plain(),
           others=norms("output_norm") | LONG_FACTORS, shifts=False),
    Random("bitnet", "bitnet", {},
           PRE_NORM | attention() | gated() | norms("attn_sub_norm") | norms("ffn_sub_norm", width=N_FFN), tied=True),
    Random("bitnet-scales", "bitnet", {},
           PRE_NORM | attention() | gated() | norms("attn_sub_norm") | norms("ffn_sub_norm", width=N_FFN)
           | {f"{name}.scale": (1,) for name in
              ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}, tied=True),
    Random("cohere2moe", "cohere2moe",
           LEAD | LAYER_NORM | {"attention.layer_norm_rms_epsilon": None, "attention.sliding_window": 12,
                                "logit_scale": 0.25, "expert_weights_norm": True, "rope.dimension_count": 16},
           dense_first(1, norms("attn_norm") | attention(), gated(), experts() | shared(64)),
           n_layers=6, shifts=False, tied=True),
    Random("cohere2moe-rms", "cohere2moe",
           ROUTED | {"attention.sliding_window": 9, "logit_scale": 1.5, "expert_gating_func": 1,
                     "expert_weights_scale": 1.7, "leading_dense_block_count": 2, "rope.dimension_count": 16,
                     "rope.freq_base": 5e4},
           dense_first(2, norms("attn_norm") | attention(), gated(), experts()), n_layers=6, shifts=False),
    Random("deepseek", "deepseek", LEAD | {"attention.head_count_kv": 4},
           dense_first(1, PRE_NORM | attention(4, 4), gated(), experts() | shared(64)),
           ),
    Random("deepseek-scale", "deepseek", LEAD | {"expert_weights_scale": 1.6, "leading_dense_block_count": 2},
           dense_first(2, PRE_NORM | attention(), gated(), experts() | shared(64)), tied=True),
    Random("dots1", "dots1",
           LEAD | {"expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2,
                   "attention.head_count_kv": 4},
           dense_first(1, PRE_NORM | attention(4, 4) | HEAD_NORMS, gated(), experts(bias=True) | shared(64))),
    Random("dots1-softmax", "dots1", LEAD | {"expert_gating_func": 1, "attention.head_count_kv": 4},
           dense_first(1, PRE_NORM | attention(4, 4) | HEAD_NORMS, gated(), experts() | shared(64))),
    Random("ernie4_5", "ernie4_5", {}, PRE_NORM | attention() | gated()),
    Random("ernie4_5-bias", "ernie4_5", WIDE | {"rope.freq_base": 5e5, "attention.head_count_kv": 1},
           PRE_NORM | attention(4, 1, 32, bias="qkv") | gated(), tied=True),
    Random("eurobert", "eurobert", {"attention.causal": False}, PRE_NORM | attention() | gated(), encoder=True),
    Random("eurobert-mha", "eurobert", {"attention.causal": False, "rope.freq_base": 2.5e5,
                                        "attention.head_count_kv": 4},
           PRE_NORM | attention(4, 4) | gated(), encoder=True),
    Random("hunyuan-dense", "hunyuan-dense", {}, PRE_NORM | attention() | HEAD_NORMS | gated(), tied=True),
    Random("hunyuan-dense-wide", "hunyuan-dense", WIDE | {"rope.freq_base": 1.1e7},
           PRE_NORM | attention(4, 2, 32) | norms("attn_q_norm", "attn_k_norm", width=32) | gated()),
    Random("internlm2", "internlm2", {"rope.freq_base": 1e6}, PRE_NORM | attention() | gated()),
    Random("internlm2-linear", "internlm2", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
           PRE_NORM | attention(bias="qkv") | gated()),
    Random("minimax-m2", "minimax-m2", ROUTED | {"expert_gating_func": 2, "feed_forward_length": N_EXPERT_FFN,
                                                 "rope.dimension_count": 8},
           PRE_NORM | attention() | norms("attn_q_norm") | norms("attn_k_norm", width=32) | experts(bias=True)),
    Random("minimax-m2-wide", "minimax-m2", ROUTED | WIDE | {
               "expert_gating_func": 2, "feed_forward_length": N_EXPERT_FFN, "rope.dimension_count": 16,
               "attention.head_count_kv": 1},
           PRE_NORM | attention(4, 1, 32) | norms("attn_q_norm", width=128) | norms("attn_k_norm", width=32)
           | experts(bias=True)),
    Random("mpt", "mpt", LAYER_NORM | {"attention.max_alibi_bias": 8.0, "attention.head_count_kv": None},
           PRE_NORM | attention(4, 4, fused=True) | plain(), tied=True, shifts=False, tolerance=1e-3),
    Random("mpt-clamp", "mpt", LAYER_NORM | {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.9},
           norms("attn_norm", "ffn_norm", bias=True) | attention(fused=True, bias="qo") | plain(bias=True),
           others=OUTPUT_BIAS, shifts=False, tolerance=1e-3),
    Random("mpt-heads6", "mpt", LAYER_NORM | {"attention.max_alibi_bias": 6.0, "attention.head_count": 8,
                                              "attention.head_count_kv": 8},
           PRE_NORM | attention(8, 8, 8, fused=True) | plain(),
           tied=True, shifts=False, tolerance=1e-3),
    Random("mpt-positions", "mpt", LAYER_NORM | {"attention.head_count_kv": 4},
           PRE_NORM | attention(4, 4, fused=True) | plain(), tied=True, shifts=False, tolerance=1e-3,
           others=norms("output_norm") | {"position_embd.weight": (256, WIDTH)}),
    Random("olmo", "olmo", LAYER_NORM | {"attention.clamp_kqv": 0.8}, attention() | gated(), others={}),
    Random("olmo-mha", "olmo", LAYER_NORM | {"attention.head_count_kv": 4}, attention(4, 4) | gated(), others={},
           tied=True),
    Random("smallthinker", "smallthinker", ROUTED | {"expert_gating_func": 2}, PRE_NORM | attention() | experts()),
    Random("smallthinker-swa", "smallthinker",
           ROUTED | {"expert_gating_func": 1, "attention.sliding_window": 4096},
           PRE_NORM | attention() | experts(), n_layers=6, shifts=False, tied=True),
    Random("neo-bert", "neo-bert", {"attention.causal": False, "attention.head_count_kv": 4},
           PRE_NORM | attention(4, 4, fused=True) | matrices({"ffn_up": (2 * N_FFN, WIDTH),
                                                              "ffn_down": (WIDTH, N_FFN)}),
           others=norms("enc.output_norm"), encoder=True),
    Random("rwkv6qwen2", "rwkv6qwen2", RWKV, lambda i: qrwkv_layer(i, 4, 2, 16), recurrent=True),
]  # fmt: skip


def more() -> list[Random]:
    """Architectures that transformers is the reference of."""
    phi = norms("attn_norm", bias=True)
    return [
        Random("command-r", "command-r", LAYER_NORM | {"logit_scale": 0.2},
               norms("attn_norm") | attention() | gated(), tied=True),
        Random("exaone4", "exaone4", {},
               norms("post_attention_norm", "post_ffw_norm") | attention() | HEAD_NORMS | gated()),
        Random("gemma", "gemma", {"attention.key_length": 16, "attention.value_length": 16},
               PRE_NORM | attention() | gated(), tied=True, tolerance=1e-3),
        Random("glm4", "glm4", {"rope.dimension_count": 8},
               norms("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm") | attention(bias="qkv")
               | matrices({"ffn_up": (2 * N_FFN, WIDTH), "ffn_down": (WIDTH, N_FFN)})),
        Random("granite", "granite", {"embedding_scale": 6.0, "residual_scale": 0.3, "attention.scale": 0.1,
                                      "logit_scale": 5.0}, PRE_NORM | attention() | gated(), tied=True),
        Random("nemotron", "nemotron", LAYER_NORM | {"rope.dimension_count": 8},
               norms("attn_norm", "ffn_norm", bias=True) | attention() | plain(), others=OUTPUT_BIAS),
        Random("olmoe", "olmoe", ROUTED | {"feed_forward_length": N_EXPERT_FFN, "attention.head_count_kv": 4},
               PRE_NORM | attention(4, 4) | norms("attn_q_norm", "attn_k_norm") | experts()),
        Random("phi2", "phi2", LAYER_NORM | {"rope.dimension_count": 8, "attention.head_count_kv": 4},
               phi | attention(4, 4, bias="qkvo") | plain(bias=True),
               others=OUTPUT_BIAS | {"output.bias": (N_VOCAB,)}, tolerance=1e-3),
        Random("qwen2moe", "qwen2moe", ROUTED | {"expert_shared_feed_forward_length": 48},
               PRE_NORM | attention(bias="qkv") | experts() | shared(48) | {"ffn_gate_inp_shexp.weight": (WIDTH,)}),
        Random("smollm3", "smollm3", {}, PRE_NORM | attention() | gated(), n_layers=5, shifts=False, tied=True),
        Random("stablelm", "stablelm", LAYER_NORM | {"rope.dimension_count": 8, "use_parallel_residual": False},
               norms("attn_norm", "ffn_norm", bias=True) | attention(bias="qkv") | gated(), others=OUTPUT_BIAS),
        Random("starcoder2", "starcoder2", LAYER_NORM,
               norms("attn_norm", "ffn_norm", bias=True) | attention(bias="qkvo") | plain(bias=True),
               others=OUTPUT_BIAS, tied=True, tolerance=1e-3),
    ]  # fmt: skip


MODELS += more()
