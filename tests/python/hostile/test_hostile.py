"""Damaged models and states of every kind of cache, and calls that make no sense: errors, and never the end.

Every child process has a limit of time and of memory. A seed makes each damage again; `--all` runs many more.
Reliability goals G1 to G6 and G12; rules R3, R5, R6, R8, S1, A1, A2.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KINDS = [
    "bert", "deepseek2", "falcon-h1", "gemma3", "gpt-oss", "jamba", "lfm2", "llama-gqa", "mamba", "mamba2",
    "phi3-longrope", "qwen2vl", "qwen3next", "rwkv6", "rwkv7", "t5",
    "2026/gemma3n-a", "2026/gemma4-a", "2026/kimi-linear", "2026/llama4-a", "2026/nemotron_h-a", "2026/qwen35-a",
]  # fmt: skip


def model_of(data_dir, kind):
    """Return the file of a stored model; "2026/" selects the second folder of reference data."""
    if kind.startswith("2026/"):
        data_dir, kind = data_dir.parent / "data-2026", kind.removeprefix("2026/")
        if not data_dir.is_dir():
            pytest.skip(f"no reference data in {data_dir}")
    return data_dir / "conformance" / kind / "model.gguf"


@pytest.fixture
def run(record_property):
    """hostile/<program> ends by itself, finds nothing wrong and writes nothing to stderr; what it did is reported."""

    def run(program: str, *arguments: object, seconds: float) -> None:
        record_property("figure", output(program, *arguments, seconds=seconds))

    return run


def output(program: str, *arguments: object, seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / program), *map(str, arguments)],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.goal("G1", "G2", "G3")
def test_damaged_models_are_refused_or_run(run, data_dir, tmp_path, kind):  # G1 G2 G3
    run("models.py", model_of(data_dir, kind), tmp_path, 1, 60, seconds=120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.goal("G1", "G2", "G3")
def test_many_damaged_models_are_refused_or_run(run, data_dir, tmp_path, kind, seed):  # G1 G2 G3
    import plait.demo

    path = model_of(data_dir, kind) if kind else plait.demo.MODEL
    run("models.py", path, tmp_path, 100 + seed, 1500, seconds=900)


@pytest.mark.goal("G1", "G2")
def test_the_embedded_model_damaged_is_refused_or_runs(run, tmp_path):  # G1 G2
    import plait.demo

    run("models.py", plait.demo.MODEL, tmp_path, 2, 30, seconds=120)


@pytest.mark.parametrize(
    "kind",
    [
        "deepseek2",
        "gemma3",
        "jamba",
        "llama-gqa",
        "rwkv7",
        "t5",
        "2026/gemma4-a",
        "2026/kimi-linear",
    ],
)
@pytest.mark.goal("G6")
def test_damaged_states_are_refused_and_change_nothing(run, data_dir, kind):  # G6 S1
    run("states.py", model_of(data_dir, kind), 1, 150, seconds=120)


@pytest.mark.parametrize("kind", [None, "gemma3", "jamba", "t5", "bert"])
@pytest.mark.goal("G12")
def test_invalid_calls_are_errors(run, data_dir, tiny_path, kind):  # G12 A1 A2
    path = data_dir / "conformance" / kind / "model.gguf" if kind else tiny_path
    run("calls.py", path, 1, 1500, seconds=120)


@pytest.mark.parametrize("kind", [None, "gemma3", "jamba"])
@pytest.mark.goal("G12")
def test_each_public_call_survives_each_wrong_value(run, data_dir, tiny_path, kind):  # G12 A1 A2
    path = data_dir / "conformance" / kind / "model.gguf" if kind else tiny_path
    run("every_call.py", path, seconds=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [None, "gemma3", "jamba", "t5", "bert"])
@pytest.mark.goal("G12")
def test_many_invalid_calls_are_errors(run, data_dir, tiny_path, kind, seed):  # G12 A1 A2
    path = data_dir / "conformance" / kind / "model.gguf" if kind else tiny_path
    run("calls.py", path, 100 + seed, 20_000, seconds=900)
