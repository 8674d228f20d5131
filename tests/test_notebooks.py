"""Every notebook runs from top to bottom in a new interpreter and shows the outputs that are stored in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import run_notebook
from python.drive import UNDER_ASAN

RUNNER = Path(__file__).with_name("run_notebook.py")
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_shows_its_stored_outputs(path, tmp_path):
    """Apart from times, the last digits of numbers, and the pixels of figures."""
    pytest.importorskip("matplotlib", reason="plait[viz] is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", RUNNER, "--check", path],
        capture_output=True, text=True, timeout=600 if UNDER_ASAN else 120, cwd=tmp_path, check=False,
        env=os.environ | {"MPLBACKEND": "agg"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_outputs_are_those_of_a_run_and_name_no_machine(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    source = "".join("".join(cell["source"]) for cell in cells)
    drawn = source.count(".plot") - source.count("ax.plot") + source.count("plt.subplots")
    assert [o["output_type"] for o in outputs].count("display_data") == drawn
    assert not re.search(r"/(root|home|tmp)/| at 0x|[Ee]rror\":", json.dumps(outputs))


def test_a_changed_output_is_found(tmp_path):
    cells = [
        {"cell_type": "code", "source": ["print('a', 1.0)\n"], "metadata": {}, "outputs": []},
        {"cell_type": "code", "source": ["2 * 3"], "metadata": {}, "outputs": []},
    ]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    run_notebook.store(path)
    stored = path.read_text()
    assert run_notebook.differences(path) == []
    for old, new in (("'a', 1.0", "'a', 1.01"), ("2 * 3", "3 + 3")):
        path.write_text(stored.replace(old, new))
        assert run_notebook.differences(path) == []
    for old, new in (("'a', 1.0", "'b', 1.0"), ("'a', 1.0", "'a', 2.0"), ("2 * 3", "None")):
        path.write_text(stored.replace(old, new))
        assert len(run_notebook.differences(path)) == 1


def test_answers_of_the_first_notebook_stop_at_the_end_token():
    shown = next(cell for cell in code_cells(NOTEBOOKS[0]) if "print(" in "".join(cell["source"]))
    assert re.findall(r"A: (.*)", "".join(shown["outputs"][0]["text"])) == [
        "Tom lives in Oslo.",
        "The kite is red.",
        "The kite belongs to Ben.",
    ]
