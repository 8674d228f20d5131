"""What --check finds: damaged reports, pages that differ from the reports, cited tests that are empty or gone."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from . import performance, quality, reliability, tests
from .parts import PARTS
from .reports import REPORTS, ROOT, Report, ReportError, changed, read

PAGES: dict[Path, Callable[[str, list[Report]], str]] = {
    ROOT / "docs" / "reliability.md": lambda _, found: reliability.page(found),
    ROOT / "docs" / "performance.md": lambda _, found: performance.page(found),
    ROOT / "docs" / "quality.md": lambda _, found: quality.page(found),
    ROOT / "README.md": performance.readme,
}


def render(found: list[Report]) -> list[Path]:
    """Write the pages; return those that changed."""
    written = []
    for path, page in PAGES.items():
        old = path.read_text() if path.exists() else ""
        new = page(old, found)
        if new != old:
            path.write_text(new)
            written.append(path)
    return written


def check(folder: Path = REPORTS) -> tuple[list[str], list[str]]:
    """Return the problems, and notes on stale parts, which the pages state and which are no problems."""
    problems, found = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except ReportError as error:
            problems.append(str(error))
    for report in found:
        problems += cited(report)
        if report["part"] not in PARTS:
            problems.append(f"{report['part']} is no part: delete its report")
    if problems:  # pages from damaged reports would only repeat them
        return problems, []
    for path, page in PAGES.items():
        old = path.read_text() if path.exists() else ""
        new = page(old, found)
        if new != old:
            changes = difflib.unified_diff(
                old.splitlines(), new.splitlines(), "committed", "reports", "", "", 0, ""
            )
            shown = "\n    ".join(line[:200] for line in list(changes)[2:14])
            problems.append(
                f"{path.relative_to(ROOT)} is not what the reports give. Run the parts again, or `./dev evidence "
                f"--render` to state what is stale:\n    {shown}"
            )
    return problems, stale(found)


def stale(found: list[Report]) -> list[str]:
    """Return a line for each report whose code has changed."""
    lines = []
    for report in found:
        if files := changed(report) + sorted(set(tests.changed_tests(report))):
            shown = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
            goals = ", ".join(report.get("goals", {})) or "figures"
            lines.append(
                f"stale: {report['part']} ({goals}) of {report['commit']}: {shown} changed"
            )
    return lines


def cited(report: Report) -> list[str]:
    """Return what is wrong with the tests that a report cites."""
    problems = []
    for goal, shown in report.get("goals", {}).items():
        for test in shown["tests"]:
            now = tests.source(test)
            where = f"{goal} cites {test} ({report['part']})"
            if not now:
                problems.append(f"{where}, which is not there")
            elif now == "empty":
                problems.append(f"{where}, which is empty")
    return problems
