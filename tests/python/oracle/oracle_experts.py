"""Mixture-of-experts and latent-attention models for comparison with transformers."""

from typing import Any

import numpy as np
from python.oracle.oracle import Architecture, Change, Parts


def halves(gate: str, up: str) -> Change:
    """Split a matrix whose halves of rows are two matrices."""

    def change(x: np.ndarray, config: Any) -> Parts:
        axis = x.ndim - 2
        return dict(zip((gate, up), np.split(x, 2, axis), strict=True))

    return change


EXPERTS = {
    "model.layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    "model.layers.{i}.mlp.shared_expert.gate_proj": "blk.{i}.ffn_gate_shexp",
    "model.layers.{i}.mlp.shared_expert.up_proj": "blk.{i}.ffn_up_shexp",
    "model.layers.{i}.mlp.shared_expert.down_proj": "blk.{i}.ffn_down_shexp",
    "model.layers.{i}.mlp.shared_expert_gate": "blk.{i}.ffn_gate_inp_shexp",
}
SPLIT: dict[str, Change] = {"ffn_gate_up_exps": halves("ffn_gate_exps", "ffn_up_exps")}
SIZES = {"num_experts": 8, "num_experts_per_tok": 3}


def expert_keys(config: Any) -> dict[str, Any]:
    keys = {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    if hasattr(config, "moe_intermediate_size"):
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if hasattr(config, "shared_expert_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return keys


# -- gpt-oss: rows of gate and up alternate, and matrices are transposed ------------------------------


def turns(x: np.ndarray) -> dict[str, np.ndarray]:
    """[e, .., 2 ffn] -> gate and up, [e, ffn, ..]."""
    parts = {"ffn_gate_exps": x[..., ::2], "ffn_up_exps": x[..., 1::2]}
    return {name: part.swapaxes(1, -1) for name, part in parts.items()}


GPT_OSS = {
    "model.layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.mlp.router": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.mlp.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
    "model.layers.{i}.mlp.experts.gate_up_proj_bias": "blk.{i}.ffn_gate_up_exps.bias",
    "model.layers.{i}.mlp.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
    "model.layers.{i}.mlp.experts.down_proj_bias": "blk.{i}.ffn_down_exps.bias",
}


# -- DeepSeek -------------------------------------------------------------------------------------------

DEEPSEEK = EXPERTS | {
    "model.layers.{i}.self_attn.q_a_proj": "blk.{i}.attn_q_a",
    "model.layers.{i}.self_attn.q_a_layernorm": "blk.{i}.attn_q_a_norm",
    "model.layers.{i}.self_attn.q_b_proj": "blk.{i}.attn_q_b",
    "model.layers.{i}.self_attn.kv_a_proj_with_mqa": "blk.{i}.attn_kv_a_mqa",
    "model.layers.{i}.self_attn.kv_a_layernorm": "blk.{i}.attn_kv_a_norm",
    "model.layers.{i}.self_attn.kv_b_proj": "blk.{i}.attn_kv_b",
    "model.layers.{i}.mlp.gate.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.mlp.shared_experts.gate_proj": "blk.{i}.ffn_gate_shexp",
    "model.layers.{i}.mlp.shared_experts.up_proj": "blk.{i}.ffn_up_shexp",
    "model.layers.{i}.mlp.shared_experts.down_proj": "blk.{i}.ffn_down_shexp",
}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "head_dim": 16, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24, "v_head_dim": 20, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 40, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
V3 = {**LATENT, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
STRETCHED = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
    "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip


def split_heads(x: np.ndarray, config: Any) -> Parts:
    """Return the matrices of keys, [h, rank, plain], and of values, [h, value, rank]."""
    heads = x.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    plain = config.qk_nope_head_dim
    return {"attn_k_b": heads[:, :plain].swapaxes(1, 2), "attn_v_b": heads[:, plain:]}


def deepseek_keys(config: Any) -> dict[str, Any]:
    n_rot, key = config.qk_rope_head_dim, config.qk_nope_head_dim + config.qk_rope_head_dim
    keys = {
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + n_rot,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": key,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": n_rot,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_weights_scale": config.routed_scaling_factor,
    }
    if config.q_lora_rank is not None:
        keys["attention.q_lora_rank"] = config.q_lora_rank
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
        }
    return keys


def v3_keys(config: Any) -> dict[str, Any]:
    return deepseek_keys(config) | {"expert_gating_func": 2, "expert_weights_norm": True}


def old_keys(config: Any) -> dict[str, Any]:
    """Return the tensors of files that cache keys and values of all heads."""
    keys = {key: x for key, x in deepseek_keys(config).items() if not key.endswith("_mla")}
    return keys | {
        "attention.head_count_kv": config.num_attention_heads,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
    }


def set_selection_biases(model: Any) -> None:
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * (buffer + 1).cumsum(0).cos())


KEYS_AND_VALUES: dict[str, Change] = {r"attn_kv_b\.": split_heads}

ARCHITECTURES = [
    Architecture(
        "qwen2moe", "Qwen2MoeForCausalLM",
        {**SIZES, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80}, EXPERTS, SPLIT, expert_keys,
    ),
    Architecture(
        "qwen3moe", "Qwen3MoeForCausalLM",
        {**SIZES, "moe_intermediate_size": 48, "head_dim": 32, "norm_topk_prob": True}, EXPERTS, SPLIT, expert_keys,
    ),
    Architecture("olmoe", "OlmoeForCausalLM", SIZES, EXPERTS, SPLIT, expert_keys),
    Architecture(
        "gpt-oss", "GptOssForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 9,
         "pad_token_id": 0, "rope_parameters": {
             "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
             "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True,
         }},
        GPT_OSS,
        {
            "ffn_gate_up_exps": lambda x, config: turns(x),
            r"ffn_down_exps\.weight": lambda x, config: x.swapaxes(1, 2),
        },
        lambda config: {
            "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": config.intermediate_size,
            "attention.sliding_window": config.sliding_window, "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32,
        },
    ),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", {**LATENT, "routed_scaling_factor": 1.5}, DEEPSEEK,
                 SPLIT | KEYS_AND_VALUES, deepseek_keys),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", LATENT, DEEPSEEK, SPLIT, old_keys, label="old"),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", {**LATENT, "q_lora_rank": None}, DEEPSEEK,
                 KEYS_AND_VALUES, deepseek_keys, label="lite"),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", {**LATENT, "rope_parameters": STRETCHED}, DEEPSEEK,
                 SPLIT | KEYS_AND_VALUES, deepseek_keys, label="yarn"),
    Architecture("deepseek2", "DeepseekV2ForCausalLM",
                 {**LATENT, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"}, DEEPSEEK,
                 SPLIT | KEYS_AND_VALUES, deepseek_keys, label="groups"),
    Architecture("deepseek2", "DeepseekV3ForCausalLM", V3, DEEPSEEK, SPLIT | KEYS_AND_VALUES, v3_keys,
                 weights=set_selection_biases, label="v3"),
]  # fmt: skip
