"""Objects that several threads use at the same time, with and without the GIL.

Every test uses the embedded model, so that tests/pythons.py can run this file where nothing else is.
"""

import gc
import logging
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import plait
import pytest

N_THREADS = 4
BUSY = "cannot be changed while"

pytestmark = pytest.mark.goal("G16")


@pytest.fixture(scope="module")
def model():
    return plait.Model.demo()


@pytest.fixture(autouse=True)
def frequent_switches():
    """Let a thread that holds the GIL give it up as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*functions):
    """Call the functions at the same time; return their results, or raise the first exception."""
    begin = threading.Barrier(len(functions))

    def run(function):
        begin.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


def test_importing_plait_does_not_enable_the_gil():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python always has a GIL")
    code = "import sys, plait; plait.Model.demo(); print(sys._is_gil_enabled())"
    command = [sys.executable, "-W", "error", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_every_entry_arrives_in_a_batch_that_threads_fill():
    for entries in (300, 2000):
        batch = plait.Batch()

        def fill(seq, batch=batch, n=entries):
            for i in range(n):
                if i % 8 < 4:
                    batch.add(i, i, seq)
                elif i % 8 == 4:
                    batch.add_sequence(range(i, i + 4), seq=seq, pos=i, logits="none")
                assert len(batch) > 0

        in_threads(*[lambda seq=seq: fill(seq) for seq in range(N_THREADS)])
        tokens, positions, seq_ids, _ = batch.to_arrays()
        assert len(batch) == N_THREADS * entries
        for seq in range(N_THREADS):
            own = seq_ids[:, 0] == seq
            assert np.array_equal(tokens[own], np.arange(entries))
            assert np.array_equal(positions[own], np.arange(entries))


def test_a_batch_of_arrays_can_be_changed_and_read_by_threads():
    """The first change copies the arrays into the batch; readers see them before or after it."""
    for _ in range(100):
        batch = plait.Batch.from_arrays(np.arange(64), None, np.zeros(64, np.int32), [False] * 64)

        def read(batch=batch):
            for _ in range(10):
                tokens = batch.to_arrays()[0]
                assert np.array_equal(tokens[:64], np.arange(64))

        def change(batch=batch):
            for _ in range(10):
                batch.add(7, seq=0)

        in_threads(read, change, read, change)
        assert len(batch) == 64 + 20


def test_a_batch_is_decoded_as_it_was_when_the_call_began(model):
    with plait.Context(model, n_ctx=256, n_seq_max=N_THREADS) as ctx:
        batch = plait.Batch()
        batch.add(5, seq=0, logits=True)
        done = threading.Event()

        def add():
            while not done.is_set():
                try:
                    batch.add(5, seq=0, logits=True) if len(batch) < 100 else batch.clear()
                except plait.BatchError as error:
                    assert BUSY in str(error)  # noqa: PT017

        def decode():
            try:
                for _ in range(200):
                    ctx.kv.clear()
                    try:
                        out = ctx.decode(batch)
                    except plait.BatchError as error:
                        assert "empty" in str(error)  # noqa: PT017
                        continue
                    assert ctx.kv.seq_len(0) == len(out) > 0
            finally:
                done.set()

        in_threads(decode, add, add)


def captured_by_threads(model, n, *others):
    """Return the calls of a capture that threads read while another decodes, and more threads repeat `others`."""
    with plait.Context(model, n_ctx=256) as ctx, ctx.capture("l_out.0") as capture:
        done = threading.Event()

        def decode():
            try:
                for i in range(n):
                    ctx.decode(plait.Batch.from_arrays([5 + i], None, [0], [True]))
            finally:
                done.set()

        def read():
            sizes = []
            while not done.is_set():
                sizes.append(len(capture.calls))
            assert sizes == sorted(sizes)
            assert not sizes or sizes[-1] <= n

        def repeat(other):
            while not done.is_set():
                other()

        in_threads(decode, *[read] * (N_THREADS - 1), *[partial(repeat, other) for other in others])
        return capture.calls


def test_threads_read_a_capture_while_another_decodes(model):
    n = 200
    calls = captured_by_threads(model, n)
    assert len(calls) == n
    assert all(rows.shape == (1, model.n_embd) for call in calls for rows in call.values())


class Cyclic:
    """Garbage whose finalizer lets other threads run, in whatever call collects it."""

    def __init__(self, finalized):
        self.me = self
        self.finalized = finalized

    def __del__(self):
        for _ in range(200):
            pass
        self.finalized.append(None)


class Litter:
    """Makes an object of garbage per call, unless a thousand are not finalized yet.

    Without a limit the process ran out of memory: a collection lets the thread that calls this run between two
    finalizers, and meanwhile no other collection begins.
    """

    def __init__(self):
        self.n_made = 0
        self.finalized = []

    def __call__(self):
        if self.n_made - len(self.finalized) < 1000:
            self.n_made += 1
            Cyclic(self.finalized)
        else:
            time.sleep(0)


def test_finalizers_that_run_other_threads_keep_the_calls_of_a_capture(model):
    n = 200
    with plait.Context(model, n_ctx=256) as ctx, ctx.capture("l_out.0") as expected:
        for i in range(n):
            ctx.decode(plait.Batch.from_arrays([5 + i], None, [0], [True]))
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for _ in range(8):
            calls = captured_by_threads(model, n, Litter())
            for call, alone in zip(calls, expected.calls, strict=True):
                for name, rows in alone.items():
                    assert np.array_equal(call[name], rows)
    finally:
        gc.set_threshold(*threshold)


def test_threads_get_the_same_metadata():
    for _ in range(20):
        model = plait.Model.demo()

        def read(model=model):
            return model.metadata["general.architecture"], len(model.tensors)

        results = in_threads(*[read] * N_THREADS)
        assert len(set(results)) == 1
        assert model.metadata is model.metadata


def test_a_sequence_that_threads_close_is_closed_once(model):
    with plait.Context(model, n_ctx=64, n_seq_max=N_THREADS) as ctx:
        for _ in range(200):
            kept, closed = ctx.sequence(), ctx.sequence()
            in_threads(*[closed.close] * N_THREADS)
            assert closed.closed
            assert not kept.closed
            others = [ctx.sequence() for _ in range(N_THREADS - 1)]  # the id is free again
            for seq in (kept, *others):
                seq.close()


def decode_slowly(ctx, held):
    """Decode token 5 of sequence 1; `held` is set while the call holds the context, for a while."""

    def hold(rows):
        held.set()
        time.sleep(0.1)
        return rows

    with ctx.edit("l_out.0", hold):
        ctx.decode(plait.Batch.from_arrays([5], None, [1], [True]))


def test_a_transaction_is_entered_once(model):
    """The threads enter while another one holds the context, and go on when it lets go."""
    with plait.Context(model, n_ctx=64, n_seq_max=2) as ctx:
        for _ in range(5):
            ctx.kv.clear()
            transaction = ctx.transaction()
            held = threading.Event()
            entered = []

            def enter(transaction=transaction, entered=entered, held=held):
                held.wait()
                try:
                    with transaction:
                        entered.append(transaction.open)
                except ValueError as error:
                    assert "entered before" in str(error)  # noqa: PT017

            in_threads(partial(decode_slowly, ctx, held), *[enter] * (N_THREADS - 1))
            assert entered == [True]
            assert not transaction.open
        with ctx.transaction() as outer:  # no other transaction was left open
            ctx.kv.clear()
            outer.rollback()
        assert ctx.kv.seq_len(1) == 1


def test_an_edit_is_entered_once(model):
    """As a transaction. An edit that a second thread starts as well never ends."""
    with plait.Context(model, n_ctx=64, n_seq_max=2) as ctx:
        for _ in range(5):
            ctx.kv.clear()
            rows = []
            edit = ctx.edit("l_out.1", lambda given, rows=rows: rows.append(given) or given)
            held, refused = threading.Event(), threading.Semaphore(0)

            def enter(edit=edit, held=held, refused=refused):
                held.wait()
                try:
                    with edit:
                        for _ in range(N_THREADS - 2):
                            assert refused.acquire(timeout=5)
                except ValueError as error:
                    assert "is active; leave its `with` block first" in str(error)  # noqa: PT017
                    refused.release()

            in_threads(partial(decode_slowly, ctx, held), *[enter] * (N_THREADS - 1))
            rows.clear()
            ctx.decode(plait.Batch.from_arrays([5], None, [0], [True]))
            assert rows == []


def test_threads_change_the_level_of_the_logger(model):
    logger = logging.getLogger("plait")
    before = logger.level
    try:
        with plait.Context(model, n_ctx=256, n_seq_max=2) as ctx:

            def change():
                for i in range(200):
                    logger.setLevel((logging.DEBUG, logging.ERROR, logging.CRITICAL + 1)[i % 3])
                    ctx.decode(plait.Batch.from_arrays([5], None, [0], [True]))
                    ctx.kv.clear()

            def read():
                for _ in range(200):
                    plait.Model.demo().n_params  # noqa: B018

            in_threads(change, read, read)
    finally:
        logger.setLevel(before)
    with plait.Context(model, n_ctx=64) as ctx:
        assert len(ctx.decode(plait.Batch.from_arrays([5], None, [0], [True]))) == 1
