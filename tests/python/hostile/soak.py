"""soak.py MODEL ADAPTER SECONDS SEED [DEVICE]: mixed work on two contexts of one model, in two threads, interrupted.

64 sequences each come, fork, go back and go; states are saved, loaded and refused; values are captured and changed,
adapters come and go; generations are begun and left. With a DEVICE each context moves between that and the CPU now and
then. Nothing may fail, grow or be noticed by a fresh context. Prints what was done.
"""

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
from limits import DOCUMENTED

N_SEQ, N_CTX = 64, 96
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class AlarmError(Exception):
    pass


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


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
        self.ctx = self.context()
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

    def leave(self) -> None:
        free = [s for s in range(N_SEQ) if self.ctx.kv.seq_len(s) == 0]
        if len(free) < 2 or self.ctx.kv.n_free < 200:
            self.ctx.kv.clear()
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

    WORK = (
        ("decode", 40), ("fork", 10), ("back", 5), ("shift", 3), ("tidy", 2), ("save", 2), ("refused", 2),
        ("capture", 2), ("edit", 2), ("adapt", 2), ("leave", 2), ("nonsense", 2), ("anew", 1),
    )  # fmt: skip

    def step(self) -> None:
        names, weights = zip(*self.WORK, strict=True)
        name = self.rng.choices(names, weights)[0]
        try:
            # What Python itself opens and closes may be left open by an exception from nowhere.
            alone = name not in ("capture", "edit", "leave")
            if self.interrupted and alone and self.rng.random() < 0.1:
                signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-4, 5e-3))
            getattr(self, name)()
        except AlarmError:
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


def main(path: str, adapter_path: str, seconds: str, seed: str, *device: str) -> None:
    def alarm(*_: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGALRM, alarm)
    model = plait.Model(path)
    adapter = model.load_lora(adapter_path)
    want = says(model)
    begin = time.monotonic()
    end = begin + float(seconds)
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            Worker(model, adapter, Path(folder), int(seed) + i, i == 0, devices)
            for i, devices in enumerate((["cpu", *device], [*device, "cpu"]))
        ]

        def other() -> None:
            try:
                while time.monotonic() < end and not errors:
                    workers[1].step()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        early = 0
        try:
            while time.monotonic() < end and not errors:
                with suppress(AlarmError):  # a late one
                    workers[0].step()
                if early == 0 and time.monotonic() > begin + float(seconds) / 3:
                    gc.collect()
                    early = resident_kib()
        except BaseException as error:
            errors.append(error)
        thread.join()
        gc.collect()
        grown = resident_kib() - early
        left = sorted(p.name for p in Path(folder).iterdir() if p.suffix != ".state")
        for worker in workers:
            worker.ctx.close()
    if errors:
        raise errors[0]
    assert left == [], left
    assert says(model) == want
    done = sum((worker.done for worker in workers), Counter())
    print(
        f"{sum(done.values())} calls, {done['interrupt']} interrupts, at most {max(grown, 0)} KiB more after a third"
    )
    assert grown < 16 << 10 or "libasan" in os.environ.get("LD_PRELOAD", ""), grown


main(*sys.argv[1:])
