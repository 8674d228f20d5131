"""Batches: valid and invalid contents."""

import numpy as np
import plait
import pytest
from python.drive import feed, same_bits, tokens


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx:
        yield ctx


def test_len_counts_entries_and_clear_empties():
    batch = plait.Batch()
    assert len(batch) == 0
    batch.add(3)
    batch.add_sequence([4, 5, 6])
    assert len(batch) == 4
    batch.clear()
    assert len(batch) == 0
    batch.add_embeddings(np.zeros((2, 8), np.float32))
    assert len(batch) == 2


def test_a_batch_can_be_decoded_again(ctx):
    batch = plait.Batch()
    batch.add_sequence(tokens(5), seq=2, logits="all")
    first = np.array(ctx.decode(batch).logits)
    ctx.kv.clear()
    assert same_bits(ctx.decode(batch).logits, first)


@pytest.mark.parametrize(
    ("logits", "rows"),
    [
        ("last", [4]),
        ("all", [0, 1, 2, 3, 4]),
        ("none", []),
        ([True, False, True, False, False], [0, 2]),
    ],
)
def test_outputs_are_the_requested_ones(ctx, logits, rows):
    batch = plait.Batch()
    batch.add_sequence(tokens(5), logits=logits)
    out = ctx.decode(batch)
    assert out.indices.tolist() == rows
    assert len(out) == len(rows)
    assert out.logits.shape == (len(rows), 288)


def test_positions_may_start_anywhere_and_go_on(ctx):
    batch = plait.Batch()
    batch.add_sequence(tokens(3), pos=7)
    batch.add(9, pos=10)
    batch.add(9)
    ctx.decode(batch)
    assert sorted(ctx.kv.cells()["pos"][:, 0].tolist()) == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_arrays_of_any_integers_will_do(ctx, dtype):
    ids = np.array(tokens(6, n_vocab=200), dtype)
    want = feed(ctx, ids.tolist(), seq=0)
    batch = plait.Batch.from_arrays(
        ids, np.arange(6, dtype=dtype), np.ones(6, dtype), np.ones(6, bool)
    )
    assert same_bits(ctx.decode(batch).logits, want)
    assert same_bits(feed(ctx, ids, seq=2), want)


def test_from_arrays_equals_add(ctx):
    ids = tokens(12)
    seqs = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0]
    wants = [i % 3 == 1 or i > 9 for i in range(12)]
    one = plait.Batch()
    for token, seq, want in zip(ids, seqs, wants, strict=True):
        one.add(token, seq=seq, logits=want)
    first = np.array(ctx.decode(one).logits)
    ctx.kv.clear()
    pos = [seqs[:i].count(seq) for i, seq in enumerate(seqs)]
    out = ctx.decode(plait.Batch.from_arrays(ids, pos, seqs, wants))
    assert same_bits(out.logits, first)
    assert out.indices.tolist() == [i for i, want in enumerate(wants) if want]


def test_from_arrays_reads_its_arrays_when_decoded(ctx):
    ids = np.array(tokens(5), np.int32)
    wants = np.zeros(5, bool)
    batch = plait.Batch.from_arrays(ids, None, None, wants)
    ids[:] = tokens(5, seed=1)
    wants[2] = True
    out = ctx.decode(batch)
    assert out.indices.tolist() == [2]
    assert same_bits(out.logits[0], feed(ctx, tokens(5, seed=1), seq=1)[2])


def test_from_arrays_outlives_the_names_of_its_arrays(ctx):
    batch = plait.Batch.from_arrays(
        np.array(tokens(400), np.int32)[:8], None, None, np.ones(8, bool)
    )
    junk = [np.full(400, 2**30, np.int32) for _ in range(50)]
    assert ctx.decode(batch).logits.shape == (8, 288)
    del junk


def test_adding_to_a_batch_of_arrays_copies_them_first(ctx):
    ids = np.array(tokens(4), np.int32)
    batch = plait.Batch.from_arrays(ids, np.arange(4), np.zeros((4, 1), int), np.ones(4, bool))
    batch.add(7, logits=True)
    ids[:] = -1
    assert len(batch) == 5
    assert same_bits(ctx.decode(batch).logits, feed(ctx, [*tokens(4), 7], seq=1))


def test_a_token_of_several_sequences_is_computed_once(ctx):
    batch = plait.Batch()
    batch.add_sequence(tokens(4), seq=[0, 1, 3], logits="last")
    out = ctx.decode(batch)
    assert len(out) == 1
    assert ctx.kv.n_used == 4
    assert [ctx.kv.seq_len(seq) for seq in range(4)] == [4, 4, 0, 4]
    ids = np.array([[0, 1, 3, -1], [2, -1, -1, -1]], np.int32)
    ctx.decode(plait.Batch.from_arrays([5, 6], None, ids, [False, False]))
    assert ctx.kv.n_used == 6
    assert [ctx.kv.seq_len(seq) for seq in range(4)] == [5, 5, 1, 5]


@pytest.mark.parametrize("several", [(1, 2), [1, 2], {1, 2}, np.array([1, 2]), range(1, 3)])
def test_several_sequences_come_in_any_collection(ctx, several):
    batch = plait.Batch()
    batch.add(5, seq=several)
    ctx.decode(batch)
    assert [ctx.kv.seq_len(seq) for seq in range(4)] == [0, 1, 1, 0]


def test_handles_go_where_ids_go(ctx):
    with ctx.sequence() as one, ctx.sequence() as other:
        batch = plait.Batch()
        batch.add(5, seq=one)
        batch.add_sequence([6, 7], seq=[one])
        batch.add(5, seq=(other,))
        ctx.decode(batch)
        assert (len(one), len(other)) == (3, 1)


def test_embeddings_are_entries_like_tokens(ctx, tiny):
    ids = tokens(6)
    table = tiny.tensor("token_embd.weight")
    batch = plait.Batch()
    batch.add_embeddings(table[ids[:2]], seq=1, logits="none")
    batch.add_embeddings(table[ids[2:]].astype(np.float64), seq=1, logits="all")
    np.testing.assert_allclose(ctx.decode(batch).logits, feed(ctx, ids)[2:], atol=1e-5)


def test_tokens_and_embeddings_do_not_mix():
    rows = np.zeros((2, 64), np.float32)
    batch = plait.Batch()
    batch.add(5)
    with pytest.raises(plait.BatchError, match="holds tokens"):
        batch.add_embeddings(rows)
    assert len(batch) == 1
    batch.clear()
    batch.add_embeddings(rows)
    for add in (lambda: batch.add(5), lambda: batch.add_sequence([5])):
        with pytest.raises(plait.BatchError, match="holds embeddings"):
            add()
    with pytest.raises(plait.BatchError, match="32 elements"):
        batch.add_embeddings(rows[:, :32])
    assert len(batch) == 2


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, 2**64, -(2**70)])
def test_values_beyond_int32_are_named_and_never_wrap(value):
    batch = plait.Batch()
    for add in (
        lambda: batch.add(value),
        lambda: batch.add(1, pos=value),
        lambda: batch.add(1, seq=value),
        lambda: batch.add(1, seq=[0, value]),
        lambda: batch.add_sequence([1, value]),
        lambda: batch.add_sequence([1], pos=value),
        lambda: batch.add_sequence([1], seq=value),
        lambda: batch.add_embeddings(np.zeros((1, 4), np.float32), seq=value),
        lambda: plait.Batch.from_arrays([value], None, None, [True]),
        lambda: plait.Batch.from_arrays([1], [value], None, [True]),
        lambda: plait.Batch.from_arrays([1], None, [value], [True]),
    ):
        with pytest.raises(plait.BatchError, match=str(value)):
            add()
    assert len(batch) == 0


@pytest.mark.parametrize("wrong", [None, "7", 1.5, object(), [1.5], np.float32(2), b"x"])
def test_wrong_types_are_type_errors_that_name_the_argument(wrong):
    batch = plait.Batch()
    with pytest.raises(TypeError, match="token"):
        batch.add(wrong)
    with pytest.raises(TypeError, match="seq"):
        batch.add(1, seq=wrong)
    with pytest.raises(TypeError, match="tokens"):
        batch.add_sequence(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="pos"):
            batch.add(1, pos=wrong)
    with pytest.raises((TypeError, plait.BatchError), match="logits"):
        batch.add(1, logits=wrong)
    with pytest.raises((TypeError, ValueError), match="logits"):
        batch.add_sequence([1], logits=wrong)
    with pytest.raises(TypeError, match="tokens"):
        plait.Batch.from_arrays(wrong, None, None, [True])
    assert len(batch) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.add(1, pos=-1), "pos: expected at least 0, got -1"),
        (lambda b: b.add(1, pos=[1, 2]), "1 or 4 positions, got 2"),
        (lambda b: b.add(1, seq=[]), "at least one sequence"),
        (lambda b: b.add_sequence([1, 2], pos=[0, -5]), "got -5"),
        (lambda b: b.add_sequence([1, 2], pos=[0]), r"expected the shape \(2,\).*got \(1,\)"),
        (
            lambda b: b.add_sequence([1, 2], pos=np.zeros((2, 3), int)),
            "1 or 4 positions per entry, got 3",
        ),
        (lambda b: b.add_sequence([[1, 2]]), r"expected the shape \(n,\), got \(1, 2\)"),
        (lambda b: b.add_sequence([1, 2], pos=2**31 - 2), "exceed the max position"),
        (lambda b: b.add_sequence([1, 2], logits=[True]), r"expected the shape \(2,\), got \(1,\)"),
        (lambda b: b.add_sequence([1, 2], logits="some"), 'got "some"'),
        (lambda b: b.add_embeddings(np.zeros(4, np.float32)), r"\(n, n_embd\), got \(4,\)"),
        (lambda b: b.add_embeddings(np.zeros((1, 0), np.float32)), "no elements"),
        (lambda b: b.from_arrays([1, 2], [0], None, [True] * 2), "positions"),
        (
            lambda b: b.from_arrays([1, 2], np.zeros((2, 2), int), None, [True] * 2),
            "1 or 4 positions",
        ),
        (lambda b: b.from_arrays([1, 2], None, [0], [True] * 2), "seq_ids"),
        (lambda b: b.from_arrays([1, 2], None, None, [True]), "logits"),
    ],
)
def test_invalid_values_are_refused_and_named(call, message):
    batch = plait.Batch()
    with pytest.raises(ValueError, match=message):
        call(batch)
    assert len(batch) == 0


def test_negative_positions_of_arrays_are_refused_when_they_are_read(ctx):
    positions = np.array([0, 1], np.int32)
    batch = plait.Batch.from_arrays([5, 6], positions, None, [True, True])
    positions[1] = -1
    with pytest.raises(plait.BatchError, match="got -1"):
        ctx.decode(batch)
    positions[1] = 1
    ctx.decode(batch)


def test_arrays_that_shrink_are_refused(ctx):
    wants = np.ones(4, bool)
    batch = plait.Batch.from_arrays(np.array([5, 6, 7, 8], np.int32), None, None, wants)
    wants.resize(2, refcheck=False)
    with pytest.raises(plait.BatchError, match="resized"):
        ctx.decode(batch)


CHANGES = {
    "smaller elements": lambda array: setattr(array, "dtype", np.int8),
    "another byte order": lambda array: setattr(array, "dtype", array.dtype.newbyteorder()),
    "one more axis": lambda array: setattr(array, "shape", (1, *array.shape)),
    "other strides": lambda array: setattr(array, "strides", (0, *array.strides[1:])),
    "fewer rows": lambda array: array.resize((2, *array.shape[1:]), refcheck=False),
    "more rows": lambda array: array.resize((4096, *array.shape[1:]), refcheck=False),
    "no rows": lambda array: array.resize((0, *array.shape[1:]), refcheck=False),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["tokens", "positions", "seq_ids", "logits"])
def test_arrays_that_change_in_place_are_refused(ctx, which, change):
    arrays = {
        "tokens": np.arange(5, 13, dtype=np.int32),
        "positions": np.repeat(np.arange(8, dtype=np.int32)[:, None], 4, axis=1),
        "seq_ids": np.repeat(np.array([[0, -1]], np.int32), 8, axis=0),
        "logits": np.ones(8, bool),
    }
    batch = plait.Batch.from_arrays(**arrays)
    ctx.kv.clear()
    before = arrays[which].dtype, arrays[which].strides
    CHANGES[change](arrays[which])
    if which == "logits" and change == "another byte order":
        assert arrays[which].dtype == before[0]  # of one byte
        assert len(batch) == 8
        return
    # `tokens` alone determines the number of entries.
    wrong = "tokens|logits" if which == "tokens" else which
    for use in (ctx.decode, plait.Batch.to_arrays, lambda b: b.add(5), plait.Batch._repr_html_):
        with pytest.raises(plait.BatchError, match=f"^({wrong}): "):
            use(batch)
    if which == "tokens" and (arrays[which].dtype, arrays[which].strides) != before:
        for use in (len, repr):
            with pytest.raises(
                plait.BatchError, match=r"^tokens: .*(make a new batch|shape \(n,\))"
            ):
                use(batch)
    else:
        assert len(batch) == len(arrays["tokens"])
    batch.clear()
    batch.add_sequence([5, 6])
    assert len(batch) == 2
    ctx.decode(batch)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_positions_per_entry_are_checked_again(ctx):
    positions = np.zeros((4, 4), np.int32)
    tokens, wants = np.array([5, 6, 7, 8], np.int32), np.ones(4, bool)
    batch = plait.Batch.from_arrays(tokens, positions, None, wants)
    positions.resize((4, 3), refcheck=False)
    with pytest.raises(plait.BatchError, match="1 or 4 positions per entry, got 3"):
        ctx.decode(batch)


def test_no_tokens_add_nothing():
    batch = plait.Batch()
    batch.add_sequence([])
    batch.add_sequence(np.zeros(0, np.int64), logits="all")
    assert len(batch) == 0


def test_entries_are_read_back_as_arrays():
    batch = plait.Batch()
    batch.add_sequence([5, 6], seq=[0, 2], logits="all")
    batch.add(7, pos=3, seq=1)
    tokens, positions, sequences, wanted = batch.to_arrays()
    assert tokens.tolist() == [5, 6, 7]
    assert positions.tolist() == [-1, -1, 3]
    assert sequences.tolist() == [[0, 2], [0, 2], [1, -1]]
    assert wanted.tolist() == [True, True, False]
    assert [array.dtype for array in (tokens, positions, sequences, wanted)] == [
        "i4",
        "i4",
        "i4",
        "?",
    ]
    tokens[0] = 99  # a copy
    assert batch.to_arrays()[0][0] == 5

    given = np.array([5, 6], np.int32), np.array([[1, 2, 3, 0], [4, 5, 6, 0]], np.int32)
    batch = plait.Batch.from_arrays(*given, None, np.array([False, True]))
    tokens, positions, sequences, wanted = batch.to_arrays()
    assert (positions == given[1]).all()
    assert sequences.tolist() == [[0], [0]]
    assert plait.Batch.from_arrays(given[0], None, None, [True, True]).to_arrays()[1] is None
    given[1][0, 0] = -5
    with pytest.raises(plait.BatchError, match="positions"):
        batch.to_arrays()

    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    batch = plait.Batch()
    batch.add_embeddings(rows, seq=3)
    embeddings, _, sequences, wanted = batch.to_arrays()
    assert embeddings.dtype == np.float32
    assert (embeddings == rows).all()
    assert sequences.tolist() == [[3], [3]]
    assert wanted.tolist() == [False, True]
    assert [len(array) for array in plait.Batch().to_arrays() if array is not None] == [0, 0, 0]
