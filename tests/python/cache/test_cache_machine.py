"""Each kind of cache under thousands of random operations, beside three definitions of what it should hold.

- Plain lists of cells (tests/reference/cache_model.py): cells, positions and free rows agree after every operation.
- A fresh context: a sequence that was only appended to, cut at its end, or forked has the very bits of one that was
  fed its tokens.
- A context of the other variant that plays the same operations: any sequence has the same logits within tolerance.

Seeds make a failure repeatable; `--all` runs ten thousand operations for each of five.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import same_bits
from python.reference_data import model_path
from reference.cache_model import CacheModel, Entry, Full, Refused, Window

N_CTX, N_SEQ = 40, 4
TOLERANCE = 2e-3  # of the largest logit, between variants of an f32 cache


@dataclass(frozen=True)
class Variant:
    """A kind of cache, its model, and the configuration of the plain lists."""

    name: str
    model: str | None  # below conformance/; None: the tiny llama
    kv: str = "unified"
    cells: int | None = None
    plain: dict[str, Any] = field(default_factory=dict)
    coupled: bool = True

    @property
    def twin(self) -> str | None:
        """The variant that runs the same operations; None if it runs out of room at other times."""
        if self.cells is not None or self.coupled:
            return None
        return "streams" if self.kv == "unified" else "unified"


VARIANTS = [
    Variant("unified, short of cells", None, cells=70),
    Variant("unified", None, coupled=False),
    Variant("streams", None, kv="streams", coupled=False),
    Variant("sliding", "gemma3", plain={"window": True}, coupled=False),
    Variant("sliding streams", "cohere2", kv="streams", plain={"window": True}, coupled=False),
    Variant("recurrent", "mamba", plain={"recurrent": True, "full": False}),
    Variant("hybrid", "jamba", plain={"recurrent": True}),
    Variant("hybrid streams", "jamba", kv="streams", plain={"recurrent": True}, coupled=False),
    Variant("cross", "t5", plain={"encoder": True}),
    Variant("shared keys", "gemma4-a", plain={"window": True}, coupled=False),
    Variant("chunks", "llama4-a", coupled=False),
    Variant("delta net", "qwen35-a", plain={"recurrent": True, "axes": 4}),
    Variant("delta attention", "kimi-linear", plain={"recurrent": True}),
    Variant("single blocks", "nemotron_h-a", kv="streams", plain={"recurrent": True}, coupled=False),
]  # fmt: skip


class Machine:
    def __init__(self, stack: ExitStack, model: plait.Model, variant: Variant, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.variant = variant
        self.model = model
        options = {"n_ctx": N_CTX, "n_seq_max": N_SEQ, "n_ubatch": 7, "threads": 1}
        exact = {"type_k": "f32", "type_v": "f32"}

        def context(**more: Any) -> plait.Context:
            return stack.enter_context(plait.Context(model, **(options | exact | more)))

        self.ctx = context(kv=variant.kv, kv_cells=variant.cells)
        self.twin = context(kv=variant.twin) if variant.twin else None
        self.fresh = context(n_seq_max=1)
        plain = dict(variant.plain)
        if "window" in plain:
            tokens = model.metadata[f"{model.arch}.attention.sliding_window"]
            plain["window"] = Window("sliding", int(tokens))
        self.plain = CacheModel(N_CTX, N_SEQ, variant.kv, variant.cells, **plain)
        # The tokens of each sequence, as long as its state equals that of decoding them in order.
        self.said: list[list[int] | None] = [[] for _ in range(N_SEQ)]
        if variant.plain.get("encoder"):
            for seq in range(N_SEQ):
                self.encode(seq)

    # -- operations: each on the cache, its twin, and the plain lists --------------------------

    def do(self, ours: Callable[[plait.Context], Any], plain: Callable[[], Any]) -> Any:
        """Return the result, or "refused" or "full", which must be the same everywhere."""
        want = attempt(plain, Refused, Full)
        got = attempt(lambda: ours(self.ctx), (ValueError, plait.UnsupportedError), plait.CacheFull)
        assert got == want
        if self.twin is not None and got not in ("refused", "full"):
            assert attempt(lambda: ours(self.twin), ValueError, plait.CacheFull) == want
        return got

    def tokens(self, n: int) -> list[int]:
        return self.random.integers(3, min(self.model.n_vocab, 500), n).tolist()

    def seq(self) -> int:
        return int(self.random.integers(N_SEQ))

    def span(self) -> tuple[int, int | None]:
        p0, p1 = sorted(self.random.integers(0, N_CTX, 2).tolist())
        return (p0, None) if self.random.random() < 0.4 else (p0, p1)

    def decode(self) -> None:
        entries = []
        for seq in self.random.permutation(N_SEQ)[: self.random.integers(1, 4)].tolist():
            ids = (seq,)
            if self.variant.coupled and self.random.random() < 0.15:
                ids = tuple(self.random.permutation(N_SEQ)[:2].tolist())
            entries += [Entry(t, ids) for t in self.tokens(int(self.random.integers(1, 6)))]
        self.random.shuffle(entries)
        logits = []

        def ours(ctx: plait.Context) -> None:
            batch = plait.Batch()
            for entry in entries:
                batch.add(entry.token, seq=entry.seqs, logits=True)
            logits.append(ctx.decode(batch).logits.copy())

        def plain() -> None:
            self.plain.decode(entries)
            self.plain.apply_shifts()

        if self.do(ours, plain) is None:
            for entry in entries:
                for seq in entry.seqs:
                    if self.said[seq] is not None:
                        self.said[seq] = [*self.said[seq], entry.token]
            self.after_decode(entries, *logits)

    def after_decode(self, entries: list[Entry], logits: np.ndarray, *of_twin: np.ndarray) -> None:
        """Check the logits of a batch, [n_tokens, n_vocab]."""
        for other in of_twin:
            assert_close(logits, other)

    def rm(self) -> None:
        seq, (p0, p1) = self.seq(), self.span()
        if self.random.random() < 0.4:  # cut at the end, or all of it
            p0, p1 = int(self.random.choice([0, max(0, self.plain.pos_max(seq) - 2)])), None
        before = self.plain.positions(seq)
        if (
            self.do(lambda ctx: ctx.kv.seq_rm(seq, p0, p1), lambda: self.plain.rm(seq, p0, p1))
            is True
        ):
            left = self.plain.positions(seq)
            if not left:
                self.said[seq] = [] if not self.plain.sequences[seq] else None
                if p0 == 0 and p1 is None:
                    self.encode(seq)
            elif left != before:
                said, at_end = self.said[seq], left == before[: len(left)]
                n_gone = len(before) - len(left)
                self.said[seq] = said[:-n_gone] if said is not None and at_end else None

    def cp(self) -> None:
        src, dst = self.seq(), self.seq()
        p0, p1 = (0, None) if self.random.random() < 0.6 else self.span()
        was_empty = not self.plain.sequences[dst] or (p0 == 0 and p1 is None)
        done = self.do(
            lambda ctx: ctx.kv.seq_cp(src, dst, p0, p1), lambda: self.plain.cp(src, dst, p0, p1)
        )
        if done is None and src != dst:
            said = self.said[src]
            prefix = said is not None and p0 == 0 and was_empty and self.starts_at_zero(src)
            self.said[dst] = said[: len(said) if p1 is None else p1] if prefix else None
            if not (p0 == 0 and p1 is None) and not self.plain.sequences[dst]:
                self.said[dst] = []
            if self.variant.plain.get("encoder"):
                self.said[dst] = None if not (p0 == 0 and p1 is None) else self.said[dst]

    def starts_at_zero(self, seq: int) -> bool:
        cells = self.plain.sequences[seq]
        return not cells or cells[0].pos == 0

    def keep(self) -> None:
        seq = self.seq()
        self.do(lambda ctx: ctx.kv.seq_keep(seq), lambda: self.plain.keep(seq))
        for other in range(N_SEQ):
            if other != seq:
                self.said[other] = []
                self.encode(other)

    def add(self) -> None:
        seq, (p0, p1), delta = self.seq(), self.span(), int(self.random.integers(-8, 9))
        self.reposition("add", seq, p0, p1, delta)

    def div(self) -> None:
        seq, (p0, p1), divisor = self.seq(), self.span(), int(self.random.integers(1, 4))
        self.reposition("div", seq, p0, p1, divisor)

    def reposition(self, how: str, seq: int, p0: int, p1: int | None, by: int) -> None:
        if self.plain.recurrent and not self.plain.full:
            p0, p1 = 0, None  # a state has only a first and a last position
        before = [cell.pos for cell in self.plain.sequences[seq]]
        self.do(
            lambda ctx: getattr(ctx.kv, f"seq_{how}")(seq, p0, p1, by),
            lambda: getattr(self.plain, how)(seq, p0, p1, by),
        )
        if [cell.pos for cell in self.plain.sequences[seq]] != before:
            self.said[seq] = None

    def defrag(self) -> None:
        self.ctx.kv.defrag(max_moves=int(self.random.integers(1, 5)))
        rows = self.ctx.kv.cells()["row"]
        if self.variant.kv == "unified" and not self.variant.plain:
            assert sorted(rows.tolist()) == list(range(len(rows)))

    def save_and_load(self) -> None:
        """Copy the contents to a new context and back."""
        data = self.ctx.kv.to_bytes()
        self.plain.apply_shifts()
        self.ctx.kv.clear()
        self.ctx.kv.from_bytes(data)
        assert self.ctx.kv.to_bytes() == data
        if self.twin is not None:  # shifts must be applied in both
            self.twin.kv.to_bytes()

    def fault(self) -> None:
        """A call that fails changes no byte."""
        before = self.ctx.kv.to_bytes()
        self.plain.apply_shifts()
        batch = plait.Batch()
        for token in [*self.tokens(8), self.model.n_vocab]:
            batch.add(token, seq=self.seq())
        with pytest.raises(plait.BatchError):
            self.ctx.decode(batch)
        assert self.ctx.kv.to_bytes() == before
        if self.twin is not None:
            self.twin.kv.to_bytes()

    def clear(self) -> None:
        self.do(lambda ctx: ctx.kv.clear(), self.plain.clear)
        self.said = [[] for _ in range(N_SEQ)]
        for seq in range(N_SEQ):
            self.encode(seq)

    def encode(self, seq: int) -> None:
        if not self.variant.plain.get("encoder"):
            return
        tokens = tuple(self.tokens(int(self.random.integers(1, 9))))
        self.plain.encode(tokens, [seq])
        self.plain.apply_shifts()  # they are applied before any call
        batch = plait.Batch()
        batch.add_sequence(tokens, seq=seq, logits="none")
        self.ctx.encode(batch)

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        cells = [
            (int(cell["pos"][0]), int(cell["shift"]), tuple(np.flatnonzero(cell["seqs"]).tolist()))
            for cell in self.ctx.kv.cells()
        ]
        assert [self.ctx.kv.seq_pos_max(s) for s in range(N_SEQ)] == [
            self.plain.pos_max(s) for s in range(N_SEQ)
        ]
        if self.plain.recurrent and not self.plain.full:
            return  # a state is one cell, regardless of its contents
        assert sorted(cells) == sorted((p, d, seqs) for p, d, _, seqs in self.plain.cells())
        assert self.ctx.kv.n_used == self.plain.n_used
        assert self.ctx.kv.n_free == self.ctx.kv.n_cells - self.plain.n_used

    def check_logits(self) -> None:
        """Decode one more token per sequence in a copy of the cache, and compare with a new context."""
        saved = self.ctx.kv.to_bytes()
        self.plain.apply_shifts()
        if self.twin is not None:
            twin_saved = self.twin.kv.to_bytes()
        for seq in range(N_SEQ):
            said, token = self.said[seq], self.tokens(1)
            if said is None or not said or len(said) >= N_CTX or self.ctx.kv.n_free == 0:
                continue
            got = feed_one(self.ctx, token, seq)
            self.fresh.kv.clear()
            if heard := self.plain.encoded[seq]:
                batch = plait.Batch()
                batch.add_sequence(heard, logits="none")
                self.fresh.encode(batch)
            assert same_bits(got, feed_one(self.fresh, said + token, 0))
        self.ctx.kv.from_bytes(saved)
        if self.twin is not None:
            self.twin.kv.from_bytes(twin_saved)

    OPERATIONS = (
        ("decode", 40), ("rm", 12), ("cp", 12), ("keep", 1), ("add", 8), ("div", 3), ("defrag", 5),
        ("save_and_load", 2), ("fault", 2), ("clear", 1),
    )  # fmt: skip

    def run(self, n: int) -> None:
        names = [name for name, _ in self.OPERATIONS]
        weights = np.array([weight for _, weight in self.OPERATIONS], float)
        for i, choice in enumerate(self.random.choice(len(names), n, p=weights / weights.sum())):
            getattr(self, names[choice])()
            self.check()
            if i % 20 == 19:
                self.check_logits()


def attempt(call: Callable[[], Any], refused: Any, full: type[Exception]) -> Any:
    try:
        return call()
    except full:
        return "full"
    except refused:
        return "refused"


def feed_one(ctx: plait.Context, tokens: list[int], seq: int) -> np.ndarray:
    batch = plait.Batch()
    batch.add_sequence(tokens, seq=seq, pos=None, logits="last")
    return ctx.decode(batch).logits.copy()


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


@pytest.fixture
def model(variant: Variant, tiny_path: Path, request: pytest.FixtureRequest) -> plait.Model:
    if variant.model is None:
        return plait.Model(tiny_path)
    return plait.Model(model_path(request.getfixturevalue("data_dir"), variant.model))


def play(model: plait.Model, variant: Variant, seed: int, n: int) -> None:
    with ExitStack() as stack:
        Machine(stack, model, variant, seed).run(n)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.goal("G9", "G10")
def test_random_operations(model, variant, seed):  # S2-60, S4-08, S4-10, S4-14, S3-30
    play(model, variant, seed, 400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 15))
@pytest.mark.goal("G9", "G10")
def test_ten_thousand_random_operations(model, variant, seed):  # S4-14
    play(model, variant, seed, 10_000)


@pytest.mark.slow
@pytest.mark.goal("G9", "G10")
def test_a_thousand_programs(model, variant, record_property):  # S4-08, of nine variants together
    for seed in range(112):
        play(model, variant, 1000 + seed, 100)
    record_property("figure", "112 programs of a hundred calls beside plain lists, 0 divergences")
