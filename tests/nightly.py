#!/usr/bin/env python3
"""Run everything that must hold, one part after another, and print a table: ./dev nightly.

    nightly.py FOLDER [--resume] [PART...]

A part that fails does not stop the others. Its output is in FOLDER/PART.txt, its result in FOLDER/PART.json. The exit
status is 1 if a part failed. Everything that shows a goal of docs/reliability.md runs as a part of the evidence, so its
report and the page are new afterwards.

With --resume, hours of work can be done in pieces, and on several machines. A part of the evidence is not run again if
it passed and nothing that it depends on has changed since, as its report shows; another part, if it passed on this very
tree: every file in git but the pages and reports of the evidence.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from evidence import check  # noqa: E402
from evidence import parts as evidence  # noqa: E402
from evidence.reports import REPORTS, Report, path_of, read_all  # noqa: E402
from evidence.tests import is_stale  # noqa: E402

# In this order. "python", "timing" and the parts of the evidence together are `./dev test --all`. Nothing else may run
# beside "timing".
PARTS = {
    "lint": ["./dev", "lint"],
    "python": ["./dev", "test", "--all", "-m", "not goal and not timing"],
    "timing": ["./dev", "test", "--all", "-m", "timing"],
    "frameworks": ["./dev", "frameworks"],
    "validation": ["./dev", "validate"],
    "wheel": ["./dev", "wheel"],
    "pythons": ["./dev", "pythons"],
    **{name: ["./dev", "evidence", name] for name, part in evidence.PARTS.items() if part.goals},
    "check": ["./dev", "evidence", "--check"],
}


class Result(NamedTuple):
    """What became of a part."""

    tree: str  # or the commit of a report
    passed: bool
    seconds: float
    shown_by: str  # its output, or the report


def tree() -> str:
    """Return a digest of the files in git, without what the evidence writes."""
    written = [path.relative_to(ROOT) for path in (REPORTS, *check.PAGES)]
    files = ["--", ".", *(f":(exclude){path}" for path in written)]
    digest = hashlib.sha256()
    for command in (["ls-files", "--stage"], ["diff", "HEAD"]):
        digest.update(subprocess.check_output(["git", *command, *files], cwd=ROOT))
    return digest.hexdigest()[:12]


def run(name: str, command: list[str], folder: Path) -> Result:
    """Run a part, and write its output and its result."""
    before = tree()
    begin = time.monotonic()
    output = folder / f"{name}.txt"
    with output.open("wb") as file:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        )  # fmt: skip
    result = Result(before, done.returncode == 0, time.monotonic() - begin, str(output))
    (folder / f"{name}.json").write_text(json.dumps(result._asdict()))
    return result


def holds(report: Report) -> bool:
    """Return whether a part passed, and nothing that it depends on has changed since."""
    same = report["command"] == evidence.PARTS[report["part"]].command
    clean = report["status"] == "passed" and not report["modified"]
    return same and clean and not is_stale(report)


def earlier(name: str, folder: Path) -> Result | None:
    """Return the result of a part that need not be repeated, if there is one."""
    if name in evidence.PARTS:
        for report in read_all():
            if report["part"] == name and holds(report):
                path = str(path_of(report).relative_to(ROOT))
                return Result(
                    report["commit"], passed=True, seconds=report["seconds"], shown_by=path
                )
        return None
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    if kept.get("tree") != tree():  # and perhaps of another version of this file
        return None
    return Result(**kept) if kept["passed"] else None


def main(folder: str, *arguments: str, parts: dict[str, list[str]] = PARTS) -> int:
    """Run parts, all by default; return 1 if one failed."""
    names = [name for name in arguments if name != "--resume"]
    unknown = [name for name in names if name not in parts]
    if unknown:
        print(f"{', '.join(unknown)}: expected some of {', '.join(parts)}", file=sys.stderr)
        return 2
    logs = Path(folder)
    logs.mkdir(parents=True, exist_ok=True)
    table = {}
    for name in names or parts:
        print(f"{name} ... ", end="", flush=True)
        kept = earlier(name, logs) if "--resume" in arguments else None
        result = table[name] = kept or run(name, parts[name], logs)
        how = "passed" if result.passed else "FAILED"
        print(f"{how}{' before' if kept else ''}, {result.seconds:.0f} s", flush=True)
        if not result.passed:
            text = Path(result.shown_by).read_text(errors="replace")
            print("\n".join(text.splitlines()[-15:]))
    print(f"\n{'part':14} {'result':8} {'minutes':>8}  {'tree':12}  shown by")
    for name, result in table.items():
        how = "passed" if result.passed else "FAILED"
        print(f"{name:14} {how:8} {result.seconds / 60:8.1f}  {result.tree}  {result.shown_by}")
    return int(not all(result.passed for result in table.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
