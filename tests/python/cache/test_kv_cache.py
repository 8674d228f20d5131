"""Cache operations, compared with plain Python lists and checked through attention."""

from collections import Counter

import numpy as np
import plait
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python.drive import batch, contents, feed, same_bits, tokens
from python.reference_data import model_path
from reference.cache_model import CacheModel, Entry, Full, Refused

from python import gguf_writer

N_CTX, N_SEQ = 12, 3
KINDS = ["unified", "streams"]


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, type_k="f32", type_v="f32") as ctx:
        yield ctx


def test_the_cache_is_an_object_with_its_operations_and_figures(ctx):  # S4-02
    kv = ctx.kv
    assert isinstance(kv, plait.KVCache)
    assert (kv.kind, kv.n_streams, kv.n_seq_max) == ("unified", 1, 4)
    assert (kv.n_cells, kv.n_used, kv.n_free) == (256, 0, 256)
    assert (
        kv.nbytes == 256 * 2 * (2 * 2 * 16) * 4
    )  # rows, layers, keys and values of two heads, float32
    assert kv.can_shift
    assert kv.can_partial_remove
    feed(ctx, tokens(5), 1)
    assert (kv.n_used, kv.n_free) == (5, 251)
    assert [(kv.seq_pos_min(s), kv.seq_pos_max(s), kv.seq_len(s)) for s in range(2)] == [
        (-1, -1, 0),
        (0, 4, 5),
    ]
    kv.clear()
    assert kv.n_used == 0


def results_alone(model, history, encoded):
    """The logits of the last token of a sequence that a context of its own has decoded in one call."""
    with plait.Context(model, n_ctx=64) as ctx:
        if encoded:
            ctx.encode(batch((encoded, 0), logits="none"))
        return feed(ctx, history, logits="last")[0].copy()


def test_encode_holds_a_batch_that_exceeds_n_ctx(data_dir):
    """Tokens that all sequences share count once for each; bloom has an input of the positions of all keys."""
    model = plait.Model(model_path(data_dir, "bloom"))
    shared, n_seqs = tokens(60), 16
    wide = plait.Batch()
    for token in shared:
        wide.add(token, seq=tuple(range(n_seqs)), logits=False)
    for seq in range(n_seqs):
        wide.add(60 + seq, seq=seq, logits=True)
    with plait.Context(model, n_ctx=16, n_batch=128, n_seq_max=n_seqs) as ctx:
        got = ctx.encode(wide).logits.copy()
    alone = [results_alone(model, [*shared, 60 + seq], None) for seq in range(n_seqs)]
    assert same_bits(got, np.stack(alone))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_memory_and_graph_keeps_the_same_contract(any_model, kind):  # S4-01
    """Prompts, a joint step, a fork, an end and a new start: each result is that of the sequence alone."""
    n_vocab = min(any_model.n_vocab, 288)

    def some(n, seed):
        return tokens(n, seed, n_vocab)

    with plait.Context(any_model, n_ctx=64, n_seq_max=3, kv=kind) as ctx:
        if ctx.kv.kind == "none":
            wanted = ctx.encode(batch((some(9, 1), 0), (some(4, 2), 1))).embeddings.copy()
            assert same_bits(ctx.encode(batch((some(9, 1), 2))).embeddings, wanted[:9])
            assert (ctx.kv.n_used, ctx.kv.seq_len(0)) == (0, 0)
            return
        source = some(6, 3) if ctx.kv.kind == "cross" else None
        if source:
            ctx.encode(batch(*((source, seq) for seq in range(3)), logits="none"))
        history = {0: some(9, 1), 1: some(4, 2)}
        ctx.decode(batch(*((ids, seq) for seq, ids in history.items()), logits="none"))

        def joint_step(seed):
            seqs = sorted(history)
            more = {seq: some(1, seed + seq) for seq in seqs}
            got = ctx.decode(batch(*((more[seq], seq) for seq in seqs))).logits.copy()
            for row, seq in zip(got, seqs, strict=True):
                history[seq] = history[seq] + more[seq]
                assert same_bits(row, results_alone(any_model, history[seq], source)), seq
                assert ctx.kv.seq_pos_max(seq) == len(history[seq]) - 1

        joint_step(10)
        ctx.kv.seq_cp(0, 2)
        history[2] = history[0]
        joint_step(20)
        if not source:  # the end of a decoded sequence is the end of what it reads, too
            assert ctx.kv.seq_rm(1)
            assert ctx.kv.seq_pos_max(1) == -1
            history[1] = []
        joint_step(30)
        ctx.kv.seq_keep(2)
        history = {2: history[2]}
        joint_step(40)
        ctx.kv.clear()
        assert (ctx.kv.n_used, ctx.kv.seq_len(2)) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_cache_knows_its_kind(tiny, kind):  # S4-01
    """The same calls on both kinds give the same results."""
    want = None
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv=kind) as ctx:
        assert ctx.kv.kind == kind
        feed(ctx, tokens(20), 0)
        ctx.kv.seq_cp(0, 1, 0, 12)
        ctx.kv.seq_rm(1, 4, 8)
        ctx.kv.seq_add(1, 8, None, -4)
        got = ctx.decode(
            batch((tokens(5, 1), 0), (tokens(5, 2), 1), (tokens(5, 3), 2))
        ).logits.copy()
        ctx.kv.seq_keep(1)
        assert [ctx.kv.seq_len(seq) for seq in range(3)] == [0, 13, 0]
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        feed(ctx, tokens(20), 0)
        ctx.kv.seq_cp(0, 1, 0, 12)
        ctx.kv.seq_rm(1, 4, 8)
        ctx.kv.seq_add(1, 8, None, -4)
        want = ctx.decode(batch((tokens(5, 1), 0), (tokens(5, 2), 1), (tokens(5, 3), 2))).logits
        assert same_bits(got, want)


def test_cells_are_a_structured_array(ctx):
    feed(ctx, tokens(3), 2)
    ctx.kv.seq_cp(2, 0, 1, 3)
    cells = ctx.kv.cells()
    assert cells.dtype.names == ("row", "stream", "pos", "shift", "seqs")
    assert cells["pos"].shape == (3, 1)
    assert cells["seqs"].shape == (3, 4)
    assert cells["seqs"].dtype == bool
    by_position = np.sort(cells, order="pos")
    assert by_position["pos"][:, 0].tolist() == [0, 1, 2]
    assert (
        by_position["seqs"].tolist()
        == [[False, False, True, False]] + [[True, False, True, False]] * 2
    )
    assert len(set(cells["row"].tolist())) == 3
    assert cells["shift"].tolist() == [0, 0, 0]
    ctx.kv.clear()
    assert ctx.kv.cells().shape == (0,)


def test_cells_of_streams_say_which(tiny):
    with plait.Context(tiny, n_ctx=8, n_seq_max=3, kv="streams") as ctx:
        for seq in range(3):
            feed(ctx, tokens(2), seq)
        cells = ctx.kv.cells()
        assert sorted(cells["stream"].tolist()) == [0, 0, 1, 1, 2, 2]
        for cell in cells:
            assert np.flatnonzero(cell["seqs"]).tolist() == [cell["stream"]]


def projected(layer_input, name):
    """Return keys or values of layer 0 before rotation: (n, heads, dim)."""
    weights = gguf_writer.llama_weights()
    x = weights["token_embd.weight"][layer_input].astype(np.float64)
    x = (
        x
        / np.sqrt((x**2).mean(axis=-1, keepdims=True) + gguf_writer.EPSILON)
        * weights["blk.0.attn_norm.weight"]
    )
    return (x @ weights[f"blk.0.attn_{name}.weight"].T).reshape(
        len(layer_input), gguf_writer.N_HEADS_KV, -1
    )


def rotated(keys, positions):
    from reference.models.llama import rope

    return rope(keys, np.asarray(positions), gguf_writer.ROPE_BASE)


def test_keys_and_values_are_read_by_position(ctx):
    ids = tokens(6)
    feed(ctx, tokens(3, 9), 0)
    feed(ctx, ids, 1)
    keys, values = ctx.kv.keys(0, 1), ctx.kv.values(0, 1)
    assert keys.shape == values.shape == (6, 2, 16)
    assert keys.dtype == np.float32
    np.testing.assert_allclose(keys, rotated(projected(ids, "k"), range(6)), atol=1e-4)
    np.testing.assert_allclose(values, projected(ids, "v"), atol=1e-4)
    assert ctx.kv.keys(1, 3).shape == (0, 2, 16)
    with pytest.raises(IndexError, match="layer 2"):
        ctx.kv.keys(2, 0)


def test_shifted_keys_equal_those_of_their_new_positions(ctx):
    ids = tokens(10)
    feed(ctx, ids, 0)
    before = ctx.kv.values(0, 0)
    ctx.kv.seq_add(0, 4, None, 7)
    assert sorted(set(ctx.kv.cells()["shift"].tolist())) == [0, 7]
    positions = [*range(4), *range(11, 17)]
    np.testing.assert_allclose(
        ctx.kv.keys(0, 0), rotated(projected(ids, "k"), positions), atol=1e-4
    )
    assert same_bits(ctx.kv.values(0, 0), before)
    assert (ctx.kv.seq_pos_min(0), ctx.kv.seq_pos_max(0)) == (0, 16)


def test_divided_keys_equal_those_of_their_new_positions(ctx):
    ids = tokens(10)
    feed(ctx, ids, 0)
    ctx.kv.seq_div(0, 0, None, 3)
    positions = [p // 3 for p in range(10)]
    assert sorted(ctx.kv.cells()["pos"][:, 0].tolist()) == positions
    np.testing.assert_allclose(
        ctx.kv.keys(0, 0), rotated(projected(ids, "k"), positions), atol=1e-4
    )


def test_going_back_is_as_if_the_rest_had_never_been(ctx):
    want = np.array(feed(ctx, tokens(20), 0))
    feed(ctx, tokens(30, 1), 0)
    assert ctx.kv.seq_rm(0, 10)
    assert same_bits(feed(ctx, tokens(20)[10:], 0), want[10:])


@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_their_own_ways(tiny, kind):
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv=kind) as ctx:
        whole = {
            seq: np.array(feed(ctx, tokens(12) + tokens(6, seq), 0))
            for seq in (1, 2)
            if ctx.kv.seq_rm(0)
        }
        ctx.kv.clear()
        feed(ctx, tokens(12), 0)
        used = ctx.kv.n_used
        for seq in (1, 2):
            ctx.kv.seq_cp(0, seq)
        assert ctx.kv.n_used == (used if kind == "unified" else 3 * used)
        ctx.kv.seq_rm(0)
        out = ctx.decode(batch((tokens(6, 1), 1), (tokens(6, 2), 2))).logits
        assert same_bits(out[:6], whole[1][12:])
        assert same_bits(out[6:], whole[2][12:])


def test_shifting_one_holder_of_shared_cells_leaves_the_other(ctx):
    feed(ctx, tokens(10), 0)
    ctx.kv.seq_cp(0, 1)
    before = contents(ctx)
    ctx.kv.seq_add(1, 0, None, 5)
    assert ctx.kv.n_used == 20
    feed(ctx, tokens(1), 1)
    after = contents(ctx)
    for layer in range(2):
        assert after[layer, 0] == before[layer, 0]


def test_a_shift_without_room_for_copies_changes_nothing(tiny):
    with plait.Context(tiny, n_ctx=16, n_seq_max=2, kv_cells=20) as ctx:
        feed(ctx, tokens(15), 0)
        ctx.kv.seq_cp(0, 1)
        before = contents(ctx)
        with pytest.raises(plait.CacheFull) as error:
            ctx.kv.seq_add(1, 0, None, 1)
        assert (error.value.needed, error.value.free) == (15, 5)
        assert contents(ctx) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kv: kv.seq_add(0, 0, None, -1), "-1"),
        (lambda kv: kv.seq_add(0, 5, None, -3), "order|position"),
        (lambda kv: kv.seq_add(0, 0, 5, 10), "order|position"),
        (lambda kv: kv.seq_add(0, 0, None, 2**31 - 1), "position"),
        (lambda kv: kv.seq_div(0, 0, None, 0), "divisor.*got 0"),
        (lambda kv: kv.seq_div(0, 0, None, -2), "divisor.*got -2"),
    ],
)
def test_invalid_moves_are_refused(ctx, call, message):
    feed(ctx, tokens(10), 0)
    before = contents(ctx)
    with pytest.raises(ValueError, match=message):
        call(ctx.kv)
    assert contents(ctx) == before


def test_ranges_are_half_open_and_none_is_the_end(ctx):
    feed(ctx, tokens(10), 0)
    assert ctx.kv.seq_rm(0, 3, 3)
    assert ctx.kv.seq_rm(0, 20, 30)
    assert ctx.kv.seq_len(0) == 10
    assert ctx.kv.seq_rm(0, 3, 5)
    assert sorted(ctx.kv.cells()["pos"][:, 0].tolist()) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert ctx.kv.seq_rm(0, p0=7)
    assert ctx.kv.seq_pos_max(0) == 6
    assert ctx.kv.seq_rm(0)
    assert ctx.kv.n_used == 0


def test_handles_name_sequences(ctx):
    with ctx.sequence() as one, ctx.sequence() as other:
        feed(ctx, tokens(5), one)
        ctx.kv.seq_cp(one, other)
        ctx.kv.seq_rm(one, 2)
        assert (ctx.kv.seq_len(one), ctx.kv.seq_pos_max(other)) == (2, 4)
        assert ctx.kv.keys(0, other).shape[0] == 5
    with pytest.raises(ValueError, match="closed"):
        ctx.kv.seq_rm(one)


# -- beside plain lists ------------------------------------------------------------------------------

SEQS = st.integers(0, N_SEQ - 1)
POSITIONS = st.integers(0, N_CTX + 2)
ENDS = st.none() | POSITIONS
ENTRIES = st.lists(
    st.tuples(st.lists(SEQS, min_size=1, max_size=2, unique=True), st.none() | st.integers(0, N_CTX)),
    min_size=1, max_size=5,
)  # fmt: skip
OPERATIONS = st.one_of(
    st.tuples(st.just("decode"), ENTRIES),
    st.tuples(st.just("grow"), SEQS, st.integers(1, 5)),
    st.tuples(st.just("rm"), SEQS, POSITIONS, ENDS),
    st.tuples(st.just("cp"), SEQS, SEQS, POSITIONS, ENDS),
    st.tuples(st.just("keep"), SEQS),
    st.tuples(st.just("add"), SEQS, POSITIONS, ENDS, st.integers(-4, 4)),
    st.tuples(st.just("div"), SEQS, POSITIONS, ENDS, st.integers(1, 3)),
    st.tuples(st.just("clear")),
)


RANGES = {"rm": 1, "cp": 2, "add": 1, "div": 1}  # index of p0 among the arguments


def do(model, ctx, operation):
    """Apply the operation to both and return both results."""
    name, *arguments = operation
    if name in ("decode", "grow"):
        if name == "grow":
            seq, n = arguments
            arguments = [[([seq], None)] * n]
        entries = [Entry(3 + i, tuple(seqs), pos) for i, (seqs, pos) in enumerate(arguments[0])]
        made = plait.Batch()
        for entry in entries:
            made.add(entry.token, pos=entry.pos, seq=entry.seqs)

        def ours():
            ctx.decode(made)

        added = Counter(seq for entry in entries for seq in entry.seqs)

        def plain():
            try:
                model.decode(entries)
            except Full:
                # Shifts are applied before the search for cells, and remain, but not for a sequence that is too long.
                if all(len(model.sequences[seq]) + n <= N_CTX for seq, n in added.items()):
                    model.apply_shifts()
                raise
            model.apply_shifts()
    else:
        if name in RANGES and arguments[RANGES[name] + 1] is not None:
            at = slice(RANGES[name], RANGES[name] + 2)
            arguments[at] = sorted(arguments[at])
        ours_name = "clear" if name == "clear" else f"seq_{name}"

        def ours():
            return getattr(ctx.kv, ours_name)(*arguments)

        def plain():
            return getattr(model, name)(*arguments)

    return attempt(plain, Refused, Full), attempt(ours, ValueError, plait.CacheFull)


def attempt(call, refused, full):
    try:
        return "done", call()
    except full:
        return "full", None
    except refused:
        return "refused", None


def seen(ctx):
    return sorted(
        (int(cell["pos"][0]), int(cell["shift"]), tuple(np.flatnonzero(cell["seqs"]).tolist()))
        for cell in ctx.kv.cells()
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=st.lists(OPERATIONS, min_size=5, max_size=40))
def test_random_operations_agree_with_plain_lists(tiny, kind, operations):
    cells = 20 if kind == "unified" else None
    model = CacheModel(N_CTX, N_SEQ, kind, cells)
    with plait.Context(
        tiny, n_ctx=N_CTX, n_seq_max=N_SEQ, kv=kind, kv_cells=cells, threads=1
    ) as ctx:
        for operation in operations:
            want, got = do(model, ctx, operation)
            assert got == want, operation
            assert seen(ctx) == sorted((pos, shift, seqs) for pos, shift, _, seqs in model.cells())
            assert ctx.kv.n_used == model.n_used
            for seq in range(N_SEQ):
                assert ctx.kv.seq_pos_min(seq) == model.pos_min(seq)
                assert ctx.kv.seq_pos_max(seq) == model.pos_max(seq)
                assert ctx.kv.seq_len(seq) == len(model.sequences[seq])


@pytest.mark.parametrize("kind", KINDS)
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_appending_cutting_and_forking_in_any_order_gives_the_logits_of_a_fresh_context(
    tiny, kind, data
):
    with (
        plait.Context(tiny, n_ctx=48, n_seq_max=N_SEQ, kv=kind, threads=1) as ctx,
        plait.Context(tiny, n_ctx=48, threads=1) as fresh,
    ):
        said = [[] for _ in range(N_SEQ)]
        for _ in range(data.draw(st.integers(3, 12))):
            seq = data.draw(SEQS)
            match data.draw(st.sampled_from(["append", "cut", "fork"])):
                case "append":
                    new = data.draw(st.lists(st.integers(3, 280), min_size=1, max_size=8))
                    if len(said[seq]) + len(new) > 48:
                        continue
                    said[seq] = said[seq] + new
                    got = feed(ctx, new, seq)
                    fresh.kv.clear()
                    assert same_bits(got, feed(fresh, said[seq])[-len(new) :])
                case "cut":
                    n = data.draw(st.integers(0, len(said[seq])))
                    said[seq] = said[seq][:n]
                    assert ctx.kv.seq_rm(seq, n)
                case "fork":
                    to = data.draw(SEQS.filter(lambda s, seq=seq: s != seq))
                    ctx.kv.seq_rm(to)
                    ctx.kv.seq_cp(seq, to)
                    said[to] = list(said[seq])
