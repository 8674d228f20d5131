"""Whatever ends an experiment, a callback that raises or a signal at any time, it is all or nothing.

Each work below makes one change that counts: afterwards the cache is as before it, or as after all of it. Nothing
stays open, and the context computes what it computed before.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens

IDS = tokens(12, seed=5, n_vocab=200)
N_UBATCH = 5  # so that each call consists of several microbatches
KINDS = [None, "gemma3", "jamba", "deepseek2", "mamba"]
Rows = np.ndarray
Hook = Callable[[], None]


class StrayError(Exception):
    """What a callback or a signal handler raises."""


class Lab:
    """A context of all layers and two of some, with a sequence that is there before."""

    def __init__(self, model: plait.Model, **options: Any) -> None:
        self.model = model
        options = {"n_ctx": 64, "n_seq_max": 3, "n_ubatch": N_UBATCH} | options
        self.ctx = plait.Context(model, **options)
        cut = model.n_layer // 2
        self.parts = [
            plait.Context(model, layers=layers, **options)
            for layers in (range(cut), range(cut, model.n_layer))
        ]
        for ctx in (self.ctx, self.parts[0]):
            feed(ctx, [5, 9, 4, 7], seq=1)
        self.held = [ctx.kv.to_bytes() for ctx in self.all]

    @property
    def all(self) -> list[plait.Context]:
        return [self.ctx, *self.parts]

    def restore(self) -> None:
        for ctx, held in zip(self.all, self.held, strict=True):
            ctx.kv.from_bytes(held)

    def close(self) -> None:
        for ctx in self.all:
            ctx.close()

    # --- works: each calls `hook` wherever a callback can be -------------------------------------

    def edit(self, hook: Hook) -> None:
        """Functions and arrays change rows."""
        row = np.ones(self.model.n_embd, np.float32)
        last = self.model.n_layer - 1
        with (
            self.ctx.edit("l_out.0", _after(hook), seq=[0, 1]),
            self.ctx.edit("l_out.0", row, seq=0, positions=range(2, 9)),
            self.ctx.edit(f"l_out.{last}", _after(hook)),
        ):
            self.ctx.decode(batch((IDS, 0), (IDS[:3], 1)))

    def sink(self, hook: Hook) -> None:
        """A function receives the rows of each call."""
        with self.ctx.capture("l_out.*", sink=lambda rows: hook()):
            feed(self.ctx, IDS)

    def gradients(self, hook: Hook) -> None:
        """A function returns the loss. One microbatch, since derivatives need the whole call."""

        def loss(logits: Rows) -> tuple[float, Rows]:
            hook()
            return float(logits[-1, 5]), np.ones_like(logits)

        name = "result_norm" if self.ctx.kv.kind in ("recurrent", "hybrid") else "l_out.0"
        with self.ctx.gradients(name, of=loss):
            feed(self.ctx, IDS[:N_UBATCH])

    def transaction(self, hook: Hook) -> None:
        """Many calls, one inside another, are one."""
        with self.ctx.transaction():
            with self.ctx.capture("l_out.0", sink=lambda rows: hook()):
                feed(self.ctx, IDS[:7])
            hook()
            with contextlib.suppress(StrayError), self.ctx.transaction():
                self.ctx.kv.seq_rm(1)
                hook()
                feed(self.ctx, IDS, seq=2)
                raise StrayError
            self.ctx.kv.seq_cp(0, 2)
            with self.ctx.edit("l_out.0", _after(hook)):
                feed(self.ctx, IDS[7:], seq=2)
            hook()

    def write(self, hook: Hook) -> None:
        """Rows of a sequence are replaced, in the first layer that has some."""
        kv = self.ctx.kv
        with self.ctx.transaction():
            for layer in range(self.model.n_layer):
                try:
                    keys = kv.keys(layer, 1)
                except plait.UnsupportedError:
                    continue
                hook()
                kv.seq_cp(1, 2)
                kv.write(2, layer, range(len(keys)), keys=keys + 1)
                hook()
                kv.write(1, layer, [0, 2], keys=keys[[0, 2]] + 2)
                return

    def ranges(self, hook: Hook) -> None:
        """Contexts of two ranges of layers: each has a transaction of its own, and the second's ends first."""
        low, high = self.parts
        with low.transaction(), high.transaction():
            given = batch((IDS, 0))
            with (
                low.edit("l_out.0", _after(hook)),
                high.capture("l_out.*", sink=lambda rows: hook()),
            ):
                rows = low.decode(given).embeddings
                hook()
                residual = plait.Batch()
                residual.add_embeddings(rows, logits="all")
                high.decode(residual)

    def sweep(self, hook: Hook) -> None:
        """A sweep has contexts of its own, which end with it."""

        def metric(logits: Rows) -> Rows:
            hook()
            return logits[:, 5]

        plait.patch_sweep(
            self.model, IDS[:6], IDS[6:], layers=[0, 1], metric=metric,
            progress=lambda done, total: hook(),
        )  # fmt: skip

    def compare(self, hook: Hook) -> None:
        """Free sequences are taken and given back."""
        with (
            self.ctx.edit("l_out.0", _after(hook), positions=[2]),
            plait.Context(self.model, n_ctx=64) as other,
        ):
            plait.compare(self.ctx, other, IDS[:4])

    WORKS = ("edit", "sink", "gradients", "transaction", "write", "ranges", "sweep", "compare")

    # --- checks ----------------------------------------------------------------------------------

    def state(self) -> list[bytes]:
        return [ctx.kv.to_bytes() for ctx in self.all]

    def check(self, done: list[bytes]) -> bool:
        """Check the state after a fault, and restore it. Return True if the work was done.

        Each context is as before the work or as after it. They agree, but for a signal between the ends of two
        transactions, where the context whose transaction ended first is done: see `ranges()`.
        """
        gc.collect()
        now = self.state()
        assert now in (self.held, done, [*self.held[:2], done[2]])
        self.restore()
        with self.ctx.capture("l_out.0"), self.ctx.transaction() as undone:
            undone.rollback()
        return now != self.held


def _after(hook: Hook) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        hook()
        return rows + 1

    return change


@pytest.fixture(params=KINDS, ids=lambda kind: kind or "tiny")
def lab(request: pytest.FixtureRequest, tiny: plait.Model) -> Iterator[Lab]:
    if request.param is None:
        made = Lab(tiny)
    else:
        folder: Path = request.getfixturevalue("data_dir")
        made = Lab(plait.Model(folder / "conformance" / request.param / "model.gguf"))
    gc.collect()
    gc.freeze()  # keeps gc.collect() fast, whatever earlier tests have left
    yield made
    gc.unfreeze()
    made.close()


def outcome(lab: Lab, work: str) -> tuple[list[bytes], Rows, int]:
    """Return the state after the work, the logits of a plain call, and how often the work calls its hook."""
    n = 0

    def count() -> None:
        nonlocal n
        n += 1

    getattr(lab, work)(count)
    done = lab.state()
    lab.restore()
    logits = feed(lab.ctx, IDS).copy()
    lab.restore()
    return done, logits, n


def n_contexts() -> int:
    gc.collect()
    return sum(isinstance(each, plait.Context) for each in gc.get_objects())


@pytest.mark.parametrize("work", Lab.WORKS)
def test_a_callback_that_raises(lab: Lab, work: str) -> None:
    """At each of its calls in turn."""
    done, logits, n_hooks = outcome(lab, work)
    assert n_hooks > 0 or work == "write"  # recurrent layers hold no rows to write
    before = n_contexts()
    for which in range(n_hooks):
        left = which

        def fail() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StrayError

        with pytest.raises(StrayError):
            getattr(lab, work)(fail)
        assert not lab.check(done), which
        assert same_bits(feed(lab.ctx, IDS), logits)
        lab.restore()
    assert n_contexts() == before


class Alarm:
    """SIGALRM raises StrayError, wherever Python is, while a call runs."""

    def __init__(self) -> None:
        self.armed = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            raise StrayError

    def stops(self, call: Callable[[], None], after: float) -> bool:
        """Run the call and return True if the signal came meanwhile."""
        self.armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, max(after, 1e-6))
            call()
            self.armed = False
        except StrayError:
            return True
        signal.setitimer(signal.ITIMER_REAL, 0)
        return False


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alarm]:
    # Where the signal comes within a destructor or a callback of a weak reference, nobody can catch the error. pytest
    # would keep it until the test ends, and with it the frames of the work and their contexts.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    made = Alarm()
    old = signal.signal(signal.SIGALRM, made.handle)
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("work", Lab.WORKS)
def test_a_signal_at_any_time(lab: Lab, work: str, alarm: Alarm) -> None:
    """Also within a computation, which ends early."""
    done, logits, _ = outcome(lab, work)
    call = getattr(lab, work)
    begin = time.perf_counter()
    call(lambda: None)
    duration = time.perf_counter() - begin
    lab.restore()
    before = n_contexts()
    n_stopped = 0
    for share in np.linspace(0.02, 0.98, 25):
        n_stopped += alarm.stops(lambda: call(lambda: None), share * duration)
        lab.check(done)
        assert same_bits(feed(lab.ctx, IDS), logits)
        lab.restore()
    assert n_stopped > 0
    assert n_contexts() == before
