"""Documentation that is a program is run; what it lists is compared with what there is."""

import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait
import pytest
from plait import cli
from plait.cli import COMMANDS
from python.vision import towers

from python import gguf_writer, lora_models

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


# What some pages take for granted.
GIVEN = """
prompts = ["Tom lives in Oslo.", "The kite is red."]
text = " ".join(prompts) * 3
texts = prompts
"""


def blocks(path, language="python"):
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def steering_files(folder):
    """An adapter and a control vector of the embedded model, as docs/how-to/steer_a_model.md has them."""
    model = plait.Model.demo()
    n, name = model.n_embd, "blk.0.attn_q.weight"
    low_rank = {f"{name}.lora_a": np.ones((2, n), "f4"), f"{name}.lora_b": np.ones((n, 2), "f4")}
    lora_models.write_adapter(folder / "pirate.gguf", model.arch, low_rank)
    directions = {f"direction.{i}": np.ones(n, "f4") for i in range(1, model.n_layer)}
    gguf_writer.write(folder / "happy.gguf", {"general.architecture": "controlvector"}, directions)


def image_files(folder, n_embd):
    """An image encoder and an image, as docs/how-to/images.md has them."""
    image_module = pytest.importorskip("PIL.Image", reason="plait[vision] is not installed")
    metadata, tensors = towers.llava()
    tensors["mm.2.weight"] = np.ones((n_embd, towers.N_EMBD), "f4")
    tensors["mm.2.bias"] = np.ones(n_embd, "f4")
    gguf_writer.write(folder / "mmproj-model.gguf", metadata, tensors)
    image_module.fromarray(towers.image(40, 60)).save(folder / "cat.jpg")


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p)], ids=lambda p: p.stem)
def test_code_runs_from_top_to_bottom(path, tmp_path, tiny_model_file):
    steering_files(tmp_path)
    if "plait.Vision" in path.read_text(encoding="utf-8"):
        image_files(tmp_path, plait.Model(tiny_model_file).n_embd)
    source = "\n".join([GIVEN, *blocks(path)])
    found = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "tests")]))
    (tmp_path / "model.gguf").symlink_to(tiny_model_file)
    (tmp_path / "page.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
        env=os.environ | {"PYTHONPATH": found},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


CLUSTER = """
import ray
import ray.data
ray.init(num_cpus=10, include_dashboard=False, log_to_driver=False)
ray.data.from_items([{"prompt": prompt} for prompt in prompts]).write_parquet("prompts")
tasks = [(prompts[0], [" Tom", " Mia"])]
"""


@pytest.mark.slow
def test_what_needs_a_cluster_runs_too(tmp_path, tiny_model_file):
    """The blocks for Ray, on a cluster of this machine's."""
    pytest.importorskip("ray.data", reason="ray[data] is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="ray[data] is not installed")
    ours = blocks(DOCS / "how-to" / "many_machines.md", "python-ray")
    assert len(ours) == 3
    source = "\n".join([GIVEN, CLUSTER, *ours])
    assert source.count("/models/model.gguf") == 4
    (tmp_path / "page.py").write_text(source.replace("/models/model.gguf", str(tiny_model_file)))
    done = subprocess.run(
        [sys.executable, "page.py"],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = parquet.read_table(tmp_path / "answers").to_pydict()
    assert len(answers["prompt"]) == len(answers["answer"]) == 2


COMMAND = re.compile(r"(?:^|`)plait (\S+)((?: [^\n`#]*)?)")
COMMAND_LINES = [
    (path, command, arguments)
    for path in (ROOT / "README.md", *PAGES)
    for text in (
        *blocks(path, "sh"),
        *re.findall(r"`plait [^`]*`", path.read_text(encoding="utf-8")),
    )
    for line in text.splitlines()
    for command, arguments in COMMAND.findall(line)
    if arguments.strip() and not command.startswith("-") and command != "COMMAND"
]


@pytest.mark.parametrize(
    ("path", "command", "arguments"), COMMAND_LINES, ids=lambda value: str(value)[-40:]
)
def test_command_lines_are_valid(path, command, arguments):
    """The arguments of `plait` in the README and in the pages are those that the commands accept."""
    assert command in COMMANDS
    cli.parser(command).parse_args(shlex.split(arguments))


def test_charts_are_those_that_are_drawn():
    """The stored charts are those of docs/pictures.py, for both themes."""
    import pictures

    for theme, colours in pictures.THEMES.items():
        for name, chart in pictures.CHARTS.items():
            stored = (DOCS / f"images/{name}-{theme}.svg").read_text(encoding="utf-8")
            assert stored == pictures.flow(*chart, colours), name


def test_no_block_evades_the_tests():
    """Python is run, also where it is for a cluster; C++ is compared; output is neither."""
    known = {"python", "python-ray", "cpp", "sh", "text"}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert {kind for kind in re.findall(r"^```(\S*)\n", text, re.MULTILINE) if kind} <= known, (
            path
        )


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "cpp")], ids=lambda p: p.stem)
def test_cpp_is_that_of_the_sources(path):
    sources = [source.read_text(encoding="utf-8") for source in (ROOT / "cpp").rglob("*.cpp")]
    for block in blocks(path, "cpp"):
        assert any(block in source for source in sources), block


@pytest.fixture(scope="module")
def tiny_model_file():
    """What pages call model.gguf."""
    from plait.demo import MODEL

    return MODEL


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_relative_links_lead_somewhere(path):
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", code.sub("", path.read_text(encoding="utf-8")))
    missing = [path.parent / target for target in targets if not (path.parent / target).exists()]
    # Pages that a program writes from a run of the tests need not be there.
    assert [target for target in missing if not target.with_suffix(".py").exists()] == []


def test_tests_of_the_guide_pass_as_written(tmp_path):
    """The block of docs/how-to/evaluate.md that is a test file, run by pytest as its readers would."""
    (tests,) = (code for code in blocks(DOCS / "how-to" / "evaluate.md") if "def test_" in code)
    (tmp_path / "test_theirs.py").write_text(tests)
    for options in (["--plait-update"], []):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "plait.testing.plugin", *options],
            capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert "5 passed" in done.stdout, done.stdout


def test_the_tests_of_the_tutorial_pass_as_written(tmp_path):
    """Its last block is a file that pytest runs."""
    *_, code = blocks(DOCS / "tutorial.md")
    (tmp_path / "test_model.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "plait.testing.plugin", "test_model.py"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout


def test_the_reference_has_no_name_twice_and_none_that_is_gone():
    """A name that no page has is added to the first page when the site is built."""
    pages = "\n".join(
        path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")
    )
    found = re.findall(r"^::: plait\.([\w.]+)$", pages, re.MULTILINE)
    assert len(found) == len(set(found)) > 50
    for name in found:
        pkgutil.resolve_name(f"plait.{name}")


def test_every_decision_is_listed_with_its_title():
    folder = DOCS / "decisions"
    listed = re.findall(
        r"^- \[(.*)\]\((.*)\)$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    records = sorted(folder.glob("[0-9]*.md"))
    titles = [
        path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in records
    ]
    assert listed == [(title, path.name) for title, path in zip(titles, records, strict=True)]


def test_every_command_is_listed():
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `plait (\w+)` \| (.*) \|$", page, re.MULTILINE))
    modules = {name: importlib.import_module(f"plait.cli.{name}") for name in COMMANDS}
    assert listed == {
        name: module.__doc__.splitlines()[0].rstrip(".") for name, module in modules.items()
    }


def test_every_environment_variable_is_listed():
    read = set()
    for folder, pattern in (("cpp", "*.cpp"), ("bindings", "*.cpp"), ("python", "*.py")):
        for path in (ROOT / folder).rglob(pattern):
            text = path.read_text(encoding="utf-8")
            read |= set(re.findall(r'(?:getenv\(|environ(?:\.get\(|\[))\s*"(PLAIT_[A-Z_]+)"', text))
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(PLAIT_[A-Z_]+)`", page, re.MULTILINE))
    assert {"PLAIT_ISA", "PLAIT_TRACEBACK"} <= read <= listed
