"""The compiled module itself. Goal G21, rule R8."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from plait import _core

# What ends a process. (std::terminate is what a noexcept function would call, and none of ours throws.)
DEADLY = (
    r"abort|exit|_exit|_Exit|quick_exit|__assert_fail|raise|kill|__builtin_trap|siglongjmp|longjmp"
)


@pytest.mark.goal("G21")
def test_the_module_cannot_end_the_process(record_property):  # G21 R8
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    done = subprocess.run(
        [nm, "--dynamic", "--undefined-only", _core.__file__],
        check=True,
        capture_output=True,
        text=True,
    )
    names = [line.split()[-1].split("@")[0] for line in done.stdout.splitlines()]
    assert "memcpy" in names  # the list names called functions
    if any("asan" in name or "tsan" in name for name in names):
        pytest.skip("a sanitizer may end it")
    assert [name for name in names if re.fullmatch(DEADLY, name)] == []
    record_property("figure", f"none of {len(names)} imported symbols")
