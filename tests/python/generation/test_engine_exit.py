"""Ctrl-C and the end of the interpreter at random moments of an engine's life."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

# NumPy turns Ctrl-C during its own import into an ImportError; so it is imported before the first signal.
START = """
import asyncio, sys, threading, time, numpy, plait
print('up', flush=True)
engine = plait.Engine(plait.Model.demo(), n_ctx=1024)
fast = lambda row, seq: 700
slow = lambda row, seq: time.sleep(0.002) or 700
def endless():
    try:
        while True:
            engine.complete_sync('a', 400, fast)
    except (RuntimeError, ValueError):  # the engine was closed
        pass
def many(n):
    for _ in range(n):
        threading.Thread(target=endless, daemon=True).start()
"""
ENDLESS = {
    "complete": "while True: engine.complete_sync('Tom lives in', 50)",
    "stream": "while True: [None for _ in engine.stream_sync('a', 400, slow)]",
    "beside_threads": "many(6)\nwhile True: engine.complete_sync('a', 50)",
    "tasks": """
async def main():
    while True:
        await asyncio.gather(*(engine.complete('a', 40, slow) for _ in range(9)))
asyncio.run(main())
""",
    "generate": "while True: plait.complete(engine, ['a', 'b'] * 9, 30)",
    "chat": "while True: plait.Chat(engine, template='{{ messages[-1].content }}', full='truncate').say('Tom')",
    "reopen": """
while True:
    with plait.Engine(plait.Model.demo(), n_ctx=512) as other:
        other.complete_sync('a', 9, fast)
""",
}
N_RUNS = [8, pytest.param(300, marks=pytest.mark.slow)]


def start(program):
    # Programs that a shell starts in the background ignore SIGINT.
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", START + program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONWARNINGS": "ignore"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    return process


def end_of(process):
    """Wait for the end; return the exit status and the error output.

    Python ignores Ctrl-C in callbacks of its import system, and says so. Then a user presses it again.
    """
    try:
        try:
            _, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired as running:
            if b"Exception ignored in" in (running.stderr or b""):
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Fatal" not in errors, errors
    assert "terminate called" not in errors, errors
    return process.returncode, errors


@pytest.mark.parametrize("n", N_RUNS)
@pytest.mark.parametrize("n_signals", [1, 3])
def test_ctrl_c_at_any_moment(n, n_signals):
    chance = random.Random(n)
    for i in range(n):
        process = start(ENDLESS[list(ENDLESS)[i % len(ENDLESS)]])
        for k in range(n_signals):
            time.sleep(chance.random() * (0.02 if k else 0.5))
            process.send_signal(signal.SIGINT)
        code, errors = end_of(process)
        assert code in (-signal.SIGINT, 130, 1), errors
        assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("n", N_RUNS)
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_interpreter_ends_at_any_moment(n, interrupted):
    chance = random.Random(n)
    for i in range(n):
        pause = chance.random() * 0.3
        program = f"many({i % 5})\ntime.sleep({pause})\nprint('end', flush=True)\nsys.exit(7)"
        process = start(program)
        assert process.stdout.readline() == "end\n"
        if interrupted:
            time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGINT)
        code, errors = end_of(process)
        assert code in ((7, -signal.SIGINT, 130, 1) if interrupted else (7,)), errors
