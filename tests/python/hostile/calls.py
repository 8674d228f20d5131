"""calls.py MODEL SEED N: N calls with odd arguments, some from other threads, in forks or to closed contexts.

Each returns or raises what is documented; now and then a fresh context must still say what it said at first.
"""

import inspect
import os
import random
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import plait
from limits import DOCUMENTED, limit_memory

ODD = [
    None, True, False, 0, 1, -1, 2, 7, 63, 64, 1000, 2**31 - 1, 2**31, -(2**31), 2**63, -(2**63) - 1, 2**64, 10**30,
    0.0, 0.5, -1.5, 1e300, float("nan"), float("inf"), "", "all", "last", "none", "x", "\ud800", b"", b"x", [], [1, 2],
    [-1], [2**40], [None], ["a"], [1.5], (), (0, 3), {}, {"a": 1}, {0}, object(), int, len, ..., slice(None),
    np.zeros(0, np.int32), np.arange(4), np.arange(8)[::2], np.zeros((2, 3), np.float32), np.float64("nan"),
    np.array(["a"]), np.array([None]), np.zeros((0, 3)), np.full(3, 2**40), np.zeros(3, bool), np.int32(3), np.array(2),
]  # fmt: skip
NOT_CALLED = {"plot", "from_hub"}  # takes what matplotlib takes; asks the network


class World:
    """The objects that calls are made on: they are closed and made anew as it comes."""

    def __init__(self, path: str, rng: random.Random) -> None:
        self.rng, self.model = rng, plait.Model(path)
        self.ctx = self.context()
        self.closed = self.context()
        self.closed.close()
        self.batch = plait.Batch()
        self.seq: plait.Sequence | None = None

    def context(self) -> plait.Context:
        return plait.Context(self.model, n_ctx=64, n_seq_max=4)

    def says(self) -> bytes:
        batch = plait.Batch()
        batch.add_sequence([1, 2, 3], seq=0, pos=0, logits="last")
        with self.context() as ctx:
            if ctx.kv.kind in ("none", "cross"):
                out = ctx.encode(batch)
            if ctx.kv.kind != "none":
                out = ctx.decode(batch)
            return out.embeddings.tobytes() if ctx.kv.kind == "none" else out.logits.tobytes()

    def targets(self) -> list[object]:
        fresh = [plait.Batch, plait.Context, plait.Batch.from_arrays]
        return [
            self.ctx, self.ctx, self.ctx.kv, self.ctx.kv, self.closed, self.closed.kv, self.batch, self.batch,
            self.model, self.model.tokenizer if "tokenizer.ggml.tokens" in self.model.metadata else self.ctx,
            plait.quant, self.ctx.stats, self.seq, self.seq, *fresh, plait.Sampler, plait.token_logprobs,
            plait.perplexity, plait.generate, plait.score, plait.embed,
        ]  # fmt: skip

    def argument(self) -> object:
        good = [
            self.batch,
            self.ctx,
            self.closed,
            self.model,
            self.ctx.kv,
            self.closed.kv,
            self.seq,
        ]
        return self.rng.choice(ODD) if self.rng.random() < 0.8 else self.rng.choice(good)

    def call(self) -> None:
        target = self.rng.choice(self.targets())
        if inspect.isclass(target) or inspect.isroutine(target):
            function = target
        else:
            names = [n for n in dir(target) if not n.startswith("_") and n not in NOT_CALLED]
            names += ["__len__", "__repr__", "__eq__", "__getitem__", "__enter__"]
            function = getattr(target, self.rng.choice(names), None)
        if not callable(function):
            return
        arguments = [self.argument() for _ in range(self.rng.choice([0, 1, 1, 2, 2, 3, 4]))]
        names = self.rng.sample(
            ["seq", "pos", "logits", "n_ctx", "threads", "n_seq_max", "p0", "p1", "delta"],
            self.rng.choice([0, 0, 0, 1, 2]),
        )
        keywords = {name: self.argument() for name in names}
        # What is asked for in earnest is done: no file of ours may be the victim of a save.
        name = getattr(function, "__name__", "")
        if any(part in name for part in ("save", "load", "file")):
            arguments = [a for a in arguments if not isinstance(a, (str, bytes))]
            if any(isinstance(a, int) for a in arguments):
                return
        if inspect.isclass(function) and any(
            isinstance(a, int) and a > 10**5 for a in [*arguments, *keywords.values()]
        ):
            return  # a context of that many cells is a request for memory, not a mistake
        result = function(*arguments, **keywords)
        if inspect.isgenerator(result):
            result.close()
        if isinstance(result, plait.Sequence):
            self.seq = result
        repr(result)

    def step(self) -> None:
        with suppress(*DOCUMENTED):
            self.call()
        if self.rng.random() < 0.1:
            with suppress(*DOCUMENTED):
                self.seq = self.ctx.sequence()  # outlives its context now and then
        if self.rng.random() < 0.02:
            self.ctx.close()
        if self.rng.random() < 0.1:
            self.ctx, self.batch = self.context(), plait.Batch()


def in_a_thread(world: World) -> None:
    def several(_: int) -> None:
        for _ in range(5):
            world.step()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(several, range(2)))  # raises the first exception


def in_a_fork(world: World) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            world.step()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(path: str, seed: str, n: str) -> None:
    limit_memory()
    warnings.simplefilter("ignore")  # of NumPy, on numbers that a float32 does not hold
    rng = random.Random(seed)
    world = World(path, rng)
    want = world.says()
    for i in range(int(n)):
        try:
            if i % 100 == 50:
                in_a_thread(world)
            elif i % 200 == 99:
                in_a_fork(world)
            else:
                world.step()
            if i % 250 == 249:
                assert world.says() == want, "a fresh context says something else"
        except BaseException as error:
            raise AssertionError(f"call {i} of seed {seed}") from error
    print(f"{n} calls")


main(*sys.argv[1:])
