#!/usr/bin/env python3
"""Run everything that must hold, one part after another, and print a table: ./dev nightly.

    nightly.py FOLDER [PART...]

A part that fails does not stop the others. Its output is in FOLDER/PART.txt. The exit status is 1 if a part failed.
Everything that shows a goal of docs/reliability.md runs as a part of the evidence, so its report and the page are new
afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from evidence import parts as evidence  # noqa: E402

# In this order. "python" and the parts of the evidence together are `./dev test --all`.
PARTS = {
    "lint": ["./dev", "lint"],
    "python": ["./dev", "test", "--all", "-m", "not goal"],
    "frameworks": ["./dev", "frameworks"],
    "validation": ["./dev", "validate"],
    "wheel": ["./dev", "wheel"],
    "pythons": ["./dev", "pythons"],
    **{name: ["./dev", "evidence", name] for name, part in evidence.PARTS.items() if part.goals},
    "check": ["./dev", "evidence", "--check"],
}


def run(name: str, command: list[str], log: Path) -> tuple[bool, float]:
    """Run a part; return whether it passed, and the seconds it took."""
    begin = time.monotonic()
    with log.open("wb") as file:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        )  # fmt: skip
    return done.returncode == 0, time.monotonic() - begin


def main(folder: str, *names: str, parts: dict[str, list[str]] = PARTS) -> int:
    """Run parts, all by default; return 1 if one failed."""
    unknown = [name for name in names if name not in parts]
    if unknown:
        print(f"{', '.join(unknown)}: expected some of {', '.join(parts)}", file=sys.stderr)
        return 2
    logs = Path(folder)
    logs.mkdir(parents=True, exist_ok=True)
    table = []
    for name in names or parts:
        print(f"{name} ... ", end="", flush=True)
        log = logs / f"{name}.txt"
        passed, seconds = run(name, parts[name], log)
        table.append((name, passed, seconds, log))
        print(f"{'passed' if passed else 'FAILED'}, {seconds:.0f} s", flush=True)
        if not passed:
            print("\n".join(log.read_text(errors="replace").splitlines()[-15:]))
    print(f"\n{'part':12} {'result':8} {'minutes':>8}  output")
    for name, passed, seconds, log in table:
        print(f"{name:12} {'passed' if passed else 'FAILED':8} {seconds / 60:8.1f}  {log}")
    return int(not all(passed for _, passed, _, _ in table))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
