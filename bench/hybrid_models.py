"""The tensors of models whose layers differ: shapes of well-known ones, with random weights, for models.py.

Each function returns the architecture, its keys without prefix, and its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from python.gguf_writer import Raw

Tensors = dict[str, "np.ndarray | Raw"]
Weight = Callable[[int, int], "np.ndarray | Raw"]
Made = tuple[str, dict[str, Any], Tensors]


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def attention(weight: Weight, width: int, heads: int, kv: int, dim: int, gates: int = 0) -> Tensors:
    """Matrices without the names' prefixes; `gates` is the number of gate values that Wq also yields."""
    return {
        "attn_q.weight": weight(heads * dim + gates, width),
        "attn_k.weight": weight(kv * dim, width),
        "attn_v.weight": weight(kv * dim, width),
        "attn_output.weight": weight(width, heads * dim),
    }


def feed_forward(weight: Weight, width: int, n_ffn: int) -> Tensors:
    return {
        "ffn_gate.weight": weight(n_ffn, width),
        "ffn_up.weight": weight(n_ffn, width),
        "ffn_down.weight": weight(width, n_ffn),
    }


def norms(width: int, *names: str) -> Tensors:
    return {f"{name}.weight": ones(width) for name in names}


def keys_of(
    layers: int, width: int, n_ffn: int, heads: int, kv: object, vocab: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "block_count": layers,
        "context_length": 131072,
        "embedding_length": width,
        "feed_forward_length": n_ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }


def numbered(i: int, layer: Tensors) -> Tensors:
    return {f"blk.{i}.{name}": tensor for name, tensor in layer.items()}


def qwen35(weight: Weight) -> Made:
    """Qwen3.5-0.8B, https://huggingface.co/Qwen/Qwen3.5-0.8B."""
    layers, width, n_ffn, heads, kv, dim, vocab = 24, 1024, 3584, 8, 2, 256, 248320
    linear, state = 16, 128
    inner = linear * state
    keys = keys_of(layers, width, n_ffn, heads, kv, vocab) | {
        "attention.key_length": dim,
        "attention.value_length": dim,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": linear,
        "ssm.time_step_rank": linear,
        "ssm.inner_size": inner,
    }
    tensors: Tensors = {"token_embd.weight": weight(vocab, width)} | norms(width, "output_norm")
    for i in range(layers):
        layer = feed_forward(weight, width, n_ffn) | norms(
            width, "attn_norm", "post_attention_norm"
        )
        if i % 4 == 3:
            layer |= attention(weight, width, heads, kv, dim, gates=heads * dim)
            layer |= norms(dim, "attn_q_norm", "attn_k_norm")
        else:
            layer |= {
                "attn_qkv.weight": weight(3 * inner, width),
                "attn_gate.weight": weight(inner, width),
                "ssm_alpha.weight": weight(linear, width),
                "ssm_beta.weight": weight(linear, width),
                "ssm_conv1d.weight": random(3 * inner, 4),
                "ssm_dt.bias": ones(linear),
                "ssm_a": -ones(linear),
                "ssm_norm.weight": ones(state),
                "ssm_out.weight": weight(width, inner),
            }
        tensors |= numbered(i, layer)
    return "qwen35", keys, tensors


def gemma4(weight: Weight) -> Made:
    """Gemma 4 E2B, https://huggingface.co/google/gemma-4-E2B-it."""
    layers, shared, width, n_ffn, heads, kv, vocab = 35, 20, 1536, 6144, 8, 1, 262144
    dim, full_dim, extra = 256, 512, 256
    slides = [i % 5 != 4 for i in range(layers)]
    own = layers - shared
    sizes = [n_ffn if i < own else 2 * n_ffn for i in range(layers)]
    keys = keys_of(layers, width, n_ffn, heads, kv, vocab) | {
        "feed_forward_length": np.array(sizes, np.int32),
        "attention.key_length": full_dim,
        "attention.value_length": full_dim,
        "attention.key_length_swa": dim,
        "attention.value_length_swa": dim,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": np.array(slides),
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": extra,
        "final_logit_softcapping": 30.0,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": full_dim,
        "rope.dimension_count_swa": dim,
    }
    factors = np.where(np.arange(full_dim // 2) < full_dim // 8, 1.0, 1e30)
    tensors: Tensors = norms(width, "output_norm") | {
        "token_embd.weight": weight(vocab, width),
        "per_layer_token_embd.weight": weight(vocab, layers * extra),
        "per_layer_model_proj.weight": weight(layers * extra, width),
        "per_layer_proj_norm.weight": ones(extra),
        "rope_freqs.weight": factors.astype(np.float32),
    }
    for i in range(layers):
        of_head = dim if slides[i] else full_dim
        made = attention(weight, width, heads, kv, of_head) | norms(
            of_head, "attn_q_norm", "attn_k_norm"
        )
        if i >= own:
            for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
                del made[name]
        made |= feed_forward(weight, width, sizes[i])
        made |= norms(
            width, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"
        )
        made |= {
            "layer_output_scale.weight": ones(1),
            "inp_gate.weight": weight(extra, width),
            "proj.weight": weight(width, extra),
        }
        tensors |= numbered(i, made)
    return "gemma4", keys, tensors


def granite4(weight: Weight) -> Made:
    """Granite 4.0 H 1B, https://huggingface.co/ibm-granite/granite-4.0-h-1b."""
    layers, width, n_ffn, heads, kv, dim, vocab = 40, 1536, 4096, 12, 4, 128, 100352
    linear, state = 48, 128
    inner = linear * 64
    attends = [i % 10 == 5 for i in range(layers)]
    kv_heads = np.array([kv if full else 0 for full in attends], np.int32)
    keys = keys_of(layers, width, n_ffn, heads, kv_heads, vocab) | {
        "rope.scaling.finetuned": False,
        "rope.dimension_count": dim,
        "attention.scale": 1 / dim,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": 6.0,
        "expert_shared_feed_forward_length": n_ffn,
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": 1,
        "ssm.inner_size": inner,
        "ssm.time_step_rank": linear,
    }
    tensors: Tensors = {"token_embd.weight": weight(vocab, width)} | norms(width, "output_norm")
    for i, full in enumerate(attends):
        made = feed_forward(weight, width, n_ffn) | norms(width, "attn_norm", "ffn_norm")
        if full:
            made |= attention(weight, width, heads, kv, dim)
        else:
            channels = inner + 2 * state
            made |= {
                "ssm_in.weight": weight(inner + channels + linear, width),
                "ssm_conv1d.weight": random(channels, 4),
                "ssm_conv1d.bias": np.zeros(channels, np.float32),
                "ssm_dt.bias": ones(linear),
                "ssm_a": -ones(linear)[:, None],
                "ssm_d": ones(linear)[:, None],
                "ssm_norm.weight": ones(inner)[None],
                "ssm_out.weight": weight(width, inner),
            }
        tensors |= numbered(i, made)
    return "granitehybrid", keys, tensors


def lfm2(weight: Weight) -> Made:
    """LFM2-1.2B, https://huggingface.co/LiquidAI/LFM2-1.2B."""
    layers, width, n_ffn, heads, kv, dim, vocab = 16, 2048, 8192, 32, 8, 64, 65536
    kv_heads = np.array([kv if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(layers)], np.int32)
    keys = keys_of(layers, width, n_ffn, heads, kv_heads, vocab) | {
        "rope.freq_base": 1e6,
        "shortconv.l_cache": 3,
    }
    tensors: Tensors = {"token_embd.weight": weight(vocab, width)} | norms(width, "token_embd_norm")
    for i in range(layers):
        made = feed_forward(weight, width, n_ffn) | norms(width, "attn_norm", "ffn_norm")
        if kv_heads[i]:
            made |= attention(weight, width, heads, kv, dim)
            made |= norms(dim, "attn_q_norm", "attn_k_norm")
        else:
            made |= {
                "shortconv.conv.weight": random(width, 3),
                "shortconv.in_proj.weight": weight(3 * width, width),
                "shortconv.out_proj.weight": weight(width, width),
            }
        tensors |= numbered(i, made)
    return "lfm2", keys, tensors


HYBRIDS: dict[str, Callable[[Weight], Made]] = {
    "qwen3.5-0.8b": qwen35,
    "gemma-4-e2b": gemma4,
    "granite-4-h-1b": granite4,
    "lfm2-1.2b": lfm2,
}
