"""The stubs agree with the module."""

import difflib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import plait
import pytest

ROOT = Path(__file__).parents[3]
STUB = ROOT / "python" / "plait" / "_core.pyi"


def stubs_script():
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "bindings" / "stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_current():
    pytest.importorskip("pybind11_stubgen", reason="pybind11-stubgen is not installed (./dev lint)")
    if (
        shutil.which("ruff", path=str(Path(sys.executable).parent)) is None
        and shutil.which("ruff") is None
    ):
        pytest.skip("ruff is not installed (./dev lint)")
    made = stubs_script().make()
    diff = difflib.unified_diff(
        STUB.read_text().splitlines(), made.splitlines(), "checked in", "made", lineterm=""
    )
    assert "\n".join(diff) == "", "./dev stubs writes it anew"


@pytest.mark.slow
def test_stubtest_finds_nothing(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed (./dev lint)")
    # In site-packages, mypy would treat other packages as user code.
    (tmp_path / "plait").symlink_to(Path(plait.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "plait._core", "--mypy-config-file", ROOT / "pyproject.toml",
         "--allowlist", ROOT / "bindings" / "stubtest.txt", "--ignore-unused-allowlist"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_of_the_module_is_in_the_stub():
    text = STUB.read_text()
    for name in dir(plait._core):
        if not name.startswith("__"):
            assert any(f"{word} {name}" in text for word in ("class", "def", "import", "   ")), name
