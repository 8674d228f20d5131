"""The programs behind `./dev nightly` and the list of skipped tests."""

import re
import subprocess
import sys
from pathlib import Path

import coverage
import evidence.parts
import evidence.tests
import mutations
import nightly
import pytest

TESTS = Path(__file__).parent
PYTEST = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><skipped message="no Vulkan device, or a build without Vulkan"/></testcase>
<testcase classname="a" name="three"><skipped message="torch is not installed"/></testcase>
</testsuite></testsuites>"""
GTEST = """<testsuites><testsuite><testcase name="x" classname="S" result="skipped">
<skipped message="tests/x_test.cpp:12&#xA;torch is not installed&#xA;"/></testcase></testsuite></testsuites>"""


def tool(name, *arguments, **environment):
    return subprocess.run(
        [sys.executable, TESTS / name, *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    for name, text in {"pytest": PYTEST, "gtest": GTEST}.items():
        (tmp_path / f"{name}.xml").write_text(text)
    return [tmp_path / "pytest.xml", tmp_path / "gtest.xml"]


def test_skips_are_listed_with_reason_and_count(files):
    done = tool("skips.py", *files)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "skipped: 3 cases",
        "     2  torch is not installed",
        "     1  no Vulkan device, or a build without Vulkan",
    ]


def test_ci_fails_where_a_driver_or_the_data_is_missing(files, tmp_path):
    done = tool("skips.py", *files, CI="true")
    assert done.returncode == 1
    assert "CI lacks a Vulkan driver" in done.stderr
    assert tool("skips.py", files[1], CI="true").returncode == 0
    path = tmp_path / "data.xml"
    path.write_text(PYTEST.replace("torch is not installed", "no reference data in ../shared/data"))
    assert "CI lacks the reference data" in tool("skips.py", path, CI="true").stderr


def test_a_report_without_tests_is_an_error(tmp_path):
    path = tmp_path / "empty.xml"
    path.write_text("<testsuites/>")
    done = tool("skips.py", path)
    assert done.returncode == 1
    assert "nothing ran" in done.stderr


def test_the_nightly_run_goes_on_after_a_failure_and_ends_with_a_table(tmp_path, capsys):
    parts = {
        "good": [sys.executable, "-c", "print('fine')"],
        "bad": [sys.executable, "-c", "print('three reports'); raise SystemExit(3)"],
        "last": [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"],
        "end": [sys.executable, "-c", ""],
    }
    assert nightly.main(str(tmp_path), parts=parts) == 1
    said = capsys.readouterr().out
    assert "three reports" in said  # the end of the output of what failed
    table = said[said.index("part ") :].splitlines()[1:]
    assert [line.split()[:2] for line in table] == [
        ["good", "passed"], ["bad", "FAILED"], ["last", "FAILED"], ["end", "passed"],
    ]  # fmt: skip
    assert (tmp_path / "good.txt").read_text() == "fine\n"
    assert nightly.main(str(tmp_path), "good", "end", parts=parts) == 0
    assert nightly.main(str(tmp_path), "godo", parts=parts) == 2


def test_a_nightly_run_that_resumes_repeats_what_failed_or_passed_on_another_tree(
    tmp_path, capsys, monkeypatch
):
    ran = tmp_path / "ran"
    append = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); raise SystemExit(sys.argv[2] == 'b')"
    parts = {name: [sys.executable, "-c", append, str(ran), name] for name in "abc"}
    assert nightly.main(str(tmp_path), "a", "b", parts=parts) == 1
    assert nightly.main(str(tmp_path), "--resume", parts=parts) == 1
    assert ran.read_text() == "ab" + "bc"
    assert "a ... passed before" in capsys.readouterr().out
    monkeypatch.setattr(nightly, "tree", lambda: "another")
    assert nightly.main(str(tmp_path), "--resume", "a", "c", parts=parts) == 0
    assert ran.read_text() == "ab" + "bc" + "ac"
    (tmp_path / "a.json").write_text('{"tree": "an older one, with other keys"}')
    assert nightly.main(str(tmp_path), "--resume", "a", parts=parts) == 0


@pytest.mark.parametrize(
    ("difference", "runs"),
    [
        ({}, False),
        ({"status": "failed"}, True),
        ({"modified": ["dev"]}, True),
        ({"command": "true"}, True),
        ({"part": "states"}, True),
        ({"depends": {"cpp/base/*": "0"}}, True),
    ],
)
def test_a_report_that_still_holds_stands_for_its_part(
    tmp_path, capsys, monkeypatch, difference, runs
):
    report = {
        "part": "files",
        "status": "passed",
        "modified": [],
        "command": evidence.parts.PARTS["files"].command,
        "depends": evidence.reports.hashes(evidence.parts.PARTS["files"].depends),
        "commit": "123456789abc",
        "seconds": 60,
        "machine": {"name": "here"},
        "goals": {},
    }
    monkeypatch.setattr(nightly, "read_all", lambda: [report | difference])
    parts = {"files": [sys.executable, "-c", "print('ran')"]}
    assert nightly.main(str(tmp_path), "--resume", parts=parts) == 0
    said = capsys.readouterr().out
    assert ("before" in said) is not runs
    assert ("123456789abc  docs/evidence/reports/files.here.json" in said) is not runs
    assert (tmp_path / "files.txt").exists() is runs


def test_the_nightly_run_has_every_command_that_checks():
    dev = (TESTS.parent / "dev").read_text()
    commands = {command[1] for command in nightly.PARTS.values()}
    for name, part in evidence.parts.PARTS.items():
        if nightly.PARTS.get(name) == ["./dev", "evidence", name]:
            commands.update(re.findall(r"^\./dev (\S+)", part.command))
    assert {
        "test",
        "asan",
        "tsan",
        "fuzz",
        "soak",
        "validate",
        "guarded",
        "lint",
        "evidence",
    } <= commands
    for command in commands:
        assert f"cmd_{command}() {{" in dev


@pytest.mark.parametrize(
    ("last_line", "branch", "problem"),
    [
        (1, 1, ""),
        (0, 1, "99.5 % of 200 lines, 100.0 % of 20 branches"),
        (1, 0, "100.0 % of 200 lines, 90.0 % of 20 branches"),
    ],
)
def test_coverage_below_its_goal_is_a_failure_that_names_what_never_ran(
    tmp_path, monkeypatch, capsys, last_line, branch, problem
):
    path = coverage.ROOT / "cpp/gguf/reader.cpp"
    lines = {path: dict.fromkeys(range(1, 200), 3) | {200: last_line}}
    branches = {
        path: {(n, i): 1 for n in range(9) for i in (0, 1)} | {(9, 0): branch, (9, 1): branch}
    }
    monkeypatch.setattr(coverage, "measure", lambda build: (lines, branches, coverage.Counter()))
    report = tmp_path / "coverage.xml"
    assert coverage.main("", str(report)) == (1 if problem else 0)
    (case,) = evidence.tests.cases(report)
    assert case.goals == ("G26",)
    assert case.outcome == ("failed" if problem else "passed")
    said = capsys.readouterr()
    assert problem in case.figure
    assert (f"cpp/gguf/reader.cpp: lines {[] if last_line else [200]}" in said.out) is bool(problem)
    assert ("expected 100 % of lines, 95 % of branches" in said.err) is bool(problem)


def test_coverage_of_nothing_is_a_failure():
    assert coverage.shares({}, {}) == ("0.0 % of 0 lines, 0.0 % of 0 branches", False)


def test_pythons_are_found_by_their_answers(tmp_path):
    old, broken = tmp_path / "python3.14", tmp_path / "python3.13"
    old.write_text("#!/bin/sh\necho '[\"3.9\", true]'\n")
    broken.write_text("#!/bin/sh\nexit 1\n")
    for path in (old, broken):
        path.chmod(0o755)
    done = tool("pythons.py", "3.13", "3.14", PATH=str(tmp_path), PYENV_ROOT=str(tmp_path))
    assert done.returncode == 2
    assert "3.13, 3.14: not found" in done.stderr
    ours = "{}.{}".format(*sys.version_info)
    found = tool(
        "pythons.py", "3.9", PATH="", PYENV_ROOT=str(tmp_path), PLAIT_PYTHONS=sys.executable
    )
    assert f"this machine has {ours}" in found.stderr


def test_every_mutation_fits_the_code_and_its_test_is_there():
    assert mutations.sources()  # ends the process where a mutation does not fit
    for mutation in mutations.MUTATIONS:
        if mutation.test.startswith("gtest:"):
            continue
        path, name = mutation.test.split("[")[0].rsplit("::", 1)
        assert f"def {name}(" in (TESTS.parent / path.split("::")[0]).read_text(), mutation.row
