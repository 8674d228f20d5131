"""Threads, signals and forks."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import plait
import pytest
from python.drive import UNDER_ASAN, batch, contents, feed, same_bits, tokens

from python import gguf_writer, lora_models

# How long after a signal a call may go on, in seconds. One operation takes longer under sanitizers.
LATE = 1.0 if UNDER_ASAN else 0.25


def conversation(ctx, seed, steps):
    """Bytes of every step of a fixed series of steps, of changing sequences."""
    said = []
    for i in range(steps):
        seq = i % 3
        if ctx.kv.seq_len(seq) + 8 > ctx.n_ctx:
            ctx.kv.seq_rm(seq, 4)
        said.append(feed(ctx, tokens(1 + (i + seed) % 4, seed + i), seq).tobytes())
    return said


@pytest.mark.goal("G15")
def test_two_threads_on_two_contexts_give_the_results_of_one(tiny):
    options = {"n_ctx": 64, "n_seq_max": 3, "threads": 2}
    want = []
    for seed in (0, 1):
        with plait.Context(tiny, **options) as ctx:
            want.append(conversation(ctx, seed, 500))
    with (
        plait.Context(tiny, **options) as one,
        plait.Context(tiny, **options) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        runs = [pool.submit(conversation, ctx, seed, 500) for seed, ctx in enumerate((one, other))]
        assert [run.result() for run in runs] == want  # 1,000 decodes


@pytest.mark.goal("G16")
def test_two_threads_on_one_context_wait_for_each_other(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as alone:
        want = [[feed(alone, [t], seq).tobytes() for t in tokens(60, seq)] for seq in range(2)]
    for _ in range(5):
        with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:

            def run(seq, ctx=ctx):
                rows = []
                for token in tokens(60, seq):
                    rows.append(feed(ctx, [token], seq).tobytes())
                    assert 0 < ctx.kv.n_used <= 120
                    repr(ctx), ctx.stats.tokens, ctx.kv.cells()
                return rows

            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(run, range(2))) == want


@pytest.mark.slow
@pytest.mark.goal("G16")
def test_two_threads_call_one_context_a_thousand_times_each(tiny, record_property):  # G16
    """Anything at once; in the end the context is as one thread leaves it."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, n_ubatch=8) as ctx:

        def run(seq):
            rng = random.Random(seq)
            done = 0
            for i in range(1000):
                if ctx.kv.seq_len(seq) > 50:
                    ctx.kv.seq_rm(seq)
                match rng.randrange(6):
                    case 0:
                        ctx.kv.from_bytes(ctx.kv.to_bytes(seq), seq=seq)
                    case 1:
                        ctx.kv.seq_rm(seq, rng.randrange(60))
                    case 2:
                        ctx.kv.cells(), ctx.stats.tokens, repr(ctx), ctx.kv.keys(0, seq)
                    case _:
                        feed(ctx, tokens(rng.randrange(1, 9), i), seq)
                done += 1
            return done

        with ThreadPoolExecutor(2) as pool:
            n = sum(pool.map(run, range(2)))
        said = []
        for _ in range(2):
            for seq in range(2):
                ctx.kv.seq_rm(seq)
            said.append([feed(ctx, tokens(20, seq), seq).tobytes() for seq in range(2)])
    assert said[0] == said[1]
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as alone:
        assert [feed(alone, tokens(20, seq), seq).tobytes() for seq in range(2)] == said[0]
    record_property("figure", f"{n} mixed calls, 0 errors, logits as of one thread")


def test_closing_waits_for_a_running_decode(tiny):
    for delay in (0, 0.001, 0.003):
        ctx = plait.Context(tiny, n_ctx=256)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(feed, ctx, tokens(200))
            time.sleep(delay)
            ctx.close()
            error = run.exception()
        if error is None:
            assert run.result().shape == (200, 288)
        else:
            assert isinstance(error, ValueError)
            assert "closed" in str(error)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A context whose decode of `long` takes about a second or more: at least 12,000 tokens, or 1,200 under ASan."""
    model = plait.Model(gguf_writer.tiny_llama(tmp_path_factory.mktemp("slow") / "m.gguf"))
    ctx = plait.Context(model, n_ctx=40_000, n_batch=40_000, n_seq_max=2, threads=1, isa="scalar")
    n, seconds = (300 if UNDER_ASAN else 3000), 0.0
    while seconds < 0.6 and n < 16_000:
        n *= 2
        start = time.perf_counter()
        feed(ctx, tokens(n), 1, logits="none")
        seconds = time.perf_counter() - start
        ctx.kv.seq_rm(1)
    yield ctx, batch((tokens(2 * n), 1), logits="none")
    ctx.close()


def test_the_gil_is_released_while_a_decode_runs(slow):
    ctx, long = slow
    done = threading.Event()

    def run():
        ctx.decode(long)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    ticks = 0
    while not done.is_set():
        ticks += 1
        time.sleep(0.01)
    thread.join()
    ctx.kv.seq_rm(1)
    assert ticks > 20


def test_a_batch_cannot_be_changed_while_it_is_decoded(slow):
    ctx, long = slow
    thread = threading.Thread(target=ctx.decode, args=(long,))
    thread.start()
    time.sleep(0.15)
    try:
        for change in (lambda: long.add(5), lambda: long.clear(), lambda: long.add_sequence([5])):
            with pytest.raises(plait.BatchError, match="cannot be changed while"):
                change()
    finally:
        thread.join()
        ctx.kv.seq_rm(1)


@pytest.fixture
def interruptible():
    """Python's own handler of SIGINT: a shell starts programs in the background with the signal ignored."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


def interrupt_after(seconds):
    """SIGINT to this process, and when it was sent."""
    sent = []

    def send():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, send)
    timer.start()
    return timer, sent


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("after", [0.05, 0.2, 0.4])
@pytest.mark.goal("G13")
def test_ctrl_c_ends_a_decode_within_a_quarter_second_and_leaves_the_cache_as_it_was(slow, after):
    ctx, long = slow
    ctx.kv.clear()
    feed(ctx, tokens(20), 0)
    before, stats = contents(ctx), ctx.stats.tokens
    timer, sent = interrupt_after(after)
    with pytest.raises(KeyboardInterrupt):
        ctx.decode(long)
    late = time.perf_counter() - sent[0]
    timer.join()
    assert late < LATE
    assert contents(ctx) == before
    assert ctx.stats.tokens == stats
    with plait.Context(ctx.model, n_ctx=64, isa="scalar") as fresh:
        assert same_bits(feed(ctx, tokens(25)[20:], 0), feed(fresh, tokens(25))[20:])


@pytest.mark.slow
@pytest.mark.goal("G13")
@pytest.mark.usefixtures("interruptible")
def test_the_slowest_of_fifty_interrupts(slow, record_property):  # G13 A4
    ctx, long = slow
    rng = random.Random(1)
    worst = 0.0
    for i in range(50):
        ctx.kv.clear()
        feed(ctx, tokens(20), 0)
        before = ctx.kv.to_bytes()
        timer, sent = interrupt_after(rng.uniform(0.01, 0.5))
        with pytest.raises(KeyboardInterrupt):
            ctx.decode(long)
        worst = max(worst, time.perf_counter() - sent[0])
        timer.join()
        assert ctx.kv.to_bytes() == before, i
    record_property(
        "figure", f"at most {worst:.3f} s after the signal, of 50 in {len(long):,} tokens"
    )
    assert worst < LATE


def test_exceptions_of_signal_handlers_are_raised_by_decode(slow):
    class AlarmError(Exception):
        pass

    def handler(*_):
        raise AlarmError("time is up")

    ctx, long = slow
    ctx.kv.clear()
    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError, match="time is up"):
            ctx.decode(long)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert ctx.kv.n_used == 0


def test_a_signal_handler_cannot_enter_the_context(slow):
    def handler(*_):
        with pytest.raises(ValueError, match="busy"):
            ctx.kv.clear()
        handled.append(1)

    ctx, long = slow
    ctx.kv.clear()
    handled = []
    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        ctx.decode(long)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert handled == [1]
    assert ctx.kv.seq_len(1) == len(long)
    ctx.kv.clear()


@pytest.mark.goal("G25")
def test_too_few_threads_are_enough(tiny_path, record_property):  # G25 A2
    """Where the system gives fewer threads than were asked for, those do all the work."""
    code = f"""
import resource, plait
batch = plait.Batch()
batch.add_sequence(range(3, 100), logits="all")
model = plait.Model({str(tiny_path)!r})
with plait.Context(model, n_ctx=128, threads=1) as ctx:
    want = ctx.decode(batch).logits.tobytes()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + (100 << 20)  # stacks are of 8 MiB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
ctx = plait.Context(model, n_ctx=128, threads=64)
for _ in range(3):
    ctx.kv.clear()
    assert ctx.decode(batch).logits.tobytes() == want
n = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("Threads:"))
assert n < 32, n
"""
    if UNDER_ASAN:
        pytest.skip("the sanitizer reserves more address space than there is")
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
    record_property("figure", "64 threads asked for, a few granted: same logits")


class InjectedError(Exception):
    pass


@pytest.mark.goal("G25")
@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_inside_a_call_reaches_the_caller(tiny, threads, record_property):  # G25 A2
    """Exceptions are injected into each kind of Python code that runs inside a call."""
    n = 0
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, n_ubatch=4, threads=threads) as ctx:
        feed(ctx, tokens(9), 0)
        before = ctx.kv.to_bytes()
        want = feed(ctx, tokens(12, 1), 1).tobytes()
        for layer in range(tiny.n_layer):
            for microbatch in range(3):
                calls = itertools.count()

                def edit(rows, calls=calls, last=microbatch):
                    if next(calls) == last:
                        raise InjectedError(f"in microbatch {last}")
                    return rows

                ctx.kv.seq_rm(1)
                with (
                    ctx.edit(f"l_out.{layer}", edit),
                    pytest.raises(InjectedError, match=f"in microbatch {microbatch}"),
                ):
                    feed(ctx, tokens(12, 1), 1)
                assert ctx.kv.to_bytes() == before
                assert feed(ctx, tokens(12, 1), 1).tobytes() == want  # the next call
                n += 1
    record_property("figure", f"{n} exceptions reached the caller, 0 caches changed")


@pytest.mark.goal("G14")
def test_a_forked_child_can_decode(tiny_path):
    code = f"""
import os, plait
model = plait.Model({str(tiny_path)!r})
ctx = plait.Context(model, n_ctx=64, n_seq_max=2, threads=2)
def step(seq):
    batch = plait.Batch()
    batch.add_sequence([5, 6, 7, 8], seq=seq)
    return ctx.decode(batch).logits.tobytes()
want = step(0)
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if step(1) == want else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert step(1) == want
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_the_interpreter_ends_cleanly_with_everything_open(tiny_path):
    code = f"""
import logging, threading, plait
logging.getLogger("plait").setLevel(5)
model = plait.Model({str(tiny_path)!r})
ctx = plait.Context(model, n_ctx=256, n_seq_max=2)
seq = ctx.sequence()
batch = plait.Batch()
batch.add_sequence([5] * 200, seq=seq, logits="all")
out = ctx.decode(batch)
threading.Thread(target=lambda: [ctx.decode(plait.Batch.from_arrays([5], None, [1], [True])) for _ in range(200)],
                 daemon=True).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("busy", ["decode", "save", "open", "log"])
@pytest.mark.goal("G24")
def test_the_interpreter_ends_while_threads_are_in_calls(tiny_path, busy):  # G24
    # Interpreter shutdown clears objects of daemon threads, so it must not run during a call.
    code = f"""
import logging, sys, threading, time, plait
model = plait.Model({str(tiny_path)!r})
ctx = plait.Context(model, n_ctx=256)
batch = plait.Batch()
batch.add_sequence([5] * 250, logits="all")
def decode():
    ctx.kv.clear()
    try:
        ctx.decode(batch)
    except plait.CacheFull:
        pass  # another thread decoded since the cache was cleared
def save():
    ctx.kv.to_bytes()
def open():
    plait.Model({str(tiny_path)!r})
def log():
    logging.getLogger("plait").setLevel(1)
    decode()
decode()
def forever(call):
    while True:
        call()
for _ in range(3):
    threading.Thread(target=forever, args=({busy},), daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("stored", ["f16", "q8_0"])
def test_threads_of_a_long_context_give_the_results_of_one(tiny, stored):
    """Few tokens and many keys: the keys are work for several threads, and no bit shows it."""
    ids = tokens(1210, 5)
    said = set()
    for threads in (1, 2, 3):
        for steps in ([10], [1] * 10, [3, 7]):
            with plait.Context(
                tiny, n_ctx=1280, threads=threads, type_k=stored, type_v=stored
            ) as ctx:
                feed(ctx, ids[:1200], logits="none")
                at, parts = 1200, []
                for n in steps:
                    parts.append(feed(ctx, ids[at : at + n]).tobytes())
                    at += n
            said.add(b"".join(parts))
    assert len(said) == 1


@pytest.fixture
def busy_cores():
    """Other programs on every core."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.goal("G20")
@pytest.mark.usefixtures("busy_cores")
def test_preempted_threads_change_no_bit(tiny, tmp_path, record_property):  # G20
    """More threads than cores beside them: chunks change hands, plans come and go."""
    experts = plait.Model(
        gguf_writer.write(tmp_path / "experts.gguf", *lora_models.model("mixtral"))
    )
    for model in (tiny, experts):
        with plait.Context(model, n_ctx=64, n_seq_max=3, threads=1) as ctx:
            want = conversation(ctx, 0, 60)
        for threads in (2, 3, 4) * 4:
            with plait.Context(model, n_ctx=64, n_seq_max=3, threads=threads) as ctx:
                assert conversation(ctx, 0, 60) == want
    record_property(
        "figure",
        "1,440 steps with busy cores, where threads take over chunks: bit-equal to one thread",
    )


@pytest.mark.usefixtures("busy_cores")
def test_outputs_may_go_while_threads_are_late(tiny):
    """Logits beside embeddings are computed from an output: nobody reads it when its owner has freed it."""
    for threads in (2, 3, 4) * 100:
        ctx = plait.Context(tiny, n_ctx=64, threads=threads, embeddings=True)
        want = feed(ctx, tokens(4, 1), logits="all").copy()
        ctx.kv.clear()
        assert (feed(ctx, tokens(4, 1), logits="all") == want).all()
        ctx.close()
