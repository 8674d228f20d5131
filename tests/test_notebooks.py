"""Every notebook runs from top to bottom in a new interpreter, and is stored without outputs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from python.drive import UNDER_ASAN
from run_notebook import run

RUNNER = Path(__file__).with_name("run_notebook.py")
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path):
    pytest.importorskip("matplotlib", reason="plait[viz] is not installed")
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-W", "error", RUNNER, path, page],
        capture_output=True, text=True, timeout=600 if UNDER_ASAN else 120, cwd=tmp_path, check=False,
        env=os.environ | {"MPLBACKEND": "agg"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")  # cells print, the library does not
    shown = page.read_text()
    source = "".join("".join(cell["source"]) for cell in code_cells(path))
    assert shown.count("<img ") == source.count(".plot") - source.count("ax.plot") + source.count(
        "plt.subplots"
    )


def test_answers_of_the_first_notebook_stop_at_the_end_token():
    (shown,) = [html for source, html in run(NOTEBOOKS[0]) if "print(" in source]
    assert re.findall(r"A: (.*)", shown) == [
        "Tom lives in Oslo.",
        "The kite is red.",
        "The kite belongs to Ben.",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_stored_without_outputs(path):
    for cell in code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
