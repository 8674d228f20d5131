"""docs/reliability.md, from the reports."""

from __future__ import annotations

from .goals import GOALS
from .parts import PARTS
from .reports import Report
from .tests import is_stale

HEAD = """# Reliability

The promises of plait for each kind of input are in [SECURITY.md](../SECURITY.md). This page lists the goals behind them
and the results of the tests that demonstrate them; the numbers show how much was tried. The column "llama.cpp" shows
{peer} in trials of the same kinds, with the same damaged files: see `tests/peer`.

`./dev evidence` writes this page, and everything on it comes from the [reports](evidence/reports) of its parts, each of
which is one command on one commit. `./dev evidence PART` runs a part again; all of them take hours. `./dev evidence
--check`, which `./dev test` and with it every CI run includes, fails if this page is not what the reports give, if a
report was changed by hand, if a test named here was emptied or deleted, or if code that a goal depends on, or one of
its tests, has changed since its report without this page calling the goal stale.

| goal | topic | target | result | llama.cpp |
|---|---|---|---|---|
"""

PEER = "peer"  # the part that tries the goals on llama.cpp

RUNS = """
## Runs

A part is stale if a file that it depends on ([parts.py](evidence/parts.py)) has changed since its commit. Skipped cases
are counted with their reasons in the reports.

| part | contents | machine | commit | date | cases | state |
|---|---|---|---|---|---|---|
"""

SANITIZERS = """
## Sanitizers

`./dev asan` runs the C++ tests and tests/python under AddressSanitizer and UndefinedBehaviorSanitizer, except for the
tests that compare durations. `./dev tsan` runs the C++ tests under ThreadSanitizer. `./dev fuzz [seconds]` runs the
fuzzers and random programs under AddressSanitizer and UndefinedBehaviorSanitizer. Each of them compiles the whole tree,
which takes longer than the tests. Therefore `./dev test`, and with it every CI run, compiles only the rooms that read
files and states and manage caches (base, tensor, gguf, batch, memory, runtime) and their tests a second time, under
AddressSanitizer, UndefinedBehaviorSanitizer and LeakSanitizer, with the fuzzers: `plait_guarded_tests`. The reports
name the machines, and with them the kernels that ran: those of its instruction set and all weaker ones.

Under ThreadSanitizer, a thread never takes over a chunk of another one
([why](decisions/0002-threads-take-chunks.md)): the thread that lost its chunk may still read memory which others write,
and its result is discarded. The take-over is tested without that sanitizer, by threads that are stopped inside their
chunks and by other programs on every core.
"""


def page(found: list[Report]) -> str:
    """Return the page."""
    parts = [part for part, what in PARTS.items() if what.goals or part == PEER]
    ours = [report for report in found if report["part"] in parts]
    stale = {id(report): is_stale(report) for report in ours}
    version, tried = peer(ours)
    rows = [
        f"| {name} | {goal.topic} | {goal.target} | {result(name, ours, stale)} | {tried.get(name, 'not tried')} |\n"
        for name, goal in GOALS.items()
    ]
    runs = []
    for part in parts:
        of_part = [report for report in ours if report["part"] == part]
        runs += [run(report, stale[id(report)]) for report in of_part]
        if not of_part:
            runs.append(f"| {part} | {PARTS[part].about} | | | | | **not run** |\n")
    logs = [log(report) for report in ours if report["status"] != "passed"]
    return (
        HEAD.format(peer=version) + "".join(rows) + RUNS + "".join(runs) + "".join(logs)
        + "\n## Tests\n\n" + "".join(cited(name, ours) for name in GOALS) + SANITIZERS
    )  # fmt: skip


def peer(found: list[Report]) -> tuple[str, dict[str, str]]:
    """Return the name of the peer with its version, and its result for each goal that it was tried on."""
    of_peer = [report["peer"] for report in found if report["part"] == PEER and "peer" in report]
    if not of_peer:
        return "it", dict.fromkeys(GOALS, f"**`{PEER}` was not run**")
    return f"llama-cpp-python {of_peer[-1]['version']}", of_peer[-1]["goals"]


def result(goal: str, found: list[Report], stale: dict[int, bool]) -> str:
    """Return the results of a goal: of each part that shows it, and of each machine."""
    expected = [part for part, what in PARTS.items() if goal in what.goals]
    texts = []
    for part in expected:
        of_part = [report for report in found if report["part"] == part]
        if not of_part:
            texts.append(f"**`{part}` was not run**")
        for report in of_part:
            shown = report.get("goals", {}).get(goal)
            failed = (
                sorted(t for t, said in shown["tests"].items() if said["failed"]) if shown else []
            )
            whole = any(goal == sanitized for _, sanitized, _ in PARTS[part].sanitized)
            if whole and report["status"] == "failed":
                text = f"**not reached**: `{part}` failed with exit status {report['exit_status']}"
            elif not shown or report["status"] == "unfinished":
                text = f"**not shown**: `{part}` {report['status']}"
            elif failed:
                text = "**not reached**: " + ", ".join(f"`{short(test)}`" for test in failed)
            else:
                text = "; ".join(shown["figures"]) or "**no test ran**"
                if report["status"] == "failed":
                    text += f" (other tests of `{part}` failed)"
            text += " (stale)" if stale[id(report)] else ""
            many = len({other["machine"]["name"] for other in found}) > 1
            texts.append(f"{report['machine']['name']}: {text}" if many else text)
    return "; ".join(texts) or "no part shows this goal"


def run(report: Report, stale: bool) -> str:
    """Return the row of a run."""
    counts = report.get("counts", {})
    machine = report["machine"]
    state = report["status"] if report["status"] == "passed" else f"**{report['status']}**"
    state += ", stale" if stale else ""
    differs = f" with {len(report['modified'])} modified files" if report["modified"] else ""
    said = ", ".join(f"{n:,} {outcome}" for outcome, n in counts.items())
    return (
        f"| {report['part']} | {PARTS[report['part']].about} | {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['isa']} | {report['commit']}{differs} | {report['date']} | {said} | {state} |\n"
    )


def log(report: Report) -> str:
    """Return the end of the log of a part that failed."""
    return (
        f"\n### {report['part']} on {report['machine']['name']}: exit status {report['exit_status']}\n\n"
        f"```text\n{report['log'].replace('```', '')}\n```\n"
    )


def short(test: str) -> str:
    """Return a test without the folder of all Python tests."""
    return test.removeprefix("tests/python/")


def cited(goal: str, found: list[Report]) -> str:
    """Return the line that names the tests of a goal."""
    names = {
        short(test)
        for report in found
        for test in report.get("goals", {}).get(goal, {"tests": {}})["tests"]
    }
    whole = {
        f"./dev evidence {part}" for part, what in PARTS.items() if any(goal == g for _, g, _ in what.sanitized)
    }  # fmt: skip
    where = ", ".join(f"`{name}`" for name in sorted(names) + sorted(whole))
    return f"- {goal}: {where or 'no report'}\n"
