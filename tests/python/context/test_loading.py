"""Ctrl-C while a context reads the weights of its model."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import plait
import pytest
from python.drive import feed, same_bits

from python import gguf_writer

N_FFN = 1 << 18  # 400 MB of weights


@pytest.fixture(scope="module")
def large_path(tmp_path_factory):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata["llama.feed_forward_length"] = N_FFN
    weights = gguf_writer.llama_weights()
    for layer in range(gguf_writer.N_LAYERS):
        for name, shape in (
            ("gate", (N_FFN, gguf_writer.WIDTH)),
            ("up", (N_FFN, gguf_writer.WIDTH)),
            ("down", (gguf_writer.WIDTH, N_FFN)),
        ):
            weights[f"blk.{layer}.ffn_{name}.weight"] = np.full(shape, 2**-12, np.float32)
    return gguf_writer.write(tmp_path_factory.mktemp("models") / "large.gguf", metadata, weights)


class Stopped(Exception):
    """Raised by the handler."""


@pytest.fixture
def alarm():
    """Call a function in the handler of a signal that comes after some seconds; returns the times of the calls."""
    times = []

    def after(seconds, work):
        def handler(*_):
            times.append(time.perf_counter())
            work()

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return times

    before = signal.getsignal(signal.SIGALRM)
    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def stop():
    raise Stopped


def context(model):
    return plait.Context(model, n_ctx=16, n_ubatch=16)


@pytest.mark.timing
def test_loading_stops_within_a_quarter_of_a_second(large_path, alarm):
    model = plait.Model(large_path)
    began = time.perf_counter()
    with context(plait.Model(large_path)) as whole:
        took = time.perf_counter() - began
        want = feed(whole, [5, 6])
    raised_at = alarm(took / 4, stop)
    with pytest.raises(Stopped):
        context(model)
    assert time.perf_counter() - raised_at[0] < 0.25
    with context(model) as ctx:  # the rest is read now
        assert same_bits(feed(ctx, [5, 6]), want)


def test_a_handler_may_use_the_model_that_is_being_loaded(large_path, tiny, alarm):
    model = plait.Model(large_path)
    seen = []

    def use():
        with context(tiny) as ctx:
            seen.append(feed(ctx, [5]).shape)
        with context(model) as ctx:
            seen.append(feed(ctx, [5]).shape)

    alarm(0.02, use)
    with context(model) as ctx:
        feed(ctx, [5])
    assert len(seen) == 2


def test_threads_other_than_the_main_one_load_too(large_path):
    model, made = plait.Model(large_path), []
    thread = threading.Thread(target=lambda: made.append(context(model)))
    thread.start()
    thread.join()
    made[0].close()
