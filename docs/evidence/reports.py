"""Reports: what a part ran, on which commit and machine, and what it found. One JSON file each, sealed by a hash."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORTS = Path(__file__).with_name("reports")

# Every report has these keys; more depend on the part.
KEYS = {
    "part", "machine", "commit", "modified", "date", "command", "seconds", "status", "exit_status", "log",
    "depends", "seal",
}  # fmt: skip
STATUSES = ("passed", "failed", "unfinished")

Report = dict[str, Any]


class ReportError(Exception):
    """A report that is not as it was written; the message names the file."""


def seal(report: Report) -> str:
    """Return the hash of the content of a report, apart from its seal."""
    content = {key: value for key, value in report.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def path_of(report: Report, folder: Path = REPORTS) -> Path:
    """Return the file of a report."""
    return folder / f"{report['part']}.{report['machine']['name']}.json"


def write(report: Report, folder: Path = REPORTS) -> Path:
    """Seal and write a report; replaces the file at once or not at all."""
    report["seal"] = seal(report)
    path = path_of(report, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)
    return path


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        ReportError: The file is truncated, lacks a key, has another name than its part and machine, or its content
            differs from what was sealed.
    """
    try:
        report = json.loads(path.read_text())
    except ValueError as error:
        raise ReportError(f"{path.name} is truncated or no JSON: {error}") from error
    missing = KEYS - report.keys() if isinstance(report, dict) else KEYS
    if missing:
        raise ReportError(f"{path.name} lacks {', '.join(sorted(missing))}")
    if report["seal"] != seal(report):
        raise ReportError(
            f"{path.name} was changed after it was written: its seal does not match its content. "
            f"Run `./dev evidence {report['part']}` instead of editing it."
        )
    if path.name != path_of(report).name or report["status"] not in STATUSES:
        raise ReportError(f"{path.name} is not named {path_of(report).name}")
    return report


def read_all(folder: Path = REPORTS) -> list[Report]:
    """Read all reports, in the order of their names."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def machine() -> dict[str, Any]:
    """Describe this machine. `name` is part of the file names of its reports."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", info, re.MULTILINE))
    cpu = facts.get("model name", platform.processor() or platform.machine()).strip()
    if "cpu family" in facts:
        cpu += f" (family {facts['cpu family']}, model {facts['model']})"
    cores = len(os.sched_getaffinity(0))
    isa = instruction_set()
    words = re.sub(r"\((?:R|TM)\)", "", f"{cpu} {isa} {cores} cores")
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return {"name": name, "cpu": cpu, "cores": cores, "isa": isa}


def instruction_set() -> str:
    """Return the instruction set that plait selects here, "" without plait."""
    try:
        import plait
    except ImportError:
        return ""
    return os.environ.get("PLAIT_ISA") or plait.build_info()["isas"][-1]


def git(*arguments: str) -> str:
    """Return the output of git in this repository, "" if it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> tuple[str, list[str]]:
    """Return the commit, and the files that differ from it, without what this package writes."""
    listed = git("status", "--porcelain", "--no-renames").splitlines()
    written = ("docs/evidence/reports/", "docs/reliability.md", "docs/performance.md", "README.md")
    paths = [line[2:].strip() for line in listed]
    return git("rev-parse", "HEAD")[:12], [p for p in paths if not p.startswith(written)]


def hash_of_files(pattern: str, root: Path = ROOT) -> str:
    """Return the hash of the names and contents of the files that match a glob; "" if none does."""
    paths = sorted(
        path
        for path in root.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    )
    if not paths:
        return ""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def hashes(patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the hash of each glob."""
    return {pattern: hash_of_files(pattern) for pattern in patterns}


def changed(report: Report) -> list[str]:
    """Return the files, or else the globs, that changed since a report was made."""
    globs = [glob for glob, was in report["depends"].items() if hash_of_files(glob) != was]
    if not globs:
        return []
    listed = git(
        "diff", "--name-only", report["commit"], "--", *(f":(glob){glob}" for glob in globs)
    )
    return listed.splitlines() or globs
