"""states.py MODEL SEED N: N damages of a state, each refused, and the conversation is byte for byte what it was."""

import random
import struct
import sys

import plait
from limits import expect_words, limit_memory

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


def main(path: str, seed: str, n: str) -> None:
    limit_memory()
    ctx = conversation(plait.Model(path))
    good = ctx.kv.to_bytes()
    for i in range(int(n)):
        bad = damage(random.Random(f"{seed} {i}"), good)
        if bad == good:
            continue
        try:
            ctx.kv.from_bytes(bad)
        except (plait.StateError, ValueError) as error:
            expect_words(error)
        else:
            raise AssertionError(f"damage {i} of seed {seed} was accepted")
        assert ctx.kv.to_bytes() == good, f"damage {i} of seed {seed} changed the conversation"
    ctx.kv.from_bytes(good)
    assert ctx.kv.to_bytes() == good
    print(f"{n} states refused")


main(*sys.argv[1:])
