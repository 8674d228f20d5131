"""Memory returns to its previous size when objects are deleted."""

import gc

import numpy as np
import plait
import pytest
from python.context.test_growth import resident_kib

TEXT = "Tom lives in Oslo. The kite is red. Q: Where does Tom live? A:"


def resident() -> int:
    """Bytes of this process in memory."""
    return resident_kib() * 1024


def cycle(held):
    model = plait.Model.demo()
    tokens = model.tokenizer.encode(TEXT)
    with plait.Context(model, n_ctx=64, n_seq_max=4) as ctx:
        batch = plait.Batch()
        batch.add_sequence(tokens, seq=0, logits="all")
        with ctx.capture("l_out.*", "blk.0.attn_out") as seen:
            out = ctx.decode(batch)
        views = [out.logits, out.logits[1:3], out[-1], *seen.values()]
        fork = ctx.sequence()
        ctx.kv.seq_cp(0, fork)
        ctx.kv.from_bytes(ctx.kv.to_bytes(seq=fork), seq=fork)
        model._repr_html_(), ctx._repr_html_(), out._repr_html_(), ctx.stats._repr_html_()
    with plait.Context(model, n_ctx=64, kv="streams", n_seq_max=2) as other:
        for _ in plait.generate(other, [TEXT], 4):
            pass
    held.append(float(np.sum([view.sum() for view in views])))


def grown(cycles):
    """How many bytes this many cycles added, after enough of them that caches of libraries are full."""
    held = []
    for _ in range(10):
        cycle(held)
    gc.collect()
    before = resident()
    for _ in range(cycles):
        cycle(held)
    gc.collect()
    assert len(set(held)) == 1
    return resident() - before


def test_memory_comes_back():
    assert min(grown(15) for _ in range(3)) < 1 << 20


@pytest.mark.slow
def test_memory_comes_back_after_a_hundred_cycles():
    assert min(grown(100) for _ in range(2)) < 1 << 20
