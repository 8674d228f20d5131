"""Caches of block types store the Hadamard transform of heads; what users see are plain keys and values."""

from __future__ import annotations

import numpy as np
import plait
import pytest
from python.vulkan_device import needs_vulkan

from python import gguf_writer

HEAD, OUTLIER, LARGE = 64, 5, 50.0
BLOCK_TYPES = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
BACKENDS = ["cpu", pytest.param("vulkan", marks=needs_vulkan)]
TOKENS = np.random.default_rng(3).integers(3, 32, 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Heads of 64 elements, of which one channel of the keys and one of the values is large."""
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {f"llama.attention.{name}_length": HEAD for name in ("key", "value")}
    metadata["llama.rope.dimension_count"] = HEAD
    weights, rng = gguf_writer.llama_weights(), np.random.default_rng(1)
    width = weights["token_embd.weight"].shape[1]
    for i in range(gguf_writer.N_LAYERS):
        for name, heads in (
            ("q", gguf_writer.N_HEADS),
            ("k", gguf_writer.N_HEADS_KV),
            ("v", gguf_writer.N_HEADS_KV),
        ):
            matrix = rng.standard_normal((heads, HEAD, width)) / np.sqrt(width)
            if name != "q":
                matrix[:, OUTLIER] *= LARGE
            weights[f"blk.{i}.attn_{name}.weight"] = matrix.reshape(-1, width).astype(np.float32)
        out = rng.standard_normal((width, gguf_writer.N_HEADS * HEAD)) / np.sqrt(width * HEAD)
        weights[f"blk.{i}.attn_output.weight"] = out.astype(np.float32)
    path = gguf_writer.write(tmp_path_factory.mktemp("quantised") / "m.gguf", metadata, weights)
    return plait.Model(path)


def cached(model, cache_type, *, backend="cpu", shift=0):
    """Return keys and values of the first layer, [n, heads, HEAD], of TOKENS after a shift."""
    types = {"type_k": cache_type, "type_v": cache_type}
    with plait.Context(model, n_ctx=64, backend=backend, **types) as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS)
        ctx.decode(batch)
        if shift:
            ctx.kv.seq_add(0, 0, None, shift)
        return ctx.kv.keys(0, 0).copy(), ctx.kv.values(0, 0).copy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cache_type", BLOCK_TYPES)
def test_a_large_channel_does_not_drown_the_others(model, cache_type, backend):
    """Rounded as they are, the other channels of a block of 4 bits would all become 0."""
    small = np.arange(HEAD) != OUTLIER
    plain, rounded = cached(model, "f32"), cached(model, cache_type, backend=backend)
    most = {"8": 0.03, "5": 0.25, "4": 0.45}[cache_type.strip("iq")[0]]
    for want, got in zip(plain, rounded, strict=True):
        error = np.sqrt(np.mean((got - want)[..., small] ** 2))
        assert error < most * np.sqrt(np.mean(want[..., small] ** 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_shifted_keys_are_those_of_their_new_positions(model, cache_type, backend):
    moved, values = cached(model, cache_type, backend=backend, shift=9)
    with plait.Context(model, n_ctx=64, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS, pos=9)
        ctx.decode(batch)
        want = ctx.kv.keys(0, 0)
        # Rounded twice, after the transform of a head with a large channel.
        error = np.sqrt(np.mean((moved - want) ** 2) / np.mean(want**2))
        assert error < {"q8_0": 0.02, "q4_0": 0.25}[cache_type]
    np.testing.assert_array_equal(values, cached(model, cache_type, backend=backend)[1])


def test_logits_stay_closer_than_with_plain_rounding(model):
    """The distance of a q4_0 cache from an f32 one is far below that of NumPy's plain rounding of the values."""
    logits = {}
    for cache_type in ("f32", "q8_0", "q4_0"):
        with plait.Context(model, n_ctx=64, type_k=cache_type, type_v=cache_type) as ctx:
            batch = plait.Batch()
            batch.add_sequence(TOKENS, logits="all")
            logits[cache_type] = ctx.decode(batch).logits.copy()
    spread = np.std(logits["f32"])
    assert np.sqrt(np.mean((logits["q8_0"] - logits["f32"]) ** 2)) < 0.05 * spread
    assert np.sqrt(np.mean((logits["q4_0"] - logits["f32"]) ** 2)) < 0.6 * spread


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_states_hold_the_stored_rows(model, cache_type):
    with plait.Context(model, n_ctx=64, type_k=cache_type, type_v=cache_type) as ctx:
        batch = plait.Batch()
        batch.add_sequence(TOKENS)
        ctx.decode(batch)
        keys, state = ctx.kv.keys(0, 0).copy(), ctx.kv.to_bytes()
        assert b"Hadamard transform of 32" in state
        ctx.kv.clear()
        ctx.kv.from_bytes(state)
        np.testing.assert_array_equal(ctx.kv.keys(0, 0), keys)
        assert ctx.kv.to_bytes() == state
