"""Pages come from sealed reports; the check finds changed figures, truncated reports and emptied tests."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from evidence import check, goals, parts, performance, reliability, reports, run, tests

ROOT = Path(__file__).parents[1]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a test that shows a goal, a report of it, and pages from that report."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.h").write_text("int limit = 16;\n")
    (tmp_path / "test_it.py").write_text('def test_it(x):\n    """Words."""\n    assert x\n')
    (tmp_path / "README.md").write_text("".join(["# Title\n", *performance.MARKS]))
    for module in (reports, tests, check):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(reports, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    pages = {
        tmp_path / "docs" / "reliability.md": lambda _, found: reliability.page(found),
        tmp_path / "README.md": performance.readme,
    }
    monkeypatch.setattr(check, "PAGES", pages)
    made = {"one": parts.Part("about", XML_OF.format("passed"), ("code.h",), ("G5",))}
    for module in (parts, check, run, reliability):
        monkeypatch.setattr(module, "PARTS", made)
    monkeypatch.setattr(reports, "hash_of_files", lambda glob: hash_of(glob, tmp_path))
    tests.python_functions.cache_clear()
    yield tmp_path
    tests.python_functions.cache_clear()


hash_of = reports.hash_of_files
XML_OF = """cat > "$REPORTS/python.xml" << 'END'
<testsuite><testcase classname="test_it" name="test_it[a]" file="test_it.py"><properties>
<property name="goal" value="G5"/><property name="figure" value="7 paths {}"/></properties></testcase></testsuite>
END"""


def problems(repository):
    tests.python_functions.cache_clear()
    return check.check(repository / "reports")


def measure(repository):
    """Run the part, write the pages and return the file of the report."""
    report = run.run("one", repository / "reports")
    check.render(reports.read_all(repository / "reports"))
    assert problems(repository)[0] == []
    return reports.path_of(report, repository / "reports")


def test_a_run_is_written_with_all_that_it_depends_on(repository):
    report = reports.read(measure(repository))
    assert report["status"] == "passed"
    assert report["exit_status"] == 0
    assert set(report["depends"]) == {"code.h"}
    assert report["machine"]["cores"] >= 1
    shown = report["goals"]["G5"]
    assert shown["figures"] == ["7 paths passed"]
    assert shown["tests"]["test_it.py::test_it"]["passed"] == 1
    assert "7 paths passed" in (repository / "docs/reliability.md").read_text()


@pytest.mark.parametrize("page", ["docs/reliability.md", "README.md"])
def test_a_figure_changed_by_hand_on_a_page_is_found(repository, page):
    measure(repository)
    path = repository / page
    old = path.read_text()
    new = old.replace("7 paths", "8 paths").replace("three rounds", "four rounds")
    assert new != old
    path.write_text(new)
    (problem,) = problems(repository)[0]
    assert page in problem
    assert "not what the reports give" in problem


def test_a_figure_changed_by_hand_in_a_report_is_found(repository):
    path = measure(repository)
    path.write_text(path.read_text().replace("7 paths", "8 paths"))
    check_page = repository / "docs/reliability.md"
    check_page.write_text(check_page.read_text().replace("7 paths", "8 paths"))
    (problem,) = problems(repository)[0]
    assert "was changed after it was written" in problem


def test_a_truncated_report_is_found(repository):
    path = measure(repository)
    whole = path.read_text()
    for size in (0, 1, len(whole) // 2, len(whole) - 3):
        path.write_text(whole[:size])
        (problem,) = problems(repository)[0]
        assert "truncated" in problem
    report = json.loads(whole)
    del report["commit"]
    path.write_text(json.dumps(report))
    (problem,) = problems(repository)[0]
    assert "lacks commit" in problem


def test_a_report_of_another_name_is_found(repository):
    path = measure(repository)
    path.rename(path.with_name("two.json"))
    (problem,) = problems(repository)[0]
    assert "is not named" in problem


def test_the_peer_is_named_with_its_version_and_its_results(repository, monkeypatch):
    assert "| **`peer` was not run** |" in reliability.page([])
    said = '{"version": "0.3", "goals": {"G5": "5 of 8"}}'
    command = f"echo '{said}' > $REPORTS/peer.json"
    monkeypatch.setitem(run.PARTS, "peer", parts.Part("about", command, ("code.h",)))
    page = reliability.page([run.run("peer", repository / "reports")])
    assert "shows\nllama-cpp-python 0.3 in" in page
    assert "| 5 of 8 |\n" in page
    assert "| not tried |\n" in page


def test_a_deleted_report_is_found(repository):
    measure(repository).unlink()
    (problem,) = problems(repository)[0]
    assert "reliability.md" in problem


EMPTIED = {
    "empty": ["def test_it(x):\n    pass\n", 'def test_it(x):\n    """Words."""\n', "def test_it(x):\n    return\n"],
    "not there": ["def test_other(x):\n    assert x\n", ""],
}  # fmt: skip


@pytest.mark.parametrize(("word", "text"), [(w, t) for w, ts in EMPTIED.items() for t in ts])
def test_an_emptied_or_deleted_test_is_found(repository, word, text):
    measure(repository)
    (repository / "test_it.py").write_text(text)
    assert word in problems(repository)[0][0]


def test_code_that_changed_makes_its_goal_stale_until_the_page_states_it(repository):
    measure(repository)
    (repository / "code.h").write_text("int limit = 17;\n")
    found, notes = problems(repository)
    assert "reliability.md is not what the reports give" in found[0]
    assert notes == ["stale: one (G5) of : code.h changed"]
    check.render(reports.read_all(repository / "reports"))
    assert problems(repository) == ([], notes)
    assert "7 paths passed (stale)" in (repository / "docs/reliability.md").read_text()


def test_a_weakened_test_makes_its_goal_stale_but_a_comment_does_not(repository):
    measure(repository)
    test = repository / "test_it.py"
    test.write_text('def test_it(x):\n    """Other words."""\n    assert x  # a comment\n')
    assert problems(repository) == ([], [])
    test.write_text("def test_it(x):\n    assert x is not None\n")
    found, notes = problems(repository)
    assert len(found) == len(notes) == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo found 3 leaks; kill -ABRT $$", "found 3 leaks"),
        (XML_OF.format("passed") + "\necho the end; exit 3", "the end"),
        ("true", "no test of G5 passed"),
        ("echo '<testsuite' > $REPORTS/python.xml", "cannot be read"),
        (XML_OF.replace("</properties>", "</properties><failure/>").format("x") + "\nexit 1", "no test of G5"),
        (XML_OF.replace("</properties>", "</properties><skipped/>").format("x"), "no test of G5 passed"),
    ],
)  # fmt: skip
def test_a_part_that_fails_or_dies_is_shown_with_its_log(repository, monkeypatch, command, words):
    monkeypatch.setitem(run.PARTS, "one", run.PARTS["one"]._replace(command=command))
    report = run.run("one", repository / "reports")
    assert report["status"] == "failed"
    assert words in report["log"]
    page = reliability.page([report])
    assert "| **failed** |" in page
    assert words in page
    assert "7 paths passed |" not in page or "other tests of `one` failed" in page


def test_a_sanitizer_that_dies_is_shown_beside_what_passed(repository, monkeypatch):
    part = run.PARTS["one"]._replace(
        command=XML_OF.format("x")
        + '\nmv "$REPORTS/python.xml" "$REPORTS/a.xml"\necho ERROR: heap; exit 66',
        sanitized=(("a", "G5", "tests under ASan"), ("b", "G5", "tests under TSan")),
    )
    monkeypatch.setitem(run.PARTS, "one", part)
    report = run.run("one", repository / "reports")
    assert report["goals"]["G5"]["figures"][0] == "1 tests under ASan"
    assert "no report of the tests under TSan" in report["log"]
    page = reliability.page([report])
    assert "| **not reached**: `one` failed with exit status 66 |" in page
    assert "ERROR: heap" in page


def test_a_run_that_is_killed_leaves_a_trace(repository, monkeypatch):
    measure(repository)
    monkeypatch.setattr(run, "execute", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.run("one", repository / "reports")
    (report,) = reports.read_all(repository / "reports")
    assert report["status"] == "unfinished"
    assert "7 paths" not in reliability.page([report])


def test_reports_of_two_machines_stand_side_by_side(repository):
    path = measure(repository)
    other = copy.deepcopy(reports.read(path))
    other["machine"]["name"] = "other-machine"
    other["goals"]["G5"]["figures"] = ["9 paths passed"]
    reports.write(other, path.parent)
    check.render(reports.read_all(path.parent))
    page = (repository / "docs/reliability.md").read_text()
    assert "7 paths passed; other-machine: 9 paths passed" in page
    assert problems(repository) == ([], [])


def row(plait_rates, other_rates, case, busy=0):
    pairs = [a / b for a, b in zip(plait_rates, other_rates, strict=True)]
    return {
        "case": case, "busy": busy, "options": {}, "ratio": sorted(pairs)[len(pairs) // 2],
        "medians": {"plait": sorted(plait_rates)[1], "llama.cpp": sorted(other_rates)[1]},
        "all": {"plait": plait_rates, "llama.cpp": other_rates},
    }  # fmt: skip


@pytest.fixture
def comparison(repository):
    """A report of bench/compare.py, with a loss and a row beside a busy process."""
    models = {}
    for model, case in performance.SHOWN:
        models.setdefault(model, []).append(row([200, 220, 210], [100, 100, 100], case))
    models["qwen-0.5b:Q8_0"].append(row([105, 105, 105], [40, 40, 40], "pp:512", busy=1))
    models["llama-1b:Q8_0"] = [row([1e9, 1e9, 1e9], [4e9, 4e9, 4e9], "load")]
    return {
        "part": "compare",
        "machine": {"name": "a-amx", "cpu": "Processor A", "cores": 2, "isa": "amx"},
        "commit": "0123456789ab", "modified": [], "date": "2026-11-24", "status": "passed", "log": "",
        "exit_status": 0, "seconds": 1, "command": "", "depends": reports.hashes(("code.h",)),
        "compare": {
            "llama.cpp": "0.3.36 (AVX2, AMX_INT8)", "models": models,
            "machine": {"build": {"compiler": "gcc 12"}},
        },
    }  # fmt: skip


def test_the_readme_has_the_newest_figures_with_losses_and_load(repository, comparison):
    avx2 = copy.deepcopy(comparison)
    avx2["machine"] |= {"name": "a-avx2", "isa": "avx2"}
    avx2["compare"]["models"]["minilm:F16"][0]["ratio"] = 1.25
    older = copy.deepcopy(comparison) | {"date": "2026-11-20", "commit": "older"}
    once = copy.deepcopy(comparison) | {"date": "2026-11-25", "commit": "once"}
    for rows in once["compare"]["models"].values():
        rows[0]["all"] = {engine: rates[:1] for engine, rates in rows[0]["all"].items()}
    found = [comparison, older, once, avx2]
    text = performance.readme((repository / "README.md").read_text(), found)
    assert "Processor A, 2 cores, commit 0123456789ab, 2026-11-24, 3 rounds" in text
    assert "| | plait (AMX) |" in text
    assert "older" not in text
    assert "once" not in text
    assert "| `minilm:F16` `encode:64x32`: sentence embeddings | 210 | 100 | 2.10 | 1.25 |" in text
    assert "slower: `llama-1b:Q8_0` `load` at 0.25 of the speed." in text
    assert "plait keeps 50% to 50% and llama.cpp keeps 40% to 40% of its throughput" in text
    assert performance.readme(text, found) == text


def test_the_page_has_the_spread_and_the_state_of_each_run(repository, comparison):
    page = performance.page([comparison])
    assert "rounds: 3 to 3; llama-cpp-python 0.3.36 (AVX2, AMX_INT8)" in page
    assert "| minilm:F16 | `encode:64x32` | 210 | 100 | 2.10 | 2.00 to 2.20 |" in page
    assert "(stale)" not in page
    (repository / "code.h").write_text("changed")
    assert "(stale)" in performance.page([comparison])
    died = {k: v for k, v in comparison.items() if k != "compare"}
    died |= {"status": "failed", "log": "illegal instruction"}
    page = performance.page([died])
    assert "The run failed" in page
    assert "illegal instruction" in page


def test_the_page_names_the_signal_of_a_crash(repository, comparison):
    (crashed,) = comparison["compare"]["models"]["minilm:F16"]
    del crashed["ratio"], crashed["medians"]["llama.cpp"], crashed["all"]["llama.cpp"]
    crashed["crashes"] = {"llama.cpp": "SIGSEGV"}
    page = performance.page([comparison])
    assert "| minilm:F16 | `encode:64x32` | 210 | SIGSEGV |  |  |" in page
    busy = crashed | {"case": "pp:512", "busy": 1}
    comparison["compare"]["models"]["qwen-0.5b:Q8_0"].append(busy)
    assert "llama.cpp keeps 40% to 40%" in performance.kept_under_load(comparison)


def test_the_page_has_long_contexts_below_the_comparison(repository, comparison):
    contexts = copy.deepcopy(comparison) | {"part": "contexts", "commit": "later"}
    contexts["compare"]["models"] = {"smol-135m:Q8_0": [row([9, 9, 9], [1, 1, 1], "tg:32@16384")]}
    page = performance.page([contexts, comparison])
    assert page.count("## Processor A") == 1
    below = page.partition("### Long contexts\n")[2]
    assert "Commit later, 2026-11-24." in below
    assert "| smol-135m:Q8_0 | `tg:32@16384` | 9 | 1 | 9.00 | 9.00 to 9.00 |" in below
    assert "llama-1b:Q8_0" not in below


def test_the_page_has_other_engines_beside_plait(repository, comparison):
    rates = {"plait": [90, 100, 110], "openvino": [50, 50, 50], "vllm": [200, 200, 200]}
    peers = {key: value for key, value in comparison.items() if key != "compare"}
    peers |= {
        "part": "peers",
        "peers": {
            "versions": {"openvino": "2026.4", "vllm": "0.32"},
            "models": {
                "qwen-0.5b:Q8_0": [
                    {
                        "case": "pp:512", "all": rates, "weights": {"openvino": "int8", "vllm": "int8"},
                        "medians": {name: sorted(of)[1] for name, of in rates.items()},
                    }
                ]
            },
        },
    }  # fmt: skip
    page = performance.page([comparison, peers])
    assert page.count("## Processor A") == 1
    assert "OpenVINO 2026.4, vLLM 0.32." in page
    assert "| `pp:512` | 100 | OpenVINO | int8 | 50 | 2.00 | 1.80 to 2.20 |" in page
    assert "| `pp:512` | 100 | vLLM | int8 | 200 | 0.50 | 0.45 to 0.55 |" in page
    del peers["peers"]
    peers |= {"status": "failed", "log": "no memory"}
    assert "no memory" in performance.page([peers])


def test_figures_with_the_same_words_are_merged():
    figures = ["60 files, at most 0.07 s", "1,000 files, at most 0.5 s", "3 kills"]
    assert tests.merged(figures) == ["1,060 files, at most 0.50 s", "3 kills"]


def test_every_goal_is_shown_by_a_part_and_marked_in_a_test():
    shown = {goal for part in parts.PARTS.values() for goal in part.goals}
    assert shown == goals.GOALS.keys()
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    sources += "".join(tests.cpp_sources().values())
    whole = {goal for part in parts.PARTS.values() for _, goal, _ in part.sanitized}
    unmarked = {goal for goal in goals.GOALS if f'"{goal}"' not in sources}
    assert unmarked <= whole


def test_what_parts_run_and_depend_on_exists():
    for name, part in parts.PARTS.items():
        for word in part.command.split():
            if word.startswith(("tests/", "bench/")):
                assert (ROOT / word).exists(), (name, word)
        for glob in part.depends:
            assert reports.hash_of_files(glob), (name, glob)


def test_sources_of_cpp_tests_are_found():
    assert len(tests.source("Kinds/PlanCacheHit.AllocatesNothing/axes")) == 16
    assert tests.source("PlanCacheHit.DoesNotExist") == ""


def test_the_check_is_green_here():
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    found, _ = check.check()
    assert found == []


def test_the_command_prints_problems_and_fails(tmp_path):
    """The program as ./dev runs it, on a copy of the documentation in which one figure is changed."""
    for name in ("docs", "tests", "README.md"):
        source = ROOT / name
        copied = shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=copied)
        else:
            shutil.copy2(source, tmp_path / name)
    page = tmp_path / "docs/reliability.md"
    page.write_text(re.sub(r"\d,\d{3} files", "1,234 files", page.read_text(), count=1))
    done = subprocess.run(
        [sys.executable, "-m", "evidence", "--check"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "docs")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "docs/reliability.md is not what the reports give" in done.stdout
