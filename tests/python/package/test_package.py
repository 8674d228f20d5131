"""The installed package: import time, output, type information and version."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import plait
import pytest
from python.drive import UNDER_ASAN

SOURCE = Path(__file__).parents[3]


def python(program, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.timing
def test_importing_takes_less_than_150_milliseconds():
    program = """
        import time
        began = time.perf_counter()
        import plait
        print(time.perf_counter() - began)
        """
    assert min(float(python(program)) for _ in range(5)) < 0.15


def test_importing_loads_no_unneeded_modules():
    loaded = python("import plait, sys; print(*sys.modules)").split()
    for name in ("tokenizers", "numpy", "jinja2", "matplotlib", "torch", "huggingface_hub", "ray"):
        assert name not in loaded


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_module_exports_only_its_initialisation():
    # What several modules export is merged when they are loaded: see bindings/CMakeLists.txt.
    options = ["-gU"] if sys.platform == "darwin" else ["-D", "--defined-only"]
    found = subprocess.run(
        ["nm", *options, plait._core.__file__],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert [line.split()[-1].lstrip("_") for line in found.splitlines()] == ["PyInit__core"]


def test_lm_eval_finds_plait(tmp_path):
    files = {
        "__init__.py": "",
        "__main__.py": "import lm_eval.models, lm_eval.api.registry as r; print(r.model_registry.known)",
        "models.py": "import lm_eval.api.registry as r; r.model_registry.register('hf', target='models:HF')",
        "api/__init__.py": "",
        "api/registry.py": """
            class Registry:
                known = {}
                def __contains__(self, name):
                    return name in self.known
                def register(self, name, target):
                    self.known[name] = target
            model_registry = Registry()
            """,
    }
    for name, text in files.items():
        (tmp_path / "lm_eval" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lm_eval" / name).write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval"],
        capture_output=True, text=True, timeout=60, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "{'hf': 'models:HF', 'plait': 'plait.lm_eval:PlaitLM'}\n"
    # Other processes are not affected, even if they use a file of a similar name.
    for argument in ("", "tests/test_lm_eval.py", "lm_eval_results.json"):
        modules = subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.modules)", argument],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "plait_lm_eval" not in modules.stdout.split()


# S4-23
def test_an_old_name_works_and_warns_once():
    program = """
        import warnings
        import plait
        plait._RENAMED["infer"] = "generate"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert plait.infer is plait.generate
            assert plait.infer is plait.generate
        print([(w.category.__name__, str(w.message)) for w in caught])
        """
    assert (
        python(program)
        == "[('DeprecationWarning', 'plait.infer is deprecated; use plait.generate')]\n"
    )


def test_commands_without_a_model_are_fast():
    program = """
        import sys
        from plait.cli import main
        main(["--version"])
        assert "numpy" not in sys.modules or "tokenizers" not in sys.modules
        """
    assert python(program).startswith("plait ")


@pytest.fixture(scope="module")
def no_loader(tmp_path_factory):
    """The environment of a program that cannot load libvulkan."""
    compiler = shutil.which("cc")
    if compiler is None or UNDER_ASAN:
        pytest.skip("needs a C compiler, and to be the only one that is preloaded")
    library = tmp_path_factory.mktemp("loader") / "no_vulkan.so"
    source = Path(__file__).parents[1] / "hostile" / "no_vulkan.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def test_a_machine_without_a_vulkan_loader(no_loader):
    program = """
        import plait
        assert [device.name for device in plait.devices()] == ["cpu"]
        model = plait.Model.demo()
        with plait.Context(model, n_ctx=16, backend="auto") as ctx:
            assert ctx.devices == ["cpu"]
        try:
            plait.Context(model, n_ctx=16, backend="vulkan")
        except plait.BackendError as error:
            print(error)
        """
    expected = "no Vulkan loader" if plait.build_info()["vulkan"] else "vulkan"
    assert expected in python(program, **no_loader)


THEIRS = """
from __future__ import annotations

import numpy as np
import numpy.typing as npt
import plait
from plait.testing import assert_logits_close


def answer(model: plait.Model, question: str) -> str:
    with plait.Context(model, n_ctx=128, n_seq_max=2) as ctx:
        story: plait.Sequence = ctx.sequence()
        batch = plait.Batch()
        batch.add_sequence(model.tokenizer.encode(question), seq=story, logits="last")
        out: plait.Output = ctx.decode(batch)
        logits: npt.NDArray[np.float32] | None = out.logits
        assert logits is not None
        row: npt.NDArray[np.float32] = out[-1]
        assert_logits_close(logits, row)
        with story.fork(upto=3) as fork:
            length: int = len(fork)
        free: int = ctx.kv.n_free
        reasons: dict[str, int] = ctx.stats.plan_misses
        print(length, free, reasons)
    text = ""
    for event in plait.generate(model, [question], max_tokens=8, sampler=plait.Sampler(temperature=0)):
        text += event.text
    best: plait.Score = max(plait.score(model, question, [" a", " b"]), key=float)
    print(best.logprob, plait.perplexity(model, question), plait.embed(model, [question]).shape)
    return text


try:
    print(answer(plait.Model.demo(), "Tom lives in Oslo. Q: Where does Tom live? A:"))
except plait.CacheFull as error:
    print(error.needed, error.free)
"""

MISTAKES = """
import plait

ctx = plait.Context(plait.Model.demo(), n_ctx="many")
ctx.decode([1, 2, 3])
ctx.kv.seq_rm("zero")
plait.Model.demo().no_such
"""


@pytest.fixture
def mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is in the extra dev")

    installed = "site-packages" in plait.__file__

    def run(source):
        """Return the lines of mypy's output about the program, without those about plait's own files."""
        (tmp_path / "theirs.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", SOURCE / "build" / "mypy", "theirs.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            env=os.environ | ({} if installed else {"MYPYPATH": str(SOURCE / "python")}),
        )  # fmt: skip
        assert done.stderr == ""
        return [line for line in done.stdout.splitlines() if line.startswith("theirs.py:")]

    return run


def test_a_users_program_runs_and_passes_mypy_strict(mypy):
    assert "Tom lives in Oslo." in python(THEIRS)
    assert mypy(THEIRS) == []


def test_a_users_mistakes_are_found_by_mypy(mypy):
    assert sorted({int(line.split(":")[1]) for line in mypy(MISTAKES)}) == [4, 5, 6, 7]


def test_submodules_are_attributes_and_dir_lists_public_names():
    program = """
        import plait
        print(sorted(set(dir(plait)) ^ set(plait.__all__)), len(plait.__all__) == len(set(plait.__all__)))
        print([getattr(plait, name).__name__ for name in ("figures", "quant", "testing")])
        print(all(hasattr(plait, name) for name in dir(plait)))
        for name in ("ray", "lm_eval"):
            try:
                assert getattr(plait, name).__name__ == f"plait.{name}"
            except ModuleNotFoundError as error:
                assert "pip install 'plait[" in str(error)
        """
    assert python(program).splitlines() == [
        "[] True",
        "['plait.figures', 'plait.quant', 'plait.testing']",
        "True",
    ]
