"""Every architecture against transformers: the same tiny random model, the same logits.

Run where transformers is installed: pytest -m oracle tests/python/oracle/test_oracle.py
"""

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.fusing import assert_fusing_changes_nothing
from python.oracle import oracle_experts, oracle_states
from python.oracle.oracle import (
    ONE_ADDED,
    PAIRS,
    QKV_BY_HEAD,
    SANDWICH,
    Architecture,
    Oracle,
    layer_norm,
    windows,
)

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of third-party code
]

SLIDES = {"num_hidden_layers": 7, "sliding_window": 9}


def long_rope(n_ctx_original):
    """Return the configuration of a model with rotary factors for short and long contexts."""
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.6], "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
        "partial_rotary_factor": 0.75, "rope_theta": 1e4,
    }  # fmt: skip
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": n_ctx_original,
        "pad_token_id": 0,
    }


def long_rope_keys(config):
    original = config.original_max_position_embeddings
    stretch = config.max_position_embeddings / original
    return {
        "rope.dimension_count": 12,
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": (1 + np.log(stretch) / np.log(original)) ** 0.5,
    }


def long_rope_factors(config):
    return {
        f"rope_factors_{which}.weight": np.array(config.rope_parameters[f"{which}_factor"], "f4")
        for which in ("short", "long")
    }


GPT_NEOX = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "gpt_neox.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "gpt_neox.layers.{i}.attention.query_key_value": "blk.{i}.attn_qkv",
    "gpt_neox.layers.{i}.attention.dense": "blk.{i}.attn_output",
    "gpt_neox.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "gpt_neox.layers.{i}.mlp.dense_h_to_4h": "blk.{i}.ffn_up",
    "gpt_neox.layers.{i}.mlp.dense_4h_to_h": "blk.{i}.ffn_down",
}
BLOOM = {
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
    "transformer.h.{i}.input_layernorm": "blk.{i}.attn_norm",
    "transformer.h.{i}.self_attention.query_key_value": "blk.{i}.attn_qkv",
    "transformer.h.{i}.self_attention.dense": "blk.{i}.attn_output",
    "transformer.h.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "transformer.h.{i}.mlp.dense_h_to_4h": "blk.{i}.ffn_up",
    "transformer.h.{i}.mlp.dense_4h_to_h": "blk.{i}.ffn_down",
}

ARCHITECTURES = [
    Architecture("llama", "LlamaForCausalLM", changes=PAIRS),
    Architecture("llama", "LlamaForCausalLM", {"tie_word_embeddings": True}, changes=PAIRS, label="tied"),
    Architecture(
        "command-r", "CohereForCausalLM", {"logit_scale": 0.5, "tie_word_embeddings": True},
        keys=layer_norm("logit_scale"),
    ),
    Architecture(
        "command-r", "CohereForCausalLM", {"logit_scale": 0.5, "use_qk_norm": True},
        keys=layer_norm("logit_scale"), label="plus",
    ),
    Architecture(
        "cohere2", "Cohere2ForCausalLM",
        {**SLIDES, "head_dim": 16, "logit_scale": 0.5, "tie_word_embeddings": True},
        keys=lambda config: layer_norm("logit_scale")(config) | windows(config),
    ),
    Architecture(
        "phi2", "PhiForCausalLM",
        tensors={
            "model.layers.{i}.self_attn.dense": "blk.{i}.attn_output",
            "model.layers.{i}.mlp.fc1": "blk.{i}.ffn_up",
            "model.layers.{i}.mlp.fc2": "blk.{i}.ffn_down",
            "model.final_layernorm": "output_norm",
        },
        keys=layer_norm(),
    ),
    Architecture(
        "starcoder2", "Starcoder2ForCausalLM", {"tie_word_embeddings": True},
        tensors={
            "model.layers.{i}.mlp.c_fc": "blk.{i}.ffn_up",
            "model.layers.{i}.mlp.c_proj": "blk.{i}.ffn_down",
        },
        keys=layer_norm(),
    ),
    Architecture("stablelm", "StableLmForCausalLM", {"use_qkv_bias": True}, keys=layer_norm()),
    Architecture(
        "stablelm", "StableLmForCausalLM", {"use_parallel_residual": True, "qk_layernorm": True},
        tensors={
            "model.layers.{i}.self_attn.q_layernorm.norms.{j}": "blk.{i}.attn_q_norm",
            "model.layers.{i}.self_attn.k_layernorm.norms.{j}": "blk.{i}.attn_k_norm",
        },
        keys=layer_norm(), label="12b",
    ),
    Architecture("nemotron", "NemotronForCausalLM", changes=ONE_ADDED, keys=layer_norm()),
    Architecture(
        "gptneox", "GPTNeoXForCausalLM", {"use_parallel_residual": False, "num_key_value_heads": 4},
        GPT_NEOX, QKV_BY_HEAD, layer_norm("use_parallel_residual"),
    ),
    Architecture(
        "gptneox", "GPTNeoXForCausalLM", {"use_parallel_residual": True, "num_key_value_heads": 4},
        GPT_NEOX, QKV_BY_HEAD, layer_norm("use_parallel_residual"), label="parallel",
    ),
    Architecture(
        "bloom", "BloomForCausalLM",
        {"num_key_value_heads": 6, "num_attention_heads": 6, "hidden_size": 96},  # slopes beyond a power of two
        BLOOM, QKV_BY_HEAD, lambda config: layer_norm()(config) | {"feed_forward_length": 4 * config.hidden_size},
    ),
    Architecture("qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen3", "Qwen3ForCausalLM", {"head_dim": 32}),
    Architecture(
        "exaone4", "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3}, SANDWICH, label="small",
    ),
    Architecture("exaone4", "Exaone4ForCausalLM", SLIDES, SANDWICH, keys=windows),
    Architecture(
        "gemma", "GemmaForCausalLM", {"head_dim": 24, "tie_word_embeddings": True}, changes=ONE_ADDED,
        embeddings_scale=lambda config: config.hidden_size**0.5,
    ),
    Architecture(
        "gemma2", "Gemma2ForCausalLM",
        {"head_dim": 24, "tie_word_embeddings": True, "num_hidden_layers": 4, "sliding_window": 9,
         "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0},
        SANDWICH, ONE_ADDED,
        lambda config: {
            "attention.sliding_window": config.sliding_window,
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        },
        embeddings_scale=lambda config: config.hidden_size**0.5,
    ),
    Architecture(
        "gemma3", "Gemma3ForCausalLM",
        {**SLIDES, "head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 16,
         "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
         }},
        SANDWICH, ONE_ADDED,
        lambda config: {
            "attention.sliding_window": config.sliding_window,
            "rope.freq_base_swa": 1e3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Architecture(
        "glm4", "Glm4ForCausalLM", {"head_dim": 16, "attention_bias": True, "pad_token_id": 0},
        {
            "model.layers.{i}.post_self_attn_layernorm": "blk.{i}.post_attention_norm",
            "model.layers.{i}.post_mlp_layernorm": "blk.{i}.post_ffw_norm",
        },
        keys=lambda config: {"rope.dimension_count": 8},
    ),
    Architecture(
        "granite", "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.6,
         "logits_scaling": 2.0},
        changes=PAIRS,
        keys=lambda config: {
            "embedding_scale": config.embedding_multiplier,
            "attention.scale": config.attention_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        },
    ),
    Architecture("olmo2", "Olmo2ForCausalLM", tensors=SANDWICH),
    Architecture(
        "olmo2", "Olmo3ForCausalLM",
        {**SLIDES, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                               "original_max_position_embeddings": 64},
        }},
        SANDWICH,
        keys=lambda config: windows(config) | {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
        label="olmo3",
    ),
    Architecture("phi3", "Phi3ForCausalLM", {"sliding_window": 9, "pad_token_id": 0},
                 keys=lambda config: {"attention.sliding_window": config.sliding_window}),
    Architecture("phi3", "Phi3ForCausalLM", long_rope(64), keys=long_rope_keys,
                 extra=long_rope_factors, label="short"),
    Architecture("phi3", "Phi3ForCausalLM", long_rope(32), keys=long_rope_keys,
                 extra=long_rope_factors, label="long"),
    Architecture("smollm3", "SmolLM3ForCausalLM", {"num_hidden_layers": 5, "pad_token_id": 0},
                 changes=PAIRS),
]  # fmt: skip
ARCHITECTURES += oracle_experts.ARCHITECTURES + oracle_states.ARCHITECTURES


@pytest.fixture(
    scope="module", params=ARCHITECTURES, ids=lambda a: f"{a.name}-{a.label}".rstrip("-")
)
def oracle(request, tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    arch = request.param
    return Oracle(arch, tmp_path_factory.mktemp("oracle") / f"{arch.name}.gguf")


@pytest.fixture(scope="module")
def want(oracle):
    logits = oracle.logits(tokens(oracle.arch.tokens))
    assert 0.3 < logits.std() < 20, f"logits of no use: their deviation is {logits.std()}"
    return logits


def context(oracle, **options):
    return plait.Context(
        plait.Model(oracle.path), n_ctx=oracle.arch.n_ctx, type_k="f32", type_v="f32", **options
    )


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("flash", [True, False])
def test_logits_equal_those_of_transformers(oracle, want, flash):
    with context(oracle, flash_attention=flash) as ctx:
        assert_close(feed(ctx, tokens(oracle.arch.tokens)), want)


def test_a_prompt_in_pieces_too(oracle, want):
    ids = tokens(oracle.arch.tokens)
    with context(oracle, n_ubatch=7, swa_full=False) as ctx:
        got = [np.array(feed(ctx, ids[a:b])) for a, b in [(0, 5), (5, 6), (6, 23), (23, len(ids))]]
    assert_close(np.concatenate(got), want)


def test_embeddings_in_place_of_tokens(oracle):
    rng = np.random.default_rng(5)
    given = rng.standard_normal((oracle.arch.tokens, oracle.config.hidden_size)).astype(np.float32)
    want = oracle.logits(embeddings=given * np.float32(oracle.arch.embeddings_scale(oracle.config)))
    batch = plait.Batch()
    batch.add_embeddings(given, seq=0, logits="all")
    with context(oracle) as ctx:
        assert_close(ctx.decode(batch).logits, want)


def test_fused_plans_give_the_same_bits(oracle):  # S1-16
    assert_fusing_changes_nothing(plait.Model(oracle.path))
