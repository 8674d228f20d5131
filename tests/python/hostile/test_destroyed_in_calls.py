"""Objects that are destroyed during a call of their context are closed after that call.

A callback may delete the last reference to such an object, and so may the garbage collector, which can run whenever
Python code runs. The context cannot be called then.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator

import numpy as np
import plait
import pytest
from python.drive import feed, same_bits, tokens

IDS = tokens(4)


@pytest.fixture
def ctx(tiny: plait.Model) -> Iterator[plait.Context]:
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        yield ctx


def open_sequence(ctx: plait.Context) -> plait.Sequence:
    seq = ctx.sequence()
    feed(ctx, IDS, seq)
    return seq


def all_sequences_are_free(ctx: plait.Context) -> None:
    assert ctx.kv.n_used == 0
    for seq in [ctx.sequence() for _ in range(ctx.n_seq_max)]:
        seq.close()


def open_transaction(ctx: plait.Context) -> object:
    transaction = ctx.transaction()
    transaction.__enter__()
    feed(ctx, IDS, 2)
    return transaction


def no_transaction_is_open(ctx: plait.Context) -> None:
    assert not ctx.kv.in_transaction
    assert ctx.kv.n_used == 0


def entered(scope: contextlib.AbstractContextManager[object]) -> object:
    scope.__enter__()
    return scope


def open_edit(ctx: plait.Context) -> object:
    return entered(ctx.edit("l_out.0", np.full(ctx.model.n_embd, 3)))


def no_edit_is_active(ctx: plait.Context) -> None:
    with plait.Context(ctx.model, n_ctx=64) as plain:
        assert same_bits(feed(ctx, IDS), feed(plain, IDS))


def open_capture(ctx: plait.Context) -> object:
    return entered(ctx.capture("l_out.0"))


def open_gradients(ctx: plait.Context) -> object:
    return entered(ctx.gradients("result_norm", of=plait.Logit(5)))


def open_trace(ctx: plait.Context) -> object:
    return entered(ctx.trace())


KINDS = {
    "sequence": (open_sequence, all_sequences_are_free),
    "transaction": (open_transaction, no_transaction_is_open),
    "edit": (open_edit, no_edit_is_active),
    # These raise if one is open.
    "capture": (open_capture, open_capture),
    "gradients": (open_gradients, open_gradients),
    "trace": (open_trace, open_trace),
}


@contextlib.contextmanager
def edit_function(ctx: plait.Context, run: Callable[[], None]) -> Iterator[None]:
    def function(rows: np.ndarray) -> np.ndarray:
        run()
        return rows

    with ctx.edit("l_out.1", function):
        yield


@contextlib.contextmanager
def log_handler(_: plait.Context, run: Callable[[], None]) -> Iterator[None]:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            run()

    logger, handler = logging.getLogger("plait"), Handler(5)
    before = logger.level
    logger.setLevel(5)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.mark.parametrize("make", [open_capture, open_gradients, open_trace])
def test_a_second_one_is_refused_and_leaves_the_first_open(ctx, make):
    first = make(ctx)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"of this context (is|are) open"):
            make(ctx)
    first.__exit__(None, None, None)
    make(ctx)


@pytest.mark.parametrize("callback", [edit_function, log_handler])
@pytest.mark.parametrize("collected", [False, True], ids=["deleted", "collected"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_destroyed_in_a_callback_is_closed(ctx, kind, collected, callback):
    make, check = KINDS[kind]
    held: list[object] = []
    runs = []

    def run() -> None:
        runs.append(1)
        held.clear()
        if collected:
            gc.collect()

    with callback(ctx, run), ctx.sequence() as seq:
        held.append(make(ctx))
        if collected:
            cycle: list[object] = [held.pop()]
            cycle.append(cycle)
            del cycle
        runs.clear()
        feed(ctx, IDS, seq)
        assert runs
    check(ctx)


def test_an_object_of_an_outer_context_is_closed_after_its_call(tiny, ctx):
    """The callback of another context, which a callback of this one has called, destroys the sequence."""
    seq, held = ctx.sequence(), [open_sequence(ctx)]
    with plait.Context(tiny, n_ctx=64) as inner:

        def call_the_inner_context() -> None:
            with edit_function(inner, held.clear):
                feed(inner, IDS)

        with edit_function(ctx, call_the_inner_context):
            feed(ctx, IDS, seq)
    assert not held
    seq.close()
    all_sequences_are_free(ctx)


def test_a_call_that_fails_closes_what_was_destroyed_in_it(ctx):
    seq, held = ctx.sequence(), [open_sequence(ctx)]

    def fail() -> None:
        held.clear()
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"), edit_function(ctx, fail):
        feed(ctx, IDS, seq)
    seq.close()
    all_sequences_are_free(ctx)
