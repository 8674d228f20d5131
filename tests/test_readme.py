"""The README's example runs and prints what stands there; its figures, lists and links are right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(source, folder):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# The embedded model in place of a download, and a template, which that model lacks.
OFFLINE = """
import functools, plait
plait.Model.from_hub = staticmethod(lambda repository, file: plait.Model.demo())
plait.Chat = functools.partial(plait.Chat, template="{{ messages[-1].content }}", max_tokens=8)
"""


def test_a_model_is_loaded_in_three_lines(tmp_path):
    pytest.importorskip("jinja2", reason="plait[chat] is not installed")
    first, _ = blocks("python")
    assert len(first.strip().splitlines()) == 2 + 3
    assert len(run(OFFLINE + first, tmp_path).splitlines()) >= 2


def test_example_prints_what_the_readme_says(tmp_path):
    _, example = blocks("python")
    assert len(example.splitlines()) <= 22
    assert [run(example, tmp_path)] == blocks("text")


def measured(machine):
    """Rows of a file of bench/results, as the README writes their figures."""
    path = ROOT / "bench" / "results" / f"{machine}.json"
    return {
        (model, one["case"]): (
            f"{one['medians']['plait']:,.0f}",
            f"{one['medians']['llama.cpp']:,.0f}",
            f"{one['ratio']:.2f}",
        )
        for model, cases in json.loads(path.read_text())["models"].items()
        for one in cases
        if not one["busy"] and not one["options"]
    }


def test_figures_are_those_that_were_measured():
    rows = re.findall(
        r"^\| `(\S+)` `(\S+)`.*? \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$",
        README,
        re.MULTILINE,
    )
    amx, avx2 = measured("xeon-amx-2-cores"), measured("xeon-avx2-2-cores")
    assert len(rows) >= 5
    losses = re.findall(r"`(\S+)` `(\S+)` at ([\d.]+) of the speed", README)
    assert losses
    for model, case, ratio in losses:
        assert ratio == amx[model, case][2]
    for model, case, *figures, older in rows:
        assert tuple(figures) == amx[model, case]
        assert older == avx2[model, case][2]


def test_relative_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
