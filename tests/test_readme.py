"""The README's example runs and prints what stands there; its links are right."""

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


def test_relative_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_limits_are_those_that_are_tested():
    """Import time and wheel size, where a test and ./dev wheel hold them."""
    (seconds,) = re.findall(r"imported in less than ([\d.]+) s", README)
    test = (ROOT / "tests/python/package/test_package.py").read_text()
    assert f"< {seconds}\n" in test
    (megabytes,) = re.findall(r"wheel is at most (\d+) MB", README.replace("\n", " "))
    assert f'"$size" -le {megabytes}000000' in (ROOT / "dev").read_text()
