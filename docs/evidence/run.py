"""Run parts and write their reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import reports, tests
from .parts import PARTS, Part

BUILD = reports.ROOT / "build" / "evidence"
LOG_LINES = 60


def run(name: str, folder: Path = reports.REPORTS) -> reports.Report:
    """Run a part and write its report.

    The old report is replaced by one with the status "unfinished" first, so that a run which dies leaves a trace.
    """
    part, output = PARTS[name], BUILD / name
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    commit, modified = reports.commit()
    report: reports.Report = {
        "part": name,
        "machine": reports.machine(),
        "commit": commit,
        "modified": modified,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "command": part.command,
        "seconds": 0,
        "status": "unfinished",
        "exit_status": None,
        "log": "the run ended before its command did",
        "depends": reports.hashes(part.depends),
    }
    reports.write(report, folder)
    begin = time.monotonic()
    status, log = execute(part.command, output)
    report["seconds"] = round(time.monotonic() - begin)
    report["exit_status"] = status
    try:
        report |= collect(part, output)
    except (ET.ParseError, ValueError) as error:
        status, log = status or 1, f"{log}\na report of {name} cannot be read: {error}"
    problems = missing(part, report)
    failed = status != 0 or bool(problems)
    report["status"] = "failed" if failed else "passed"
    report["log"] = "\n".join([*excerpt(log), *problems]) if failed else ""
    reports.write(report, folder)
    return report


def execute(command: str, output: Path) -> tuple[int, str]:
    """Run a command in the root of the repository; return its exit status and what it printed."""
    log = output / "log.txt"
    environment = os.environ | {"REPORTS": str(output), "PLAIT_REPORTS": str(output)}
    with log.open("wb") as file:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=reports.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    return done.returncode, log.read_text(errors="replace")


def excerpt(log: str) -> list[str]:
    """Return the end of a log, without the paths of this machine."""
    home = str(reports.ROOT)
    return [line.replace(home, ".")[:300] for line in log.splitlines()[-LOG_LINES:]]


def collect(part: Part, output: Path) -> dict[str, Any]:
    """Return the results in a folder of reports, in the form of a report."""
    found: dict[str, Any] = {}
    all_cases: list[tests.Case] = []
    cited: dict[str, dict[str, list[tests.Case]]] = defaultdict(lambda: defaultdict(list))
    whole: dict[str, list[str]] = defaultdict(list)
    sanitized = {stem: (goal, what) for stem, goal, what in part.sanitized}
    for path in sorted(output.glob("*.xml")):
        ours = tests.cases(path)
        all_cases += ours
        if path.stem in sanitized:
            goal, what = sanitized[path.stem]
            n = sum(case.outcome == "passed" for case in ours)
            whole[goal].append(f"{n:,} {what}")
            where = f" under {what.partition(' under ')[2]}"
            ours = [case._replace(figure=case.figure and case.figure + where) for case in ours]
        for case in ours:
            for goal in case.goals:
                if goal in part.goals:
                    cited[goal][case.test].append(case)
    if all_cases:
        found |= tests.summary(all_cases)
    if part.goals:
        found["goals"] = {
            goal: result(cited[goal], whole[goal])
            for goal in part.goals
            if cited[goal] or whole[goal]
        }
    for path in sorted(output.glob("*.json")):
        data = json.loads(path.read_text())
        found[path.stem] = kernels(data) if path.stem == "kernels" else data
    return found


def kernels(data: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs of a report of Google Benchmark, which also describes the host."""
    kept = ("name", "real_time", "time_unit", "limit")
    return {
        "benchmarks": [{key: one[key] for key in kept if key in one} for one in data["benchmarks"]]
    }


def result(cited: dict[str, list[tests.Case]], whole: list[str]) -> dict[str, Any]:
    """Return what the tests of a goal showed: figures, and each test with its outcomes and the hash of its source."""
    passed = [case for found in cited.values() for case in found if case.outcome == "passed"]
    silent = sum(not case.figure for case in passed)
    figures = whole + tests.merged([case.figure for case in passed if case.figure])
    if silent:
        figures.append(f"{silent:,} {'test passes' if silent == 1 else 'tests pass'}")
    return {
        "figures": figures,
        "tests": {
            test: {
                "source": tests.source(test),
                **{
                    outcome: sum(case.outcome == outcome for case in found)
                    for outcome in ("passed", "failed", "skipped")
                },
            }
            for test, found in sorted(cited.items())
        },
    }


def missing(part: Part, report: reports.Report) -> list[str]:
    """Return what a part should have shown and did not."""
    found = report.get("goals", {})
    problems = [
        f"no test of {goal} passed" for goal in part.goals if not found.get(goal, {}).get("figures")
    ]
    problems += [f"no report of the {what}" for stem, _, what in part.sanitized
                 if not any(what in figure for goal in found.values() for figure in goal["figures"])]  # fmt: skip
    for goal, shown in found.items():
        for test, said in shown["tests"].items():
            if said["source"] in ("", "empty"):
                problems.append(
                    f"{goal}: the test {test} {'is empty' if said['source'] else 'is not there'}"
                )
    return problems
