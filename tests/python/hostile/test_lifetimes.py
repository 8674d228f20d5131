"""Objects are deleted in any order; the remaining ones work or report that they are closed. Goal G24."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "lifetimes.py"


def play(path: Path, seed: int, n: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", PROGRAM, path, str(seed), str(n)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]


@pytest.mark.parametrize("seed", range(3))
def test_objects_may_die_in_any_order(tiny_path, seed):  # G24
    play(tiny_path, seed, 25)


@pytest.mark.slow
@pytest.mark.goal("G24")
def test_a_thousand_orders_of_dying(tiny_path, record_property):  # G24
    for seed in range(20):  # each ends its interpreter with other objects alive
        play(tiny_path, 100 + seed, 60)
    record_property("figure", "1,200 orders, 20 ends of the interpreter: 0 crashes")
