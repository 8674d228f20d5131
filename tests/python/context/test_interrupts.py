"""Exceptions raised by signal handlers between any two Python instructions leave no resource open."""

from __future__ import annotations

import dis
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import plait
import pytest
from python.drive import feed, same_bits, tokens

# Python itself reports what was raised in the end of a generator, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PACKAGE = str(Path(plait.__file__).parent)
IDS = tokens(4)


@pytest.fixture(autouse=True)
def only_new_objects_are_collected() -> Iterator[None]:
    """Keep gc.collect() fast, whatever earlier tests have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class StrayError(Exception):
    """From nowhere."""


@functools.cache
def block_ends(code: CodeType) -> frozenset[int]:
    """The instructions between the end of a `with` block and the call of `__exit__(None, None, None)`.

    Python handles no signal there, so no exception of a handler can leave the block without that call.
    """
    ends = set[int]()
    instructions = list(dis.get_instructions(code))
    for i, first in enumerate(instructions):
        arguments = instructions[i : i + 3]
        is_none = [one.opname == "DUP_TOP" or one.argrepr == "None" for one in arguments]
        after = [one for one in instructions[i + 3 : i + 5] if "CALL" in one.opname]
        if first.opname == "LOAD_CONST" and len(is_none) == 3 and all(is_none) and after:
            ends.update(one.offset for one in arguments + after)
    return frozenset(ends)


def interrupted(work: Callable[[], object], n: int) -> bool:
    """Runs work with an exception at the n-th instruction of the package; False where it has fewer."""
    left = n

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in block_ends(frame.f_code):
            return trace
        if event in ("call", "opcode"):
            left -= 1
            if left == 0:
                raise StrayError
        return trace

    sys.settrace(trace)
    try:
        work()
    except StrayError:
        pass
    finally:
        sys.settrace(None)
    return left <= 0


def at_every_instruction(work: Callable[[], object], least: int, stride: int = 1) -> Iterator[int]:
    """Interrupts work at each instruction in turn, or at one of so many, and lets the caller look each time."""
    n = 1
    while interrupted(work, n):
        yield n
        n += stride
    assert n > least


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=32, n_seq_max=3) as ctx:
        yield ctx


def fresh(ctx) -> bytes:
    ctx.kv.clear()
    return feed(ctx, IDS).tobytes()


def test_no_capture_stays_open(ctx):  # G13
    def work():
        with ctx.capture("l_out.0"):
            feed(ctx, IDS)

    for _ in at_every_instruction(work, least=30):
        ctx.kv.clear()
        with ctx.capture("l_out.0") as seen:
            feed(ctx, IDS)
        assert seen["l_out.0"].shape[0] == len(IDS)


def test_deleted_objects_are_closed(ctx):  # G13 A2
    want = fresh(ctx)
    for _ in range(2):
        seen, edit = ctx.capture("l_out.0"), ctx.edit("l_out.0", lambda rows: rows + 1)
        seen.__enter__()
        edit.__enter__()
        assert fresh(ctx) != want
        del seen, edit
        gc.collect()
        assert fresh(ctx) == want


def test_no_edit_stays_open(ctx):  # G13
    want = fresh(ctx)

    def work():
        with ctx.edit("l_out.0", lambda rows: rows + 1):
            assert fresh(ctx) != want

    for n in at_every_instruction(work, least=30):
        assert fresh(ctx) == want, n


def test_no_trace_remains_active(ctx):  # G13
    def work():
        with ctx.trace():
            feed(ctx, IDS)

    for _ in at_every_instruction(work, least=5):
        ctx.kv.clear()
        with ctx.trace():  # refused if another one were open
            pass


def all_are_free(ctx) -> bool:
    """Whether every sequence can be had."""
    gc.collect()
    if ctx.kv.n_used != 0:
        return False
    for seq in [ctx.sequence() for _ in range(ctx.n_seq_max)]:
        seq.close()
    return True


def test_no_sequence_is_lost(ctx):  # G13
    def work():
        with ctx.sequence() as seq:
            feed(ctx, IDS, seq)
            seq.fork().close()

    for n in at_every_instruction(work, least=50):
        assert all_are_free(ctx), n


# Python itself ignores what is raised while it ends an inner generator, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_generation_keeps_its_sequences(ctx):  # G13
    want = feed(ctx, IDS)
    ctx.kv.clear()

    def work():
        for _ in plait.generate(ctx, [[5, 6, 7], [5, 8]], 3):
            pass

    for n in at_every_instruction(work, least=1000, stride=61):
        assert all_are_free(ctx), n
        assert same_bits(feed(ctx, IDS), want), n
        ctx.kv.clear()


def test_no_recording_stays_open(ctx):
    want = fresh(ctx)

    def work():
        with ctx.record():
            feed(ctx, IDS)

    for n in at_every_instruction(work, least=300, stride=3):
        assert fresh(ctx) == want, n
        with ctx.record() as receipt:
            feed(ctx, IDS)
        assert receipt.problem is None, n
        assert [call["call"] for call in receipt.calls] == ["kv.from_bytes", "decode"], n
        assert ctx._recorder is None, n
        assert "decode" not in vars(ctx), n


def test_what_an_interrupted_recording_holds_is_true(ctx):
    """Either its calls can be computed again, or it states that they cannot."""
    verified = useless = 0
    for work in (
        lambda: feed(ctx, IDS),
        lambda: ctx.kv.seq_cp(0, 1),
        lambda: ctx.kv.seq_rm(0, 2),
        lambda: ctx.sequence().close(),
        lambda: ctx.kv.from_bytes(ctx.kv.to_bytes(0), 1),
    ):
        n = 1
        more = True
        while more:
            ctx.kv.clear()
            with ctx.record() as receipt:
                feed(ctx, IDS)
                more = interrupted(work, n)
                gc.collect()
                for seq in range(3):
                    feed(ctx, [5], seq=seq)
                ctx.kv.to_bytes()
            n += 31
            if receipt.problem is None:
                plait.verify(receipt, ctx.model)
                verified += 1
            else:
                useless += 1
    assert verified > 5
    assert useless > 5


def test_no_gradients_stay_open(ctx):
    def work():
        with ctx.gradients("l_out.0", of=plait.Logit(5)) as grads:
            feed(ctx, IDS)
        grads["l_out.0"]

    for n in at_every_instruction(work, least=60):
        ctx.kv.clear()
        with ctx.gradients("l_out.0", of=plait.Logit(5)) as grads:
            feed(ctx, IDS)
        assert grads["l_out.0"].shape == (len(IDS), ctx.model.n_embd), n


def test_no_array_edit_stays_open(ctx):
    want = fresh(ctx)
    row = [0.5] * ctx.model.n_embd

    def work():
        with ctx.edit("l_out.0", row, seq=[0, 2], positions=range(2)):
            assert fresh(ctx) != want

    for n in at_every_instruction(work, least=100, stride=3):
        assert fresh(ctx) == want, n


def test_no_comparison_keeps_its_sequences(ctx, tiny):
    with plait.Context(tiny, n_ctx=32) as other:

        def work():
            plait.compare(ctx, other, IDS)

        for n in at_every_instruction(work, least=10_000, stride=5003):
            assert all_are_free(ctx), n
            assert all_are_free(other), n
            with ctx.capture("l_out.0"):
                pass
