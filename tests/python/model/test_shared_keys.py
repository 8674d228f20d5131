"""Layers that read the keys and values of earlier ones (Gemma 3n, Gemma 4) store nothing."""

import numpy as np
import plait
import pytest
from python.reference_data import model_path


@pytest.fixture(params=["gemma3n-a", "gemma4-a"])
def sharing(request, data_dir):
    return plait.Model(model_path(data_dir, request.param))


def per_layer(model: plait.Model, suffix: str) -> list:
    value = model.metadata[f"{model.arch}.{suffix}"]
    return list(value) if np.ndim(value) else [value] * model.n_layer


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("f16", 2)])
def test_only_the_first_layers_take_memory(sharing, dtype, width):
    n_owners = sharing.n_layer - sharing.metadata[f"{sharing.arch}.attention.shared_kv_layers"]
    full = sharing.metadata[f"{sharing.arch}.attention.key_length"]
    windowed = sharing.metadata.get(f"{sharing.arch}.attention.key_length_swa", full)
    slides = per_layer(sharing, "attention.sliding_window_pattern")
    heads = per_layer(sharing, "attention.head_count_kv")
    row = sum(2 * heads[i] * (windowed if slides[i] else full) * width for i in range(n_owners))
    with plait.Context(sharing, n_ctx=64, swa_full=True, type_k=dtype, type_v=dtype) as ctx:
        assert ctx.kv.nbytes == 64 * row
        ctx.kv.keys(n_owners - 1, 0)
        with pytest.raises(plait.UnsupportedError):
            ctx.kv.keys(n_owners, 0)


def test_given_embeddings_use_the_padding_tokens_vectors(sharing):
    """A token of number 0, given as its embedding, has the vectors of token 0 in every layer too."""
    table = sharing.tensor("token_embd.weight").astype(np.float32)
    with plait.Context(sharing, n_ctx=64, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence([0, 0, 0], seq=0, logits="all")
        want = ctx.decode(batch).logits.copy()
        ctx.kv.clear()
        batch = plait.Batch()
        batch.add_embeddings(
            np.repeat(table[:1], 3, 0) * np.sqrt(np.float32(sharing.n_embd)), seq=0, logits="all"
        )
        np.testing.assert_allclose(ctx.decode(batch).logits, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_values_whose_width_differs_by_layer_need_no_flash_attention(data_dir, kv):  # S2-28, S1-51
    """Gemma 4 has wider heads in some layers. The first layer stores the same bits, and results agree."""
    model = plait.Model(model_path(data_dir, "gemma4-a"))
    logits, values = [], []
    for flash in (False, True):
        with plait.Context(
            model, n_ctx=64, n_seq_max=2, flash_attention=flash, kv=kv, type_k="f32", type_v="f32"
        ) as ctx:
            batch = plait.Batch()
            batch.add_sequence(list(range(3, 40)), seq=1, logits="all")
            logits.append(ctx.decode(batch).logits.copy())
            values.append([ctx.kv.values(layer, 1) for layer in range(5)])
    widths = [each.shape[2] for each in values[0]]
    assert len(set(widths)) > 1
    assert widths == [each.shape[2] for each in values[1]]
    assert values[0][0].tobytes() == values[1][0].tobytes()
    for one, other in zip(*values, strict=True):
        np.testing.assert_allclose(one[-1], other[-1], atol=1e-4 * np.abs(one).max())
    np.testing.assert_allclose(*logits, atol=1e-4 * np.abs(logits[0]).max())
