"""Recurrent models: their results, and the effect of batches, forks, edits and failures on their state."""

import itertools
import signal
import threading

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens
from python.recurrent_models import MODELS, N_LAYERS


@pytest.fixture(scope="module", params=MODELS, ids=lambda tiny: tiny.arch)
def tiny(request):
    return request.param


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    return plait.Model(tiny.write(tmp_path_factory.mktemp("recurrent") / f"{tiny.arch}.gguf"))


def made(model, **options):
    options = {"n_ctx": 128, "n_seq_max": 6, "type_k": "f32", "type_v": "f32", **options}
    return plait.Context(model, **options)


@pytest.fixture
def ctx(model):
    with made(model) as ctx:
        yield ctx


def alone(model, *parts):
    """Return the logits of the last tokens of a sequence that is decoded alone."""
    with made(model) as ctx:
        for ids in parts[:-1]:
            feed(ctx, ids)
        return feed(ctx, parts[-1]).copy()


# -- what they compute -------------------------------------------------------------------------------


def test_logits_equal_those_of_a_reference(tiny, model, isa):  # S4-15, S4-30
    if tiny.logits is None:
        pytest.skip("compared with transformers and the conformance cases alone")
    ids = tokens(40)
    want = tiny.reference(ids)
    assert 0.5 < want.std() < 10
    with made(model, isa=isa) as ctx:
        np.testing.assert_allclose(feed(ctx, ids), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("n_ubatch", [512, 3, 1])
def test_a_state_is_carried_over_batches(model, n_ubatch):  # S4-30
    ids = tokens(40)
    with made(model, n_ubatch=n_ubatch) as ctx:
        cuts = [0, 1, 2, 7, 8, 21, 40]
        parts = [feed(ctx, ids[a:b]).copy() for a, b in itertools.pairwise(cuts)]
    assert same_bits(np.concatenate(parts), alone(model, ids))


def test_the_kind_of_memory_follows_from_the_layers(tiny, model, ctx):  # S4-16
    assert ctx.kv.kind == tiny.kind
    assert not ctx.kv.can_partial_remove
    assert ctx.kv.nbytes > 0
    with made(model, kv="streams") as streams:
        assert streams.kv.kind == tiny.kind
        assert streams.kv.n_streams == (1 if tiny.kind == "recurrent" else 6)  # S2-40


def test_a_state_does_not_depend_on_later_tokens(model):
    with pytest.raises(plait.UnsupportedError, match="causal=False"):
        made(model, causal=False)


def test_states_need_no_cells_of_the_context(tmp_path):
    mamba = MODELS[0]
    model = plait.Model(mamba.write(tmp_path / "mamba.gguf"))
    with plait.Context(model, n_seq_max=5000) as ctx:  # a million tokens of context each
        assert ctx.n_ctx == 1 << 20
        assert ctx.kv.n_cells == 5000
        feed(ctx, tokens(3), 4999)


# -- several sequences -------------------------------------------------------------------------------


def test_pieces_of_unequal_lengths(model, ctx):
    parts = {0: tokens(19, 1), 1: tokens(1, 2), 2: tokens(7, 3), 4: tokens(12, 4)}
    made_logits = ctx.decode(batch(*((ids, seq) for seq, ids in parts.items()))).logits
    at = 0
    for ids in parts.values():
        assert same_bits(made_logits[at : at + len(ids)], alone(model, ids))
        at += len(ids)
    # Some continue by one or more tokens, one begins, one pauses.
    more = {1: tokens(5, 5), 0: tokens(1, 6), 3: tokens(2, 7), 4: tokens(1, 8)}
    made_logits = ctx.decode(batch(*((ids, seq) for seq, ids in more.items()))).logits
    at = 0
    for seq, ids in more.items():
        before = [parts[seq]] if seq in parts else []
        assert same_bits(made_logits[at : at + len(ids)], alone(model, *before, ids))
        at += len(ids)


def test_the_order_of_tokens_in_a_batch_does_not_matter(model, ctx):
    a, b = tokens(6, 1), tokens(6, 2)
    mixed = plait.Batch()
    for i in range(6):
        mixed.add(b[i], pos=i, seq=1, logits=True)
        mixed.add(a[i], pos=i, seq=0, logits=True)
    logits = ctx.decode(mixed).logits
    assert same_bits(logits[1::2], alone(model, a))
    assert same_bits(logits[0::2], alone(model, b))


@pytest.mark.parametrize("n_ubatch", [512, 4])
def test_tokens_of_several_sequences_become_a_state_that_these_share(model, n_ubatch):
    prefix, ends = tokens(9, 1), [tokens(3 + seq, 10 + seq) for seq in range(3)]
    with made(model, n_ubatch=n_ubatch) as ctx:
        together = batch((prefix, (0, 1, 2)), *((ids, seq) for seq, ids in enumerate(ends)))
        logits = ctx.decode(together).logits
        at = len(prefix)
        for ids in ends:
            assert same_bits(logits[at : at + len(ids)], alone(model, prefix + ids)[len(prefix) :])
            at += len(ids)


def test_forks_share_a_state_until_one_continues(model, ctx):
    prompt, ends = tokens(11), [tokens(4, 10 + seq) for seq in range(3)]
    feed(ctx, prompt, 0)
    used = ctx.kv.n_used
    ctx.kv.seq_cp(0, 1)
    ctx.kv.seq_cp(1, 2)
    assert ctx.kv.n_used == used
    for seq in (1, 0, 2):
        assert same_bits(feed(ctx, ends[seq], seq), alone(model, prompt, ends[seq]))
    ctx.kv.seq_rm(1)
    assert same_bits(feed(ctx, ends[1], 0), alone(model, prompt, ends[0], ends[1]))
    assert same_bits(feed(ctx, ends[1], 1), alone(model, ends[1]))


def test_cells_say_who_holds_a_state(tiny, ctx):
    if tiny.kind != "recurrent":
        pytest.skip("cells are those of its attention")
    feed(ctx, tokens(5), 0)
    feed(ctx, tokens(3), 3)
    ctx.kv.seq_cp(0, 2)
    cells = ctx.kv.cells()
    held = {tuple(np.flatnonzero(cell["seqs"])): int(cell["pos"][0]) for cell in cells}
    assert held == {(0, 2): 4, (3,): 2}
    assert ctx.kv.n_used == 2
    assert ctx.kv.n_free == 4


# -- edits -------------------------------------------------------------------------------------------


def test_a_part_of_a_state_cannot_be_removed_and_trying_does_no_harm(model, ctx):
    ids, more = tokens(12), tokens(3, 1)
    feed(ctx, ids)
    data = ctx.kv.to_bytes()
    for p0, p1 in [(0, 5), (3, 4), (11, None), (1, None)]:
        assert ctx.kv.seq_rm(0, p0, p1) is False
    assert ctx.kv.seq_rm(0, 5, 5) is True
    assert ctx.kv.seq_rm(0, 12, None) is True
    assert ctx.kv.to_bytes() == data
    assert same_bits(feed(ctx, more), alone(model, ids, more))


def test_a_part_of_a_state_cannot_be_copied_and_trying_does_no_harm(model, ctx):
    ids, more = tokens(12), tokens(3, 1)
    feed(ctx, ids)
    feed(ctx, more, 1)
    data = ctx.kv.to_bytes()
    for to in (1, 2):
        with pytest.raises(plait.UnsupportedError, match="as a whole"):
            ctx.kv.seq_cp(0, to, 0, 6)
    assert ctx.kv.to_bytes() == data
    assert same_bits(feed(ctx, more), alone(model, ids, more))


def test_an_emptied_sequence_begins_anew(model, ctx):
    ids = tokens(9)
    feed(ctx, tokens(20, 5))
    assert ctx.kv.seq_rm(0) is True
    assert ctx.kv.seq_pos_max(0) == -1
    assert same_bits(feed(ctx, ids), alone(model, ids))
    ctx.kv.clear()
    assert ctx.kv.n_used == 0
    assert same_bits(feed(ctx, ids), alone(model, ids))


def test_positions_move_and_a_state_does_not_know_them(tiny, model, ctx):
    ids, more = tokens(9), tokens(2, 1)
    feed(ctx, ids)
    ctx.kv.seq_add(0, 0, None, 7)
    assert (ctx.kv.seq_pos_min(0), ctx.kv.seq_pos_max(0)) == (7, 15)
    logits = feed(ctx, more)
    want = alone(model, ids, more)
    if tiny.kind == "recurrent":
        assert same_bits(logits, want)
    else:  # attention depends on position differences, which are the same
        np.testing.assert_allclose(logits, want, rtol=0, atol=1e-3)


def test_layers_of_states_have_no_keys(tiny, ctx):
    feed(ctx, tokens(5))
    if tiny.kind == "hybrid":
        assert ctx.kv.keys(0, 0).shape == ctx.kv.values(0, 0).shape == (5, 2, 16)
        return
    for read in (ctx.kv.keys, ctx.kv.values):
        with pytest.raises(plait.UnsupportedError, match="no keys and values"):
            read(N_LAYERS - 1, 0)


def test_states_lie_where_they_lie(tiny, ctx):  # S3-19
    if tiny.kind == "recurrent":
        feed(ctx, tokens(5), 4)
        assert ctx.kv.defrag() == 0


# -- calls that fail ---------------------------------------------------------------------------------


def test_a_refused_batch_changes_no_state(model, ctx):
    ids, more = tokens(8), tokens(3, 1)
    feed(ctx, ids)
    wrong = plait.Batch()
    for i, token in enumerate(tokens(4, 2)):
        wrong.add(token, pos=8 + i, seq=0, logits=True)
    wrong.add(1, pos=20, seq=0, logits=True)  # a gap
    with pytest.raises(plait.BatchError):
        ctx.decode(wrong)
    assert same_bits(feed(ctx, more), alone(model, ids, more))


def test_a_full_cache_changes_no_state(tiny, model):
    if tiny.kind != "hybrid":
        pytest.skip("states are never full")
    ids, more = tokens(8), tokens(3, 1)
    with made(model, n_ctx=24, n_seq_max=2, kv_cells=24, n_ubatch=5) as ctx:
        feed(ctx, ids)
        feed(ctx, ids, 1)
        with pytest.raises(plait.CacheFull):
            feed(ctx, tokens(9, 3))
        assert same_bits(feed(ctx, more), alone(model, ids, more))


class StopError(Exception):
    pass


def test_a_call_that_ends_in_the_middle_leaves_the_state_before_it(model):  # S4-08
    """Microbatches before the signal wrote states; the next call does not read them."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive at the main thread")

    def stop(*_):
        raise StopError

    ids, more = tokens(8), tokens(3, 1)
    with made(model, n_ctx=20000, n_batch=20000, n_ubatch=2, threads=1) as ctx:
        feed(ctx, ids, 0)
        ctx.kv.seq_cp(0, 1)
        long = batch((tokens(9000, 3), 0), (tokens(9000, 4), 1), logits="none")
        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            with pytest.raises(StopError):
                ctx.decode(long)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert ctx.kv.seq_pos_max(0) == ctx.kv.seq_pos_max(1) == 7
        for seq in (0, 1):
            assert same_bits(feed(ctx, more, seq), alone(model, ids, more))


# -- what else a context does ------------------------------------------------------------------------


def test_encode_starts_empty_and_stores_nothing(model):
    ids, more = tokens(8), tokens(6, 1)
    with made(model, embeddings=True) as ctx:
        feed(ctx, ids)
        encoded = ctx.encode(batch((more, 0))).embeddings.copy()
        assert same_bits(ctx.encode(batch((more, 3))).embeddings, encoded)
        assert ctx.kv.seq_pos_max(0) == 7
        assert same_bits(feed(ctx, more), alone(model, ids, more))
    with made(model, embeddings=True) as ctx:
        assert same_bits(ctx.decode(batch((more, 0))).embeddings, encoded)


def test_plans_are_reused_as_with_keys(model):  # S0-23, S1-10
    with made(model) as ctx:
        for seq in range(4):
            feed(ctx, tokens(5, seq), seq)
        ctx.stats.reset()
        for i in range(60):
            pair = [(0, 1), (2, 3), (0, 2)][i % 3]
            ctx.decode(batch(*((tokens(1, i), seq) for seq in pair)))
        assert ctx.stats.plans_reused >= 59


def test_prompts_are_continued_together(model):
    prompts, n = ["the hat", "in the end", "a"], 8
    want = []
    for prompt in prompts:
        ids, said = model.tokenizer.encode(prompt).tolist(), []
        with made(model) as ctx:
            row = feed(ctx, ids)[-1]
            while len(said) < n and not (said and said[-1] in model.tokenizer.eog):
                said.append(int(row.argmax()))
                row = feed(ctx, said[-1:])[-1]
        want.append(said)
    with made(model, n_seq_max=2) as ctx:
        said = [[] for _ in prompts]
        for event in plait.generate(ctx, prompts, max_tokens=n):
            said[event.index].append(event.token)
        assert ctx.kv.n_used == 0
    assert said == want


def test_a_sequence_goes_back_to_a_fork(model):
    ids, more = tokens(9), tokens(3, 1)
    with made(model) as ctx:
        seq = ctx.sequence()
        feed(ctx, ids, seq)
        with seq.fork(), pytest.raises(plait.UnsupportedError):
            seq.truncate(4)
        with seq.fork():
            feed(ctx, tokens(5, 2), seq)
            assert seq.rewind(9) == 0  # tokens to feed again
            assert same_bits(feed(ctx, more, seq), alone(model, ids, more))
        assert seq.rewind(9) == 9  # a state without forks can only be removed as a whole
        assert seq.pos == 0
