"""Encoders against transformers: the same tiny random model, the same vectors and scores.

Run where transformers is installed: pytest -m oracle tests/python/oracle/test_oracle_encoders.py
"""

import numpy as np
import plait
import pytest
from python.drive import batch, tokens
from python.fusing import assert_fusing_changes_nothing
from python.oracle.oracle import Architecture, Oracle, layer_norm

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of third-party code
]

ALL_HEADS = {"num_key_value_heads": 4, "pad_token_id": 0}


def bert_keys(config):
    return layer_norm()(config) | {"tokenizer.ggml.token_type_count": config.type_vocab_size}


BERT = {
    "bert.embeddings.word_embeddings": "token_embd",
    "bert.embeddings.position_embeddings": "position_embd",
    "bert.embeddings.token_type_embeddings": "token_types",
    "bert.embeddings.LayerNorm": "token_embd_norm",
    "bert.encoder.layer.{i}.attention.self.query": "blk.{i}.attn_q",
    "bert.encoder.layer.{i}.attention.self.key": "blk.{i}.attn_k",
    "bert.encoder.layer.{i}.attention.self.value": "blk.{i}.attn_v",
    "bert.encoder.layer.{i}.attention.output.dense": "blk.{i}.attn_output",
    "bert.encoder.layer.{i}.attention.output.LayerNorm": "blk.{i}.attn_output_norm",
    "bert.encoder.layer.{i}.intermediate.dense": "blk.{i}.ffn_up",
    "bert.encoder.layer.{i}.output.dense": "blk.{i}.ffn_down",
    "bert.encoder.layer.{i}.output.LayerNorm": "blk.{i}.layer_output_norm",
    "bert.pooler.dense": "cls",
    "classifier": "cls.output",
}
NOMIC_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
    "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    "layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
    "layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
    "layers.{i}.post_attention_layernorm": "blk.{i}.attn_output_norm",
    "layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
    "layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
    "layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
    "layers.{i}.post_mlp_layernorm": "blk.{i}.layer_output_norm",
}
MODERN_BERT = {
    "model.embeddings.tok_embeddings": "token_embd",
    "model.embeddings.norm": "token_embd_norm",
    "model.layers.{i}.attn_norm": "blk.{i}.attn_norm",
    "model.layers.{i}.attn.Wqkv": "blk.{i}.attn_qkv",
    "model.layers.{i}.attn.Wo": "blk.{i}.attn_output",
    "model.layers.{i}.mlp_norm": "blk.{i}.ffn_norm",
    "model.layers.{i}.mlp.Wi": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.Wo": "blk.{i}.ffn_down",
    "model.final_norm": "output_norm",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier": "cls.output",
}
THREE_LABELS = {"num_labels": 3}
MODERN_SIZES = {
    **ALL_HEADS, **THREE_LABELS, "num_hidden_layers": 7, "local_attention": 8,
    "classifier_pooling": "mean", "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}  # fmt: skip


def modern_keys(config):
    return {
        "attention.layer_norm_epsilon": config.norm_eps,
        "attention.sliding_window": config.local_attention,
        "rope.freq_base": 1e5,
        "rope.freq_base_swa": 1e3,
        "hidden_activation": config.hidden_activation,
    }


ARCHITECTURES = [
    Architecture("bert", "BertForSequenceClassification", {**ALL_HEADS, **THREE_LABELS}, BERT, keys=bert_keys),
    Architecture("nomic-bert", "NomicBertModel", ALL_HEADS, NOMIC_BERT, keys=bert_keys),
    Architecture("modern-bert", "ModernBertForSequenceClassification", MODERN_SIZES, MODERN_BERT, keys=modern_keys),
    Architecture(
        "modern-bert", "ModernBertForSequenceClassification", {**MODERN_SIZES, "hidden_activation": "silu"},
        MODERN_BERT, keys=modern_keys, label="silu",
    ),
]  # fmt: skip
SENTENCES = [tokens(n, seed=n) for n in (23, 1, 40, 6)]


@pytest.fixture(
    scope="module", params=ARCHITECTURES, ids=lambda a: f"{a.name}-{a.label}".rstrip("-")
)
def oracle(request, tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    arch = request.param
    return Oracle(arch, tmp_path_factory.mktemp("oracle") / f"{arch.name}.gguf")


def embed(oracle, **options):
    model = plait.Model(oracle.path)
    with plait.Context(model, n_ctx=64, n_seq_max=len(SENTENCES), **options) as ctx:
        return ctx.encode(batch(*zip(SENTENCES, range(9), strict=False))).embeddings


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("flash", [True, False])
def test_vectors_of_tokens(oracle, flash):
    want = [oracle.hidden(ids) for ids in SENTENCES]
    assert_close(embed(oracle, flash_attention=flash), np.concatenate(want))


def test_vectors_of_sequences_in_any_microbatch(oracle):
    want = [oracle.hidden(ids).mean(axis=0) for ids in SENTENCES]
    assert_close(embed(oracle, pooling="mean", n_ubatch=7), np.array(want))


def test_scores(oracle):
    if "Classification" not in oracle.arch.model:
        pytest.skip("no head")
    want = [oracle.scores(ids) for ids in SENTENCES]
    assert_close(embed(oracle, pooling="rank"), np.array(want))


def test_fused_plans_give_the_same_bits(oracle):  # S1-16
    assert_fusing_changes_nothing(plait.Model(oracle.path))
