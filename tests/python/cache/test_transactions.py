"""ctx.transaction(): blocks of calls that take effect together or not at all, for every kind of memory."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import feed, same_bits
from python.reference_data import model_path

N_CTX, N_SEQ = 64, 4
CLOSED = r"sequence \d is closed"

KINDS = [
    ("unified", None, {}),
    ("quantised", None, {"type_k": "q8_0", "type_v": "q4_0"}),
    ("streams", None, {"kv": "streams"}),
    ("few cells", None, {"kv_cells": 80}),
    ("sliding", "gemma3", {}),
    ("sliding streams", "cohere2", {"kv": "streams"}),
    ("recurrent", "mamba", {}),
    ("rwkv", "rwkv6", {}),
    ("hybrid", "jamba", {}),
    ("hybrid streams", "falcon-h1", {"kv": "streams"}),
    ("latent", "deepseek2", {}),
    ("cross", "t5", {}),
    ("axes", "qwen2vl", {}),
    ("shared keys", "gemma4-a", {}),
    ("delta net", "qwen35-a", {}),
    ("delta attention", "kimi-linear", {}),
]

Operation = Callable[[plait.Context], Any]


def open_model(name: str | None, tiny: plait.Model, data_dir: Path) -> plait.Model:
    if name is None:
        return tiny
    return plait.Model(model_path(data_dir, name))


def state(ctx: plait.Context) -> tuple[Any, ...]:
    """What a rollback restores, except the contents of cells; pending shifts stay pending."""
    kv = ctx.kv
    return kv.cells().tobytes(), kv.n_used, [kv.seq_pos_max(s) for s in range(ctx.n_seq_max)]


class Machine:
    """Random calls of a context, some of them in transactions.

    A second context makes the calls that remain, without transactions, once they are certain.
    """

    def __init__(self, model: plait.Model, seed: int, **options: Any) -> None:
        self.random = np.random.default_rng(seed)
        options = {"n_ctx": N_CTX, "n_seq_max": N_SEQ, "n_ubatch": 7, "threads": 1} | options
        self.ctx = plait.Context(model, **options)
        self.plain = plait.Context(model, **(options | {"kv_cells": None}))
        self.certain: list[tuple[Operation, Any]] = []
        self.open: list[tuple[plait.Transaction, tuple[Any, ...], list[tuple[Operation, Any]]]] = []
        self.n_rolled_back = self.n_done = 0
        if self.ctx.kv.kind == "cross":
            for seq in range(N_SEQ):
                self.call(self.encode_of(seq, [seq + 5, 7]))

    def call(self, operation: Operation) -> None:
        done = self.open[-1][2] if self.open else self.certain
        try:
            result = operation(self.ctx)
        except plait.CacheFull:  # it may have applied shifts
            with contextlib.suppress(plait.CacheFull):
                self.ctx.kv.to_bytes()
                done.append((lambda ctx: ctx.kv.to_bytes() and None, None))
        except (ValueError, plait.UnsupportedError):
            pass
        else:
            self.n_done += 1
            done.append((operation, result))

    @staticmethod
    def encode_of(seq: int, ids: list[int]) -> Operation:
        def encode(ctx: plait.Context) -> None:
            batch = plait.Batch()
            batch.add_sequence(ids, seq=seq, logits="none")
            ctx.encode(batch)

        return encode

    def decode(self) -> Operation:
        said = [
            (int(seq), self.random.integers(3, 200, self.random.integers(1, 6)))
            for seq in self.random.permutation(N_SEQ)[: self.random.integers(1, 4)]
        ]

        def decode(ctx: plait.Context) -> Any:
            batch = plait.Batch()
            for seq, ids in said:
                batch.add_sequence(ids, seq=seq, logits="last")
            return ctx.decode(batch).logits.copy()

        return decode

    def draw(self) -> Operation:
        r = self.random
        a, b = (int(each) for each in r.integers(N_SEQ, size=2))
        p0, p1 = sorted(r.integers(0, 20, 2).tolist())
        end = None if r.random() < 0.5 else p1
        n, layer = int(r.integers(1, 5)), int(r.integers(self.ctx.model.n_layer))
        value = float(np.float32(r.normal()))

        def write(ctx: plait.Context) -> None:
            keys = ctx.kv.keys(layer, a)
            held = np.arange(ctx.kv.seq_pos_max(a) + 1 - len(keys), ctx.kv.seq_pos_max(a) + 1)
            if len(held):
                ctx.kv.write(a, layer, held[::n], keys[::n] * value)

        def reload(ctx: plait.Context) -> None:
            ctx.kv.from_bytes(ctx.kv.to_bytes(a), b) if n > 1 else ctx.kv.from_bytes(
                ctx.kv.to_bytes()
            )

        choices: list[tuple[int, Operation]] = [
            (10, self.decode()),
            (2, lambda ctx: ctx.kv.seq_rm(a, p0, end)),
            (2, lambda ctx: ctx.kv.seq_rm(a)),
            (4, lambda ctx: ctx.kv.seq_cp(a, b, 0 if n > 2 else p0, None if n > 1 else end)),
            (2, lambda ctx: ctx.kv.seq_add(a, p0, None, n)),
            (1, lambda ctx: ctx.kv.seq_div(a, p0, end, 2)),
            (1, lambda ctx: ctx.kv.seq_rewind(a, p1)),
            (1, lambda ctx: ctx.kv.seq_keep(a)),
            (1, lambda ctx: ctx.kv.evict(a, range(p0, p1, n))),
            (1, lambda ctx: str(ctx.kv.defrag())[:0]),
            (3, write),
            (1, reload),
        ]  # fmt: skip
        weights = np.array([weight for weight, _ in choices], float)
        return choices[int(r.choice(len(choices), p=weights / weights.sum()))][1]

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.07 and len(self.open) < 3:
            before = state(self.ctx)
            tx = self.ctx.transaction()
            tx.__enter__()
            self.open.append((tx, before, []))
        elif choice < 0.17 and self.open:
            self.end()
        else:
            operation = self.draw()
            self.call(operation)
            if self.ctx.kv.kind == "cross" and self.ctx.kv.seq_pos_max(0) < 0:
                self.call(self.encode_of(0, [5, 6]))

    def end(self) -> None:
        tx, before, done = self.open.pop()
        how = self.random.integers(3)
        if how == 0:
            tx.__exit__(None, None, None)
            (self.open[-1][2] if self.open else self.certain).extend(done)
        else:
            tx.rollback() if how == 1 else tx.__exit__(KeyError, KeyError(), None)
            self.n_rolled_back += 1
            assert state(self.ctx) == before
        if self.open:
            return
        for operation, result in self.certain:
            again = operation(self.plain)
            assert same_bits(result, again) if isinstance(result, np.ndarray) else result == again
        self.certain.clear()
        assert self.ctx.kv.to_bytes() == self.plain.kv.to_bytes()
        assert self.ctx.kv.n_used == self.plain.kv.n_used

    def run(self, n: int) -> None:
        for _ in range(n):
            self.step()
        while self.open:
            self.end()


@pytest.mark.parametrize(
    ("name", "options"), [(m, o) for _, m, o in KINDS], ids=[k[0] for k in KINDS]
)
@pytest.mark.parametrize("seed", range(2))
def test_random_calls(
    tiny: plait.Model, data_dir: Path, name: str | None, options: dict[str, Any], seed: int
) -> None:
    machine = Machine(open_model(name, tiny, data_dir), seed, **options)
    machine.run(1500)
    assert machine.n_rolled_back > 25
    assert machine.n_done > 500
    machine.ctx.close()
    machine.plain.close()


@pytest.fixture
def ctx(tiny: plait.Model) -> Iterator[plait.Context]:
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx:
        feed(ctx, [5, 6, 7, 8], 0)
        yield ctx


def test_an_exception_rolls_back_and_propagates(ctx: plait.Context) -> None:
    before = ctx.kv.to_bytes()

    def fail() -> None:
        with ctx.transaction():
            feed(ctx, [9], 0)
            ctx.kv.seq_cp(0, 1)
            raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        fail()
    assert ctx.kv.to_bytes() == before
    with ctx.transaction() as tx:
        feed(ctx, [9], 0)
    assert not tx.open
    assert ctx.kv.seq_pos_max(0) == 4


def test_calls_after_a_rollback_are_not_part_of_the_block(ctx: plait.Context) -> None:
    with ctx.transaction() as tx:
        assert tx.open
        assert ctx.kv.in_transaction
        feed(ctx, [9, 9, 9], 0)
        tx.rollback()
        assert not tx.open
        assert not ctx.kv.in_transaction
        feed(ctx, [9], 0)
    assert ctx.kv.seq_pos_max(0) == 4


def test_a_call_that_fails_leaves_the_transaction_as_it_was(ctx: plait.Context) -> None:
    with ctx.transaction():
        feed(ctx, [9], 0)
        with pytest.raises(plait.BatchError):
            feed(ctx, [10**6], 0)
        feed(ctx, [10], 0)
    assert ctx.kv.seq_pos_max(0) == 5


def test_pending_shifts_are_as_at_entry(tiny: plait.Model) -> None:
    """Shifts before and inside a block that is undone leave no trace, even in a quantised cache."""
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=2, type_k="q4_0") as ctx,
        plait.Context(tiny, n_ctx=64, n_seq_max=2, type_k="q4_0") as other,
    ):
        for each in (ctx, other):
            feed(each, [5, 6, 7, 8], 0)
            each.kv.seq_add(0, 2, None, 3)
        with ctx.transaction() as tx:
            ctx.kv.seq_add(0, 0, None, 5)
            feed(ctx, [9], 0)
            ctx.kv.seq_div(0, 0, None, 2)
            feed(ctx, [10], 0)
            tx.rollback()
        assert ctx.kv.cells()["shift"].tolist() == [[0], [0], [3], [3]] or ctx.kv.cells()[
            "shift"
        ].tolist() == [0, 0, 3, 3]
        for each in (ctx, other):
            each.kv.seq_add(0, 0, None, 1)
        assert ctx.kv.to_bytes() == other.kv.to_bytes()


def test_a_refused_call_copies_no_cell_with_a_pending_shift(
    tiny: plait.Model, data_dir: Path
) -> None:
    with plait.Context(tiny, n_ctx=32, n_seq_max=2, kv_cells=20) as ctx:
        feed(ctx, list(range(3, 11)), 0)
        ctx.kv.seq_add(0, 0, None, 4)
        before = state(ctx)
        with pytest.raises(plait.CacheFull):
            feed(ctx, list(range(13)), 1)
        assert state(ctx) == before
        with ctx.transaction():
            for n in (13, 12, 5):  # 13 cells are too many, 5 are if 8 others are copied
                with pytest.raises(plait.CacheFull):
                    feed(ctx, list(range(n)), 1)
                assert state(ctx) == before
            feed(ctx, list(range(4)), 1)
            assert ctx.kv.n_used == 20
    with plait.Context(
        open_model("gemma3", tiny, data_dir), n_ctx=32, n_seq_max=2, n_ubatch=4
    ) as ctx:
        feed(ctx, list(range(3, 11)), 0)
        ctx.kv.seq_add(0, 0, None, 4)
        before = state(ctx)
        batch = plait.Batch()
        batch.add_embeddings(
            np.zeros((6, ctx.model.n_embd), np.float32), seq=1, both_directions=True
        )
        with ctx.transaction():
            with pytest.raises(plait.BatchError, match="both_directions"):
                ctx.decode(batch)
            assert state(ctx) == before


def vector_of(model: plait.Model) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((model.n_layer, model.n_embd))
    return rows.astype(np.float32)


class TestHandles:
    def test_opened_in_a_block_that_is_undone(self, ctx: plait.Context) -> None:
        with ctx.transaction() as tx:
            new = ctx.sequence()
            number = new.id
            feed(ctx, [5], new)
            tx.rollback()
            assert new.closed
            with pytest.raises(ValueError, match=CLOSED):
                feed(ctx, [5], new)
            again = ctx.sequence()
        assert again.id == number
        new.close()  # of a closed handle: it does not close the other
        assert not again.closed
        feed(ctx, [5], again)

    def test_closed_in_a_block_that_is_undone(self, ctx: plait.Context) -> None:
        seq = ctx.sequence()
        feed(ctx, [5, 6], seq)
        fork = seq.fork()
        before = ctx.kv.to_bytes()
        with ctx.transaction() as tx:
            number = seq.id
            seq.close()
            assert seq.closed
            other = ctx.sequence()
            assert other.id == number
            feed(ctx, [9], other)
            tx.rollback()
        assert not seq.closed
        assert other.closed
        assert seq.pos == 2
        assert ctx.kv.to_bytes() == before
        feed(ctx, [7], seq)
        assert fork.pos == 2
        with pytest.raises(ValueError, match="belongs to an open Sequence"):
            feed(ctx, [7], seq.id)

    def test_deleted_in_a_block_that_is_undone(self, ctx: plait.Context) -> None:
        """The cells come back, and no handle owns their id any more."""
        seq = ctx.sequence()
        feed(ctx, [5, 6], seq)
        number, before = seq.id, ctx.kv.to_bytes()
        with ctx.transaction() as tx:
            del seq
            gc.collect()
            assert ctx.kv.seq_pos_max(number) == -1
            tx.rollback()
        assert ctx.kv.to_bytes() == before
        feed(ctx, [7], number)
        ctx.kv.seq_rm(number)
        assert ctx.sequence().id == number

    def test_what_a_sequence_of_an_undone_block_had_of_its_own_is_gone(
        self, ctx: plait.Context
    ) -> None:
        want = feed(ctx, [5, 6], 3).copy()
        with ctx.transaction() as tx:
            new = ctx.sequence()
            ctx.set_control_vector(vector_of(ctx.model), seq=new)
            assert not same_bits(feed(ctx, [5, 6], new), want)
            tx.rollback()
        with ctx.sequence() as again:
            assert again.id == 1
            assert same_bits(feed(ctx, [5, 6], again), want)

    @pytest.mark.parametrize("end", ["rollback", "inner rollback", "commit of both"])
    def test_a_handle_that_is_open_again_has_its_control_vector(
        self, ctx: plait.Context, end: str
    ) -> None:
        seq = ctx.sequence()
        ctx.set_control_vector(vector_of(ctx.model), seq=seq)
        number = seq.id
        feed(ctx, [5, 6], seq)
        before = ctx.kv.to_bytes(seq)
        with ctx.transaction() as tx:
            want = feed(ctx, [7], seq).copy()
            tx.rollback()
        with ctx.transaction() as outer:
            with ctx.transaction() as inner:
                seq.close()
                with ctx.sequence() as other:  # the same id, without a vector
                    plain = feed(ctx, [5, 6], other).copy()
                if end == "inner rollback":
                    inner.rollback()
                    assert not seq.closed
            if end == "rollback":
                outer.rollback()
        if end != "commit of both":
            assert ctx.kv.to_bytes(seq) == before
            assert same_bits(feed(ctx, [7], seq), want)
            return
        assert seq.closed
        assert same_bits(feed(ctx, [5, 6], number), plain)

    def test_of_a_block_that_is_committed(self, ctx: plait.Context) -> None:
        seq = ctx.sequence()
        with ctx.transaction():
            seq.close()
            with ctx.transaction():
                fork = ctx.sequence()
        assert seq.closed
        assert not fork.closed

    def test_shift_in_a_transaction(self, tiny: plait.Model) -> None:
        with plait.Context(tiny, n_ctx=32, n_seq_max=2, kv_cells=12) as ctx:
            seq = ctx.sequence()
            feed(ctx, list(range(5, 15)), seq)
            before = state(ctx)
            with ctx.transaction():
                with pytest.raises(plait.CacheFull, match="of the cells to shift"):
                    seq.shift(2, 2)
                assert seq.pos == 10
            assert state(ctx) == before


def test_kept_cells_count_as_used(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=32, n_seq_max=2, kv_cells=12) as ctx:
        feed(ctx, list(range(5, 15)), 0)
        with ctx.transaction() as tx:
            ctx.kv.clear()
            assert ctx.kv.n_used == 10
            assert len(ctx.kv.cells()) == 0
            with pytest.raises(plait.CacheFull):
                feed(ctx, [5, 6, 7], 1)
            feed(ctx, [5, 6], 1)
            assert ctx.kv.n_used == 12
            tx.rollback()
        assert ctx.kv.n_used == 10
        with ctx.transaction():
            ctx.kv.clear()
        assert ctx.kv.n_used == 0


class TestMisuse:
    def test_wrong_objects(self, ctx: plait.Context, tiny: plait.Model) -> None:
        class Both(plait.Batch, plait.Context):
            """An object of two bound classes, of which Context is the second."""

        kind = type(ctx.transaction())
        for call in (
            kind,
            lambda: kind.__new__(kind),
            lambda: type("Derived", (kind,), {}),
            lambda: plait.Context.transaction(3),
            plait.Context.__new__(plait.Context).transaction,
            Both.__new__(Both).transaction,
            lambda: kind.open.fget(3),
            lambda: kind.rollback(3),
            ctx.transaction().__exit__,
        ):
            with pytest.raises(TypeError):
                call()
        both = Both.__new__(Both)
        plait.Batch.__init__(both)
        plait.Context.__init__(both, tiny, n_ctx=8)
        with both.transaction() as tx:
            assert tx.open
        assert not tx.open
        both.close()

    def test_twice(self, ctx: plait.Context) -> None:
        tx = ctx.transaction()
        with pytest.raises(ValueError, match="called before the transaction was entered"):
            tx.rollback()
        with pytest.raises(ValueError, match=r"__exit__\(\) was called before"):
            tx.__exit__(None, None, None)
        with tx:
            tx.rollback()
            with pytest.raises(ValueError, match=r"rollback\(\) was already called"):
                tx.rollback()
        with pytest.raises(ValueError, match="entered before"):
            tx.__enter__()
        with ctx.transaction() as tx:
            pass
        with pytest.raises(ValueError, match="after the transaction had ended"):
            tx.rollback()

    def test_out_of_order(self, ctx: plait.Context) -> None:
        before = ctx.kv.to_bytes()
        outer, inner = ctx.transaction(), ctx.transaction()
        outer.__enter__()
        feed(ctx, [5], 0)
        inner.__enter__()
        with pytest.raises(ValueError, match="while an inner transaction is open"):
            outer.rollback()
        assert ctx.kv.seq_pos_max(0) == 4
        with pytest.raises(
            ValueError, match="an inner transaction was open; both were rolled back"
        ):
            outer.__exit__(None, None, None)
        assert ctx.kv.to_bytes() == before
        assert not ctx.kv.in_transaction
        with pytest.raises(ValueError, match="an outer transaction ended"):
            inner.__exit__(None, None, None)

    def test_another_thread(self, ctx: plait.Context) -> None:
        errors: list[str] = []

        def end(call: Callable[[], Any]) -> None:
            with pytest.raises(ValueError, match="did not enter the transaction") as error:
                call()
            errors.append(str(error.value))

        with ctx.transaction() as tx:
            for call in (tx.rollback, lambda: tx.__exit__(None, None, None)):
                thread = threading.Thread(target=end, args=(call,))
                thread.start()
                thread.join()
            assert tx.open
        assert len(errors) == 2

    def test_closed_context(self, tiny: plait.Model) -> None:
        ctx = plait.Context(tiny, n_ctx=64)
        with ctx.transaction() as tx:
            ctx.close()
            with pytest.raises(ValueError, match="closed"):
                tx.rollback()
        with pytest.raises(ValueError, match="closed"), ctx.transaction():
            pass

    def test_a_transaction_that_is_forgotten_is_rolled_back(self, ctx: plait.Context) -> None:
        before = ctx.kv.to_bytes()
        ctx.transaction().__enter__()
        assert not ctx.kv.in_transaction
        tx = ctx.transaction()
        tx.__enter__()
        feed(ctx, [5], 0)
        del tx
        gc.collect()
        assert not ctx.kv.in_transaction
        assert ctx.kv.to_bytes() == before

    def test_from_a_callback(self, ctx: plait.Context) -> None:
        def edit(rows: np.ndarray) -> np.ndarray:
            with contextlib.suppress(ValueError), ctx.transaction():
                raise AssertionError
            return rows

        with ctx.edit("l_out.0", edit):
            feed(ctx, [5], 0)
