"""Embeddings with parts that later layers add (Qwen3-VL), and positions of several axes."""

import numpy as np
import plait
import pytest
from python.reference_data import model_path

N_TOKENS, N_PARTS = 7, 3


@pytest.fixture(params=["qwen3vl-a", "qwen3vlmoe"])
def vision(request, data_dir):
    return plait.Model(model_path(data_dir, request.param))


def context(model):
    return plait.Context(model, n_ctx=32, type_k="f32", type_v="f32")


def batch_of(rows, pos=None):
    batch = plait.Batch()
    batch.add_embeddings(rows.astype(np.float32), seq=0, pos=pos, logits="all")
    return batch


@pytest.fixture
def rows(vision):
    """Embeddings of some tokens and two more parts, which are not zero."""
    tokens = np.random.default_rng(2).integers(3, vision.n_vocab, N_TOKENS)
    first = vision.tensor("token_embd.weight")[tokens]
    more = np.random.default_rng(3).standard_normal((N_TOKENS, (N_PARTS - 1) * vision.n_embd))
    return tokens, np.concatenate([first, more], axis=1)


def test_parts_are_added_after_their_layers(vision, rows):
    tokens, wide = rows
    width = vision.n_embd
    with context(vision) as ctx:
        got = ctx.decode(batch_of(wide)).logits.copy()
    batch = plait.Batch()
    batch.add_sequence(tokens, seq=0, logits="all")
    with context(vision) as ctx:
        plain = ctx.decode(batch).logits.copy()
        ctx.kv.clear()
        with (
            ctx.edit("l_out.0", lambda x: x + wide[:, width : 2 * width].astype(np.float32)),
            ctx.edit("l_out.1", lambda x: x + wide[:, 2 * width :].astype(np.float32)),
        ):
            want = ctx.decode(batch).logits.copy()
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    assert np.abs(want - plain).max() > 1e-2 * np.abs(want).max()


def test_zero_parts_change_nothing(vision, rows):
    tokens, wide = rows
    wide[:, vision.n_embd :] = 0
    with context(vision) as ctx:
        got = ctx.decode(batch_of(wide)).logits.copy()
        ctx.kv.clear()
        batch = plait.Batch()
        batch.add_sequence(tokens, seq=0, logits="all")
        np.testing.assert_array_equal(got, ctx.decode(batch).logits)


def test_each_axis_of_the_positions_counts(vision, rows):
    _, wide = rows
    pos = np.zeros((N_TOKENS, 4), np.int32)
    pos[:, 0] = 5
    pos[:, 1], pos[:, 2] = 5 + np.arange(N_TOKENS) // 3, 5 + np.arange(N_TOKENS) % 3
    with context(vision) as ctx:
        want = ctx.decode(batch_of(wide, pos)).logits.copy()
        for axis in (1, 2):
            ctx.kv.clear()
            other = pos.copy()
            other[:, axis] += np.arange(N_TOKENS)
            assert np.abs(ctx.decode(batch_of(wide, other)).logits - want).max() > 1e-3


def test_rows_of_another_width_are_refused(vision):
    with (
        context(vision) as ctx,
        pytest.raises(ValueError, match="64 elements each, the model expects 192"),
    ):
        ctx.decode(batch_of(np.zeros((2, vision.n_embd))))
