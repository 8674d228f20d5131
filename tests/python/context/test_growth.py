"""Memory over time: long runs, and endless failures, use no more memory than short ones."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import UNDER_ASAN, batch, tokens

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_kib() -> int:
    if UNDER_ASAN:  # which delays freeing
        count = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
        count.restype = ctypes.c_size_t
        return count() // 1024
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE // 1024


def grown_kib(call: Callable[[], object], first: int, then: int) -> int:
    """How much `then` calls add to what `first` ones took."""
    for _ in range(first):
        call()
    before = resident_kib()
    for _ in range(then):
        call()
    return resident_kib() - before


@pytest.fixture
def step(tiny):
    """One token of a conversation that begins anew when the context is full."""
    with plait.Context(tiny, n_ctx=256, threads=1) as ctx:
        one = batch(([5], 0), logits="last")

        def step() -> None:
            if ctx.kv.n_free == 0:
                ctx.kv.clear()
            ctx.decode(one)

        yield step


def test_steps_take_no_memory(step):  # G17
    assert grown_kib(step, 2_000, 8_000) <= 64


@pytest.mark.slow
@pytest.mark.goal("G17")
def test_a_hundred_thousand_steps_take_no_memory(step, record_property):  # G17
    grown = grown_kib(step, 10_000, 90_000)
    record_property("figure", f"{grown} KiB between step 10,000 and step 100,000")
    assert grown <= 64


@pytest.mark.skipif(UNDER_ASAN, reason="counts memory that was never used")
def test_steering_takes_no_memory_for_the_inputs_of_larger_steps(tiny):
    """The inputs of the largest step take 500 MB of addresses. New ones are added without copying those."""
    options = {"n_ctx": 32768, "n_seq_max": 1024, "kv_cells": 32768, "threads": 1}
    with plait.Context(tiny, **options) as ctx:
        assert ctx.compute_bytes > 500e6
        ctx.decode(batch(([5], 0), logits="last"))

        def steer() -> None:
            ctx.set_control_vector(np.ones((tiny.n_layer, tiny.n_embd), np.float32))
            with ctx.edit("l_out.0", np.ones(tiny.n_embd, np.float32)):
                ctx.kv.clear()
                ctx.decode(batch(([5], 0), logits="last"))

        assert grown_kib(steer, 0, 1) < 32 * 1024


def refused_load(path: Path) -> None:
    with pytest.raises(plait.ModelError):
        plait.Model(path)


def refused_state(ctx: plait.Context, data: bytes) -> None:
    with pytest.raises(plait.StateError):
        ctx.kv.from_bytes(data)


@pytest.fixture(params=["loads", "states"])
def refusal(request, tiny, tiny_path, tmp_path):
    if request.param == "loads":
        data = bytearray(tiny_path.read_bytes())
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(data[:-1])  # detected last, after everything else was read
        yield lambda: refused_load(bad)
        return
    with plait.Context(tiny, n_ctx=64) as ctx:
        ctx.decode(batch((tokens(40), 0)))
        damaged = bytearray(ctx.kv.to_bytes())
        damaged[-1] ^= 1
        yield lambda: refused_state(ctx, bytes(damaged))


def test_refusals_take_no_memory(refusal):  # G18
    assert grown_kib(refusal, 100, 200) <= 64


@pytest.mark.slow
@pytest.mark.goal("G18")
def test_a_thousand_refusals_take_no_memory(refusal, request, record_property):  # G18
    grown = grown_kib(refusal, 200, 1000)
    record_property(
        "figure", f"{grown} KiB over 1,000 refused {request.node.callspec.params['refusal']}"
    )
    assert grown <= 64
