"""T5 against transformers: the same tiny random models, the same logits.

Run where transformers is installed: pytest -m oracle tests/python/oracle/test_oracle_t5.py
"""

import numpy as np
import plait
import pytest
from python.drive import batch, feed, tokens
from python.oracle.oracle import N_VOCAB, randomise

from python import gguf_writer

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of third-party code
]

QUESTIONS = [tokens(n, seed=n) for n in (3, 160, 41)]  # one longer than the farthest bucket
ANSWER = [0, *tokens(30, seed=1)]


def names():
    """Map modules of transformers to stems of tensor names."""
    found = {"shared": "token_embd"}
    for stack, name, feed_at in (("encoder", "enc", 1), ("decoder", "dec", 2)):
        found[f"{stack}.final_layer_norm"] = f"{name}.output_norm"
        for i in range(9):
            layer, there = f"{stack}.block.{i}.layer", f"{name}.blk.{i}"
            found[f"{layer}.0.SelfAttention.relative_attention_bias"] = f"{there}.attn_rel_b"
            found[f"{layer}.0.layer_norm"] = f"{there}.attn_norm"
            found[f"{layer}.1.layer_norm"] = f"{there}.cross_attn_norm"
            for part in "qkvo":
                found[f"{layer}.0.SelfAttention.{part}"] = f"{there}.attn_{part}"
                found[f"{layer}.1.EncDecAttention.{part}"] = f"{there}.cross_attn_{part}"
            block = f"{layer}.{feed_at}"
            found[f"{block}.layer_norm"] = f"{there}.ffn_norm"
            found[f"{block}.DenseReluDense.wi"] = f"{there}.ffn_up"
            found[f"{block}.DenseReluDense.wi_0"] = f"{there}.ffn_gate"
            found[f"{block}.DenseReluDense.wi_1"] = f"{there}.ffn_up"
            found[f"{block}.DenseReluDense.wo"] = f"{there}.ffn_down"
    return found


def metadata(config):
    keys = {
        "block_count": config.num_layers,
        "decoder_block_count": config.num_decoder_layers,
        "context_length": 512,
        "embedding_length": config.d_model,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv,
        "attention.value_length": config.d_kv,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
    }
    return {"general.architecture": "t5"} | {f"t5.{key}": value for key, value in keys.items()}


@pytest.fixture(scope="module", params=["relu", "gated-gelu"])
def t5(request, tmp_path_factory):
    """The model of transformers and the equivalent file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=N_VOCAB, d_model=64, d_kv=24, d_ff=96, num_layers=2, num_decoder_layers=3, num_heads=4,
        tie_word_embeddings=False, feed_forward_proj=request.param,
    )  # fmt: skip
    theirs = transformers.T5ForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        randomise(theirs, torch.Generator().manual_seed(1))
    places = names()
    tensors = {}
    for name, tensor in theirs.state_dict().items():
        if name.endswith("embed_tokens.weight") or name == "lm_head.weight":
            continue  # of the shared embedding
        tensors[places[name.removesuffix(".weight")] + ".weight"] = tensor.numpy()
    path = tmp_path_factory.mktemp("t5") / "t5.gguf"
    gguf_writer.write(path, metadata(config) | gguf_writer.vocabulary(), tensors)
    return theirs, plait.Model(path)


def logits(theirs, question, ids):
    import torch

    with torch.no_grad():
        out = theirs(torch.tensor([question]), decoder_input_ids=torch.tensor([ids]))
    return out.logits[0].numpy()


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_logits_equal_those_of_transformers(t5, flash, kv):  # S4-29
    theirs, ours = t5
    want = [logits(theirs, question, ANSWER) for question in QUESTIONS]
    with plait.Context(
        ours, n_ctx=256, n_seq_max=3, type_k="f32", type_v="f32", kv=kv, flash_attention=flash
    ) as ctx:
        ctx.encode(batch(*((ids, seq) for seq, ids in enumerate(QUESTIONS))))
        got = ctx.decode(batch(*((ANSWER[:20], seq) for seq in range(3)))).logits.reshape(3, 20, -1)
        rest = [np.array(feed(ctx, ANSWER[20:], seq)) for seq in range(3)]
    for seq in range(3):
        np.testing.assert_allclose(
            np.concatenate([got[seq], rest[seq]]), want[seq], atol=1e-4 * np.abs(want[seq]).max()
        )


def test_vectors_of_the_encoder(t5):
    import torch

    theirs, ours = t5
    with torch.no_grad():
        want = theirs.encoder(torch.tensor([QUESTIONS[1]])).last_hidden_state[0].numpy()
    with plait.Context(ours, n_ctx=256, embeddings=True) as ctx:
        got = ctx.encode(batch((QUESTIONS[1], 0))).embeddings
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
