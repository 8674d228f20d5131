"""Attention sinks and Self-Extend, down to the cached keys."""

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.reference_data import model_path


def positions(ctx, seq=0):
    cells = ctx.kv.cells()
    return np.sort(cells["pos"][cells["seqs"][:, seq]][:, 0])


def key_at(model, token, pos):
    """Return the first layer's key of a token at a position; it depends on nothing else."""
    with plait.Context(model, n_ctx=4, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add(token, pos=pos)
        ctx.decode(batch)
        return ctx.kv.keys(0, 0)[0]


def test_sinks_stay_and_later_tokens_move_down(tiny):
    ids = tokens(40)
    with plait.Context(tiny, n_ctx=40, type_k="f32", type_v="f32") as ctx, ctx.sequence() as seq:
        feed(ctx, ids[:39], seq)
        assert plait.attention_sinks(seq, 40) == 0
        feed(ctx, ids[39:], seq)
        before = ctx.kv.keys(0, 0)
        assert plait.attention_sinks(seq, 40) == 18
        assert positions(ctx).tolist() == list(range(22))
        kept = [*range(4), *range(22, 40)]
        after = ctx.kv.keys(0, 0)
        np.testing.assert_array_equal(after[:4], before[:4])
        for place, old in enumerate(kept):
            np.testing.assert_allclose(after[place], key_at(tiny, ids[old], place), atol=2e-5)
        assert plait.attention_sinks(seq, 22, sinks=2, discard=5) == 5
        assert seq.pos == 17


def test_generation_is_unbounded_with_sinks(demo_model):
    """Over three times n_ctx the loss rises (2.5 with full context), but stays bounded."""
    sampler = plait.Sampler(temperature=0.7, banned=demo_model.tokenizer.eog, seed=1)
    (one,) = plait.complete(demo_model, "Once upon a time", 450, sampler)
    ids = one.tokens
    with plait.Context(demo_model, n_ctx=128) as ctx, ctx.sequence() as seq:
        total = 0.0
        for i, token in enumerate(ids[:-1]):
            plait.attention_sinks(seq, 128)
            row = feed(ctx, [token], seq)[-1].astype(np.float64)
            row -= row.max()
            total += row[ids[i + 1]] - np.log(np.exp(row).sum()) if i >= 149 else 0
        assert seq.pos <= 128
    assert 2 < np.exp(-total / 300) < 8


@pytest.mark.parametrize(("group", "width"), [(2, 8), (4, 8), (4, 16)])
def test_old_tokens_share_positions(tiny, group, width):
    ids = tokens(70)
    want, grouped = [], 0
    with plait.Context(tiny, n_ctx=80, type_k="f32", type_v="f32") as ctx, ctx.sequence() as seq:
        extend = plait.SelfExtend(ctx, seq, group, width)
        for token in ids:
            feed(ctx, [token], seq)
            want.append(want[-1] + 1 if want else 0)
            # The definition: blocks of `width` positions after what is grouped, each position p -> p // group.
            while want[-1] + 1 >= grouped + width:
                block = [i for i, p in enumerate(want) if grouped <= p < grouped + width]
                saved = width - width // group
                want = [
                    p if i < block[0] else grouped + (p - grouped) // group if i in block else p - saved
                    for i, p in enumerate(want)
                ]  # fmt: skip
                grouped += width // group
            extend.update()
            assert positions(ctx).tolist() == want
        assert extend.n_grouped == grouped
        assert seq.pos < 70 // group + width
        keys = ctx.kv.keys(0, 0)
        by_position = sorted(range(70), key=lambda i: want[i])
        for place, i in enumerate(by_position):
            np.testing.assert_allclose(keys[place], key_at(tiny, ids[i], want[i]), atol=5e-5)


def test_a_grouping_without_room_for_copies_changes_nothing(tiny):
    """The 20 free cells are enough to copy the 16 grouped tokens, but not the 8 later ones."""
    ids = tokens(24)
    options = {"n_ctx": 44, "kv_cells": 44, "n_seq_max": 2, "type_k": "f32", "type_v": "f32"}
    with plait.Context(tiny, **options) as ctx, ctx.sequence() as seq:
        feed(ctx, ids, seq)
        keys = ctx.kv.keys(0, seq.id)
        extend = plait.SelfExtend(ctx, seq, group=4, width=16)
        with seq.fork():
            for _ in range(2):
                with pytest.raises(plait.CacheFull):
                    extend.update()
                assert positions(ctx, seq.id).tolist() == list(range(24))
                assert (extend.n_grouped, seq.pos) == (0, 24)
            np.testing.assert_array_equal(ctx.kv.keys(0, seq.id), keys)
        assert extend.update() == 12
        want = [place // 4 if place < 16 else place - 12 for place in range(24)]
        assert positions(ctx, seq.id).tolist() == want
        for key, token, pos in zip(ctx.kv.keys(0, seq.id), ids, want, strict=True):
            np.testing.assert_allclose(key, key_at(tiny, token, pos), atol=5e-5)


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "qwen2vl"])
def test_contexts_that_cannot_move_old_tokens_are_refused(data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    with (
        plait.Context(model, n_ctx=64) as ctx,
        ctx.sequence() as seq,
        pytest.raises(plait.UnsupportedError, match="SelfExtend"),
    ):
        plait.SelfExtend(ctx, seq, 4, 16)


def test_keys_of_sliding_windows_are_grouped_if_all_are_kept(data_dir):
    model = plait.Model(model_path(data_dir, "gemma3"))
    with plait.Context(model, n_ctx=64, swa_full=True) as ctx, ctx.sequence() as seq:
        extend = plait.SelfExtend(ctx, seq, 4, 16)
        feed(ctx, tokens(60), seq)
        assert extend.update() == 36
        assert seq.pos == 24


@pytest.mark.parametrize(("group", "width"), [(1, 8), (4, 2), (4, 10), (0, 0)])
def test_invalid_groups_are_refused(tiny, group, width):
    with (
        plait.Context(tiny, n_ctx=8) as ctx,
        ctx.sequence() as seq,
        pytest.raises(ValueError, match="group is"),
    ):
        plait.SelfExtend(ctx, seq, group, width)


def test_invalid_sinks_are_refused(tiny):
    with plait.Context(tiny, n_ctx=20) as ctx, ctx.sequence() as seq:
        feed(ctx, tokens(10), seq)
        for sinks, discard in [(-1, 2), (4, 0), (4, 7)]:
            with pytest.raises(ValueError, match="attention_sinks"):
                plait.attention_sinks(seq, 10, sinks, discard)
        assert seq.pos == 10
