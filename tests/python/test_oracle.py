"""Every architecture against transformers: the same tiny random model, the same logits.

Run where transformers is installed: pytest -m oracle tests/python/test_oracle.py
"""

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.oracle import (
    ONE_ADDED,
    PAIRS,
    SANDWICH,
    Architecture,
    Oracle,
    windows,
)

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of other people's code
]

SLIDES = {"num_hidden_layers": 7, "sliding_window": 9}

ARCHITECTURES = [
    Architecture("llama", "LlamaForCausalLM", changes=PAIRS),
    Architecture("llama", "LlamaForCausalLM", {"tie_word_embeddings": True}, changes=PAIRS, label="tied"),
    Architecture("qwen2", "Qwen2ForCausalLM"),
    Architecture("qwen3", "Qwen3ForCausalLM", {"head_dim": 32}),
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
]  # fmt: skip


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
def test_logits_are_those_of_transformers(oracle, want, flash):
    with context(oracle, flash_attention=flash) as ctx:
        assert_close(feed(ctx, tokens(oracle.arch.tokens)), want)


def test_a_prompt_in_pieces_too(oracle, want):
    ids = tokens(oracle.arch.tokens)
    with context(oracle, n_ubatch=7, swa_full=False) as ctx:
        got = [np.array(feed(ctx, ids[a:b])) for a, b in [(0, 5), (5, 6), (6, 23), (23, len(ids))]]
    assert_close(np.concatenate(got), want)


def test_embeddings_in_place_of_tokens(oracle):
    rng = np.random.default_rng(5)
    given = rng.standard_normal((20, oracle.config.hidden_size)).astype(np.float32)
    want = oracle.logits(embeddings=given * np.float32(oracle.arch.embeddings_scale(oracle.config)))
    batch = plait.Batch()
    batch.add_embeddings(given, seq=0, logits="all")
    with context(oracle) as ctx:
        assert_close(ctx.decode(batch).logits, want)
