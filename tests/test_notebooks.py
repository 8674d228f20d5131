"""Every notebook runs from top to bottom in a new interpreter and shows the outputs that are stored in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import plait
import pytest
import run_notebook
from plait.files import gguf
from python.drive import UNDER_ASAN

from python import local_hub

RUNNER = Path(__file__).with_name("run_notebook.py")
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_shows_its_stored_outputs(path, tmp_path):
    """Apart from times, the last digits of numbers, and the pixels of figures. Nothing is downloaded."""
    pytest.importorskip("matplotlib", reason="plait[viz] is not installed")
    done = run(
        "--check", path, folder=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": "hf"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


OF_THE_HUB = [path for path in NOTEBOOKS if "from_hub(" in path.read_text(encoding="utf-8")]
REPOSITORY, FILE = "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q8_0.gguf"


def with_chat_template(folder):
    """Return the bytes of the embedded model with another name and a chat template, as files of the hub have them."""
    model = plait.Model.demo()
    head = gguf.read_head(model.path)
    template = (
        "{% for m in messages %}{{ ' Q: ' if m.role == 'user' }}{{ m.content }}{% endfor %} A:"
    )
    metadata = dict(head.metadata)
    for key, text in (("tokenizer.chat_template", template), ("general.name", "from the hub")):
        data = text.encode()
        metadata[key] = gguf.Value(8, len(data).to_bytes(8, "little") + data)
    source = Path(model.path).read_bytes()
    sizes = [model.tensors[tensor.name].nbytes for tensor in head.tensors]
    tensors = [(t.name, t.shape, t.type, size) for t, size in zip(head.tensors, sizes, strict=True)]
    chunks = (
        source[t.offset : t.offset + size] for t, size in zip(head.tensors, sizes, strict=True)
    )
    gguf.write_file(folder / "model.gguf", metadata, tensors, chunks)
    return (folder / "model.gguf").read_bytes()


@pytest.mark.parametrize("path", OF_THE_HUB, ids=lambda p: p.stem)
def test_notebook_runs_with_the_model_of_a_hub(path, tmp_path):
    """The first cell downloads the model where a hub can be reached; no other cell needs the embedded one."""
    pytest.importorskip("matplotlib", reason="plait[viz] is not installed")
    pytest.importorskip("huggingface_hub", reason="plait[hub] is not installed")
    assert len(OF_THE_HUB) == 2
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    with local_hub.serving(REPOSITORY, {FILE: with_chat_template(tmp_path)}) as hub:
        done = run(copy, folder=tmp_path, env=local_hub.environment(hub, tmp_path / "hf"))
        assert done.returncode == 0, done.stderr
        got = [path for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert got == [f"/{REPOSITORY}/resolve/main/{FILE}"]
    (first, *others) = code_cells(copy)
    assert "cannot be reached" not in json.dumps(first["outputs"])
    assert "plait.Model" in json.dumps(first["outputs"])
    assert all(cell["outputs"] for cell in others)


def run(*arguments, folder, env):
    """Run tests/run_notebook.py. Warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", RUNNER, *arguments],
        capture_output=True, text=True, timeout=600 if UNDER_ASAN else 120, cwd=folder, check=False,
        env=env | {"MPLBACKEND": "agg"},
    )  # fmt: skip


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
