"""Random programs that mix edits, forks, evictions, writes, transactions, captures and layer ranges, beside models.

- The cache: every sequence is a list of positions, and a fork shares the cells of its source.
- Edits and captures: functions in NumPy, which know the position of each row because their sequence runs alone.
- Transactions: a copy of these lists.
- The computation: the history of one sequence is repeated alone, in a context of all layers or in two contexts that
  have some of the layers each. The bits must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import same_bits

N_SEQ, N_CTX = 5, 64
Rows = np.ndarray


@dataclass(frozen=True)
class PlainEdit:
    """What an edit of rows means."""

    name: str
    what: Rows  # (width,), or (n_positions, width)
    mode: str
    seqs: tuple[int, ...] | None
    positions: tuple[int, ...] | None

    def apply(self, row: Rows, position: int) -> Rows:
        """Return the row of a token after the edit."""
        if self.positions is not None and position not in self.positions:
            return row
        what = self.what
        if what.ndim == 2:
            assert self.positions is not None
            what = what[self.positions.index(position)]
        return {"add": row + what, "replace": what, "scale": row * what}[self.mode]


@dataclass
class History:
    """What happened to a sequence, and what must be in the cache."""

    steps: list[tuple[str, Any]] = field(default_factory=list)
    cells: list[tuple[int, object]] = field(default_factory=list)  # (position, cell), by position

    @property
    def next(self) -> int:
        return self.cells[-1][0] + 1 if self.cells else 0

    def fork(self) -> History:
        return History(list(self.steps), list(self.cells))


class Program:
    """A context under random operations, beside the plain models."""

    def __init__(self, model: plait.Model, seed: int, **options: Any) -> None:
        self.random = np.random.default_rng(seed)
        self.model = model
        self.options = options
        self.ctx = plait.Context(model, n_ctx=N_CTX, n_seq_max=N_SEQ, **options)
        self.alone = plait.Context(model, n_ctx=N_CTX, **options)
        # For choices that do not change the program.
        self.other_random = np.random.default_rng(1000 + seed)
        cut = int(self.other_random.integers(1, model.n_layer))
        self.ranges = [
            plait.Context(model, n_ctx=N_CTX, layers=layers, **options)
            for layers in (range(cut), range(cut, model.n_layer))
        ]
        self.held: dict[int, tuple[plait.Sequence, History]] = {}
        self.edits: list[tuple[Any, PlainEdit]] = []
        layers = range(model.n_layer)
        known = self.ctx.value_names()
        self.names = [
            name
            for layer in layers
            for kind in ("l_out", "attn_out", "ffn_out")
            if (name := f"blk.{layer}.{kind}") in known
        ]
        self.depth = 0  # of transactions
        self.n_compared = self.n_edited = self.n_captured = self.n_undone = self.n_written = 0
        self.n_ranges = 0  # histories repeated by two contexts

    def close(self) -> None:
        while self.edits:
            self.edits.pop()[0].__exit__(None, None, None)
        self.ctx.close()
        self.alone.close()
        for ctx in self.ranges:
            ctx.close()

    # --- operations ---------------------------------------------------------------------------

    def chosen(self) -> int | None:
        return int(self.random.choice(list(self.held))) if self.held else None

    def open(self) -> None:
        if len(self.held) < N_SEQ:
            seq = self.ctx.sequence()
            self.held[seq.id] = seq, History()

    def fork(self) -> None:
        source = self.chosen()
        if source is not None and len(self.held) < N_SEQ:
            seq, history = self.held[source]
            made = seq.fork()
            self.held[made.id] = made, history.fork()

    def end(self) -> None:
        which = self.chosen()
        # An edit by sequence keeps the id, which another sequence may get.
        named = {seq for _, edit in self.edits for seq in edit.seqs or ()}
        if which is not None and which not in named:
            self.held.pop(which)[0].close()

    def evict(self) -> None:
        which = self.chosen()
        if which is None:
            return
        seq, history = self.held[which]
        wanted = self.random.choice(N_CTX, 6, replace=False).tolist()
        there = [position for position, _ in history.cells if position in wanted]
        before = self.ctx.kv.to_bytes()
        try:
            assert self.ctx.kv.evict(seq, wanted) == len(there)
        except plait.UnsupportedError:
            assert self.ctx.kv.to_bytes() == before
            return
        history.cells = [cell for cell in history.cells if cell[0] not in wanted]
        history.steps.append(("evict", wanted))

    def cut(self) -> None:
        which = self.chosen()
        if which is None:
            return
        seq, history = self.held[which]
        n = int(self.random.integers(0, history.next + 1))
        try:
            seq.truncate(n)
        except plait.UnsupportedError:
            return
        history.cells = [cell for cell in history.cells if cell[0] < n]
        history.steps.append(("cut", n))

    def write(self) -> None:
        """Replace some keys and values; cells that other sequences share are copied."""
        which, layer = self.chosen(), int(self.random.integers(self.model.n_layer))
        if which is None or self.ctx.kv.kind not in ("unified", "streams"):
            return
        seq, history = self.held[which]
        if not history.cells:
            return
        n = int(self.random.integers(1, len(history.cells) + 1))
        index = sorted(self.random.choice(len(history.cells), n, replace=False).tolist())
        positions = [history.cells[i][0] for i in index]
        keys = self.ctx.kv.keys(layer, seq)[index]
        keys = (keys + self.random.normal(size=keys.shape)).astype(np.float32)
        before = self.ctx.kv.to_bytes()
        try:
            self.ctx.kv.write(seq, layer, positions, keys=keys)
        except plait.CacheFull:
            assert self.ctx.kv.to_bytes() == before
            return
        for i in index:
            history.cells[i] = history.cells[i][0], object()
        history.steps.append(("write", (layer, positions, keys)))
        self.n_written += 1

    def transaction(self) -> None:
        """Make calls that take effect together or not at all."""
        before = {seq: (handle, history.fork()) for seq, (handle, history) in self.held.items()}
        state = self.ctx.kv.to_bytes()
        undo = self.random.random() < 0.5
        self.depth += 1
        with self.ctx.transaction() as transaction:
            for _ in range(int(self.random.integers(1, 6))):
                choices = ["decode", "open", "fork", "end", "evict", "cut", "write"]
                choice = str(self.random.choice([*choices, *["transaction"] * (self.depth < 3)]))
                getattr(self, choice)()
                self.check()
            if undo:
                transaction.rollback()
        self.depth -= 1
        if undo:
            self.held = before
            self.n_undone += 1
            assert self.ctx.kv.to_bytes() == state

    def edit(self) -> None:
        if len(self.edits) == 4:
            return
        name = str(self.random.choice(self.names))
        seqs = None
        if self.held and self.random.random() < 0.7:
            n = int(self.random.integers(1, len(self.held) + 1))
            seqs = tuple(self.random.choice(list(self.held), n, replace=False).tolist())
        positions = None
        if self.random.random() < 0.7:
            positions = tuple(self.random.choice(N_CTX, 20, replace=False).tolist())
        by_position = positions is not None and self.random.random() < 0.5
        shape = (len(positions or ()), self.model.n_embd) if by_position else (self.model.n_embd,)
        what = self.random.normal(size=shape).astype(np.float32)
        mode = str(self.random.choice(["add", "replace", "scale"]))
        plain = PlainEdit(name, what, mode, seqs, positions)
        handles = None if seqs is None else [self.held[seq][0] for seq in seqs]
        made = self.ctx.edit(name, what, mode, seq=handles, positions=positions)
        made.__enter__()
        self.edits.append((made, plain))

    def unedit(self) -> None:
        if self.edits:
            self.edits.pop(int(self.random.integers(len(self.edits))))[0].__exit__(None, None, None)

    def fault(self) -> None:
        """A decode in which an edit by a function raises, or that has no room, changes nothing."""
        which = self.chosen()
        if which is None:
            return
        seq, _ = self.held[which]
        before = self.ctx.kv.to_bytes()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=seq, logits="all")

        def fail(rows: Rows) -> Rows:
            raise ZeroDivisionError

        with self.ctx.edit(self.names[-1], fail), pytest.raises((ZeroDivisionError, plait.Error)):
            self.ctx.decode(batch)
        with (
            self.ctx.capture(self.names[0], sink=fail),
            pytest.raises((ZeroDivisionError, plait.Error)),
        ):
            self.ctx.decode(batch)
        assert self.ctx.kv.to_bytes() == before

    def decode(self) -> None:
        """Decode tokens of several sequences, with a capture, and compare each with its sequence alone."""
        parts = []
        batch = plait.Batch()
        for which in list(self.held):
            seq, history = self.held[which]
            n = int(self.random.integers(0, 4))
            # Captures of the last layer have no rows without outputs.
            if n == 0 or history.next + n > N_CTX or len(history.cells) + n > N_CTX:
                continue
            ids = self.random.integers(5, min(self.model.n_vocab, 280), n).tolist()
            batch.add_sequence(ids, seq=seq, logits="all")
            parts.append((which, ids))
        if not parts:
            return
        name = str(self.random.choice(self.names))
        with self.ctx.capture(name) as seen:
            logits = self.ctx.decode(batch).logits
        rows, begin = np.asarray(seen[name]), 0
        for which, ids in parts:
            _, history = self.held[which]
            applied = [e for _, e in self.edits if e.seqs is None or which in e.seqs]
            positions = range(history.next, history.next + len(ids))
            history.steps.append(("decode", (ids, applied, positions)))
            history.cells += [(position, object()) for position in positions]
            want = self.repeated(history, name)
            part = slice(begin, begin + len(ids))
            assert same_bits(logits[part], want[0]), (which, history.steps)
            assert same_bits(rows[part], want[1]), (which, history.steps)
            begin += len(ids)
            self.n_compared += 1
            self.n_edited += bool(applied)
            self.n_captured += any(edit.name == name for edit in applied)

    OPERATIONS = (
        ("decode", 10), ("open", 3), ("fork", 4), ("end", 2), ("evict", 3), ("cut", 2), ("edit", 4), ("unedit", 3),
        ("fault", 1), ("write", 3), ("transaction", 3),
    )  # fmt: skip

    def run(self, n: int) -> None:
        names = [name for name, _ in self.OPERATIONS]
        weights = np.array([weight for _, weight in self.OPERATIONS], float)
        for choice in self.random.choice(len(names), n, p=weights / weights.sum()):
            getattr(self, names[choice])()
            self.check()

    # --- the plain models ---------------------------------------------------------------------

    def check(self) -> None:
        """Compare the cells with the lists."""
        ends = [self.held[s][1].next - 1 if s in self.held else -1 for s in range(N_SEQ)]
        assert [self.ctx.kv.seq_pos_max(seq) for seq in range(N_SEQ)] == ends
        if self.ctx.kv.kind not in ("unified", "streams"):
            return  # others forget what they no longer need
        for which, (seq, history) in self.held.items():
            cells = self.ctx.kv.cells()
            mine = cells["pos"][cells["seqs"][:, which], 0]
            assert sorted(mine.tolist()) == [position for position, _ in history.cells]
            assert len(seq) == len(history.cells)
        if (
            self.ctx.kv.kind == "unified" and not self.depth
        ):  # rows that a transaction keeps count too
            distinct = {id(cell) for _, history in self.held.values() for _, cell in history.cells}
            assert self.ctx.kv.n_used == len(distinct)

    def repeated(self, history: History, captured: str) -> tuple[Rows, Rows]:
        """Return the logits and the captured rows of the last step, repeated alone with functions as edits."""
        chain = [self.alone] if self.other_random.random() < 0.5 else self.ranges
        self.n_ranges += len(chain) > 1
        for ctx in chain:
            ctx.kv.clear()
        logits = rows = np.empty(0, np.float32)
        for kind, content in history.steps:
            if kind == "evict":
                for ctx in chain:
                    ctx.kv.evict(0, content)
            elif kind == "write":
                layer, at, keys = content
                _with_layer(chain, layer).kv.write(0, layer, at, keys=keys)
            elif kind == "cut":
                assert all(ctx.kv.seq_rm(0, content) for ctx in chain)
            else:
                ids, applied, positions = content
                kept: list[Rows] = []
                with ExitStack() as scopes:
                    for edit in applied:
                        change = _function(edit, positions)
                        scopes.enter_context(_with_value(chain, edit.name).edit(edit.name, change))
                    keeping = _with_value(chain, captured).edit(captured, _keeping(kept))
                    scopes.enter_context(keeping)
                    logits = _through(chain, ids)
                rows = np.concatenate(kept)
        return logits, rows


def _with_layer(chain: list[plait.Context], layer: int) -> plait.Context:
    return next(ctx for ctx in chain if layer in ctx.layers)


def _with_value(chain: list[plait.Context], name: str) -> plait.Context:
    return _with_layer(chain, int(name.split(".")[1]))


def _through(chain: list[plait.Context], ids: list[int]) -> Rows:
    """Return the logits of tokens after the last context; each passes its rows to the next."""
    batch = plait.Batch()
    batch.add_sequence(ids, logits="all")
    for ctx in chain[:-1]:
        rows = ctx.decode(batch).embeddings
        batch = plait.Batch()
        batch.add_embeddings(rows, logits="all")
    return chain[-1].decode(batch).logits


def _function(edit: PlainEdit, positions: range) -> Any:
    """Return the edit as a function of the rows of a microbatch; there is one."""

    def change(rows: Rows) -> Rows:
        assert len(rows) == len(positions)
        return np.stack([edit.apply(row, p) for row, p in zip(rows, positions, strict=True)])

    return change


def _keeping(kept: list[Rows]) -> Any:
    def keep(rows: Rows) -> Rows:
        kept.append(rows.copy())
        return rows

    return keep


VARIANTS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"kv": "streams", "type_k": "q8_0", "type_v": "q4_0"}),
    (None, {"n_ubatch": 512, "flash_attention": False}),
    ("gemma3", {}),
    ("jamba", {}),
    ("gpt-oss", {}),
    ("deepseek2", {}),
    ("mamba", {}),
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: f"{variant[0] or 'tiny'}-{len(variant[1])}")
def variant(
    request: pytest.FixtureRequest, tiny: plait.Model
) -> Iterator[tuple[plait.Model, dict[str, Any]]]:
    name, options = request.param
    if name is None:
        yield tiny, options
        return
    folder: Path = request.getfixturevalue("data_dir")
    yield plait.Model(folder / "conformance" / name / "model.gguf"), options


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_programs(variant: tuple[plait.Model, dict[str, Any]], seed: int) -> None:
    model, options = variant
    program = Program(model, seed, **options)
    try:
        program.run(160)
        assert program.n_compared > 40
        assert program.n_edited > 20
        assert program.n_captured > 3
        assert program.n_ranges > 15
        assert program.n_undone > 3
        assert program.n_written > 3 or program.ctx.kv.kind not in ("unified", "streams")
    finally:
        program.close()
