"""Keys of the architectures of 2026: what changes the logits is computed, or refused by name."""

from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.hostile.test_hostile import model_of

from python import gguf_writer

MODELS = ["exaone-moe", "gemma3n-a", "gemma4-a", "gemma4moe-a", "kimi-linear", "lfm2moe-a"]
# Keys that llama.cpp reads for other architectures.
OF_OTHERS = {
    "activation.situ_beta": 2.0, "attention.clamp_kqv": 2.0, "attention.max_alibi_bias": 8.0,
    "attention.output_scale": 0.5, "attention.value_scale": 0.5, "attn_logit_softcapping": 30.0,
    "attn_res.block_size": 2, "embedding_scale": 3.0, "expert_group_scale": 2.0, "expert_latent_length": 32,
    "hidden_activation": "relu", "interleave_moe_layer_step": 2, "kda.gate_lower_bound": -5.0,
    "kda.safe_gate": True, "logit_scale": 0.5, "moe_every_n_layers": 2, "moe_latent_size": 32,
    "residual_scale": 0.5, "rope.dimension_sections": np.array([4, 2, 2, 0], np.int32), "rope.scaling.alpha": 2.0,
    "router_logit_softcapping": 30.0, "swiglu_clamp_exp": 7.0,
}  # fmt: skip


@pytest.fixture
def changed(data_dir, tmp_path):
    """Return a function that writes a stored model with other keys; None removes a key."""

    def write(name: str, weights: dict | None = None, **keys: object) -> Path:
        model = plait.Model(model_of(data_dir, f"2026/{name}"))
        metadata = dict(model.metadata)
        for suffix, value in keys.items():
            metadata.pop(f"{model.arch}.{suffix}", None)
            if value is not None:
                metadata[f"{model.arch}.{suffix}"] = value
        tensors = {tensor: model.tensor(tensor) for tensor in model.tensors} | (weights or {})
        return gguf_writer.write(tmp_path / "model.gguf", metadata, tensors)

    return write


def logits(path: Path) -> np.ndarray:
    with plait.Context(plait.Model(path), n_ctx=64, type_k="f32", type_v="f32") as ctx:
        return feed(ctx, tokens(24)).copy()


@pytest.mark.parametrize("name", MODELS)
def test_keys_of_other_architectures_are_refused(changed, name):
    path = changed(name, **OF_OTHERS)
    with pytest.raises(plait.ModelError, match="could make the logits wrong") as error:
        plait.Model(path)
    for key in OF_OTHERS:
        assert f".{key}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma3n-a", "attention.scale", 0.5),
        ("gemma4-a", "attention.scale", 0.5),
        ("gemma3n-a", "rope.scaling.attn_factor", 1.5),
        ("gemma4-a", "rope.scaling.attn_factor", 1.5),
        ("gemma-embedding-a", "rope.scaling.attn_factor", 1.5),
        ("exaone-moe", "attention.sliding_window", None),
        ("gemma3n-a", "attention.sliding_window", None),
        ("gemma4-a", "attention.sliding_window", None),
        ("exaone-moe", "final_logit_softcapping", 30.0),
        ("kimi-linear", "final_logit_softcapping", 30.0),
        ("lfm2moe-a", "final_logit_softcapping", 30.0),
        ("kimi-linear", "attention.scale", 0.5),
        ("kimi-linear", "attention.sliding_window", 8),
        ("lfm2moe-a", "attention.sliding_window", 8),
        ("lfm2moe-a", "rope.freq_base_swa", 5000.0),
    ],
)
def test_a_key_that_is_not_computed_is_refused(changed, name, key, value):
    with pytest.raises(plait.ModelError, match=rf"{key.replace('.', '[.]')}"):
        plait.Model(changed(name, **{key: value}))


def test_scaling_of_rotations_changes_nothing_without_rotations(changed):
    """Kimi Linear: neither the keys nor the scores have YaRN's magnitude."""
    yarn = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.5,
        "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 0.1,
    }  # fmt: skip
    np.testing.assert_array_equal(
        logits(changed("kimi-linear", **yarn)), logits(changed("kimi-linear"))
    )


def test_the_factor_of_rotations_multiplies_only_what_is_rotated(changed, data_dir):
    """MiniCPM3: a factor of rotations is a factor of the weights of rotated elements, not of scores."""
    factor = np.float32(1.5)
    model = plait.Model(model_of(data_dir, "2026/minicpm3"))
    key = {name: model.metadata[f"minicpm3.{name}"] for name in (
        "attention.head_count", "attention.key_length", "attention.kv_lora_rank", "rope.dimension_count",
    )}  # fmt: skip
    weights = {}
    for i in range(model.n_layer):
        q = model.tensor(f"blk.{i}.attn_q_b.weight").copy()
        heads = q.reshape(key["attention.head_count"], key["attention.key_length"], -1)
        heads[:, -key["rope.dimension_count"] :] *= factor
        kv = model.tensor(f"blk.{i}.attn_kv_a_mqa.weight").copy()
        kv[key["attention.kv_lora_rank"] :] *= factor
        weights |= {f"blk.{i}.attn_q_b.weight": q, f"blk.{i}.attn_kv_a_mqa.weight": kv}
    want = logits(changed("minicpm3", weights))
    got = logits(changed("minicpm3", **{"rope.scaling.attn_factor": float(factor)}))
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    assert np.abs(want - logits(changed("minicpm3"))).max() > 0.01 * np.abs(want).max()
