"""The README's example is a program: it runs, and prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def block(language):
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return text


def test_example_prints_what_the_readme_says(tmp_path):
    example = block("python")
    assert len(example.splitlines()) <= 22
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text")


def test_relative_links_lead_somewhere():
    root = Path(__file__).parents[1]
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    assert [t for t in targets if not (root / t).exists()] == []
