#!/usr/bin/env python3
"""Writes reliability.md: what each goal reached, from the reports of the tests that show it.

    ./dev reliability

Reads build/reliability/*.xml, which pytest and GoogleTest write: a test names its goals (`goal`) and may say what it
reached (`figure`); one that says nothing reached what its name says. What no report tells of stays as it stands: the
row of a goal that none names, and what ran under sanitizers, which takes hours and is run for itself.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "reliability"
FILE = ROOT / "docs" / "reliability.md"

# Goal: what it is about, the figure to reach, and what llama.cpp 4df29be4f did in the same trial.
GOALS = {
    "G1": ("damaged models", "0 crashes, 0 hangs; a good context bit-equal after each", "28 crashes, 2 hangs of 792"),
    "G2": ("what a refusal costs", "1 s and 64 MiB at most, of each refused file", "over 20 s"),
    "G3": ("every kind of memory", "G1 on a model of each", "not measured"),
    "G4": ("random bytes in process", "100,000 damages under ASan and UBSan: 0 reports", "not measured"),
    "G5": ("paths that are no files", "refused within a second", "5 of 6"),
    "G6": ("damaged states", "all refused, context byte-equal", "87 of 373 refused cleanly, 69 destroyed, 19 aborts"),
    "G7": ("states of other models", "refused, the field named", "not measured"),
    "G8": ("saving is atomic", "200 kills and a full disk: the old file or the new one", "old file destroyed"),
    "G9": ("what a cache holds", "1,000 programs of 100 calls: 0 divergences from plain lists", "not measured"),
    "G10": ("what keys and values are", "logits of a fresh context, bit for bit", "not measured"),
    "G11": ("no free cells", "200 of 200 byte-equal after the refusal", "2 of 2"),
    "G12": ("calls that make no sense", "300 and more: 0 crashes, documented errors", "29 of 83 died, 3 harmed"),
    "G13": ("Ctrl-C", "raised within 0.25 s, worst of 50, cache as before", "17.8 s"),
    "G14": ("fork and multiprocessing", "50 forks and three kinds of Pool: 0 hangs", "hangs for ever"),
    "G15": ("two contexts, two threads", "1,000 results bit-equal to serial ones", "100 of 100"),
    "G16": ("one context, two threads", "every call completes, results of a serial order", "SIGABRT at once"),
    "G17": ("memory over time", "64 KiB at most in 90,000 steps; 0 allocations each", "8 KiB; 216 allocations a step"),
    "G18": ("memory over failures", "64 KiB at most over 1,000 refusals", "0 over 200"),
    "G19": ("failed allocations", "MemoryError or success, 0 deaths, byte-equal", "100 of 424 died, 74 destroyed"),
    "G20": ("sanitizers", "0 reports: the whole suite under ASan, UBSan and LSan, threads under TSan", "not measured"),
    "G21": ("ways to end the process", "no abort, exit or assert is imported", "2,738 asserts"),
    "G22": ("a model's file changes", "logits unchanged", "SIGBUS"),
    "G23": ("NaN and infinity", "a documented error or a valid token", "not measured"),
    "G24": ("lifetimes", "1,000 orders of dying: 0 crashes", "not measured"),
    "G25": ("errors in workers", "no worker can throw; too few threads are enough", "not measured"),
    "soak": ("mixed work of two threads", "20 min under ASan: no report, no growth", "not measured"),
    "G26": ("coverage of reader and state code", "100 % of lines, 95 % of branches", "not measured"),
}  # fmt: skip

HEAD = """# Reliability

Written by [reliability.py](reliability.py): `./dev reliability` runs every test that shows a goal, the long forms, the
sanitizers and the count of covered lines too (hours), and writes what they reached; `./dev reliability -m "goal and not
slow"` runs the short forms alone and takes minutes. What stands here was reached by the last runs, so figures say how
much was tried. llama.cpp's figures are of its commit 4df29be4f in the same trials. What is promised, and for which
input, stands in [SECURITY.md](../SECURITY.md).

| goal | about | to reach | reached | llama.cpp |
|---|---|---|---|---|
"""

TAIL = """
## Where it is shown

{places}
## Sanitizers

`./dev asan` runs the C++ tests and pytest under AddressSanitizer and UndefinedBehaviorSanitizer, `./dev tsan` the C++
tests under ThreadSanitizer, and `./dev fuzz [seconds]` the fuzzers and random programs under the former. Each compiles
the whole tree anew, which takes longer than the tests. So `./dev test`, and with it every run of CI, compiles the rooms
that read files and states and keep caches (base, tensor, gguf, batch, memory, runtime) and their tests a second time
under AddressSanitizer, UndefinedBehaviorSanitizer and LeakSanitizer, with the fuzzers: `plait_guarded_tests`.
"""


# What ran under a sanitizer, by the name of its report.
SANITIZED = {
    "asan-cpp": "C++ tests under ASan, UBSan and LSan",
    "asan-python": "Python tests under ASan and UBSan",
    "guarded-cpp": "C++ tests of files, states and caches under ASan, UBSan and LSan",
    "tsan-cpp": "C++ tests under TSan",
}


class Shown(NamedTuple):
    """A test that showed a goal."""

    place: str
    figure: str
    passed: bool


def skipped(case: ET.Element) -> bool:
    """By pytest, or by GoogleTest, which says so in words or in an attribute."""
    return case.find("skipped") is not None or case.get("result") == "skipped"


def read(report: Path) -> list[tuple[str, Shown]]:
    """(goal, test) for each test of a report that names goals."""
    found = []
    ran = [c for c in ET.parse(report).getroot().iter("testcase") if not skipped(c)]
    sanitized = SANITIZED.get(report.stem)
    if sanitized:
        good = all(case.find(kind) is None for case in ran for kind in ("failure", "error"))
        found.append(("G20", Shown(report.stem, f"{len(ran):,} {sanitized}", good)))
    for case in ran:
        said = [(p.get("name"), p.get("value")) for p in case.iter("property")]
        bad = any(case.find(kind) is not None for kind in ("failure", "error"))
        name = case.get("name", "").split("[")[0]
        place = f"{case.get('classname', '').replace('tests.', '')}.{name}"
        figure = next((value for key, value in said if key == "figure"), "")
        if sanitized and "under ASan" not in (figure or ""):
            continue  # shown by the ordinary build
        for key, value in said:
            if key == "goal":
                found.append((value or "", Shown(place, figure or "", not bad)))
    return found


NUMBER = re.compile(r"(at most )?([0-9][0-9,]*(?:\.[0-9]+)?)")


def added_up(figures: list[str]) -> list[str]:
    """Figures in the same words as one: numbers are added up, and of those "at most" the largest is taken."""
    alike = defaultdict(list)
    for figure in figures:
        alike[NUMBER.sub(r"\1#", figure)].append(NUMBER.findall(figure))
    made = []
    for words, numbers in alike.items():
        for column in zip(*numbers, strict=True):
            values = [float(text.replace(",", "")) for _, text in column]
            total = max(values) if column[0][0] else sum(values)
            words = words.replace(
                "#", f"{total:,.2f}" if "." in column[0][1] else f"{total:,.0f}", 1
            )
        made.append(words)
    return made


def reached(tests: list[Shown]) -> str:
    """What the tests of a goal say, each sentence once."""
    failed = sorted({test.place for test in tests if not test.passed})
    if failed:
        return "**not reached**: " + ", ".join(failed)
    figures = added_up([test.figure for test in tests if test.figure])
    silent = sum(not test.figure for test in tests)
    if silent:
        figures.append(f"{silent} {'test passes' if silent == 1 else 'tests pass'}")
    return "; ".join(figures) or "not measured"


class Row(NamedTuple):
    """What a goal reached, and the tests that showed it."""

    figures: list[str]
    places: set[str]


def written(path: Path) -> dict[str, Row]:
    """The rows of the file as it stands."""
    text = path.read_text() if path.exists() else ""
    lines = (line.removeprefix("| ").split(" | ") for line in text.splitlines())
    figures = {cells[0]: cells[3].split("; ") for cells in lines if len(cells) == 5}
    places = dict(re.findall(r"^- (\w+): (.*)$", text, re.MULTILINE))
    return {
        goal: Row(said, set(re.findall(r"`([^`]+)`", places.get(goal, ""))))
        for goal, said in figures.items()
    }


def kept(old: Row, new: list[str]) -> list[str]:
    """What was said of sanitizers in words that are not said now."""
    words = {NUMBER.sub("#", figure) for figure in new}
    return [said for said in old.figures if "San" in said and NUMBER.sub("#", said) not in words]


def main() -> int:
    """Write reliability.md; 1 where a goal is not reached."""
    shown = defaultdict(list)
    for report in sorted(REPORTS.glob("*.xml")):
        for goal, test in read(report):
            shown[goal].append(test)
    rows, places = [], []
    before = written(FILE)
    for goal, (about, wanted, others) in GOALS.items():
        figures, names = reached(shown[goal]), {test.place for test in shown[goal]}
        old = before.get(goal, Row([], set()))
        stays = kept(old, figures.split("; ")) if shown[goal] else old.figures
        if stays:
            figures = "; ".join([figures, *stays] if shown[goal] else stays)
            names |= old.places
        rows.append(f"| {goal} | {about} | {wanted} | {figures} | {others} |\n")
        where = ", ".join(f"`{place}`" for place in sorted(names))
        places.append(f"- {goal}: {where or 'no report of it'}\n")
    text = HEAD + "".join(rows) + TAIL.format(places="".join(places))
    FILE.write_text(text)
    return any(not test.passed for tests in shown.values() for test in tests)


if __name__ == "__main__":
    sys.exit(main())
