"""Recurrent and hybrid models for comparison with transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from python.oracle.oracle import Architecture, Change, Parts
from python.oracle.oracle_experts import EXPERTS, SPLIT, expert_keys, halves

COLUMN: Change = lambda x, config: x.reshape(-1, 1)  # noqa: E731
TAPS: dict[str, Change] = {r"conv(1d)?\.weight": lambda x, config: x.squeeze(1)}
MAMBA: dict[str, Change] = TAPS | {"ssm_a$": lambda x, config: -np.exp(x)}
MAMBA2: dict[str, Change] = TAPS | {
    "ssm_a$": lambda x, config: -np.exp(x).reshape(-1, 1),
    "ssm_d$": COLUMN,
    r"ssm_norm\.": lambda x, config: x.reshape(groups(config), -1),
}


def groups(config: Any) -> int:
    return getattr(config, "n_groups", None) or config.mamba_n_groups


def mixer(prefix: str) -> dict[str, str]:
    """Return the tensors of a Mamba or Mamba-2 mixer, by the name of its module."""
    names = {
        "in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "A_log": "ssm_a",
        "D": "ssm_d", "dt_bias": "ssm_dt.bias", "norm": "ssm_norm", "out_proj": "ssm_out",
        "dt_layernorm": "ssm_dt_norm", "b_layernorm": "ssm_b_norm", "c_layernorm": "ssm_c_norm",
    }  # fmt: skip
    return {f"{prefix}.{name}": f"blk.{{i}}.{there}" for name, there in names.items()}


BACKBONE = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "backbone.layers.{i}.norm": "blk.{i}.attn_norm",
    **mixer("backbone.layers.{i}.mixer"),
}
# Names as in Jamba and Falcon-H1.
BLOCKS = {
    "model.final_layernorm": "output_norm",
    "model.layers.{i}.pre_ff_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.feed_forward.gate_proj": "blk.{i}.ffn_gate",
    "model.layers.{i}.feed_forward.up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.feed_forward.down_proj": "blk.{i}.ffn_down",
    "model.layers.{i}.feed_forward.router": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.feed_forward.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.feed_forward.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    **mixer("model.layers.{i}.mamba"),
}


def ssm(
    kernel: int, inner: int, state: int, rank: int, n_groups: int | None = None
) -> dict[str, int]:
    keys = {
        "ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank,
    }  # fmt: skip
    return keys if n_groups is None else keys | {"ssm.group_count": n_groups}


def mamba_keys(config: Any) -> dict[str, Any]:
    return ssm(
        config.conv_kernel, config.intermediate_size, config.state_size, config.time_step_rank
    ) | {"attention.layer_norm_rms_epsilon": config.layer_norm_epsilon}


def mamba2_keys(config: Any) -> dict[str, Any]:
    inner = config.num_heads * config.head_dim
    return ssm(config.conv_kernel, inner, config.state_size, config.num_heads, config.n_groups) | {
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon
    }


def some_attend(config: Any, attends: Mapping[int, bool]) -> dict[str, np.ndarray]:
    counts = [config.num_key_value_heads * attends[i] for i in range(config.num_hidden_layers)]
    return {"attention.head_count_kv": np.array(counts, np.uint32)}


def jamba_keys(config: Any) -> dict[str, Any]:
    attends = {i: kind != "mamba" for i, kind in enumerate(config.layers_block_type)}
    inner = config.mamba_expand * config.hidden_size
    return {
        **ssm(config.mamba_d_conv, inner, config.mamba_d_state, config.mamba_dt_rank),
        **expert_keys(config),
        **some_attend(config, attends),
    }


def grouped_keys(config: Any) -> dict[str, Any]:
    """Return the metadata of models in which some layers are Mamba-2."""
    inner = config.mamba_n_heads * config.mamba_d_head
    return ssm(
        config.mamba_d_conv,
        inner,
        config.mamba_d_state,
        config.mamba_n_heads,
        config.mamba_n_groups,
    )


def granite_keys(config: Any) -> dict[str, Any]:
    attends = {
        i: "attention" in kind and "linear" not in kind for i, kind in enumerate(config.layer_types)
    }
    return {
        **grouped_keys(config), **some_attend(config, attends),
        "embedding_scale": config.embedding_multiplier,
        "attention.scale": config.attention_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
        "rope.scaling.finetuned": False,
        "expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
    }  # fmt: skip


GRANITE_SIZES = {
    "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_hidden_layers": 4, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_expand": 2, "mamba_d_conv": 4,
    "embedding_multiplier": 2.0, "residual_multiplier": 0.6, "attention_multiplier": 0.3, "logits_scaling": 1.7,
    "position_embedding_type": "nope",
}  # fmt: skip
GRANITE = {
    "model.layers.{i}.block_sparse_moe.router": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.block_sparse_moe.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.block_sparse_moe.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    **mixer("model.layers.{i}.mamba"),
}
GRANITE_DENSE = GRANITE | {
    "model.layers.{i}.shared_mlp.input_linear": "blk.{i}.ffn_gate_up",
    "model.layers.{i}.shared_mlp.output_linear": "blk.{i}.ffn_down",
}
GRANITE_EXPERTS = GRANITE | {
    "model.layers.{i}.shared_mlp.input_linear": "blk.{i}.ffn_gate_up_shexp",
    "model.layers.{i}.shared_mlp.output_linear": "blk.{i}.ffn_down_shexp",
}

LFM2 = {
    "model.embedding_norm": "token_embd_norm",
    "model.layers.{i}.operator_norm": "blk.{i}.attn_norm",
    "model.layers.{i}.ffn_norm": "blk.{i}.ffn_norm",
    "model.layers.{i}.conv.conv": "blk.{i}.shortconv.conv",
    "model.layers.{i}.conv.in_proj": "blk.{i}.shortconv.in_proj",
    "model.layers.{i}.conv.out_proj": "blk.{i}.shortconv.out_proj",
    "model.layers.{i}.self_attn.out_proj": "blk.{i}.attn_output",
    "model.layers.{i}.self_attn.q_layernorm": "blk.{i}.attn_q_norm",
    "model.layers.{i}.self_attn.k_layernorm": "blk.{i}.attn_k_norm",
    "model.layers.{i}.feed_forward.w1": "blk.{i}.ffn_gate",
    "model.layers.{i}.feed_forward.w3": "blk.{i}.ffn_up",
    "model.layers.{i}.feed_forward.w2": "blk.{i}.ffn_down",
}


def lfm2_keys(config: Any) -> dict[str, Any]:
    attends = {i: kind == "full_attention" for i, kind in enumerate(config.layer_types)}
    return {
        **some_attend(config, attends), "shortconv.l_cache": config.conv_L_cache,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }  # fmt: skip


QWEN3_NEXT = EXPERTS | {
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.linear_attn.in_proj_qkvz": "blk.{i}.ssm_in",
    "model.layers.{i}.linear_attn.in_proj_ba": "blk.{i}.ssm_ba",
    "model.layers.{i}.linear_attn.conv1d": "blk.{i}.ssm_conv1d",
    "model.layers.{i}.linear_attn.dt_bias": "blk.{i}.ssm_dt.bias",
    "model.layers.{i}.linear_attn.A_log": "blk.{i}.ssm_a",
    "model.layers.{i}.linear_attn.norm": "blk.{i}.ssm_norm",
    "model.layers.{i}.linear_attn.out_proj": "blk.{i}.ssm_out",
}


def split_by_head(x: np.ndarray, config: Any) -> Parts:
    """Reorder rows: transformers stores q, k, v and z per key head; newer files store q, k, v of all heads, then z."""
    heads, key = config.linear_num_key_heads, config.linear_key_head_dim
    value = config.linear_num_value_heads // heads * config.linear_value_head_dim
    parts = np.split(x.reshape(heads, -1, x.shape[-1]), np.cumsum([key, key, value]), axis=1)
    q, k, v, z = (part.reshape(-1, x.shape[-1]) for part in parts)
    return {"attn_qkv": np.concatenate([q, k, v]), "attn_gate": z}


def qwen3next_keys(config: Any) -> dict[str, Any]:
    inner = config.linear_num_value_heads * config.linear_value_head_dim
    return {
        **expert_keys(config),
        **ssm(config.linear_conv_kernel_dim, inner, config.linear_key_head_dim,
              config.linear_num_value_heads, config.linear_num_key_heads),
        "full_attention_interval": 2, "rope.dimension_count": config.head_dim // 4,
    }  # fmt: skip


QWEN3_NEXT_SIZES = {
    "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 48, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
QWEN3_NEXT_CHANGES: dict[str, Change] = (
    MAMBA
    | SPLIT
    | {
        r"(?<!ssm)_norm\.": lambda x, config: x + 1,
    }
)
MAMBA_SIZES = {"state_size": 12, "conv_kernel": 4, "time_step_rank": 6, "expand": 2}

ARCHITECTURES = [
    Architecture("mamba", "MambaForCausalLM", MAMBA_SIZES, BACKBONE, MAMBA, mamba_keys),
    Architecture(
        "mamba", "FalconMambaForCausalLM", MAMBA_SIZES, BACKBONE, MAMBA,
        lambda config: mamba_keys(config) | {"ssm.dt_b_c_rms": True}, label="falcon",
    ),
    Architecture(
        "mamba2", "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 4, "conv_kernel": 3, "expand": 2},
        BACKBONE, MAMBA2, mamba2_keys,
    ),
    Architecture(
        "jamba", "JambaForCausalLM",
        {"num_hidden_layers": 5, "mamba_d_state": 12, "mamba_dt_rank": 6, "num_experts": 4, "num_experts_per_tok": 2,
         "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0,
         "use_mamba_kernels": False},
        BLOCKS, MAMBA | SPLIT, jamba_keys,
    ),
    Architecture(
        "lfm2", "Lfm2ForCausalLM",
        {"num_hidden_layers": 5, "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
         "conv_L_cache": 4, "block_ff_dim": 96, "block_auto_adjust_ff_dim": False},
        LFM2, TAPS, lfm2_keys,
    ),
    Architecture(
        "falcon-h1", "FalconH1ForCausalLM",
        {"head_dim": 16, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2,
         "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
        BLOCKS, MAMBA2, grouped_keys,
    ),
    Architecture(
        "granitehybrid", "GraniteMoeHybridForCausalLM",
        {**GRANITE_SIZES, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96},
        GRANITE_DENSE, MAMBA2 | {r"ffn_gate_up\.": halves("ffn_gate", "ffn_up")}, granite_keys,
    ),
    Architecture(
        "granitehybrid", "GraniteMoeHybridForCausalLM",
        {**GRANITE_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 80},
        GRANITE_EXPERTS, MAMBA2 | SPLIT | {"ffn_gate_up_shexp": halves("ffn_gate_shexp", "ffn_up_shexp")},
        granite_keys, label="experts",
    ),
    Architecture("qwen3next", "Qwen3NextForCausalLM", QWEN3_NEXT_SIZES, QWEN3_NEXT,
                 QWEN3_NEXT_CHANGES | {"ssm_in": split_by_head}, qwen3next_keys),
    Architecture("qwen3next", "Qwen3NextForCausalLM", QWEN3_NEXT_SIZES, QWEN3_NEXT, QWEN3_NEXT_CHANGES,
                 qwen3next_keys, label="old"),
]  # fmt: skip
