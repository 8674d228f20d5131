"""states.py MODEL SEED N: N damages of a state, each refused, and the conversation is byte for byte what it was."""

import random
import struct
import sys
import time
from collections.abc import Iterable

import plait
from limits import UNDER_ASAN, expect_words, limit_memory, peak_mib, watch_peak

LARGEST = 128 if UNDER_ASAN else 16  # MiB that refusing a state may take
HARD = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def conversation(model: plait.Model) -> plait.Context:
    ctx = plait.Context(model, n_ctx=64, n_seq_max=3)
    batch = plait.Batch()
    for seq in range(2):
        batch.add_sequence([1 + seq, 5, 9, 4, 7], seq=seq, pos=0, logits="last")
    if ctx.kv.kind == "cross":
        ctx.encode(batch)
    ctx.decode(batch)
    return ctx


def damage(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    at = (
        rng.randrange(min(len(data) - 8, 512)) if rng.randrange(2) else rng.randrange(len(data) - 8)
    )
    match rng.randrange(6):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            struct.pack_into("<I", data, at, rng.choice(HARD) % 2**32)
        case 2:
            struct.pack_into("<Q", data, at, rng.choice(HARD))
        case 3:
            del data[at:]
        case 4:
            data[at:at] = rng.randbytes(rng.choice([1, 8, 4096]))
        case 5:
            del data[at : at + rng.choice([1, 4, 8, 64])]
    return bytes(data)


def refuse(ctx: plait.Context, bad: bytes, which: str) -> tuple[float, float]:
    """Check that a state is refused within the limit of memory; return the seconds and the MiB that it took."""
    before, begin = watch_peak(), time.monotonic()
    try:
        ctx.kv.from_bytes(bad)
    except (plait.StateError, ValueError) as error:
        expect_words(error)
    else:
        raise AssertionError(f"{which} was accepted")
    seconds, mib = time.monotonic() - begin, peak_mib() - before
    assert mib <= LARGEST, f"{which} took {mib:.0f} MiB"
    return seconds, mib


def check_all(ctx: plait.Context, bad_states: Iterable[tuple[str, bytes]]) -> str:
    """Check that each state is refused and changes nothing; return what was done."""
    good = ctx.kv.to_bytes()
    n, slowest, largest = 0, 0.0, 0.0
    for which, bad in bad_states:
        if bad == good:
            continue
        n += 1
        seconds, mib = refuse(ctx, bad, which)
        slowest, largest = max(slowest, seconds), max(largest, mib)
        assert ctx.kv.to_bytes() == good, f"{which} changed the conversation"
    ctx.kv.from_bytes(good)
    assert ctx.kv.to_bytes() == good
    return f"{n} states refused, at most {slowest:.2f} s and at most {largest:.1f} MiB each"


def main(path: str, seed: str, n: str) -> None:
    limit_memory()
    ctx = conversation(plait.Model(path))
    good = ctx.kv.to_bytes()
    print(
        check_all(
            ctx,
            (
                (f"damage {i} of seed {seed}", damage(random.Random(f"{seed} {i}"), good))
                for i in range(int(n))
            ),
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
