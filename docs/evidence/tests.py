"""Tests that a report cites: their results from pytest's and GoogleTest's reports, and their source."""

from __future__ import annotations

import ast
import hashlib
import re
import xml.etree.ElementTree as ET
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .reports import ROOT, Report, changed


class Case(NamedTuple):
    """A test case of a report: one set of parameters of one test."""

    test: str  # path::name, or Suite.Name of C++
    outcome: str  # "passed", "failed" or "skipped"
    reason: str  # of a skip
    goals: tuple[str, ...]
    figure: str


def cases(report: Path) -> list[Case]:
    """Return the cases of a report of pytest (xunit1) or GoogleTest."""
    return [case(element) for element in ET.parse(report).getroot().iter("testcase")]


def case(element: ET.Element) -> Case:
    """Return one case of a report."""
    name = element.get("name", "").split("[")[0]
    classname = element.get("classname", "")
    file = element.get("file", "")
    test = f"{file}::{name}" if file.endswith(".py") else f"{classname}.{name}"
    skip = element.find("skipped")
    outcome = "passed"
    if any(element.find(kind) is not None for kind in ("failure", "error")):
        outcome = "failed"
    elif skip is not None or element.get("result") == "skipped":
        outcome = "skipped"
    said = [(p.get("name"), p.get("value") or "") for p in element.iter("property")]
    return Case(
        test,
        outcome,
        " ".join((skip.get("message") or "").split()) if skip is not None else "",
        tuple(value for key, value in said if key == "goal"),
        next((value for key, value in said if key == "figure"), ""),
    )


def summary(found: list[Case]) -> dict[str, Any]:
    """Return the counts of outcomes, the reasons of skips with their counts, and the tests that failed."""
    return {
        "counts": dict(Counter(one.outcome for one in found)),
        "skipped": dict(Counter(one.reason for one in found if one.outcome == "skipped")),
        "failed": sorted({one.test for one in found if one.outcome == "failed"}),
    }


NUMBER = re.compile(r"(at most )?([0-9][0-9,]*(?:\.[0-9]+)?)")


def merged(figures: list[str]) -> list[str]:
    """Merge figures with the same wording: add up their numbers, and take the max of those after "at most"."""
    alike: dict[str, list[list[tuple[str, str]]]] = {}
    for figure in figures:
        alike.setdefault(NUMBER.sub(r"\1#", figure), []).append(NUMBER.findall(figure))
    made = []
    for words, numbers in alike.items():
        for column in zip(*numbers, strict=True):
            values = [float(text.replace(",", "")) for _, text in column]
            total = max(values) if column[0][0] else sum(values)
            digits = max(len(text.partition(".")[2]) for _, text in column)
            words = words.replace("#", f"{total:,.{digits}f}", 1)
        made.append(words)
    return made


# --- sources -------------------------------------------------------------------------------------


@cache
def cpp_sources() -> dict[str, str]:
    """Return the text of each C++ test file."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in sorted((ROOT / "tests" / "cpp").rglob("*.cpp"))
    }


def body_of_cpp(suite: str, name: str) -> str:
    """Return the text between the braces of a C++ test, "" if there is none of this name."""
    head = re.compile(
        rf"^TEST(?:_F|_P)?\({re.escape(suite)},\s*{re.escape(name)}\) \{{", re.MULTILINE
    )
    for text in cpp_sources().values():
        if found := head.search(text):
            depth, at = 1, found.end()
            while depth and at < len(text):
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            return text[found.end() : at - 1]
    return ""


@cache
def python_functions(path: str) -> dict[str, ast.FunctionDef]:
    """Return the functions of a Python file."""
    file = ROOT / path
    if not file.is_file():
        return {}
    tree = ast.parse(file.read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def is_empty(function: ast.FunctionDef) -> bool:
    """Return whether a function does nothing: its body has only constants, `pass` and `return`."""
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (
            isinstance(node, ast.Return)
            and (node.value is None or isinstance(node.value, ast.Constant))
        )
        for node in function.body
    )


def source(test: str) -> str:
    """Return the hash of the source of a test. Comments, layout and docstrings do not count.

    Returns:
        "" if the test does not exist, "empty" if nothing is left of it.
    """
    path, _, name = test.partition("::")
    if name:
        function = python_functions(path).get(name)
        if function is None:
            return ""
        if is_empty(function):
            return "empty"
        body = [
            n
            for n in function.body
            if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        ]
        text = "\n".join(ast.dump(node) for node in body)
    else:
        # Kinds/Suite.Name/param of a parametrized test is Suite.Name in its source.
        suite, _, short = test.partition(".")
        body = body_of_cpp(suite.rpartition("/")[2], short.partition("/")[0])
        text = "".join(re.sub(r"//[^\n]*", "", body).split())
        if not text:
            return "empty" if body else ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_tests(report: Report) -> list[str]:
    """Return the tests that a report cites and whose source has changed since."""
    return [
        test
        for shown in report.get("goals", {}).values()
        for test, said in shown["tests"].items()
        if source(test) != said["source"]
    ]


def is_stale(report: Report) -> bool:
    """Return whether code that a report depends on, or a test that it cites, has changed since."""
    return bool(changed(report) or changed_tests(report))
