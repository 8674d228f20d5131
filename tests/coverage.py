#!/usr/bin/env python3
"""Report the lines and branches of the GGUF reader and of state code that the C++ tests of a build ran. Goal G26.

    coverage.py BUILD REPORT.xml

BUILD was configured with PLAIT_COVERAGE=ON and its tests have run. All of SOURCES counts, and in the other files of
cpp/memory the functions that save or restore states (STATE_FUNCTION). Not counted, but listed with their number:
branches that the compiler adds for exceptions, and the failure of a PLAIT_CHECK, which only a mistake of ours could
reach. Closing braces that only an exception passes do not count either. The branches of one line in several
instantiations of a template are one. Exits with 1 if a share is below its goal (GOALS); the report then names what
never ran.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    "cpp/gguf/*",
    "cpp/runtime/state/*",
    "cpp/runtime/session_state.cpp",
    "cpp/memory/attention_state.cpp",
]
WANTED = {path.resolve() for pattern in SOURCES for path in ROOT.glob(pattern)}
GOALS = {"lines": 100, "branches": 95}  # percent of what counts
IN_PART = set((ROOT / "cpp/memory").glob("*")) - WANTED
STATE_FUNCTION = re.compile(
    r"::(check_)?(restore|state|end_of|facts|sections?|targets|\w+_states?)\w*\("
)


def lines_of_states(functions: list[dict]) -> set[int]:
    """Return the lines of the functions of a file that save or restore states."""
    return {
        line
        for function in functions
        if STATE_FUNCTION.search(function["demangled_name"])
        for line in range(function["start_line"], function["end_line"] + 1)
    }


def measure(build: Path) -> tuple[dict, dict, Counter]:
    """Return execution counts of lines and branches, by file, and the number of branches not counted, by reason."""
    excluded: Counter = Counter()
    lines: dict = defaultdict(lambda: defaultdict(int))
    branches: dict = defaultdict(lambda: defaultdict(int))
    data = [str(path) for path in build.rglob("*.gcda")]
    done = subprocess.run(
        ["gcov", "--branch-probabilities", "--json-format", "--stdout", *data],
        check=True, capture_output=True, text=True, cwd=build,
    )  # fmt: skip
    for unit in map(json.loads, done.stdout.splitlines()):
        for file in unit["files"]:
            path = (Path(unit["current_working_directory"]) / file["file"]).resolve()
            if path not in WANTED | IN_PART:
                continue
            source = path.read_text().splitlines()
            counted = lines_of_states(file["functions"]) if path in IN_PART else None
            for line in file["lines"]:
                if counted is not None and line["line_number"] not in counted:
                    continue
                where = path, line["line_number"]
                if line["count"] == 0 and source[line["line_number"] - 1].strip() == "}":
                    continue  # cleans up after an exception
                lines[path][line["line_number"]] += line["count"]
                if "PLAIT_CHECK(" in source[line["line_number"] - 1]:
                    excluded[where, "PLAIT_CHECK"] = 1
                    continue
                if n := sum(b["throw"] for b in line["branches"]):
                    excluded[where, "exceptions"] = n
                made = [b for b in line["branches"] if not b["throw"]]
                for i, branch in enumerate(made):
                    branches[path][line["line_number"], i] += branch["count"]
    reasons: Counter = Counter()
    for (_, reason), n in excluded.items():
        reasons[reason] += n
    return lines, branches, reasons


def missed(lines: dict, branches: dict) -> list[str]:
    """Describe what never ran, a sentence for each file."""
    said = []
    for path in sorted(lines):
        whole = [n for n, count in sorted(lines[path].items()) if count == 0]
        half = sorted({n for (n, _), count in branches[path].items() if count == 0} - set(whole))
        if whole or half:
            said.append(f"{path.relative_to(ROOT)}: lines {whole}, branches of lines {half}")
    return said


def shares(lines: dict, branches: dict) -> tuple[str, bool]:
    """Return the percentages that ran, in words, and whether they reach the goals."""
    said, reached = [], True
    for what, counts in (("lines", lines), ("branches", branches)):
        values = [n for of_file in counts.values() for n in of_file.values()]
        ran = sum(n > 0 for n in values)
        reached &= bool(values) and 100 * ran >= GOALS[what] * len(values)
        said.append(f"{100 * ran / max(1, len(values)):.1f} % of {len(values)} {what}")
    return ", ".join(said), reached


def main(build: str, report: str) -> int:
    """Write the report. Return 1 if a goal is not reached."""
    lines, branches, excluded = measure(Path(build).resolve())
    details = missed(lines, branches)
    figure, reached = shares(lines, branches)
    figure += f"; not counted: {excluded['exceptions']} branches that the compiler adds for exceptions, and the failure"
    figure += f" of {excluded['PLAIT_CHECK']} PLAIT_CHECKs"
    print(*details, figure, sep="\n")
    case = ET.Element("testcase", name="measure", classname="dev", file="tests/coverage.py")
    properties = ET.SubElement(case, "properties")
    for name, value in (("goal", "G26"), ("figure", figure)):
        ET.SubElement(properties, "property", name=name, value=value)
    if not reached:
        expected = ", ".join(f"{goal} % of {what}" for what, goal in GOALS.items())
        message = f"{figure}, expected {expected}"
        ET.SubElement(case, "failure", message=message).text = "\n".join(details)
        print(message, file=sys.stderr)
    Path(report).parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(case).write(report)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
