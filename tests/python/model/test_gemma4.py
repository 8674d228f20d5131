"""Gemma 4: which weights a layer may lack, and what the embeddings of an image attend to."""

import numpy as np
import plait
import pytest
from python.hostile.test_hostile import model_of


def without(data: bytes, name: str) -> bytes:
    """Return a model in which a tensor has another name."""
    other = name.replace("attn_v", "attn_x")
    assert data.count(name.encode()) == 1
    return data.replace(name.encode(), other.encode())


def test_only_layers_with_full_attention_may_use_keys_as_values(data_dir, tmp_path):
    data = model_of(data_dir, "2026/gemma4-a").read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(without(data, "blk.0.attn_v.weight"))
    with pytest.raises(plait.ModelError, match=r"blk\.0\.attn_v\.weight"):
        plait.Model(path)
    path.write_bytes(without(data, "blk.1.attn_v.weight"))
    with pytest.raises(plait.ModelError, match=r"blk\.1\.attn_x\.weight"):  # no layer reads it
        plait.Model(path)


def test_images_attend_in_both_directions_only_in_layers_with_a_window(data_dir):
    """As in transformers: a window, and the causal mask or, within an image, no mask."""
    model = plait.Model(model_of(data_dir, "2026/gemma4-a"))
    n_before, n_image = 5, 30
    rows = np.random.default_rng(4).standard_normal((n_image, model.n_embd)).astype(np.float32)
    with plait.Context(model, n_ctx=64, swa_full=True, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence(range(7, 7 + n_before), seq=0)
        ctx.decode(batch)
        batch = plait.Batch()
        batch.add_embeddings(rows, logits="all", both_directions=True)
        with ctx.capture("blk.*.q_rope", "blk.*.attn_heads") as seen:
            ctx.decode(batch)
        n_layers = model.n_layer - model.metadata["gemma4.attention.shared_kv_layers"]
        stored = [(ctx.kv.keys(i, 0), ctx.kv.values(i, 0)) for i in range(n_layers)]
    own = n_before + np.arange(n_image)[:, None]
    key = np.arange(n_before + n_image)[None]
    in_window = key > own - model.metadata["gemma4.attention.sliding_window"]
    slides = model.metadata["gemma4.attention.sliding_window_pattern"]
    assert {bool(slides[i]) for i in range(n_layers)} == {True, False}
    for i, (keys, values) in enumerate(stored):
        q = seen[f"blk.{i}.q_rope"].astype(np.float64)  # [n, heads, head size]
        shared = q.shape[1] // keys.shape[1]
        scores = np.einsum("nhd,khd->hnk", q, keys.repeat(shared, 1))
        scores[:, ~(in_window if slides[i] else key <= own)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("hnk,khd->nhd", p / p.sum(-1, keepdims=True), values.repeat(shared, 1))
        got = seen[f"blk.{i}.attn_heads"].reshape(want.shape)
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
