"""soak.py MODEL ADAPTER SECONDS SEED [DEVICE]: mixed work on two contexts of one model, in two threads, interrupted.

64 sequences each come, fork, go back and go; states are saved, loaded and refused; values are captured and changed,
adapters come and go; generations are begun, cancelled and left. With a DEVICE each context moves between that and the
CPU now and then. Nothing may fail, be left open, grow or be noticed by a fresh context. Prints what was done.

It is done in rounds. At the end of each the contexts are closed, and what is still there belongs to the model and to
the process. What is made once (packed weights, shaders that the device's driver compiles when it meets them) comes in
steps and then no more; what is lost comes in every round. What a context holds while it lives (plans, scratch, captured
rows) has bounds of its own and is no part of that. Live bytes are those that malloc has given out; it keeps pages in
parts, so resident ones say less.
"""

import ctypes
import gc
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import plait
from limits import DOCUMENTED, UNDER_ASAN

N_SEQ, N_CTX = 64, 96
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
ROUNDS = 6
LAST = 3  # rounds over which growth counts
MORE = 2  # times that as many rounds follow if there was growth, which may have been the last of what is made once
MOST_LIVE = 64  # KiB more live after the last rounds than before them
MOST_RESIDENT = 16 << 10  # KiB more resident in the second half


class AlarmError(Exception):
    pass


class Malloc(ctypes.Structure):
    """What mallinfo2() returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


def live_kib() -> int:
    """What was allocated and not freed, by C++ and by Python."""
    libc = ctypes.CDLL(None)
    if UNDER_ASAN:  # Python's objects too, as PYTHONMALLOC says
        count = libc.__sanitizer_get_current_allocated_bytes
        count.restype = ctypes.c_size_t
        return count() // 1024
    libc.mallinfo2.restype = Malloc
    said = libc.mallinfo2()
    return (said.uordblks + said.hblkhd + sys.getallocatedblocks() * 64) // 1024


class Worker:
    def __init__(
        self,
        model: plait.Model,
        adapter: plait.Adapter,
        folder: Path,
        seed: int,
        interrupted: bool,
        devices: list[str],
    ) -> None:
        self.model, self.rng, self.interrupted = model, random.Random(seed), interrupted
        self.devices = itertools.cycle(devices)
        self.adapter, self.scale = adapter, 0.0
        self.file = folder / f"{seed}.state"
        self.ctx: plait.Context = self.context()
        self.done: Counter[str] = Counter()

    def context(self) -> plait.Context:
        """A new one, on the next device."""
        return plait.Context(
            self.model, n_ctx=N_CTX, n_seq_max=N_SEQ, kv_cells=1500, n_ubatch=32, threads=2,
            backend=next(self.devices),
        )  # fmt: skip

    def tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(3, self.model.n_vocab) for _ in range(self.rng.randint(1, most))]

    def seq(self) -> int:
        return self.rng.randrange(N_SEQ)

    def decode(self) -> None:
        batch = plait.Batch()
        for seq in self.rng.sample(range(N_SEQ), self.rng.randint(1, 8)):
            if self.ctx.kv.seq_len(seq) + 12 > N_CTX or self.rng.random() < 0.1:
                self.ctx.kv.seq_rm(seq)
            batch.add_sequence(
                self.tokens(12), seq=seq, logits=self.rng.choice(["last", "all", "none"])
            )
        logits = self.ctx.decode(batch).logits
        assert np.isfinite(logits).all()

    def fork(self) -> None:
        self.ctx.kv.seq_cp(self.seq(), self.seq())

    def back(self) -> None:
        self.ctx.kv.seq_rewind(self.seq(), self.rng.randrange(N_CTX))

    def shift(self) -> None:
        self.ctx.kv.seq_add(self.seq(), self.rng.randrange(N_CTX), None, self.rng.randrange(1, 4))

    def tidy(self) -> None:
        self.ctx.kv.defrag(max_moves=self.rng.randint(1, 200))

    def save(self) -> None:
        self.ctx.kv.save(self.file)
        self.ctx.kv.seq_rm(self.seq())
        self.ctx.kv.load(self.file)

    def refused(self) -> None:
        before = self.ctx.kv.to_bytes()
        bad = bytearray(before)
        bad[self.rng.randrange(len(bad))] ^= 1 << self.rng.randrange(8)
        try:
            self.ctx.kv.from_bytes(bad)
        except plait.StateError:
            assert self.ctx.kv.to_bytes() == before
        else:
            raise AssertionError("a damaged state was accepted")

    def capture(self) -> None:
        with self.ctx.capture("l_out.*"):
            self.decode()

    def edit(self) -> None:
        with self.ctx.edit("l_out.0", lambda rows: rows * 0.9):
            self.decode()

    def adapt(self) -> None:
        self.scale = self.rng.choice([0.0, 0.5, 1.0])
        self.ctx.set_lora({self.adapter: self.scale} if self.scale else None)

    def cancel(self) -> None:
        self.room()
        with plait.Scheduler(self.ctx) as scheduler:
            requests = [scheduler.submit(self.tokens(9), 30) for _ in range(4)]
            while scheduler.busy:
                scheduler.step()
                if self.rng.random() < 0.3:
                    self.rng.choice(requests).cancel()
        assert all(request.done for request in requests)

    def room(self) -> None:
        free = [s for s in range(N_SEQ) if self.ctx.kv.seq_len(s) == 0]
        if len(free) < 2 or self.ctx.kv.n_free < 200:
            self.ctx.kv.clear()

    def leave(self) -> None:
        self.room()
        events = plait.generate(self.ctx, [self.tokens(5), self.tokens(5)], max_tokens=20)
        for _ in range(self.rng.randint(1, 10)):
            next(events, None)
        events.close()

    def nonsense(self) -> None:
        batch = plait.Batch()
        batch.add_sequence([self.model.n_vocab, 1], seq=self.seq())
        with suppress(plait.BatchError):
            self.ctx.decode(batch)
            raise AssertionError("a token that does not exist was accepted")

    def anew(self) -> None:
        other = self.context()
        other.set_lora({self.adapter: self.scale} if self.scale else None)
        self.ctx.kv.copy_to(other)
        assert other.kv.to_bytes() == self.ctx.kv.to_bytes()
        old, self.ctx = self.ctx, other
        old.close()

    def finish(self) -> None:
        """Close the context, which is as good as new, and make another at the next call."""
        self.ctx.kv.clear()
        for seq in [self.ctx.sequence() for _ in range(N_SEQ)]:  # none is lost
            seq.close()
        with self.ctx.capture("l_out.0"):  # none is open
            pass
        self.ctx.close()

    WORK = (
        ("decode", 40), ("fork", 10), ("back", 5), ("shift", 3), ("tidy", 2), ("save", 2), ("refused", 2),
        ("capture", 2), ("edit", 2), ("adapt", 2), ("leave", 2), ("cancel", 1), ("nonsense", 2), ("anew", 1),
    )  # fmt: skip

    def step(self) -> None:
        if self.ctx.closed:
            self.ctx, self.scale = self.context(), 0.0
        names, weights = zip(*self.WORK, strict=True)
        name = self.rng.choices(names, weights)[0]
        try:
            if self.interrupted and self.rng.random() < 0.1:
                signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-4, 5e-3))
            getattr(self, name)()
        except AlarmError:
            if name == "adapt":  # noted, and not yet done
                self.ctx.set_lora({self.adapter: self.scale} if self.scale else None)
            name = "interrupt"
        except plait.CacheFull:
            name = "no room"
            self.ctx.kv.clear()
        except DOCUMENTED as error:
            if name not in ("shift", "fork"):  # positions may have no room to move
                raise AssertionError(f"{name} failed") from error
        finally:
            if self.interrupted:
                with suppress(AlarmError):
                    signal.setitimer(signal.ITIMER_REAL, 0)
        self.done[name] += 1


def says(model: plait.Model) -> bytes:
    batch = plait.Batch()
    batch.add_sequence([3, 4, 5])
    with plait.Context(model, n_ctx=8) as ctx:
        return ctx.decode(batch).logits.tobytes()


class Round:
    """Both workers for so long, each in a thread of its own; then their contexts are closed."""

    def __init__(self, workers: list[Worker], seconds: float) -> None:
        self.end, self.errors = time.monotonic() + seconds, list[BaseException]()
        other = threading.Thread(target=self.work, args=[workers[1]])
        other.start()
        self.work(workers[0])
        other.join()
        for worker in workers:
            worker.finish()
        if self.errors:
            raise self.errors[0]
        gc.collect()

    def work(self, worker: Worker) -> None:
        try:
            while time.monotonic() < self.end and not self.errors:
                with suppress(AlarmError):  # a late one
                    worker.step()
        except BaseException as error:
            self.errors.append(error)


def grows(live: list[int]) -> bool:
    """Return whether the last rounds left more behind; `live` has the KiB after each round."""
    return live[-1] - live[-1 - LAST] > MOST_LIVE


def main(path: str, adapter_path: str, seconds: str, seed: str, *device: str) -> None:
    def alarm(*_: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGALRM, alarm)
    model = plait.Model(path)
    adapter = model.load_lora(adapter_path)
    want = says(model)
    live, resident = list[int](), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(model, adapter, Path(folder), int(seed) + i, i == 0, devices)
            for i, devices in enumerate((["cpu", *device], [*device, "cpu"]))
        ]
        while len(live) < ROUNDS or (grows(live) and len(live) < ROUNDS + MORE * LAST):
            Round(workers, float(seconds) / ROUNDS)
            live.append(live_kib())
            resident.append(resident_kib())
        left = sorted(p.name for p in Path(folder).iterdir() if p.suffix != ".state")
    assert left == [], left
    assert says(model) == want
    more_live = live[-1] - live[-1 - LAST]
    more_resident = resident[-1] - resident[ROUNDS // 2 - 1]
    print("KiB after each round: live", *live, "resident", *resident)
    done = sum((worker.done for worker in workers), Counter())
    print(
        f"{sum(done.values())} calls, {done['interrupt']} interrupts, at most {max(more_live, 0)} KiB more live after "
        f"{LAST} rounds and at most {max(more_resident, 0)} KiB more resident after half"
    )
    assert not grows(live), live
    assert more_resident < MOST_RESIDENT or UNDER_ASAN, resident  # which keeps what was freed


main(*sys.argv[1:])
