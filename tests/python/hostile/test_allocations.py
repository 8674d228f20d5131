"""Out of memory: whichever allocation fails, the call raises MemoryError and nothing has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from python.drive import UNDER_ASAN

HOSTILE = Path(__file__).parent
KINDS = ["llama-gqa", "gemma3", "jamba", "t5", "rwkv7", "deepseek2"]


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory) -> dict[str, str]:
    """The environment of a process whose allocations can be made to fail."""
    compiler = shutil.which("cc")
    if compiler is None or UNDER_ASAN:
        pytest.skip("needs a C compiler and malloc for itself")
    library = tmp_path_factory.mktemp("malloc") / "failing_malloc.so"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, HOSTILE / "failing_malloc.c"],
        check=True,
    )
    # Without these the dynamic linker needs memory while the first exception is thrown.
    cxx = subprocess.run(
        [compiler, "-print-file-name=libstdc++.so.6"], check=True, capture_output=True, text=True
    )
    preload = f"{library} {cxx.stdout.strip()}"
    return {**os.environ, "LD_PRELOAD": preload, "LD_BIND_NOW": "1"}


def refuse(path: Path, folder: Path, step: int, environment: dict[str, str]) -> str:
    """Fail every n-th allocation of every kind of call, and return the counts of hostile/allocations.py."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", HOSTILE / "allocations.py", path, folder, str(step)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    n_tried, n_raised = map(int, done.stdout.split())
    assert n_raised > n_tried // 2 > 0
    return f"{n_tried:,} refused, {n_raised:,} MemoryErrors, 0 deaths, 0 contexts changed"


def test_any_allocation_may_be_refused(tiny_path, tmp_path, preloaded):  # G19 A2 A6
    refuse(tiny_path, tmp_path, 29, preloaded)


@pytest.mark.slow
@pytest.mark.goal("G19")
@pytest.mark.parametrize("kind", KINDS)
def test_every_allocation_may_be_refused(
    data_dir, tmp_path, preloaded, kind, record_property
):  # G19 A2 A6
    path = data_dir / "conformance" / kind / "model.gguf"
    record_property("figure", f"{kind}: {refuse(path, tmp_path, 1, preloaded)}")
