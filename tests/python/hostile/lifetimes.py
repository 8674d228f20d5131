"""lifetimes.py MODEL SEED N: N worlds of objects that refer to each other, let go of one by one in any order.

What is left is used in between: views keep their values, and calls return or raise what is documented. The last world
is left to the end of the interpreter.
"""

import gc
import random
import sys
import weakref
from contextlib import suppress

import numpy as np
import plait
from limits import DOCUMENTED, limit_memory


def world(path: str, rng: random.Random) -> dict[str, object]:
    model = plait.Model(path)
    ctx = plait.Context(model, n_ctx=64, n_seq_max=3)
    batch = plait.Batch()
    batch.add_sequence([1, 2, 3], seq=0, logits="all")
    output = ctx.decode(batch)
    objects = {
        "model": model, "ctx": ctx, "kv": ctx.kv, "batch": batch, "output": output, "stats": ctx.stats,
        "logits": output.logits, "row": output[-1], "rows": iter(output), "state": memoryview(ctx.kv.to_bytes()),
        "cells": ctx.kv.cells(), "weights": model.tensor("token_embd.weight"), "metadata": model.metadata,
        "tensors": model.tensors, "tokenizer": model.tokenizer, "sequence": ctx.sequence(),
        "second": plait.Context(model, n_ctx=32), "capture": ctx.capture("l_out.*"),
    }  # fmt: skip
    cycle: list[object] = [objects["ctx"]]
    cycle.append(cycle)  # only the collector finds it
    objects["cycle"] = cycle
    with suppress(TypeError):
        weakref.finalize(rng.choice(list(objects.values())), lambda: None)
    return objects


def use(name: str, thing: object) -> None:
    match name:
        case "ctx" | "second":
            one = plait.Batch()
            one.add_sequence([4])
            thing.decode(one)
        case "kv":
            thing.from_bytes(thing.to_bytes())
        case "sequence":
            thing.rewind(len(thing) - 1)
        case "tokenizer":
            thing.encode("abc")
        case "rows":
            next(thing, None)
        case _:
            repr(thing), len(thing) if hasattr(thing, "__len__") else None


def play(path: str, rng: random.Random) -> dict[str, object]:
    objects = world(path, rng)
    views = {name: objects[name].copy() for name in ("logits", "row", "weights")}
    names = list(objects)
    rng.shuffle(names)
    for name in names[: rng.randrange(len(names) + 1)]:
        thing = objects.pop(name)
        if rng.random() < 0.3 and hasattr(thing, "close"):
            thing.close()
        del thing
        if rng.random() < 0.2:
            gc.collect()
        for other in rng.sample(list(objects), min(3, len(objects))):
            with suppress(*DOCUMENTED):
                use(other, objects[other])
        for view, held in views.items():
            assert view not in objects or np.array_equal(objects[view], held), view
    return objects


def main(path: str, seed: str, n: str) -> None:
    limit_memory()
    rng = random.Random(seed)
    global last  # for the interpreter's end
    for _ in range(int(n)):
        last = play(path, rng)


main(*sys.argv[1:])
