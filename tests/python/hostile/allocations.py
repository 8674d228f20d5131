"""allocations.py MODEL FOLDER STEP [CALL...]: every allocation of calls refused in turn, alone and with all later.

Each call gets through or raises MemoryError, or BackendError where a device had no memory, and what a context held
before is what it holds after. STEP 1 tries every allocation, a larger one each of so many. Without names of calls, all
kinds of them are tried; "compared:1:3" tries the second of three parts of the allocations of a call. Prints how many
allocations were refused and how many calls raised. Needs failing_malloc.so, preloaded.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import plait

MALLOC = ctypes.CDLL(None)
N_MOST = 200_000  # a call that allocates so often never ends


def batch(tokens: list[int], seq: int = 0, logits: str = "last") -> plait.Batch:
    made = plait.Batch()
    made.add_sequence(tokens, seq=seq, logits=logits)
    return made


def opened(scope: AbstractContextManager[object]) -> None:
    """What stayed open would refuse to be opened again."""
    with scope:
        pass


class Calls:
    def __init__(self, path: str, folder: Path) -> None:
        self.path = path
        self.model = plait.Model(path)
        self.ctx = self.context()
        if self.ctx.kv.kind == "cross":
            self.ctx.encode(batch([3, 4, 5]))
        self.ctx.decode(batch([5, 9, 4, 7, 3]))
        self.ctx.kv.seq_cp(0, 1)
        self.ctx.decode(batch([6, 7], seq=1))
        self.file = folder / "state"
        self.ctx.kv.save(self.file)
        self.good = self.file.read_bytes()
        self.more = batch(list(range(3, 23)), seq=1, logits="all")
        self.other = self.context()
        self.few = batch(list(range(3, 9)), seq=2)  # one microbatch
        self.n_tried = self.n_raised = 0

    def context(self) -> plait.Context:
        return plait.Context(self.model, n_ctx=64, n_seq_max=3, n_ubatch=8, threads=1)

    def refuse_all(self, name: str, call: Callable[[], object], first: int, step: int) -> None:
        for keep_on in (False, True):
            call()  # what is made once and kept, by Python too
            self.restore()
            gc.collect()
            gc.freeze()  # later collections only look at newer objects, which makes them fast
            for k in range(first, N_MOST, step):
                gc.collect()
                MALLOC.refuse(k, keep_on)
                error = None
                try:
                    call()
                except BaseException as raised:
                    error = raised
                n = MALLOC.refused()
                kind, words = type(error), str(error)
                if error is not None:
                    error.__traceback__ = None
                    del error
                    # NumPy, which compare() calculates with, forgets to say why at places.
                    numpy_failed = kind is SystemError and name == "compared"
                    assert numpy_failed or issubclass(kind, (MemoryError, plait.BackendError)), (
                        f"{name}, allocation {k}: {kind} {words}"
                    )
                    self.n_raised += 1
                    assert self.ctx.kv.to_bytes() == self.good, f"{name}, allocation {k}"
                else:
                    self.restore()
                if n == 0:
                    break
                self.n_tried += 1
            else:
                raise AssertionError(f"{name} allocates for ever")

    def gradients(self) -> None:
        # encode() stores nothing, so what fails after it leaves the context as it was too. An encoder has no logits.
        if self.ctx.kv.kind == "cross":
            return
        # Derivatives of recurrent layers do not exist.
        name = "l_out.*" if self.model.arch in ("llama", "gemma3", "deepseek2") else "result_norm"
        with self.ctx.gradients(name, of=plait.Logit(5)) as grads:
            self.ctx.encode(self.few)
        assert len(grads.losses) == 1

    def edited(self) -> None:
        """Compute with an edit in the plan; encode() stores nothing, so what fails after it changes nothing either."""
        if self.ctx.kv.kind == "cross":
            return
        row = np.ones(self.model.n_embd, np.float32)
        with self.ctx.edit("l_out.0", row, seq=[0, 2], positions=range(3, 9)):
            self.ctx.encode(self.few)

    def captured(self) -> None:
        if self.ctx.kv.kind == "cross":
            return
        with self.ctx.capture("l_out.*") as seen:
            self.ctx.encode(self.few)
        assert len(seen["l_out.0"]) == len(self.few)

    def streamed(self) -> None:
        if self.ctx.kv.kind == "cross":
            return
        with self.ctx.capture("l_out.0", sink=lambda rows: None):
            self.ctx.encode(self.few)

    def compared(self) -> None:
        """Take a free sequence of the context, and give it back."""
        if self.ctx.kv.kind != "cross":
            assert plait.compare(self.ctx, self.other, [5, 6]).first_difference is None

    def write(self) -> None:
        kv = self.ctx.kv
        for layer in range(self.model.n_layer):
            try:
                keys = kv.keys(layer, 1)
            except plait.UnsupportedError:
                continue
            kv.write(1, layer, kv.seq_pos_max(1), keys[-1:] + 1)
            return

    def transaction(self) -> None:
        with self.ctx.transaction() as tx:
            self.ctx.decode(self.more)
            with self.ctx.transaction():
                self.ctx.kv.seq_cp(1, 2)
                self.ctx.kv.seq_rm(1)
            tx.rollback()
        with self.ctx.transaction():
            self.ctx.kv.seq_add(1, 0, None, 3)
            self.ctx.decode(self.more)

    def restore(self) -> None:
        self.ctx.kv.from_bytes(self.good)

    def run(self, step: int, names: list[str]) -> None:
        calls = self.calls()
        for given in names or calls:
            name, *part = given.split(":")
            # A comparison does the same for a hundred values.
            stride = 11 * step if name == "compared" else step
            number, n_parts = map(int, part) if part else (0, 1)
            self.refuse_all(name, calls[name], 1 + number * stride, n_parts * stride)
        assert self.file.read_bytes() == self.good

    def calls(self) -> dict[str, Callable[[], object]]:
        ctx = self.ctx
        return {
            "load": lambda: plait.Model(self.path),
            "context": self.context,
            "decode": lambda: ctx.decode(self.more),
            "shift": lambda: ctx.kv.seq_add(1, 0, None, 3),
            "write": self.write,
            "transaction": self.transaction,
            "copy": lambda: ctx.kv.seq_cp(1, 2),
            "save": lambda: ctx.kv.save(self.file),
            "to bytes": ctx.kv.to_bytes,
            "from bytes": lambda: ctx.kv.from_bytes(self.good),
            "load state": lambda: ctx.kv.load(self.file),
            "names": ctx.value_names,
            "capture": lambda: opened(ctx.capture("l_out.*")),
            "gradients": self.gradients,
            "edited": self.edited,
            "captured": self.captured,
            "streamed": self.streamed,
            "compared": self.compared,
            "edit": lambda: opened(ctx.edit("l_out.0", lambda rows: rows)),
            "sequence": lambda: ctx.sequence().close(),
        }


calls = Calls(sys.argv[1], Path(sys.argv[2]))
calls.run(int(sys.argv[3]), sys.argv[4:])
print(calls.n_tried, calls.n_raised)
