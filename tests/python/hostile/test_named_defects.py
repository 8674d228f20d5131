"""Files with one named defect each: all that have no valid reading are refused. Goals G1, G2, G3 and G6."""

from __future__ import annotations

from pathlib import Path

import pytest
from python.hostile.test_hostile import KINDS, model_of, output


@pytest.fixture(scope="session")
def generators(data_dir: Path) -> Path:
    folder = data_dir.parent / "check" / "hostile"
    if not (folder / "make_hostile.py").is_file():
        pytest.skip("no generators of defects (check/hostile) beside the reference data")
    return folder


def model(data_dir: Path, kind: str) -> Path:
    if kind == "stories260K":
        return data_dir / "models" / "stories260K-f32.gguf"
    return model_of(data_dir, kind)


@pytest.mark.goal("G1", "G2")
def test_every_named_defect_of_a_model_is_refused_or_runs(
    data_dir, generators, tmp_path, record_property
):  # G1 G2
    path = model(data_dir, "stories260K")
    program = generators / "make_hostile.py"
    record_property(
        "figure", output("named_defects.py", "models", program, tmp_path, path, seconds=300)
    )


@pytest.mark.slow
@pytest.mark.goal("G1", "G2", "G3")
@pytest.mark.parametrize("kind", KINDS)
def test_every_named_defect_of_each_kind_is_refused_or_runs(
    data_dir, generators, tmp_path, kind, record_property
):  # G1 G2 G3
    path = model(data_dir, kind)
    program = generators / "make_hostile.py"
    record_property(
        "figure", output("named_defects.py", "models", program, tmp_path, path, seconds=900)
    )


@pytest.mark.goal("G6")
@pytest.mark.parametrize("kind", ["stories260K", "gemma3", "jamba", "t5", "rwkv7", "deepseek2"])
def test_every_named_defect_of_a_state_is_refused(
    data_dir, generators, tmp_path, kind, record_property
):  # G6
    path = model(data_dir, kind)
    program = generators / "make_hostile_state.py"
    record_property(
        "figure", output("named_defects.py", "states", program, tmp_path, path, seconds=300)
    )
