"""Attention with a latent cache: which parts are stored, read and rotated."""

import numpy as np
import plait
import pytest
from python.drafting_models import contents
from python.drive import feed, same_bits, tokens
from python.recurrent_models import N_VOCAB, WIDTH, Random
from python.reference_data import model_path
from reference.route import route

from python import gguf_writer

N_LAYERS, HEADS = 2, 4
RANK, N_ROT, PLAIN, VALUE, N_FFN = 20, 8, 12, 16, 64
KEYS = {
    "block_count": N_LAYERS, "embedding_length": WIDTH, "context_length": 256, "vocab_size": N_VOCAB,
    "feed_forward_length": N_FFN, "leading_dense_block_count": N_LAYERS, "attention.head_count": HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5, "attention.kv_lora_rank": RANK, "rope.dimension_count": N_ROT,
}  # fmt: skip
OLD = {"attention.key_length": PLAIN + N_ROT, "attention.value_length": VALUE}
NEW = {
    "attention.key_length": RANK + N_ROT, "attention.value_length": RANK,
    "attention.key_length_mla": PLAIN + N_ROT, "attention.value_length_mla": VALUE,
}  # fmt: skip


def weights(latent):
    random = Random(3)
    all_weights = random.ends()
    for i in range(N_LAYERS):
        kv_b = random.matrix(HEADS, PLAIN + VALUE, RANK)
        of_layer = {
            **random.norm("attn_norm"), **random.norm("ffn_norm"),
            **random.norm("attn_kv_a_norm", width=RANK),
            "attn_q.weight": random.matrix(HEADS * (PLAIN + N_ROT), WIDTH, gain=2.0),
            "attn_kv_a_mqa.weight": random.matrix(RANK + N_ROT, WIDTH, gain=2.0),
            "attn_output.weight": random.matrix(WIDTH, HEADS * VALUE),
            "ffn_gate.weight": random.matrix(N_FFN, WIDTH),
            "ffn_up.weight": random.matrix(N_FFN, WIDTH),
            "ffn_down.weight": random.matrix(WIDTH, N_FFN),
        }  # fmt: skip
        if latent:
            of_layer["attn_k_b.weight"] = kv_b[:, :PLAIN].swapaxes(1, 2)
            of_layer["attn_v_b.weight"] = kv_b[:, PLAIN:]
        else:
            of_layer["attn_kv_b.weight"] = kv_b.reshape(-1, RANK)
        all_weights |= {f"blk.{i}.{name}": x for name, x in of_layer.items()}
    return all_weights


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same model with a latent cache, and in the older form with keys and values of all heads."""
    folder = tmp_path_factory.mktemp("latent")

    def model(latent):
        named = {f"deepseek2.{key}": x for key, x in (KEYS | (NEW if latent else OLD)).items()}
        metadata = {"general.architecture": "deepseek2", **named, **gguf_writer.vocabulary()}
        path = folder / f"{latent}.gguf"
        return plait.Model(gguf_writer.write(path, metadata, weights(latent)))

    return {latent: model(latent) for latent in (True, False)}


@pytest.fixture(params=[True, False], ids=["latent", "old"])
def model(request, models):
    return models[request.param]


def made(model, **options):
    return plait.Context(model, **{"n_ctx": 64, "type_k": "f32", "type_v": "f32", **options})


def test_a_latent_cache_gives_the_results_of_keys_and_values(models):
    ids = tokens(30)
    with made(models[True]) as latent, made(models[False]) as whole:
        want = feed(whole, ids)
        assert want.std() > 0.5
        np.testing.assert_allclose(feed(latent, ids), want, rtol=0, atol=1e-4 * np.abs(want).max())
        assert latent.kv.nbytes == N_LAYERS * 64 * (RANK + N_ROT) * 4
        assert whole.kv.nbytes == N_LAYERS * 64 * HEADS * (PLAIN + N_ROT + VALUE) * 4


def test_values_are_a_part_of_keys(models):
    with made(models[True]) as ctx:
        feed(ctx, tokens(9))
        keys, values = ctx.kv.keys(1, 0), ctx.kv.values(1, 0)
        assert keys.shape == (9, 1, RANK + N_ROT)
        assert same_bits(np.ascontiguousarray(keys[..., :RANK]), values)
    with made(models[False]) as ctx:
        feed(ctx, tokens(9))
        assert ctx.kv.keys(1, 0).shape == (9, HEADS, PLAIN + N_ROT)
        assert ctx.kv.values(1, 0).shape == (9, HEADS, VALUE)


@pytest.mark.parametrize(("cache_type", "tolerance"), [("f32", 1e-4), ("f16", 1e-2), ("q8_0", 0.1)])
def test_only_the_rotated_part_of_a_key_moves(model, cache_type, tolerance):
    ids, more = tokens(20), tokens(4, 1)
    with made(model, type_k=cache_type, type_v=cache_type) as ctx:
        feed(ctx, ids)
        before = ctx.kv.keys(0, 0)
        plain = before.shape[-1] - N_ROT
        ctx.kv.seq_add(0, 0, None, 9)
        after = ctx.kv.keys(0, 0)
        moved = np.abs(after - before).max(axis=(0, 1))
        assert moved[plain:].max() > 0.1
        if cache_type != "q8_0":  # whose blocks hold both parts
            assert moved[:plain].max() == 0
        logits = feed(ctx, more)
    with made(model, type_k=cache_type, type_v=cache_type) as ctx:
        feed(ctx, ids)
        want = feed(ctx, more)
    np.testing.assert_allclose(logits, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize(
    ("gating", "biased", "best"),
    [("softmax", False, 1), ("softmax", True, 2), ("sigmoid", False, 2)],
)
def test_groups_of_experts_are_ranked_as_in_v2_or_v3(data_dir, tmp_path, gating, biased, best):
    """V2 ranks a group by its best expert. V3, which has sigmoids and biases, adds its two best."""
    metadata, tensors = contents(plait.Model(model_path(data_dir, "deepseek2")))
    metadata["deepseek2.expert_group_count"] = 2
    metadata["deepseek2.expert_group_used_count"] = 1
    metadata["deepseek2.expert_gating_func"] = ["softmax", "sigmoid"].index(gating) + 1
    routers = [name for name in tensors if name.endswith(".ffn_gate_inp.weight")]
    for name in routers if biased else []:
        bias = np.zeros(len(tensors[name]), np.float32)
        tensors[name.replace("ffn_gate_inp.weight", "exp_probs_b.bias")] = bias
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, tensors))
    with made(model) as ctx, ctx.capture("router_logits.1", "router.1") as seen:
        feed(ctx, tokens(60, n_vocab=model.n_vocab))
    logits, routes = seen["router_logits.1"], seen["router.1"]

    def chosen(best):
        how = {"gating": gating, "n_groups": 2, "n_groups_used": 1, "group_best": best}
        return route(logits, routes.shape[1], False, 1.0, **how)[0]

    np.testing.assert_array_equal(routes[..., 0], chosen(best))
    assert not np.array_equal(chosen(1), chosen(2))
