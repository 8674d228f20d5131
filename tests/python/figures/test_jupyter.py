"""A Jupyter kernel, driven like a notebook: cells are interrupted, run again and displayed."""

import queue
import subprocess
import time
from dataclasses import dataclass, field

import pytest
from python.drive import UNDER_ASAN

pytest.importorskip("ipykernel", reason="ipykernel is not installed")

from jupyter_client.manager import start_new_kernel


@dataclass
class Told:
    """The output of a cell: printed text, results, and the name of an error."""

    out: str = ""
    err: str = ""
    shown: list[dict[str, str]] = field(default_factory=list)
    error: str | None = None
    ended: float = 0.0


class Notebook:
    def __init__(self):
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", stderr=subprocess.DEVNULL
        )

    def cell(self, source, interrupt_after=None):
        """Run a cell. If interrupted, `ended` is the delay in seconds until it stopped."""
        told = Told()
        begun = "begun\n"
        if interrupt_after is not None:
            source = f"print({begun!r}, end='', flush=True)\n{source}"
        asked = self.client.execute(source)
        sent = time.perf_counter()
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=60)
            except queue.Empty:
                pytest.fail(f"the kernel has not ended {source!r}")
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                name = "out" if content["name"] == "stdout" else "err"
                setattr(told, name, getattr(told, name) + content["text"])
                if interrupt_after is not None and told.out == begun:  # it runs
                    told.out = ""
                    time.sleep(interrupt_after)
                    self.manager.interrupt_kernel()
                    sent = time.perf_counter()
            elif message["msg_type"] in ("display_data", "execute_result"):
                told.shown.append(content["data"])
            elif message["msg_type"] == "error":
                told.error = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                told.ended = time.perf_counter() - sent
                return told

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    made = Notebook()
    yield made
    made.close()


def silent(told):
    assert (told.error, told.out, told.err) == (None, "", "")
    return told


# Seconds that a call may go on after an interrupt. One operation takes longer under sanitizers.
LATE = 1.5 if UNDER_ASAN else 0.5

LONG = """
import plait

model = plait.Model.demo()
ctx = plait.Context(model, n_ctx=16384, n_seq_max=2, n_batch=16384, isa="scalar", threads=1)
story, long = plait.Batch(), plait.Batch()
story.add_sequence(model.tokenizer.encode("Tom lives in Oslo."), seq=0)
ctx.decode(story)
state, tokens = ctx.kv.to_bytes(), ctx.stats.tokens
long.add_sequence([5 + i % 800 for i in range(16000)], seq=1, logits="none")
"""


def test_an_interrupted_cell_stops_at_once_and_leaves_all_as_it_was(notebook):
    silent(notebook.cell(LONG))
    # The time that a kernel takes to show any error is not measured.
    usual = max(notebook.cell("1 / 0").ended for _ in range(3))
    told = notebook.cell("ctx.decode(long)", interrupt_after=0.5)
    assert (told.error, told.out, told.err) == ("KeyboardInterrupt", "", "")
    assert told.ended < 0.5 + LATE + usual
    told = notebook.cell("assert ctx.kv.to_bytes() == state and ctx.stats.tokens == tokens")
    silent(told)
    generate = "for event in plait.generate(ctx, ['Mia'] * 200, 500, plait.Sampler(1.5)): pass"
    told = notebook.cell(generate, interrupt_after=0.5)
    assert (told.error, told.out, told.err) == ("KeyboardInterrupt", "", "")
    assert told.ended < 0.5 + LATE + usual
    silent(notebook.cell("assert ctx.kv.to_bytes() == state"))
    silent(
        notebook.cell(
            "assert plait.complete(model, 'Tom lives in Oslo. Q: Where does Tom live? A:')"
        )
    )


def test_objects_are_displayed(notebook):
    silent(
        notebook.cell(
            "import plait\nmodel = plait.Model.demo()\nctx = plait.Context(model, n_ctx=64)"
        )
    )
    for source in ("model", "ctx", "ctx.kv", "ctx.stats", "ctx.graph()"):
        told = silent(notebook.cell(source))
        assert len(told.shown) == 1
        assert "<" in told.shown[0]["text/html"]
        assert told.shown[0]["text/plain"].startswith("<plait.")
    told = silent(notebook.cell("%matplotlib inline\nctx.kv.plot();"))
    assert [sorted(data) for data in told.shown] == [["image/png", "text/plain"]]


def test_the_bar_of_many_prompts_can_be_read(notebook):
    """The bar is one line of text, or a widget if available, without advice about packages."""
    told = notebook.cell(
        "import plait\nmodel = plait.Model.demo()\n"
        "found = plait.complete(model, ['Tom'] * 20, 40, progress=True)"
    )
    assert (told.error, told.out) == (None, "")
    assert "Warning" not in told.err
    assert told.err.count("\n") <= 1


AGAIN = """
import plait

model = plait.Model.demo()
ctx = plait.Context(model, n_ctx=128, n_seq_max=4)
batch = plait.Batch()
batch.add_sequence(model.tokenizer.encode("Tom lives in Oslo. The kite is red."), seq=0, logits="all")
with ctx.capture("l_out.*") as seen:
    out = ctx.decode(batch)
views = [out.logits, out.logits[1:3], out[-1], *seen.values()]
fork = ctx.sequence()
ctx.kv.seq_cp(0, fork)
display(model, ctx, ctx.kv, out, ctx.stats)
"""

HELD = """
import gc, os
gc.collect()
with open("/proc/self/statm") as file:
    resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
print(resident, sum("'plait." in str(type(thing)) for thing in gc.get_objects()))
"""


def held(notebook):
    told = notebook.cell(HELD)
    return [int(number) for number in told.out.split()]


def grown(notebook, times):
    """Return the bytes that so many runs add. A kernel stores the text of cells, about 0.2 MiB per 100 cells."""
    resident, objects = held(notebook)
    for _ in range(times):
        silent(notebook.cell(AGAIN))
    after, objects_after = held(notebook)
    assert objects_after == objects
    return after - resident


@pytest.mark.skipif(UNDER_ASAN, reason="the sanitizer keeps freed memory")
@pytest.mark.parametrize("times", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_rerunning_a_cell_leaks_nothing(notebook, times):
    for _ in range(15):
        silent(notebook.cell(AGAIN))
    assert min(grown(notebook, times) for _ in range(2)) < 1 << 20
