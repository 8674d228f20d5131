"""The benchmarks run, on a model too small for meaningful results."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import plait
import pytest

BENCH = Path(__file__).parents[3] / "bench"


def run(script: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, BENCH / script, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cache_variants(tiny_path: Path, tmp_path: Path) -> None:  # S2-06
    result = tmp_path / "result.json"
    run(
        "cache_variants.py",
        tiny_path,
        "-B",
        3,
        "--prompts",
        "0,5",
        "--steps",
        2,
        "--rounds",
        1,
        "--json",
        result,
    )
    rows = json.loads(result.read_text())
    assert [row["prompt"] for row in rows["rows"]] == [0, 5]
    assert [row["cells"] for row in rows["rows"]] == [3 * (0 + 2), 3 * (5 + 2)]
    assert rows["prefix"] == 1.0  # sequences that share a prefix keep it once
    assert rows["scattered"] > 0  # S1-50: docs/decisions/0007 has the reasons
    note = (BENCH.parent / "docs" / "decisions" / "0007-unified-cache-by-default.md").read_text()
    assert all(
        text in note for text in ("Disadvantages of streams", "defrag_threshold", "| 2048 |")
    )  # S2-59


def test_graph_reuse(
    tiny: plait.Model, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-14, S1-06
    table = run("graph_reuse.py", tiny_path, "--steps", 3, "--rounds", 1)
    rows = [line.split() for line in table.splitlines()[2:8]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert all(float(figure) > 0 for row in rows for figure in row)
    assert table.splitlines()[1].split() == ["B", "kept", "anew", "unfused"]
    assert "microseconds a step" in table
    # The columns are what they are called: every step of "built anew" builds, no step of "kept" does.
    monkeypatch.syspath_prepend(BENCH)
    graph_reuse = importlib.import_module("graph_reuse")
    built, nodes = {}, {}
    for name, options in graph_reuse.VARIANTS.items():
        steps = graph_reuse.Steps(tiny, 2, 3, **options)
        assert steps.rate() > 0
        built[name] = steps.ctx.stats.plans_built
        nodes[name] = sum(steps.ctx.stats.nodes.values())
        steps.ctx.close()
    assert built == {"kept": 0, "built anew": 3, "unfused": 0}
    assert nodes["unfused"] > nodes["kept"] == nodes["built anew"]


def test_keeping_plans_saves_time(tiny_path: Path) -> None:  # S1-04
    """Host time saved per token; docs/profile.md has the gain for large models."""
    table = run("graph_reuse.py", tiny_path, "--steps", 50, "--rounds", 1, "-B", 1)
    (saved,) = re.findall(r"([-\d.]+) saved by keeping plans", table)
    assert float(saved) > 0
    assert "llama-8b" in (BENCH.parent / "docs" / "profile.md").read_text()


def test_step_profile(tiny_path: Path) -> None:  # S1-15
    """The table of docs/profile.md has the ten slowest operations that the command prints."""
    lines = run("step_profile.py", tiny_path, "--cells", 20, "--steps", 2).splitlines()[1:]
    shares = [float(line.split()[1]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert 99 < sum(shares) < 101
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+) % \| [^|]+ \|$",
        (BENCH.parent / "docs" / "profile.md").read_text(),
        re.M,
    )
    assert len(rows) == 10
    headers = [
        *(BENCH.parent / "cpp").glob("graph/ops/*.h"),
        *(BENCH.parent / "cpp").glob("backend/**/*.h"),
    ]
    ops = {name for path in headers for name in re.findall(r'\.name = "(\w+)"', path.read_text())}
    assert {name for name, _ in rows} <= ops


def test_generate(tiny_path: Path) -> None:
    output = run(
        "generate.py", "--model", tiny_path, "--prompts", 6, "--prefix", 40, "--tail", 3,
        "--max-tokens", 4, "--at-once", 3, "--engine", "plait",
    )  # fmt: skip
    figures = json.loads(output)
    assert figures["said"] <= 24
    assert figures["computed"] <= 40 + 6 * 3 + figures["said"] - 6
    assert figures["seconds"] > 0


def test_compare(tiny_path: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    cases = "pp:5,tg:2@0,tg:2@3,btg:2x2@3,pp:3@1030,btg:2x2@1030,load"
    shown = run("compare.py", tiny_path, "--cases", cases, "--rounds", 1, "--json", result)
    found = json.loads(result.read_text())
    (rows,) = found["models"].values()
    assert [row["case"] for row in rows] == cases.split(",")
    assert all(row["medians"]["plait"] > 0 for row in rows)
    assert [row["case"] for row in rows if row.get("share_of_memory", 0) > 0] == ["tg:2@0"]
    assert found["machine"]["build"]["isas"]
    assert "of the memory bandwidth" in shown
    assert "tok/s" in shown
    assert "GB/s" in shown


def test_compare_names_the_signal_of_a_crash(tiny_path: Path, tmp_path: Path) -> None:
    peer, result = tmp_path / "peer", tmp_path / "result.json"
    # The last shell starts without the libraries that ./dev asan preloads, since AddressSanitizer handles SIGSEGV.
    peer.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && echo "1.2.3 AVX2 = 1" || exec env -u LD_PRELOAD sh -c "kill -SEGV \\$\\$"\n'
    )
    peer.chmod(0o755)
    shown = run(
        "compare.py", tiny_path, "--cases", "pp:5,btg:2x2@3", "--rounds", 2, "--python", peer, "--json", result
    )  # fmt: skip
    found = json.loads(result.read_text())
    assert found["llama.cpp"] == "1.2.3 (AVX2)"
    (rows,) = found["models"].values()
    for row in rows:
        assert row["crashes"] == {"llama.cpp": "SIGSEGV"}
        assert row["medians"].keys() == row["all"].keys() == {"plait"}
        assert len(row["all"]["plait"]) == 2
        assert "ratio" not in row
    assert shown.count("SIGSEGV") == 2


def test_compare_peers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    result = tmp_path / "result.json"
    cases = "pp:5,tg:2@3,btg:2x2@3"
    run(
        "peers/compare_peers.py", "tiny-llama:F32", "--peer", f"transformers={sys.executable}",
        "--cases", cases, "--rounds", 1, "--json", result,
    )  # fmt: skip
    (rows,) = json.loads(result.read_text())["models"].values()
    assert [row["case"] for row in rows] == cases.split(",")
    assert all(rate > 0 for row in rows for rate in row["medians"].values())
    assert all(row["medians"].keys() == {"plait", "transformers"} for row in rows)


def test_paired(tiny_path: Path) -> None:
    """A build beside itself: a row per case, with the median between the quartiles."""
    cases = "pp:4,tg:2@3,btg:2x2@3"
    shown = run(
        "paired.py",
        sys.executable,
        sys.executable,
        tiny_path,
        "--cases",
        cases,
        "--launches",
        2,
        "--pairs",
        2,
    )
    name, _, *rows = shown.splitlines()
    commit = plait.build_info()["commit"]
    assert name.endswith(f"{commit} and {commit}")
    assert [row.split()[0] for row in rows] == cases.split(",")
    for row in rows:
        median, low, high, best = (float(x) for x in re.findall(r"\d+\.\d{3}", row))
        assert 0 < low <= median <= high
        assert best > 0


def test_python_overhead(tiny_path: Path, tmp_path: Path) -> None:
    """The minimum of several rounds, since other processes must not affect the claim of 8 microseconds per decode."""
    result = tmp_path / "result.json"
    table = run("python_overhead.py", tiny_path, "--steps", 400, "--rounds", 5, "--json", result)
    assert table.splitlines()[0].split()[:4] == ["model", "batch", "call", "row"]
    (parts,) = json.loads(result.read_text()).values()
    assert parts.keys() == {"batch", "call", "row", "runtime", "transaction"}
    assert all(us > 0 for us in parts.values())
    assert parts["call"] + parts["row"] < 80  # of a machine that may be busy and slow
