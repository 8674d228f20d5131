"""A shift is the pure rotation by the difference of positions, in every architecture."""

import numpy as np
import plait
import pytest

N_TOKENS, DELTA = 20, 9
# Their hidden states depend on absolute positions, so only the keys of the first layer can be compared.
ABSOLUTE = {"gpt2", "llama4", "mistral3", "starcoder"}
# Rotated by a shift alone, as a stored case of the reference data demands (docs/decisions/0005).
IMITATING = {"starcoder"}
# Weights multiply their keys after the rotation, so no rotation leads from one position to another.
WEIGHTED_AFTER = {"hunyuan-moe"}


def keys_at(model: plait.Model, first: int, shift: int) -> list[np.ndarray]:
    """Return the keys of each layer that stores some, for tokens from position `first` on that were then moved."""
    tokens = np.random.default_rng(1).integers(3, model.n_vocab, N_TOKENS)
    with plait.Context(model, n_ctx=64, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence(tokens, pos=first)
        ctx.decode(batch)
        if shift:
            ctx.kv.seq_add(0, 0, None, shift)
        keys = []
        for layer in range(model.n_layer):
            try:
                keys.append(ctx.kv.keys(layer, 0).copy())
            except plait.UnsupportedError:
                continue  # it stores none
        return keys


def test_moved_keys_are_those_of_their_new_positions(any_model):
    with plait.Context(any_model, n_ctx=64) as ctx:
        if not ctx.kv.can_shift or ctx.kv.kind in ("none", "recurrent", "cross"):
            pytest.skip("no keys of a decoder, or they cannot be shifted")
    if any_model.arch in IMITATING | WEIGHTED_AFTER:
        pytest.skip("see the lists above")
    moved, fresh = keys_at(any_model, 0, DELTA), keys_at(any_model, DELTA, 0)
    if any_model.arch in ABSOLUTE:
        moved, fresh = moved[:1], fresh[:1]
    if any_model.arch == "gpt2":  # its keys hold the vectors of their first positions
        fresh = keys_at(any_model, 0, 0)[:1]
    assert moved
    for layer, (got, want) in enumerate(zip(moved, fresh, strict=True)):
        np.testing.assert_allclose(
            got, want, atol=2e-5 * np.abs(want).max(), err_msg=f"layer {layer}"
        )
