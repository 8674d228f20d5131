"""trials.py TRIAL ARGUMENTS...: one kind of trial on llama.cpp, for run.py, which starts it and sees how it ends.

An interpreter with llama-cpp-python runs this file; plait need not be there. Each trial does to llama.cpp's own
functions what the test of the same goal does to plait. Results are printed, one JSON value a line.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp as api

QUIET = api.llama_log_callback(lambda *_: None)
PROMPT = [1, 5, 9, 4, 7]
HUNG = 10  # seconds


class RefusedError(Exception):
    """llama.cpp returned an error."""


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def load(path: str, **options: Any) -> Any:
    """Open a model."""
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    for name, value in options.items():
        setattr(params, name, value)
    model = api.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise RefusedError("llama_model_load_from_file")
    return model


class Context:
    """A context of a model with what the trials do with it."""

    def __init__(self, model: Any, **options: Any) -> None:
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_threads, params.n_threads_batch = 64, 3, 1, 1
        params.kv_unified = True
        for name, value in options.items():
            setattr(params, name, value)
        self.ctx = api.llama_init_from_model(model, params)
        if not self.ctx:
            raise RefusedError("llama_init_from_model")
        self.vocab = api.llama_model_get_vocab(model)
        self.n_vocab = api.llama_vocab_n_tokens(self.vocab)
        self.mem = api.llama_get_memory(self.ctx)

    def close(self) -> None:
        api.llama_free(self.ctx)

    def decode(self, tokens: list[int], seq: int = 0, pos: int = 0, every: bool = False) -> int:
        """Decode tokens of one sequence; return the status."""
        batch = api.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, pos + i, 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = every or i + 1 == len(tokens)
        batch.n_tokens = len(tokens)
        status = api.llama_decode(self.ctx, batch)
        api.llama_batch_free(batch)
        return int(status)

    def must(self, tokens: list[int], seq: int = 0, pos: int = 0) -> None:
        """Decode tokens or raise."""
        if self.decode(tokens, seq, pos):
            raise RefusedError("llama_decode")

    def logits(self) -> bytes:
        """Return the logits of the last token."""
        row = api.llama_get_logits_ith(self.ctx, -1)
        return ctypes.string_at(row, 4 * self.n_vocab) if row else b""

    def says(self) -> bytes:
        """Return the logits of the next token of sequence 0, which is removed again; b"" if it cannot be decoded."""
        pos = api.llama_memory_seq_pos_max(self.mem, 0) + 1
        status = self.decode([6], 0, pos)
        said = self.logits() if status == 0 else b""
        api.llama_memory_seq_rm(self.mem, 0, pos, -1)
        return said

    def state(self) -> bytes:
        """Return a state of everything."""
        size = api.llama_state_get_size(self.ctx)
        buffer = (ctypes.c_uint8 * size)()
        n = api.llama_state_get_data(self.ctx, buffer, size)
        return bytes(buffer)[:n]

    def set_state(self, data: bytes) -> bool:
        """Load a state; return whether it was accepted."""
        buffer = (ctypes.c_uint8 * max(1, len(data))).from_buffer_copy(data or b"\0")
        return api.llama_state_set_data(self.ctx, buffer, len(data)) > 0


def talk(model: Any) -> Context:
    """Return a context with two sequences."""
    ctx = Context(model)
    for seq in (0, 1):
        ctx.must([1 + seq, *PROMPT[1:]], seq)
    return ctx


def watch_peak() -> float:
    """Begin to watch the most memory the process has, in MiB; return what it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


# --- files ---------------------------------------------------------------------------------------


def use(path: str) -> None:
    """A model, a prompt, a token, a fork, a cut, a shift, a state and back: as tests/python/hostile/models.py."""
    model = load(path)
    try:
        ctx = Context(model)
        try:
            ctx.must([1, 2, 3, 4, 5, 6])
            api.llama_memory_seq_cp(ctx.mem, 0, 1, -1, -1)
            ctx.decode([7], 1, 6)
            api.llama_memory_seq_rm(ctx.mem, 0, 4, -1)
            if api.llama_memory_can_shift(ctx.mem):
                api.llama_memory_seq_add(ctx.mem, 0, 0, 4, 3)
            ctx.decode([7, 8], 1, api.llama_memory_seq_pos_max(ctx.mem, 1) + 1)
            ctx.set_state(ctx.state())
        finally:
            ctx.close()
    finally:
        api.llama_model_free(model)


def files() -> None:
    """Use each model whose path comes on a line of the input."""
    say(ready=True)
    for line in sys.stdin:
        before, begin = watch_peak(), time.monotonic()
        try:
            use(line.rstrip("\n"))
            loads = True
        except (RefusedError, ValueError, OSError):
            loads = False
        say(loads=loads, seconds=time.monotonic() - begin, mib=peak_mib() - before)


def changed_file(path: str, change: str) -> None:
    """Change the file of a model in use; say whether it computes what it did."""
    ctx = Context(load(path))
    ctx.must(PROMPT)
    want = ctx.logits()
    exec(change)  # with `path`
    api.llama_memory_clear(ctx.mem, True)
    ctx.must(PROMPT)
    say(same=ctx.logits() == want)


def samplers(path: str) -> None:
    """Sample with logits that may be NaN or infinite; say whether each sampler gives a token."""
    ctx = Context(load(path))
    made: dict[str, Callable[[], Any]] = {
        "greedy": api.llama_sampler_init_greedy,
        "dist": lambda: api.llama_sampler_init_dist(1),
        "top_k": lambda: api.llama_sampler_init_top_k(5),
        "top_p": lambda: api.llama_sampler_init_top_p(0.9, 1),
        "min_p": lambda: api.llama_sampler_init_min_p(0.1, 1),
    }
    for name, make in made.items():
        api.llama_memory_clear(ctx.mem, True)
        if ctx.decode(PROMPT):
            say(name=name, token=None)
            continue
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        api.llama_sampler_chain_add(chain, make())
        if name not in ("greedy", "dist"):
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(1))
        token = api.llama_sampler_sample(chain, ctx.ctx, -1)
        say(name=name, token=0 <= token < ctx.n_vocab)


# --- states --------------------------------------------------------------------------------------


def state(path: str, target: str) -> None:
    """Write a state of two sequences."""
    Path(target).write_bytes(talk(load(path)).state())


def states(path: str, good: str) -> None:
    """Load each state whose path comes on a line of the input into a conversation, and see what it says then."""
    model, data = load(path), Path(good).read_bytes()
    ctx = talk(model)
    want = ctx.says()
    say(ready=True)
    for line in sys.stdin:
        before = watch_peak()
        accepted = ctx.set_state(Path(line.rstrip("\n")).read_bytes())
        mib = peak_mib() - before
        same = ctx.says() == want
        say(accepted=accepted, same=same, mib=mib)
        if not same or accepted:  # the next trial begins with the same conversation
            ctx.set_state(data)
            if ctx.says() != want:
                ctx.close()
                ctx = talk(model)


def saver(path: str, target: str, *names: str) -> None:
    """Save one state after another to one file, until killed."""
    ctx = Context(load(path), n_ctx=4096, n_batch=4096)
    none = (api.llama_token * 1)()
    contents = [Path(name).read_bytes() for name in names]
    say(ready=True)
    while True:
        for data in contents:
            ctx.set_state(data)
            api.llama_state_save_file(ctx.ctx, target.encode(), none, 0)


def long_states(path: str, *names: str) -> None:
    """Write the files that saver() writes, of 3,000 tokens and more."""
    for i, name in enumerate(names):
        ctx = Context(load(path), n_ctx=4096, n_batch=4096)
        ctx.must([3 + k % 250 for k in range(3000 + 900 * i)])
        data = ctx.state()
        Path(name).write_bytes(data)
        ctx.set_state(data)
        none = (api.llama_token * 1)()
        api.llama_state_save_file(ctx.ctx, (name + ".saved").encode(), none, 0)
        ctx.close()


# --- calls ---------------------------------------------------------------------------------------


def calls(ctx: Context, model: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls with a number that makes no sense: of a token, a position, a sequence, a row, or a size."""
    wrong = (-(2**31), -2, -1, 3, 1000, 2**31 - 1)
    mem, vocab = ctx.mem, ctx.vocab
    for n in wrong:
        one_number: dict[str, Callable[[int], object]] = {
            "llama_memory_seq_rm of a sequence": lambda v: api.llama_memory_seq_rm(mem, v, 0, -1),
            "llama_memory_seq_rm from": lambda v: api.llama_memory_seq_rm(mem, 0, v, -1),
            "llama_memory_seq_rm to": lambda v: api.llama_memory_seq_rm(mem, 0, 0, v),
            "llama_memory_seq_cp from": lambda v: api.llama_memory_seq_cp(mem, v, 1, -1, -1),
            "llama_memory_seq_cp to": lambda v: api.llama_memory_seq_cp(mem, 0, v, -1, -1),
            "llama_memory_seq_cp begin": lambda v: api.llama_memory_seq_cp(mem, 0, 1, v, -1),
            "llama_memory_seq_keep": lambda v: api.llama_memory_seq_keep(mem, v),
            "llama_memory_seq_add of a sequence": lambda v: api.llama_memory_seq_add(mem, v, 0, -1, 1),
            "llama_memory_seq_add by": lambda v: api.llama_memory_seq_add(mem, 0, 0, -1, v),
            "llama_memory_seq_div of a sequence": lambda v: api.llama_memory_seq_div(mem, v, 0, -1, 2),
            "llama_memory_seq_div by 0": lambda v: api.llama_memory_seq_div(mem, 0, v, -1, 0),
            "llama_memory_seq_pos_min": lambda v: api.llama_memory_seq_pos_min(mem, v),
            "llama_memory_seq_pos_max": lambda v: api.llama_memory_seq_pos_max(mem, v),
            "llama_get_logits_ith": lambda v: api.llama_get_logits_ith(ctx.ctx, v),
            "llama_get_embeddings_ith": lambda v: api.llama_get_embeddings_ith(ctx.ctx, v),
            "llama_get_embeddings_seq": lambda v: api.llama_get_embeddings_seq(ctx.ctx, v),
            "llama_state_seq_get_size": lambda v: api.llama_state_seq_get_size(ctx.ctx, v),
            "llama_vocab_get_text": lambda v: api.llama_vocab_get_text(vocab, v),
            "llama_vocab_get_score": lambda v: api.llama_vocab_get_score(vocab, v),
            "llama_vocab_get_attr": lambda v: api.llama_vocab_get_attr(vocab, v),
            "llama_vocab_is_eog": lambda v: api.llama_vocab_is_eog(vocab, v),
            "llama_set_n_threads": lambda v: (api.llama_set_n_threads(ctx.ctx, v, v), ctx.says()),
            "llama_decode of a token": lambda v: ctx.decode([v], 0, 5),
            "llama_decode at a position": lambda v: ctx.decode([3], 0, v),
            "llama_decode for a sequence": lambda v: ctx.decode([3], v, 5),
            "n_ctx": lambda v: Context(model, n_ctx=v % 2**32).must(PROMPT),
            "n_batch": lambda v: Context(model, n_batch=v % 2**32).must(PROMPT),
            "n_ubatch": lambda v: Context(model, n_ubatch=v % 2**32).must(PROMPT),
            "n_seq_max": lambda v: Context(model, n_seq_max=v % 2**32).must(PROMPT),
            "type_k": lambda v: Context(model, type_k=v).must(PROMPT),
            "n_threads of a context": lambda v: Context(model, n_threads=v).must(PROMPT),
        }  # fmt: skip
        for name, call in one_number.items():
            yield f"{name} {n}", lambda call=call, n=n: call(n)


def invalid_calls(path: str) -> None:
    """Make each call in a child process; say how it ended."""
    model = load(path)
    ctx = talk(model)
    for name, call in calls(ctx, model):
        say(call=name, ended=in_child(call))


def in_child(call: Callable[[], object]) -> str:
    """Run a call in a fork of this process: "returned", "error", "changed" (see refusing()), "died" or "hung"."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
            code = 0
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    end = time.monotonic() + HUNG
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                return "died"
            return {0: "returned", 1: "error", 3: "changed"}.get(os.WEXITSTATUS(status), "died")
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def full(path: str) -> None:
    """Decode more than fits into fragmented caches; say whether the status is 1 and the state is what it was."""
    model = load(path)
    for seed in range(200):
        rng = random.Random(seed)
        ctx = Context(model, n_ctx=256)
        for seq in range(3):
            ctx.must([rng.randrange(3, 250) for _ in range(84)], seq)
        for _ in range(6):
            seq, at = rng.randrange(3), rng.randrange(1, 80)
            api.llama_memory_seq_rm(ctx.mem, seq, at, at + 1)
        before = ctx.state()
        status = ctx.decode([3] * 20, 0, 84)
        say(refused=status == 1, same=ctx.state() == before)
        ctx.close()


# --- threads, signals and processes --------------------------------------------------------------


def interrupted(path: str) -> None:
    """Decode 12,000 tokens until Ctrl-C."""
    ctx = Context(load(path), n_ctx=12288, n_batch=12288, n_threads=2, n_threads_batch=2)
    say(ready=True)
    with contextlib.suppress(KeyboardInterrupt):
        ctx.decode([3 + i % 250 for i in range(12_000)])
    say(ended=True)


def forks(path: str, n: str) -> None:
    """Decode with two threads, then in children of this process; say how each ended."""
    ctx = Context(load(path), n_threads=2, n_threads_batch=2)
    ctx.must(PROMPT)
    for _ in range(int(n)):
        say(ended=in_child(lambda: ctx.must([5, 6, 7], 1)))


def threads(path: str, n_contexts: str, n_calls: str) -> None:
    """Two threads decode, each on a context of its own or both on one; say how many results are as of one thread."""
    model = load(path)
    contexts = [Context(model) for _ in range(int(n_contexts))]
    prompts = [[1, *(3 + (7 * i + k) % 250 for k in range(9))] for i in range(2)]

    def result(ctx: Context, which: int) -> bytes:
        api.llama_memory_seq_rm(ctx.mem, which, -1, -1)
        ctx.must(prompts[which], which)
        return ctx.logits()

    want = [result(contexts[which % len(contexts)], which) for which in range(2)]
    same = [0, 0]

    def work(which: int) -> None:
        for _ in range(int(n_calls)):
            same[which] += result(contexts[which % len(contexts)], which) == want[which]

    both = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    say(same=sum(same), of=2 * int(n_calls))


# --- memory --------------------------------------------------------------------------------------


def steps(path: str) -> None:
    """Decode 50,000 tokens; say what memory that took. Preloaded failing_malloc.so counts allocations."""
    ctx = Context(load(path), n_ctx=256)
    malloc = ctypes.CDLL(None)
    batch = api.llama_batch_init(1, 0, 1)
    batch.n_tokens, batch.token[0], batch.n_seq_id[0] = 1, 5, 1
    batch.seq_id[0][0], batch.logits[0] = 0, True
    held, allocations = 0, 0
    for i in range(50_000):
        if i == 10_000:
            before = resident_kib()
        if i % 250 == 0:
            api.llama_memory_clear(ctx.mem, False)
        batch.pos[0] = i % 250
        if 5_000 <= i < 6_000:
            held = malloc.n_allocations()
        if api.llama_decode(ctx.ctx, batch):
            raise RefusedError("llama_decode")
        if 5_000 <= i < 6_000:
            allocations += malloc.n_allocations() - held
    say(kib=resident_kib() - before, allocations=allocations / 1000)


def refusals(path: str, bad: str) -> None:
    """1,000 models and 1,000 states that are refused; say what memory they took."""

    def grown(call: Callable[[], object]) -> int:
        for i in range(1200):
            if i == 200:
                before = resident_kib()
            with contextlib.suppress(RefusedError):
                call()
        return resident_kib() - before

    say(loads=grown(lambda: load(bad)))
    ctx = talk(load(path))
    damaged = b"\xff" * 64 + ctx.state()[64:]
    say(states=grown(lambda: ctx.set_state(damaged)))


def allocations(path: str) -> None:
    """Refuse allocations of calls, alone and with all later ones, each in a fork; say how each call ended.

    Needs failing_malloc.so, preloaded. About forty allocations of each call are tried.
    """
    malloc = ctypes.CDLL(None)
    model = load(path)
    ctx = talk(model)
    want, good = ctx.says(), ctx.state()
    kinds: dict[str, Callable[[], object]] = {
        "load": lambda: load(path),
        "context": lambda: Context(model),
        "decode": lambda: ctx.must(list(range(3, 23)), 2),
        "get state": ctx.state,
        "set state": lambda: ctx.set_state(good) or refused(),
    }
    for name, call in kinds.items():
        before = malloc.n_allocations()
        call()
        n = malloc.n_allocations() - before
        for keep_on in (0, 1):
            for k in range(1, n + 1, max(1, n // 40)):
                fails = functools.partial(refusing, malloc, k, keep_on, call, ctx, want)
                say(call=name, ended=in_child(fails))


def refused() -> None:
    raise RefusedError


def refusing(
    malloc: Any, k: int, keep_on: int, call: Callable[[], object], ctx: Context, want: bytes
) -> None:
    """Make a call whose k-th allocation fails. Ends the process with 3 if an error changed the conversation."""
    malloc.refuse(k, keep_on)
    error = False
    try:
        call()
    except BaseException:
        error = True
    malloc.refused()
    if error:
        os._exit(1 if ctx.says() == want else 3)


if __name__ == "__main__":
    api.llama_log_set(QUIET, ctypes.c_void_p(0))
    if sys.argv[1] == "version":
        say(version=api.__version__, folder=str(Path(api.__file__).parent))
    else:
        globals()[sys.argv[1]](*sys.argv[2:])
