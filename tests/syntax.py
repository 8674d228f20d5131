#!/usr/bin/env python3
"""Checks that C++ sources compile without warnings, for ./dev lint.

    syntax.py BUILD

BUILD was configured by CMake with the compiler to check. Runs each command of BUILD/compile_commands.json with
-fsyntax-only -Werror, except for generated sources, and prints what the compiler reports.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def check(entry: dict[str, str]) -> str:
    command = shlex.split(entry["command"])
    if Path(command[0]).name == "ccache":
        command = command[1:]
    output = command.index("-o")
    command[output : output + 2] = []
    command.remove("-c")
    done = subprocess.run(
        [*command, "-fsyntax-only", "-Werror"],
        cwd=entry["directory"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


def main(build: str) -> None:
    entries = json.loads(Path(build, "compile_commands.json").read_text())
    entries = [entry for entry in entries if not entry["file"].endswith("/spirv.cpp")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = [report for report in pool.map(check, entries) if report]
    print(*reports, sep="\n")
    print(f"{len(entries)} units, {len(reports)} with warnings")
    sys.exit(bool(reports))


if __name__ == "__main__":
    main(*sys.argv[1:])
