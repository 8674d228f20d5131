"""ctx.edit() by sequence and position: arrays that plans apply, compared with a model in NumPy."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens
from python.vulkan_device import needs_vulkan

from python import gguf_writer, lora_models

N_SEQ = 5
MODES = ("add", "replace", "scale")


def context(model, **options):
    return plait.Context(model, **{"n_ctx": 256, "n_seq_max": N_SEQ, **options})


def editable(ctx: plait.Context) -> list[str]:
    return [name for name in ctx.value_names() if ".attn_pattern" not in name]


@dataclass
class RowEdit:
    """An edit as ctx.edit() takes it."""

    name: str
    what: np.ndarray
    mode: str
    seq: Any
    positions: Any

    def open(self, ctx: plait.Context) -> Any:
        return ctx.edit(self.name, self.what, self.mode, seq=self.seq, positions=self.positions)

    def selects(self, seq: int) -> bool:
        if self.seq is None:
            return True
        return seq in ([self.seq] if isinstance(self.seq, int) else list(self.seq))

    def row_for(self, position: int, row_ndim: int) -> np.ndarray | None:
        """Return what a token's row is combined with."""
        if self.positions is None:
            return self.what
        if isinstance(self.positions, slice):
            listed = list(range(*self.positions.indices(1000)))
        else:
            listed = np.atleast_1d(self.positions).tolist()
        if position not in listed:
            return None
        by_position = self.what.ndim > row_ndim
        return self.what[listed.index(position)] if by_position else self.what

    def apply(self, row: np.ndarray, seq: int, position: int) -> np.ndarray:
        if not self.selects(seq):
            return row
        other = self.row_for(position, row.ndim)
        if other is None:
            return row
        if self.mode == "replace":
            return other
        return row + other if self.mode == "add" else row * other


def random_edit(random, model_ctx, names) -> RowEdit:
    name = str(random.choice(names))
    shape = model_ctx.value_shape(name)
    seq = [
        None, int(random.integers(N_SEQ)), np.int64(random.integers(N_SEQ)).item(),
        random.choice(N_SEQ, 2, replace=False).tolist(),
    ][random.integers(4)]  # fmt: skip
    begin, step = int(random.integers(0, 9)), int(random.integers(1, 4))
    positions = [
        None, begin, range(begin, begin + 7, step), slice(begin, None), slice(None, begin, step),
        random.permutation(14)[: random.integers(1, 8)], range(12, 3, -2),
    ][random.integers(7)]  # fmt: skip
    n = None
    if isinstance(positions, slice):
        n = None if positions.stop is None else len(range(0, positions.stop, positions.step or 1))
    elif positions is not None:
        n = np.size(positions)
    rows = (n, *shape) if n is not None and random.random() < 0.5 else shape
    what = random.normal(size=rows).astype(np.float32)
    return RowEdit(name, what, str(random.choice(MODES)), seq, positions)


def random_calls(random) -> list[plait.Batch]:
    """Batches of several sequences, whose tokens are mixed, with the (sequence, position) of each entry."""
    next_position = [0] * N_SEQ
    calls = []
    for length in random.integers(1, 9, 3):
        made, entries = plait.Batch(), []
        for _ in range(length * 3):
            seq = int(random.integers(N_SEQ))
            made.add(int(random.integers(3, 250)), seq=seq, logits=bool(random.random() < 0.8))
            entries.append((seq, next_position[seq]))
            next_position[seq] += 1
        calls.append((made, entries))
    return calls


def run(ctx, calls) -> list[np.ndarray]:
    ctx.kv.clear()
    return [ctx.decode(made).logits.copy() for made, _ in calls]


@pytest.mark.parametrize("seed", range(12))
def test_random_edits_equal_a_model_of_them(tiny, seed):
    """The plan applies arrays as NumPy does, wherever rows are in a batch, a microbatch or a stream."""
    random = np.random.default_rng(seed)
    options = [{}, {"n_ubatch": 5}, {"n_ubatch": 3, "fuse": False}, {"kv": "streams"}][seed % 4]
    with context(tiny, **options) as ctx:
        # Values after the last layer have a row per output; a model of them would need the flags.
        names = [name for name in editable(ctx) if not name.startswith("result")]
        edits = [random_edit(random, ctx, names) for _ in range(int(random.integers(1, 9)))]
        calls = random_calls(random)
        with ExitStack() as opened:
            for edit in edits:
                opened.enter_context(edit.open(ctx))
            got = run(ctx, calls)

        entries: list[tuple[int, int]] = []

        def modelled(name):
            def change(rows):
                done = seen.get(name, 0)
                seen[name] = done + len(rows)
                out = rows.copy()
                for i, (seq, position) in enumerate(entries[done : done + len(rows)]):
                    for edit in edits:
                        if edit.name == name:
                            out[i] = edit.apply(out[i], seq, position)
                return out

            return change

        seen: dict[str, int] = {}
        with context(tiny, n_ubatch=256) as other, ExitStack() as opened:
            for name in dict.fromkeys(edit.name for edit in edits):
                opened.enter_context(other.edit(name, modelled(name)))
            want = []
            for made, of_call in calls:
                entries[:] = of_call
                seen.clear()
                want.append(other.decode(made).logits.copy())
    for a, b in zip(got, want, strict=True):
        assert same_bits(a, b), edits


@pytest.mark.parametrize("options", [{}, {"n_ubatch": 7}, {"kv": "streams"}])
def test_each_sequence_is_as_if_alone(tiny, options, invariant_isa):
    random = np.random.default_rng(4)
    prompts = [tokens(11, seed) for seed in range(N_SEQ)]
    with context(tiny, isa=invariant_isa, **options) as ctx:
        names = editable(ctx)
    edits: dict[int, RowEdit] = {}
    for seq in range(N_SEQ - 1):
        name = names[int(random.integers(len(names)))]
        with context(tiny) as ctx:
            what = random.normal(size=ctx.value_shape(name)).astype(np.float32)
        edits[seq] = RowEdit(name, what, MODES[seq % 3], seq, slice(seq, None))

    def alone(seqs, edited):
        with context(tiny, isa=invariant_isa, **options) as ctx, ExitStack() as opened:
            for seq in edited:
                opened.enter_context(edits[seq].open(ctx))
            logits = ctx.decode(batch(*((prompts[seq], seq) for seq in seqs))).logits.copy()
            step = ctx.decode(batch(*(([7], seq) for seq in seqs))).logits.copy()
        return [(logits[11 * i : 11 * (i + 1)], step[i]) for i in range(len(seqs))]

    together = alone(range(N_SEQ), edits)
    plain = alone(range(N_SEQ), ())
    for seq in range(N_SEQ):
        (want,) = alone([seq], [seq] if seq in edits else [])
        assert same_bits(together[seq][0], want[0])
        assert same_bits(together[seq][1], want[1])
        assert same_bits(together[seq][0], plain[seq][0]) == (seq not in edits)


def test_other_arrays_positions_and_sequences_build_no_plan(tiny):
    random = np.random.default_rng(5)

    def row(*shape):
        return random.normal(size=(*shape, tiny.n_embd)).astype(np.float32)

    with context(tiny) as ctx:
        cases = [
            (row(), "add", 0, None), (row(), "replace", 1, 3), (row(4), "scale", [2, 3], range(2, 6)),
            (row(), "add", None, slice(1, None)), (row(2), "replace", 4, np.array([5, 1])),
        ]  # fmt: skip
        prompts = batch(*((tokens(9, seq), seq) for seq in range(N_SEQ)))
        results = []
        for i, (what, mode, seq, positions) in enumerate(cases):
            ctx.kv.clear()
            with (
                ctx.edit("l_out.0", what, mode, seq=seq, positions=positions),
                ctx.edit("l_out.1", row(), MODES[i % 3], seq=i),
            ):
                results.append(ctx.decode(prompts).logits.copy())
            if i == 0:
                built = ctx.stats.plans_built
        assert ctx.stats.plans_built == built
        assert len({r.tobytes() for r in results}) == len(cases)
        ctx.kv.clear()
        # Edits of different sequences share the point of a value; the order in which values are named does not count.
        with ExitStack() as opened:
            for seq in range(N_SEQ):
                opened.enter_context(ctx.edit("l_out.1", row(), seq=seq))
                opened.enter_context(ctx.edit("l_out.0", row(3), seq=seq, positions=range(3)))
            ctx.decode(prompts)
            assert ctx.stats.plans_built == built
            assert [n.op for n in ctx.graph()].count("edit_rows") == 2
            assert "edit" not in {n.op for n in ctx.graph()}


def test_a_function_receives_the_selected_rows(tiny):
    seen = []

    def look(rows):
        seen.append(rows.copy())
        return 2 * rows

    mixed = plait.Batch()
    for position in range(6):
        for seq in (0, 1, 2):
            mixed.add(5 + position + seq, seq=seq, logits=True)
    with context(tiny) as ctx:
        with ctx.capture("l_out.0") as before:
            ctx.decode(mixed)
        ctx.kv.clear()
        with (
            ctx.edit("l_out.0", look, seq=[0, 2], positions=slice(1, 4)),
            ctx.capture("l_out.0") as after,
        ):
            ctx.decode(mixed)
        (rows,) = seen
        where = [i for i in range(18) if i % 3 != 1 and 1 <= i // 3 < 4]
        assert same_bits(rows, before["l_out.0"][where])
        want = before["l_out.0"].copy()
        want[where] *= 2
        assert same_bits(after["l_out.0"], want)
        with ctx.edit("l_out.0", look, seq=4):  # no row is selected
            ctx.decode(batch(([5], 0)))
        assert len(seen) == 1


def test_a_raising_function_changes_nothing(tiny):
    def fail(rows):
        raise ZeroDivisionError

    ones = np.ones(tiny.n_embd, np.float32)
    with context(tiny, n_ubatch=4) as ctx:
        ctx.decode(batch((tokens(9), 0)))
        before = ctx.kv.to_bytes()
        with (
            ctx.edit("l_out.0", ones, seq=0),
            ctx.edit("l_out.1", fail, seq=1, positions=6),
            pytest.raises(ZeroDivisionError),
        ):
            ctx.decode(batch((tokens(5), 0), (tokens(9), 1)))
        assert ctx.kv.to_bytes() == before


def test_a_token_of_two_sequences(tiny):
    ones = np.ones(tiny.n_embd, np.float32)
    shared = plait.Batch()
    shared.add_sequence(tokens(6), seq=[0, 1], logits="all")
    with context(tiny) as ctx:
        plain = ctx.decode(shared).logits.copy()
        ctx.kv.clear()
        with ctx.edit("l_out.0", ones, seq=1):
            edited = ctx.decode(shared).logits.copy()
            assert not same_bits(edited, plain)
            ctx.kv.clear()
            with ctx.edit("l_out.0", ones, seq=0):
                with pytest.raises(ValueError, match="belongs to 2 sequences"):
                    ctx.decode(shared)
                assert ctx.kv.n_used == 0
        with ctx.edit("l_out.0", ones, seq=[0, 1]):
            assert same_bits(ctx.decode(shared).logits, edited)


def test_handles(tiny):
    ones = np.ones(tiny.n_embd, np.float32)
    with context(tiny) as ctx, context(tiny) as other:
        seq, foreign = ctx.sequence(), other.sequence()
        with ctx.edit("l_out.0", ones, seq=seq) as edit:
            assert edit.sequences == (seq.id,)
            by_handle = ctx.decode(batch((tokens(5), seq))).logits.copy()
        seq.truncate(0)
        fork = seq.fork()
        with ctx.edit("l_out.0", ones, seq=[fork, seq]):
            assert same_bits(ctx.decode(batch((tokens(5), seq))).logits, by_handle)
        with pytest.raises(ValueError, match="another context"):
            ctx.edit("l_out.0", ones, seq=foreign)
        edit = ctx.edit("l_out.0", ones, seq=fork)
        fork.close()
        with pytest.raises(ValueError, match="is closed"):
            edit.__enter__()
        with pytest.raises(ValueError, match="is closed"):
            ctx.edit("l_out.0", ones, seq=[0, fork])


@pytest.mark.parametrize("name", ["blk.1.attn_heads", "blk.1.q_rope"])
def test_rows_of_positions_may_leave_out_heads(tiny, name):
    with context(tiny) as ctx:
        heads, width = ctx.value_shape(name)
        rows = np.random.default_rng(4).normal(size=(5, width)).astype(np.float32)
        found = []
        for what in (rows, np.repeat(rows[:, None], heads, axis=1)):
            ctx.kv.clear()
            with ctx.edit(name, what, positions=range(2, 7)):
                found.append(ctx.decode(batch((tokens(9), 0))).logits.copy())
        assert same_bits(*found)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seq": N_SEQ}, ValueError, f"sequence {N_SEQ} does not exist: expected 0 to {N_SEQ - 1}"),
        ({"seq": -1}, ValueError, "sequence -1 does not exist"),
        ({"seq": 1 << 40}, ValueError, "edit: seq"),
        ({"seq": [0, float("nan")]}, TypeError, "edit: seq: expected an integer"),
        ({"seq": float("nan")}, TypeError, "edit: seq: expected a list"),
        ({"seq": "0"}, TypeError, "edit: seq: expected a list"),
        ({"positions": -1}, ValueError, "edit: positions is -1"),
        ({"positions": [3, 1, 3]}, ValueError, "3 is given twice"),
        ({"positions": [0, 1 << 40]}, ValueError, "edit: positions is 1099511627776"),
        ({"positions": float("nan")}, TypeError, "edit: positions: expected an int"),
        ({"positions": np.zeros((1, 2), int)}, ValueError, r"shape \(1, 2\)"),
        ({"positions": np.ones(4, bool)}, TypeError, "edit: positions: expected an int"),
        ({"positions": slice(-3, None)}, ValueError, "start is -3"),
        ({"positions": slice(0, 4, -1)}, ValueError, "step is -1"),
        ({"positions": slice(2, None), "n": 3}, ValueError, "has no end"),
        ({"positions": range(4), "n": 3}, ValueError, r"\(3, 64\); one row for each position needs \(4, 64\)"),
        ({"n": 3}, ValueError, "give positions"),
        ({"mode": "mul"}, ValueError, "edit: mode"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(tiny, arguments, error, message):
    arguments = dict(arguments)
    n, mode = arguments.pop("n", None), arguments.pop("mode", "add")
    what = np.zeros(tiny.n_embd if n is None else (n, tiny.n_embd), np.float32)
    with context(tiny) as ctx, pytest.raises(error, match=message):
        ctx.edit("l_out.0", what, mode, **arguments)


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_dropped_edit_ends_as_one_that_is_left(tiny, cyclic):
    """Later requests must not continue from rows that were computed with it."""
    prompt = tokens(40)
    what = np.random.default_rng(0).normal(size=tiny.n_embd).astype(np.float32) * 2

    def complete(engine):
        return engine.complete_sync(prompt, max_tokens=8).tokens

    with plait.Engine(context(tiny)) as engine:
        plain = complete(engine)
    with context(tiny) as ctx, plait.Engine(ctx) as engine:
        edit = ctx.edit("l_out.0", what)
        edit.__enter__()
        assert complete(engine) != plain
        assert len(ctx._open_edits) == 1
        epoch = ctx._epoch
        if cyclic:
            edit.cycle = edit
        del edit
        gc.collect()
        assert not ctx._open_edits
        assert ctx._epoch != epoch
        assert complete(engine) == plain


def test_an_edit_that_is_dropped_during_a_call(tiny):
    """It cannot end there, but later requests must not continue from these rows either."""
    with context(tiny) as ctx:
        edits = [ctx.edit("l_out.0", 2.0, "scale")]
        edits[0].__enter__()

        def drop(rows):
            edits.clear()
            return rows

        with ctx.edit("l_out.1", drop):
            epoch = ctx._epoch
            feed(ctx, tokens(3))
            assert len(ctx._open_edits) == 1
            assert ctx._epoch != epoch
        assert not ctx._open_edits


def test_nothing_selected(tiny):
    with context(tiny) as ctx:
        plain = ctx.decode(batch((tokens(5), 0))).logits.copy()
        empty = np.zeros((0, tiny.n_embd), np.float32)
        for positions, what in (([], 1.0), (range(0), empty), (slice(4, 2), 1.0)):
            ctx.kv.clear()
            with ctx.edit("l_out.0", what, positions=positions):
                assert same_bits(ctx.decode(batch((tokens(5), 0))).logits, plain)
        ctx.kv.clear()
        with ctx.edit("l_out.0", 1.0, seq=[]):
            assert same_bits(ctx.decode(batch((tokens(5), 0))).logits, plain)


def test_rows_larger_than_the_first_input_for_them(tiny):
    """More elements than fit into the input that the first edits allocate."""
    random = np.random.default_rng(6)
    n = (1 << 20) // tiny.n_embd
    rows = random.normal(size=(n + 9, tiny.n_embd)).astype(np.float32)
    with context(tiny) as ctx:
        with ctx.edit("l_out.0", rows[0], positions=0):
            ctx.decode(batch((tokens(5), 0)))
        ctx.kv.clear()
        # The rows of the positions come from the end of the array.
        order = np.roll(np.arange(n + 9), 9)
        with ctx.edit("l_out.0", rows, "replace", positions=order), ctx.capture("l_out.0") as seen:
            ctx.decode(batch((tokens(5), 0)))
        assert same_bits(seen["l_out.0"], rows[9:14])


@needs_vulkan
def test_vulkan_applies_the_same_edits(tiny):
    random = np.random.default_rng(7)
    prompts = [tokens(11, seed) for seed in range(N_SEQ)]
    results = {}
    for backend in ("cpu", "vulkan"):
        with context(tiny, backend=backend, n_ubatch=9, type_k="f32", type_v="f32") as ctx:
            names = editable(ctx)
            random = np.random.default_rng(8)
            with ExitStack() as opened:
                for i, name in enumerate(names):
                    what = random.normal(size=ctx.value_shape(name)).astype(np.float32)
                    seq, positions = i % (N_SEQ - 1), slice(i % 5, None)
                    mode = MODES[i % 3]
                    opened.enter_context(ctx.edit(name, what, mode, seq=seq, positions=positions))
                edited = ctx.decode(batch(*zip(prompts, range(N_SEQ), strict=True))).logits.copy()
                assert "edit_rows" in {node.op for node in ctx.graph()}
            ctx.kv.clear()
            plain = ctx.decode(batch(*zip(prompts, range(N_SEQ), strict=True))).logits.copy()
            assert np.abs(edited[-11:] - plain[-11:]).max() <= 1e-4 * np.abs(plain).max()
            assert not np.allclose(edited[:44], plain[:44], atol=0.01)
            results[backend] = edited
    difference = np.abs(results["vulkan"] - results["cpu"]).max()
    assert difference <= 1e-4 * np.abs(results["cpu"]).max()


# ---- Control vectors by sequence ----


@pytest.mark.parametrize("options", [{}, {"n_ubatch": 7}, {"kv": "streams"}])
def test_control_vectors_of_sequences(tiny, options, invariant_isa):
    """Each sequence has the bits that it has alone with its vector for all."""
    random = np.random.default_rng(9)
    vectors = random.normal(size=(3, tiny.n_layer, tiny.n_embd)).astype(np.float32)
    of_sequence = {0: vectors[0], 1: vectors[1], 2: None, 3: vectors[2], 4: vectors[2]}
    prompts = [tokens(11, seed) for seed in range(N_SEQ)]

    def decode(ctx, seqs):
        ctx.kv.clear()
        logits = ctx.decode(batch(*((prompts[seq], seq) for seq in seqs))).logits.copy()
        step = ctx.decode(batch(*(([7], seq) for seq in seqs))).logits.copy()
        return [(logits[11 * i : 11 * (i + 1)], step[i]) for i in range(len(seqs))]

    with context(tiny, isa=invariant_isa, **options) as ctx:
        ctx.set_control_vector(vectors[2], first_layer=0)
        for seq in (0, 1, 2):
            ctx.set_control_vector(of_sequence[seq], first_layer=0, seq=seq)
        together = decode(ctx, range(N_SEQ))
        built = ctx.stats.plans_built
        ctx.set_control_vector(vectors[0], first_layer=0, seq=[1, 3])
        other = decode(ctx, range(N_SEQ))
        assert ctx.stats.plans_built == built  # neither other vectors nor other sequences
        assert not same_bits(other[1][0], together[1][0])
        assert same_bits(other[4][0], together[4][0])
        ctx.set_control_vector(None)  # for all, also those with vectors of their own
        plain = decode(ctx, range(N_SEQ))
        for seq, vector in of_sequence.items():
            ctx.set_control_vector(vector, first_layer=0)
            (want,) = decode(ctx, [seq])
            assert same_bits(together[seq][0], want[0])
            assert same_bits(together[seq][1], want[1])
            assert same_bits(together[seq][0], plain[seq][0]) == (vector is None)


def test_control_vectors_of_sequences_of_every_architecture(any_model):
    """A vector of one sequence has the effect of a vector of all, also where rows have several streams."""
    random = np.random.default_rng(10)
    shape = (2, any_model.n_layer, any_model.n_embd)
    vectors = random.normal(0, 0.3, shape).astype(np.float32)
    ids = batch((tokens(5, 1, min(any_model.n_vocab, 288)), 0))
    with context(any_model, n_ctx=64, n_seq_max=2) as ctx:

        def results(*given):
            ctx.kv.clear()
            for vector, seq in given:
                ctx.set_control_vector(vector, first_layer=0, seq=seq)
            if any_model.arch == "t5":
                ctx.encode(ids)
            out = ctx.encode(ids) if ctx.kv.kind == "none" else ctx.decode(ids)
            return (out.embeddings if out.logits is None else out.logits).copy()

        want = results((vectors[0], None))
        assert same_bits(results((vectors[1], None), (vectors[0], 0)), want)
        assert same_bits(results((None, None), (vectors[0], 0), (vectors[1], 1)), want)
        assert not same_bits(results((None, None)), want)


def test_a_token_of_sequences_with_different_vectors_is_refused(tiny):
    vector = np.ones((tiny.n_layer, tiny.n_embd), np.float32)
    shared = batch((tokens(6), [0, 1]))
    with context(tiny) as ctx:
        for general, own in (
            (None, {0: vector}),
            (None, {1: vector}),
            (vector, {1: None}),
            (vector, {0: 2 * vector}),
        ):
            ctx.set_control_vector(general)
            for seq, of_sequence in own.items():
                ctx.set_control_vector(of_sequence, seq=seq)
            with pytest.raises(
                ValueError, match=r"set_control_vector: .* sequences \d and \d, which"
            ):
                ctx.decode(shared)
            assert ctx.kv.n_used == 0
        ctx.set_control_vector(vector)
        want = ctx.decode(shared).logits.copy()
        ctx.kv.clear()
        ctx.set_control_vector(None)
        ctx.set_control_vector(vector, seq=[0, 1])
        assert same_bits(ctx.decode(shared).logits, want)


def test_vectors_leave_with_their_handles_and_are_part_of_states(tiny):
    vector = np.ones((tiny.n_layer, tiny.n_embd), np.float32)
    with context(tiny) as ctx:
        seq = ctx.sequence()
        plain = ctx.decode(batch((tokens(5), seq))).logits.copy()
        seq.truncate(0)
        ctx.set_control_vector(vector, seq=seq)
        steered = ctx.decode(batch((tokens(5), seq))).logits.copy()
        assert not same_bits(steered, plain)
        saved = ctx.kv.to_bytes(seq=seq)
        with pytest.raises(plait.StateError, match="control vector"):
            ctx.kv.from_bytes(saved, seq=3)
        ctx.set_control_vector(vector, seq=3)
        ctx.kv.from_bytes(saved, seq=3)
        number = seq.id
        seq.close()
        again = ctx.sequence()
        assert again.id == number
        assert same_bits(ctx.decode(batch((tokens(5), again))).logits, plain)
        for wrong, message in ((N_SEQ, "does not exist"), (seq, "closed"), ([], "at least one")):
            with pytest.raises(ValueError, match=message):
                ctx.set_control_vector(vector, seq=wrong)
        for wrong in (1.5, "0", [None]):
            with pytest.raises(TypeError, match="seq: expected"):
                ctx.set_control_vector(vector, seq=wrong)


# ---- Values of mixtures, and sinks ----


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    metadata, weights = lora_models.model("mixtral")
    path = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    return plait.Model(gguf_writer.write(path, metadata, weights))


def test_routers(mixture):
    """router.i has the experts and weights that the logits of the router give."""
    ids = batch((tokens(9), 0))
    with context(mixture) as ctx:
        with ctx.capture("router.1", "router_logits.1", "experts.1", "ffn_out.1") as seen:
            plain = ctx.decode(ids).logits.copy()
        routes, logits = seen["router.1"], seen["router_logits.1"]
        assert routes.shape == (9, lora_models.N_USED, 2)
        experts = routes[..., 0].astype(int)
        order = np.argsort(-logits, axis=1, kind="stable")[:, : lora_models.N_USED]
        np.testing.assert_array_equal(experts, order)
        np.testing.assert_allclose(routes[..., 1].sum(axis=1), 1, rtol=1e-5)
        summed = (seen["experts.1"] * routes[..., 1:]).sum(axis=1)
        np.testing.assert_allclose(summed, seen["ffn_out.1"], rtol=1e-4, atol=1e-5)

        def run(what, mode="replace", **where):
            ctx.kv.clear()
            with ctx.edit("router.1", what, mode, **where), ctx.capture("router.1") as after:
                logits = ctx.decode(ids).logits.copy()
            return logits, after["router.1"]

        assert same_bits(run(lambda rows: rows)[0], plain)
        swapped = np.array([[1, 0.25], [0, 0.75]], np.float32)
        got, after = run(swapped, positions=[2, 3])
        assert same_bits(after[2:4], np.stack([swapped] * 2))
        assert same_bits(got[:2], plain[:2])
        assert not same_bits(got[2:], plain[2:])
        for wrong in (
            [[4, 1], [0, 1]],
            [[1, 1], [1, 1]],
            [[0.5, 1], [0, 1]],
            [[np.nan, 1], [0, 1]],
        ):
            with pytest.raises(ValueError, match="expected 2 different experts from 0 to 3"):
                run(np.array(wrong, np.float32))


def test_heads(tiny):
    with context(tiny) as ctx, ctx.capture("attn_heads.0", "attn_out.0") as seen:
        ctx.decode(batch((tokens(9), 0)))
        heads = seen["attn_heads.0"]
        assert heads.shape[:1] == (9,)
        assert heads.shape[1:] == ctx.value_shape("blk.0.attn_heads")
        with pytest.warns(DeprecationWarning, match='now "attn_heads.0"'):
            assert seen["attn.0"] is not None
    with context(tiny) as ctx, ctx.gradients("attn_heads.0", of=plait.Logit(5)) as slopes:
        ctx.decode(batch((tokens(9), 0)))
        with pytest.warns(DeprecationWarning, match='now "attn_heads.0"'):
            assert np.array_equal(slopes["attn.0"], slopes["attn_heads.0"])


def test_patterns_times_values_are_the_heads(any_model):
    """attn_pattern.i are the weights of the mean of cached values that attn_heads.i is."""
    ids = [tokens(9, 1, min(any_model.n_vocab, 288)), tokens(7, 2, min(any_model.n_vocab, 288))]
    with context(any_model, n_seq_max=2, type_k="f32", type_v="f32", n_ubatch=8) as ctx:
        names = [name for name in ctx.value_names() if ".attn_pattern" in name]
        if ctx.kv.kind in ("none", "cross", "recurrent"):
            pytest.skip("no attention over a cache of this model's own tokens")
        assert names
        with ctx.capture("attn_pattern.*", "attn_heads.*") as seen:
            ctx.decode(batch((ids[0], 0), (ids[1][:3], 1)))
            ctx.decode(batch((ids[1][3:], 1)))
        rows = [(0, i) for i in range(9)] + [(1, i) for i in range(7)]
        compared = 0
        for name in names:
            layer = int(name.split(".")[1])
            heads = seen[f"attn_heads.{layer}"]
            patterns = seen[name]
            assert len(patterns) == len(heads) == 16
            for (seq, position), weights, head in zip(rows, patterns, heads, strict=True):
                assert weights.dtype == np.float32
                assert weights.shape[0] == heads.shape[1]
                assert 1 <= weights.shape[1] <= position + 1
                assert (weights >= 0).all()
                assert (weights.sum(axis=1) <= 1 + 1e-5).all()  # less where sinks take a share
                try:
                    values = ctx.kv.values(layer, seq)
                except plait.UnsupportedError:
                    continue  # the layer reads the keys of another
                if values.shape[-1] != head.shape[-1] or len(values) != len(ids[seq]):
                    continue  # MLA stores latents; a window has dropped rows
                last = position + 1
                values = values[last - weights.shape[1] : last].repeat(
                    len(head) // values.shape[1], axis=1
                )
                want = np.einsum("hk,khd->hd", weights, values)
                np.testing.assert_allclose(head, want, rtol=1e-3, atol=1e-4 * np.abs(values).max())
                compared += 1
        assert compared > 0 or any_model.arch in ("deepseek2", "kimi-linear", "minicpm3")


def test_patterns_are_captured_by_name_and_not_edited(tiny):
    with context(tiny) as ctx:
        with ctx.capture("*") as seen:
            ctx.decode(batch((tokens(5), 0)))
        assert not any("attn_pattern" in name for name in seen)
        with pytest.raises(ValueError, match="captured, but not edited"):
            ctx.edit("attn_pattern.0", 1.0)
        with pytest.raises(ValueError, match="differ in length"):
            ctx.capture("attn_pattern.0", sink="somewhere")
        calls = []
        with ctx.capture("attn_pattern.0", sink=calls.append):
            ctx.decode(batch((tokens(3), 0)))
        assert [row.shape[1] for row in calls[0]["blk.0.attn_pattern"]] == [6, 7, 8]


def test_a_function_as_sink(tiny):
    got = []
    parts = [tokens(5, 1), tokens(3, 2)]
    with context(tiny) as ctx:
        with ctx.capture("l_out.*") as kept:
            for part in parts:
                ctx.decode(batch((part, 0)))
        ctx.kv.clear()
        with ctx.capture("l_out.*", sink=got.append) as seen:
            for part in parts:
                ctx.decode(batch((part, 0)))
        assert seen.calls == []
        assert [set(call) for call in got] == [set(kept)] * 2
        for name, rows in kept.items():
            assert same_bits(np.concatenate([call[name] for call in got]), rows)

        def fail(call):
            raise ZeroDivisionError

        before, done = ctx.kv.to_bytes(), ctx.stats.tokens
        with ctx.capture("l_out.0", sink=fail), pytest.raises(ZeroDivisionError):
            ctx.decode(batch((parts[0], 0)))
        assert (ctx.kv.to_bytes(), ctx.stats.tokens) == (before, done)
        with pytest.raises(TypeError, match="sink: expected a function or a path"):
            ctx.capture("l_out.0", sink=3)


def test_files_as_sink(tiny, tmp_path):
    folder = tmp_path / "made" / "here"
    with context(tiny) as ctx:
        with ctx.capture("l_out.*", "q.0", "result_output") as kept:
            for n in (5, 1, 4):
                ctx.decode(batch((tokens(n, n), 0), logits="last"))
        ctx.kv.clear()
        with ctx.capture("l_out.*", "q.0", "result_output", sink=folder):
            for n in (5, 1, 4):
                ctx.decode(batch((tokens(n, n), 0), logits="last"))
                rows = np.load(folder / "blk.0.l_out.npy", mmap_mode="r")  # readable at any time
                assert rows.shape[1:] == (tiny.n_embd,)
        assert {path.stem for path in folder.iterdir()} == set(kept)
        for name, want in kept.items():
            got = np.load(folder / f"{name}.npy", mmap_mode="r")
            assert got.dtype == np.float32
            assert same_bits(np.asarray(got), want)
        with ctx.capture("l_out.0", sink=folder):  # replaces the file
            pass
        assert np.load(folder / "blk.0.l_out.npy", mmap_mode="r").shape == (0, tiny.n_embd)


def test_files_are_replaced_when_the_block_is_entered(tiny, tmp_path):
    file = tmp_path / "blk.0.l_out.npy"
    with context(tiny) as ctx:
        with ctx.capture("l_out.0", sink=tmp_path) as first:
            ctx.decode(batch((tokens(3), 0)))
            with pytest.raises(ValueError, match="another capture of this context is open"):
                ctx.capture("l_out.0", sink=tmp_path).__enter__()
            ctx.decode(batch((tokens(2), 0)))
        ctx.capture("l_out.0", sink=tmp_path)
        rows = np.load(file)
        assert rows.shape == (5, tiny.n_embd)
        assert rows.any(axis=1).all()
        with first:
            ctx.decode(batch((tokens(4), 0)))
        assert np.load(file).shape == (4, tiny.n_embd)
        with pytest.raises(OSError, match=file.name):
            ctx.capture("l_out.0", sink=file).__enter__()
        with ctx.capture("l_out.0"):  # the failed one is closed
            pass
