"""The examples of the README run and print what it shows; its links and its picture are right."""

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
    first = blocks("python")[0]
    assert len(first.strip().splitlines()) == 2 + 3
    assert len(run(OFFLINE + first, tmp_path).splitlines()) >= 2


def test_examples_print_what_the_readme_shows(tmp_path):
    _, *examples = blocks("python")
    assert [run(example, tmp_path) for example in examples] == blocks("text")
    assert max(len(example.splitlines()) for example in examples) <= 30


def test_picture_shows_what_the_model_does():
    """The stored pictures are those that docs/pictures.py draws, except for the last bits of the opacities."""
    import pictures

    texts, table = pictures.recovered()
    for theme, colours in pictures.THEMES.items():
        stored = (ROOT / f"docs/images/patching-{theme}.svg").read_text(encoding="utf-8")
        drawn = pictures.heat_map(texts, table, colours)
        opacity = re.compile(r'opacity="([\d.]+)"')
        assert opacity.sub("", stored) == opacity.sub("", drawn)
        shares = [[float(share) for share in opacity.findall(text)] for text in (stored, drawn)]
        assert shares[0] == pytest.approx(shares[1], abs=0.05)


def test_relative_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    targets += re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_limits_are_those_that_are_tested():
    """Import time and wheel size, where a test and ./dev wheel hold them."""
    (seconds,) = re.findall(r"imported in less than ([\d.]+) s", README)
    test = (ROOT / "tests/python/package/test_package.py").read_text()
    assert f"< {seconds}\n" in test
    (megabytes,) = re.findall(r"wheel is at most (\d+) MB", README.replace("\n", " "))
    assert f'"$size" -le {megabytes}000000' in (ROOT / "dev").read_text()
