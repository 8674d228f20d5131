"""models.py MODEL FOLDER SEED N: N damages of one model, each loaded and, where it loads, used in every way.

A file may load or be refused, with an error that its kind documents. Nothing may take long or much memory, and a good
context says the same after each.
"""

import random
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import plait
from limits import DOCUMENTED, UNDER_ASAN, expect_words, limit_memory, peak_mib, watch_peak

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by type
INTEGERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
REALS = {6: "f", 12: "d"}
HARD = [0, 1, 2, 3, 5, 16, 255, 4096, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
HARD_REALS = [0.0, -0.0, -1.0, 0.5, 1e-40, 1e30, 3e38, float("nan"), float("inf"), float("-inf")]
# What one file may cost, above what the process had before it.
SLOWER, LARGER = (10, 8) if UNDER_ASAN else (1, 1)
REFUSED = 1.0 * SLOWER, 64 * LARGER  # seconds, MiB
USED = 10.0 * SLOWER, 200 * LARGER  # of a model that loads, and is run


class Layout:
    """Where a good file keeps what: (key, type, offset of the value) and (name, offset of its description)."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 8
        n_tensors, n_keys = self.take("Q"), self.take("Q")
        self.keys = [self.key() for _ in range(n_keys)]
        self.tensors = [self.tensor() for _ in range(n_tensors)]
        self.end = self.at

    def take(self, kind: str) -> int:
        value = struct.unpack_from("<" + kind, self.data, self.at)[0]
        self.at += struct.calcsize(kind)
        return value

    def text(self) -> bytes:
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at]

    def key(self) -> tuple[bytes, int, int]:
        name, kind = self.text(), self.take("I")
        begin = self.at
        self.skip(kind)
        return name, kind, begin

    def skip(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            element, n = self.take("I"), self.take("Q")
            for _ in range(n):
                self.skip(element)
        else:
            self.at += SIZES[kind]

    def tensor(self) -> tuple[bytes, int]:
        name, begin = self.text(), self.at
        rank = self.take("I")
        self.at += 8 * rank + 12
        return name, begin


def put(data: bytearray, at: int, kind: str, value: float) -> None:
    if kind in "fd":
        struct.pack_into("<" + kind, data, at, value)
        return
    size = struct.calcsize(kind)
    data[at : at + size] = (int(value) % 2 ** (8 * size)).to_bytes(size, "little")


def damage(rng: random.Random, layout: Layout) -> bytearray:
    """One file with one to three damages; most are of keys of the architecture and of tensors."""
    data = bytearray(layout.data)
    ours = [k for k in layout.keys if not k[0].startswith((b"general.", b"tokenizer."))]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        what = rng.randrange(10)
        if what < 4:
            _, kind, at = rng.choice(ours)
            if kind in INTEGERS:
                old = struct.unpack_from("<" + INTEGERS[kind], layout.data, at)[0]
                near = [old + 1, old - 1, old * 2, old // 2, old // 3]
                put(data, at, INTEGERS[kind], rng.choice(HARD + near * 2))
            elif kind in REALS:
                put(data, at, REALS[kind], rng.choice(HARD_REALS))
            else:  # a flag, a text or an array: some byte of it
                data[at + rng.randrange(1 if kind == 7 else 12)] = rng.randrange(256)
        elif what == 4:  # absent: another key has its name
            _, _, at = rng.choice(ours)
            data[at - 5] ^= 1  # its last character, before the type
        elif what == 5:  # of another type
            _, _, at = rng.choice(layout.keys)
            put(data, at - 4, "I", rng.randrange(14))
        elif what < 8:
            _, at = rng.choice(layout.tensors)
            rank = struct.unpack_from("<I", layout.data, at)[0]
            sizes = list(struct.unpack_from(f"<{rank}Q", layout.data, at + 4))
            how = rng.randrange(5)
            if how == 0:
                data[at - 1] ^= 1  # another name
            elif how == 1:
                struct.pack_into(f"<{rank}Q", data, at + 4, *reversed(sizes))
            elif how == 2:
                put(data, at + 4 + 8 * rng.randrange(rank), "Q", rng.choice(HARD))
            elif how == 3:
                put(data, at + 4 + 8 * rank, "I", rng.choice([0, 1, 2, 8, 12, 14, 24, 26, 28, 30]))
            else:
                put(data, at + 8 + 8 * rank, "Q", rng.choice(HARD) // 32 * 32)
        elif what == 8:  # the weights: any number
            at = rng.randrange(layout.end, len(data) - 64)
            data[at : at + 64] = rng.choice([b"\xff" * 64, b"\x7f" * 64, rng.randbytes(64)])
        else:  # the head: any byte
            data[rng.randrange(layout.end)] = rng.randrange(256)
    if rng.randrange(20) == 0:
        del data[rng.randrange(len(data)) :]
    return data


def use(model: plait.Model) -> None:
    """A prompt, a token, a fork, a cut, a shift, a state and back."""
    with plait.Context(model, n_ctx=48, n_seq_max=3, embeddings=False) as ctx:
        batch = plait.Batch()
        batch.add_sequence([1, 2, 3, 4, 5, 6], seq=0, pos=0, logits="all")
        if ctx.kv.kind in ("none", "cross"):
            ctx.encode(batch)
        if ctx.kv.kind == "none":
            return
        ctx.decode(batch)
        for call in (
            lambda: ctx.kv.seq_cp(0, 1),
            lambda: ctx.decode(plait.Batch.from_arrays([7], [6], [1], [True])),
            lambda: ctx.kv.seq_rm(0, 4),
            lambda: ctx.kv.seq_add(0, 0, 4, 3),
            lambda: ctx.decode(plait.Batch.from_arrays([7, 8], None, [1, 1], [True, True])),
            lambda: ctx.kv.from_bytes(ctx.kv.to_bytes()),
        ):
            with suppress(*DOCUMENTED):
                call()


def says(ctx: plait.Context) -> bytes:
    ctx.kv.clear()
    batch = plait.Batch()
    batch.add_sequence([1, 2, 3], seq=0, pos=0, logits="last")
    return ctx.decode(batch).logits.tobytes()


def cost(path: Path, which: str) -> tuple[bool, float, float]:
    """Whether a file loads and can be used, in how many seconds, with how many MiB more than before."""
    before, begin = watch_peak(), time.monotonic()
    loads = True
    try:
        use(plait.Model(path))
    except DOCUMENTED as error:
        loads = False
        expect_words(error)
    except BaseException as error:
        raise AssertionError(which) from error
    return loads, time.monotonic() - begin, peak_mib() - before


def within_limits(path: Path, which: str) -> tuple[bool, float, float]:
    """Return what cost() does, after checking it."""
    loads, seconds, mib = cost(path, which)
    limits = USED if loads else REFUSED
    if seconds > limits[0]:  # a machine that was busy elsewhere is not so twice
        seconds = min(seconds, cost(path, which)[1])
    assert seconds <= limits[0], f"{which} took {seconds:.1f} s"
    assert mib <= limits[1], f"{which} took {mib:.0f} MiB"
    return loads, seconds, mib


def main(path: str, folder: str, seed: str, n: str) -> None:
    limit_memory()
    layout = Layout(Path(path).read_bytes())
    plait.Model(path)
    good = plait.Context(plait.Model.demo(), n_ctx=16)
    want = says(good)
    use(plait.Model(path))
    bad = Path(folder) / "bad.gguf"
    refused = 0
    slowest = largest = 0.0  # of those that are refused
    for i in range(int(n)):
        which = f"damage {i} of seed {seed}"
        bad.write_bytes(damage(random.Random(f"{seed} {i}"), layout))
        loads, seconds, mib = within_limits(bad, which)
        if not loads:
            refused += 1
            slowest, largest = max(slowest, seconds), max(largest, mib)
        assert says(good) == want, f"{which} changed another context"
    assert refused > int(n) // 4, f"only {refused} of {n} were refused: the damages do nothing"
    print(
        f"{n} files, {refused} refused, at most {slowest:.2f} s and at most {largest:.1f} MiB each"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
