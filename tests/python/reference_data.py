"""The tiny models of the reference data, by name."""

from pathlib import Path

import pytest


def find_model(data_dir: Path, name: str) -> Path | None:
    """Return the path of a model of either part of the reference data, or None if it is not there."""
    for folder in (data_dir, data_dir.parent / "data-2026"):
        path = folder / "conformance" / name / "model.gguf"
        if path.is_file():
            return path
    return None


def model_path(data_dir: Path, name: str) -> Path:
    """The same; skips the test if the model is not there."""
    path = find_model(data_dir, name)
    if path is None:
        pytest.skip(f"no {name} among the reference data")
    return path
