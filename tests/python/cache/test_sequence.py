"""Handles of sequences."""

import gc

import numpy as np
import plait
import pytest
from python.drive import contents, feed, same_bits, tokens
from python.reference_data import model_path


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        yield ctx


def test_ids_are_unused_and_empty(ctx):
    feed(ctx, tokens(3), 1)
    first, second = ctx.sequence(), ctx.sequence()
    assert (first.id, second.id) == (0, 2)
    with pytest.raises(plait.CacheFull):
        ctx.sequence()
    first.close()
    assert ctx.sequence().id == 0


def test_an_id_with_an_encoder_output_is_not_empty(data_dir):
    with plait.Context(plait.Model(model_path(data_dir, "t5")), n_ctx=64, n_seq_max=2) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=0)
        ctx.encode(batch)
        assert ctx.sequence().id == 1
        ctx.kv.clear()
        assert ctx.sequence().id == 0


def test_a_new_sequence_has_no_control_vector(ctx):
    """Also where its id had one while no handle owned it."""
    want = np.array(feed(ctx, tokens(5), 1))
    ctx.kv.clear()
    rows = np.random.default_rng(0).standard_normal((ctx.model.n_layer, ctx.model.n_embd))
    ctx.set_control_vector(rows.astype(np.float32), seq=0)
    assert not same_bits(feed(ctx, tokens(5), 0), want)
    ctx.kv.clear()
    with ctx.sequence() as seq:
        assert seq.id == 0
        assert same_bits(feed(ctx, tokens(5), seq), want)


def test_closing_frees_the_cells_and_the_id(ctx):
    with ctx.sequence() as seq:
        feed(ctx, tokens(5), seq)
        assert (len(seq), seq.pos, ctx.kv.n_used) == (5, 5, 5)
    assert ctx.kv.n_used == 0
    assert seq.closed
    seq.close()
    for use in (
        lambda: seq.id,
        lambda: len(seq),
        lambda: seq.pos,
        lambda: seq.fork(),
        lambda: seq.truncate(0),
    ):
        with pytest.raises(ValueError, match="sequence 0 is closed"):
            use()
    with pytest.raises(ValueError, match="closed"):
        plait.Batch().add(5, seq=seq)


def test_dropping_the_handle_closes_it(ctx):
    seq = ctx.sequence()
    feed(ctx, tokens(5), seq)
    del seq
    gc.collect()
    assert ctx.kv.n_used == 0
    assert ctx.sequence().id == 0


def test_handles_outlive_their_context(tiny):
    ctx = plait.Context(tiny, n_ctx=8)
    seq = ctx.sequence()
    ctx.close()
    with pytest.raises(ValueError, match="closed"):
        len(seq)
    seq.close()
    kept = plait.Context(tiny, n_ctx=8).sequence()
    gc.collect()
    assert kept.pos == 0


def test_an_empty_handle_is_true(ctx):
    seq = ctx.sequence()
    assert seq
    assert (len(seq), seq.pos) == (0, 0)


def test_a_fork_holds_the_same_and_goes_its_own_way(ctx):
    seq = ctx.sequence()
    feed(ctx, tokens(10), seq)
    fork = seq.fork()
    assert (len(fork), fork.pos, ctx.kv.n_used) == (10, 10, 10)
    got = np.array(feed(ctx, tokens(4, 1), fork))
    feed(ctx, tokens(4, 2), seq)
    with plait.Context(ctx.model, n_ctx=64) as fresh:
        assert same_bits(got, feed(fresh, tokens(10) + tokens(4, 1))[10:])


@pytest.mark.parametrize("upto", [0, 3, 10, 99])
def test_a_fork_up_to_a_position_holds_earlier_positions(ctx, upto):
    seq = ctx.sequence()
    feed(ctx, tokens(10), seq)
    fork = seq.fork(upto=upto)
    assert len(fork) == min(upto, 10)


def test_a_failed_fork_releases_its_id(ctx):
    seq = ctx.sequence()
    feed(ctx, tokens(10), seq)
    with pytest.raises(ValueError, match="-1"):
        seq.fork(upto=-1)
    forks = [seq.fork(), seq.fork()]
    with pytest.raises(plait.CacheFull):
        seq.fork()
    assert [fork.id for fork in forks] == [1, 2]


def test_truncate_forgets_the_end(ctx):
    seq = ctx.sequence()
    want = np.array(feed(ctx, tokens(10), seq))
    seq.truncate(99)
    assert len(seq) == 10
    seq.truncate(4)
    assert (len(seq), seq.pos) == (4, 4)
    assert same_bits(feed(ctx, tokens(10)[4:], seq), want[4:])
    seq.truncate(0)
    assert len(seq) == 0
    with pytest.raises(ValueError, match="-2"):
        seq.truncate(-2)


def test_a_rewind_of_attention_feeds_nothing_again(ctx):
    seq = ctx.sequence()
    want = np.array(feed(ctx, tokens(10), seq))
    assert seq.rewind(99) == 0
    assert seq.rewind(4) == 0
    assert (len(seq), seq.pos) == (4, 4)
    assert same_bits(feed(ctx, tokens(10)[4:], seq), want[4:])
    assert seq.rewind(0) == 0
    assert len(seq) == 0
    assert seq.rewind(0) == 0
    with pytest.raises(ValueError, match="-2"):
        seq.rewind(-2)


def test_a_rewind_returns_where_the_sequence_continues(ctx, data_dir):
    feed(ctx, tokens(10), 0)
    ctx.kv.seq_rm(0, 3, 7)
    assert ctx.kv.seq_rewind(0, 5) == ctx.kv.seq_pos_max(0) + 1 == 3
    with plait.Context(plait.Model(model_path(data_dir, "qwen2vl")), n_ctx=64) as image:
        seq = image.sequence()
        batch = plait.Batch()
        batch.add_sequence(tokens(3, n_vocab=200), seq=seq)
        image.decode(batch)
        batch = plait.Batch()
        positions = np.array([[3, 3 + i // 3, 3 + i % 3, 0] for i in range(9)], np.int32)
        batch.add_sequence(tokens(9, n_vocab=200), seq=seq, pos=positions)
        image.decode(batch)
        feed(image, tokens(3, n_vocab=200), seq)
        assert image.kv.seq_rewind(seq, 5) == seq.pos == 6
        assert (seq.rewind(5), seq.pos, len(seq)) == (0, 6, 12)


def test_a_rewind_counts_only_positions_that_the_sequence_held(data_dir):
    with plait.Context(plait.Model(model_path(data_dir, "mamba")), n_ctx=64) as ctx:
        seq = ctx.sequence()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7, 8], seq=seq, pos=10)
        ctx.decode(batch)
        assert (seq.rewind(12), seq.pos) == (2, 0)


@pytest.mark.parametrize("call", ["rewind", "truncate"])
def test_removing_all_positions_keeps_the_output_of_an_encoder(data_dir, call):
    with plait.Context(plait.Model(model_path(data_dir, "t5")), n_ctx=64) as ctx:
        seq = ctx.sequence()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=seq)
        ctx.encode(batch)
        want = np.array(feed(ctx, [3, 4], seq))
        for _ in range(2):
            getattr(seq, call)(0)  # in the second round, no position is stored
        assert same_bits(feed(ctx, [3, 4], seq), want)


@pytest.mark.parametrize("kind", ["unified", "streams"])
def test_a_rewind_returns_to_the_nearest_fork(any_model, kind):
    n_vocab = min(any_model.n_vocab, 288)
    said = tokens(90, 3, n_vocab)
    with plait.Context(any_model, n_ctx=128, n_seq_max=4, kv=kind, n_ubatch=7) as ctx:
        if ctx.kv.kind in ("none", "cross"):
            pytest.skip(f"a {ctx.kv.kind} memory goes on otherwise")
        seq = ctx.sequence()
        want, forks = [], []
        for at in range(0, 90, 30):
            want += list(feed(ctx, said[at : at + 30], seq).copy())
            forks.append(seq.fork())
        for n in (89, 75, 60, 41, 30, 12, 0):
            again = seq.rewind(n)
            assert seq.pos == n - again
            # At worst to the fork before, or to the beginning.
            assert 0 <= again <= n % 30
            got = feed(ctx, said[seq.pos : 90], seq)
            assert same_bits(got, np.array(want[n - again :]).reshape(got.shape))
        for fork in forks:
            fork.close()
        again = seq.rewind(50)
        assert again == (0 if ctx.kv.can_partial_remove else 50) or ctx.kv.kind == "sliding"
        got = feed(ctx, said[seq.pos : 90], seq)
        assert same_bits(got, np.array(want[50 - again :]))


def test_shift_discards_a_middle_and_closes_the_gap(ctx):
    seq = ctx.sequence()
    feed(ctx, tokens(20), seq)
    seq.shift(4, 6)
    assert (len(seq), seq.pos) == (14, 14)
    assert sorted(ctx.kv.cells()["pos"][:, 0].tolist()) == list(range(14))
    got = np.array(feed(ctx, [7], seq))
    ctx.kv.clear()
    feed(ctx, tokens(20), seq)
    ctx.kv.seq_rm(seq, 4, 10)
    ctx.kv.seq_add(seq, 10, None, -6)
    assert same_bits(feed(ctx, [7], seq), got)


def test_shift_beyond_the_end_only_forgets(ctx):
    seq = ctx.sequence()
    feed(ctx, tokens(20), seq)
    seq.shift(15, 50)
    assert (len(seq), seq.pos) == (15, 15)
    seq.shift(3, 0)
    assert len(seq) == 15


@pytest.mark.parametrize(("keep", "discard"), [(-1, 2), (2, -1)])
def test_shift_refuses_negative_numbers(ctx, keep, discard):
    seq = ctx.sequence()
    feed(ctx, tokens(5), seq)
    with pytest.raises(ValueError, match="-1"):
        seq.shift(keep, discard)
    assert len(seq) == 5


@pytest.mark.parametrize("layers", [None, range(2)], ids=["beside full", "only windows"])
def test_a_shift_of_a_window_is_refused_as_a_whole(data_dir, layers):
    """Whether a shift is possible depends on both of its steps, the removal and the move."""
    n = 36
    model = plait.Model(model_path(data_dir, "gemma3"))
    with plait.Context(model, n_ctx=64, layers=layers, threads=1) as ctx:
        with ctx.sequence() as seq:
            feed(ctx, tokens(n, n_vocab=200), seq, logits="none")
            before = ctx.kv.to_bytes(seq)
        outcomes = []
        for keep in range(n):
            for discard in range(1, n + 1 - keep):
                with ctx.sequence() as seq:
                    ctx.kv.from_bytes(before, seq)
                    try:
                        seq.shift(keep, discard)
                    except plait.UnsupportedError:
                        assert ctx.kv.to_bytes(seq) == before, (keep, discard)
                        outcomes.append(False)
                    else:
                        assert seq.pos == n - discard
                        outcomes.append(True)
        assert 100 < sum(outcomes) < len(outcomes) - 100


def test_a_shift_without_room_for_the_copies_changes_nothing(tiny):
    with plait.Context(tiny, n_ctx=16, n_seq_max=2, kv_cells=16) as ctx:
        seq = ctx.sequence()
        feed(ctx, tokens(14), seq)
        fork = seq.fork()
        before = contents(ctx)
        with pytest.raises(plait.CacheFull) as error:
            seq.shift(2, 4)
        assert (error.value.needed, error.value.free) == (8, 2)
        assert contents(ctx) == before
        fork.close()
        seq.shift(2, 4)
        assert len(seq) == 10
