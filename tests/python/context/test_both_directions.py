"""Embeddings that attend to later embeddings of the same batch, in contexts that are otherwise causal."""

import numpy as np
import plait
import pytest
from python.reference_data import model_path

WIDE = {"n_ctx": 64, "type_k": "f32", "type_v": "f32"}


def rows_of(model, n=6):
    return np.random.default_rng(4).standard_normal((n, model.n_embd)).astype(np.float32)


def decode(ctx, rows, *, both=False, prefix=(5,), after=(7, 8)):
    """Return the logits of tokens, embeddings, and tokens again, each in a call of its own."""
    found = []
    for add in (
        lambda batch: batch.add_sequence(prefix, logits="all"),
        lambda batch: batch.add_embeddings(rows, logits="all", both_directions=both),
        lambda batch: batch.add_sequence(after, logits="all"),
    ):
        batch = plait.Batch()
        add(batch)
        found.append(ctx.decode(batch).logits.copy())
    return found


@pytest.mark.parametrize("name", ["gemma3", "llama-gqa", "qwen2"])
def test_embeddings_see_later_ones_and_tokens_do_not(data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    rows = rows_of(model)
    with plait.Context(model, **WIDE) as ctx:
        got = decode(ctx, rows, both=True)
    with plait.Context(model, **WIDE) as ctx:
        causal = decode(ctx, rows)
    with plait.Context(model, causal=False, **WIDE) as ctx:
        want = decode(ctx, rows, after=(7,))
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[2][0], want[2][0])
    assert np.abs(got[1] - causal[1]).max() > 1e-4


def test_sequences_do_not_see_each_other(tiny):
    rows = rows_of(tiny, 8)
    with plait.Context(tiny, n_seq_max=2, **WIDE) as ctx:
        batch = plait.Batch()
        for seq in (0, 1):
            batch.add_embeddings(rows[4 * seq :][:4], seq=seq, logits="all", both_directions=True)
        both = ctx.decode(batch).logits.copy()
    for seq in (0, 1):
        with plait.Context(tiny, **WIDE) as ctx:
            batch = plait.Batch()
            batch.add_embeddings(rows[4 * seq :][:4], logits="all", both_directions=True)
            np.testing.assert_array_equal(ctx.decode(batch).logits, both[4 * seq :][:4])


@pytest.mark.parametrize("causal", [False, None])
def test_shared_entries_do_not_see_those_of_one_sequence(tiny, causal):
    """The keys of a shared entry would bring what it saw of one sequence to the other."""
    rows = rows_of(tiny, 6)

    def add(batch, some, seq):
        batch.add_embeddings(some, seq=seq, logits="all", both_directions=causal is None)

    with plait.Context(tiny, n_seq_max=3, causal=causal, **WIDE) as ctx:
        batch = plait.Batch()
        add(batch, rows[:2], (0, 1))
        add(batch, rows[2:4], 0)
        with pytest.raises(plait.BatchError, match="sequence 0 shares some of its tokens"):
            ctx.decode(batch)
        assert ctx.kv.n_used == 0
        batch = plait.Batch()
        add(batch, rows[:4], (0, 1))
        add(batch, rows[4:], 2)
        got = ctx.decode(batch).logits.copy()
    for part, seq in ((slice(4), 1), (slice(4, 6), 0)):
        with plait.Context(tiny, n_seq_max=2, causal=causal, **WIDE) as ctx:
            batch = plait.Batch()
            add(batch, rows[part], seq)
            np.testing.assert_array_equal(ctx.decode(batch).logits, got[part])


def test_a_causal_encoder_reads_whole_sequences(data_dir):
    """Its layers store nothing, so a sequence is never cut, whatever n_ubatch is."""
    model = plait.Model(model_path(data_dir, "bert"))
    ids = np.arange(10, 20)
    found = []
    for n_ubatch in (4, 512):
        with plait.Context(model, n_ctx=32, n_seq_max=2, causal=True, n_ubatch=n_ubatch) as ctx:
            batch = plait.Batch()
            batch.add_sequence(ids, logits="all")
            batch.add_sequence(ids[:3], seq=1, logits="all")
            found.append(ctx.encode(batch).embeddings.copy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["gemma3", "qwen2vl"])
def test_it_is_recorded(data_dir, tmp_path, name):
    """Also with several positions for each entry, and entries of two sequences."""
    model = plait.Model(model_path(data_dir, name))
    rows = rows_of(model, 9)
    batch = plait.Batch()
    batch.add_embeddings(rows[:4], seq=[0, 1], logits="all", both_directions=True)
    batch.add_embeddings(rows[4:6], seq=[0, 1], pos=4, logits="all", both_directions=True)
    pos = np.array([[3, y, x, 0] for y in (3, 4) for x in (3, 4)][:3], np.int32)
    batch.add_embeddings(
        rows[6:], seq=2, pos=pos if name == "qwen2vl" else 3, logits="all", both_directions=True
    )
    with plait.Context(model, n_seq_max=3, **WIDE) as ctx, ctx.record() as receipt:
        ctx.decode(batch)
        causal = plait.Batch()
        causal.add_embeddings(rows[:3], seq=0, logits="all")
        ctx.decode(causal)
    receipt.save(tmp_path / "run.json")
    plait.verify(tmp_path / "run.json", model)
    first, second = (call["args"]["batch"]["batch"] for call in receipt.calls)
    assert first["both_directions"] is True
    assert "both_directions" not in second
    del first["both_directions"]
    with pytest.raises(plait.VerificationError) as caught:
        plait.verify(receipt, model)
    assert caught.value.call == 0
    first["both_directions"] = "yes"
    with pytest.raises(plait.VerificationError, match="both_directions"):
        plait.verify(receipt, model)


def test_a_copy_of_the_arrays_gives_the_same_logits(tiny):
    batch = plait.Batch()
    assert batch.both_directions is False
    batch.add_embeddings(rows_of(tiny), seq=1, logits="all", both_directions=True)
    assert batch.both_directions is True
    rows, _, sequences, wants = batch.to_arrays()
    copy = plait.Batch()
    copy.add_embeddings(rows, seq=sequences[0], logits=wants, both_directions=batch.both_directions)
    found = []
    for each in (batch, copy):
        with plait.Context(tiny, n_seq_max=2, **WIDE) as ctx:
            found.append(ctx.decode(each).logits)
    np.testing.assert_array_equal(*found)
    batch.clear()
    assert batch.both_directions is False
    tokens = np.array([5], np.int32)
    assert plait.Batch.from_arrays(tokens, None, None, [True]).both_directions is False


def test_a_batch_has_one_direction(tiny):
    batch = plait.Batch()
    batch.add_embeddings(rows_of(tiny), both_directions=True)
    with pytest.raises(plait.BatchError, match="both_directions is False"):
        batch.add_embeddings(rows_of(tiny))
    batch.clear()
    batch.add_embeddings(rows_of(tiny))
    with pytest.raises(TypeError, match="both_directions"):
        batch.add_embeddings(rows_of(tiny), both_directions="yes")


def test_more_embeddings_than_a_microbatch_are_refused(tiny):
    with plait.Context(tiny, n_ubatch=4, **WIDE) as ctx:
        batch = plait.Batch()
        batch.add_embeddings(rows_of(tiny, 5), both_directions=True)
        with pytest.raises(plait.BatchError, match="5 entries, but n_ubatch is 4"):
            ctx.decode(batch)
        assert ctx.kv.n_used == 0


def test_recurrent_models_refuse(data_dir):
    model = plait.Model(model_path(data_dir, "mamba"))
    with plait.Context(model, n_ctx=64) as ctx:
        batch = plait.Batch()
        batch.add_embeddings(rows_of(model), both_directions=True)
        with pytest.raises(plait.UnsupportedError, match="recurrent"):
            ctx.decode(batch)
