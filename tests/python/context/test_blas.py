"""isa="blas": OpenBLAS multiplies more than 16 rows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait
import pytest
from python.model.test_reference import cases, compare, model_of, options, play

PROMPT = [(7 * i) % 250 for i in range(60)]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a test of Linux")
MODELS = [
    name for name in cases() if name.startswith(("llama", "qwen2", "gemma2", "mixtral", "mamba"))
]


def prompt_logits(model, **options):
    with plait.Context(model, n_ctx=64, **options) as ctx:
        batch = plait.Batch()
        batch.add_sequence(PROMPT, logits="all")
        return np.array(ctx.decode(batch).logits)


def run(code, **environment):
    """Run code in a new process and return its output. A process that hangs fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


@pytest.fixture
def blas():
    if "blas" not in plait.build_info()["isas"]:
        pytest.skip("OpenBLAS is not installed (Debian: libopenblas0)")
    return "blas"


def test_build_info_names_the_version():
    info = plait.build_info()
    assert ("blas" in info["isas"]) == (info["blas"] is not None)
    assert info["blas"] is None or info["blas"].startswith("OpenBLAS ")


@pytest.mark.parametrize("name", MODELS or ["none"])
def test_stored_logits(name, blas, data_dir):
    model = model_of(name)
    for case in cases()[name]:
        with plait.Context(model, **options(case, {"isa": blas})) as ctx:
            assert ctx.isa == blas
            for got, want in play(ctx, case, np.load(case["root"] / case["data"])):
                compare(got, want, case)


def test_openblas_multiplies_prompts_only(demo_model, blas):
    whole, scalar = (prompt_logits(demo_model, isa=isa) for isa in (blas, "scalar"))
    assert not np.array_equal(whole, scalar)
    # 16 rows at a time are multiplied by the scalar kernels.
    pieces = prompt_logits(demo_model, isa=blas, n_ubatch=16)
    assert np.array_equal(pieces, prompt_logits(demo_model, isa="scalar", n_ubatch=16))


def test_threads_change_no_bit(demo_model, blas):
    one, two = (prompt_logits(demo_model, isa=blas, threads=n) for n in (1, 2))
    assert np.array_equal(one, two)


def test_more_threads_than_openblas_supports(demo_model, blas):
    many = prompt_logits(demo_model, isa=blas, threads=150)
    assert np.array_equal(many, prompt_logits(demo_model, isa=blas, threads=1))


def test_it_is_invariant_only_without_openblas(tiny, blas, monkeypatch):
    with plait.Context(tiny, n_ctx=8, isa=blas) as ctx:
        assert (ctx.isa, ctx.invariant) == ("blas", False)
    monkeypatch.setenv("PLAIT_ISA", blas)
    with plait.Context(tiny, n_ctx=8) as ctx:
        assert (ctx.isa, ctx.invariant) == ("blas", False)
    with plait.Context(tiny, n_ctx=8, isa="scalar") as ctx:
        assert (ctx.isa, ctx.invariant) == ("scalar", True)


COMPUTE = """
import os, sys
import numpy as np
import plait

def logits(isa):
    with plait.Context(plait.Model.demo(), n_ctx=64, isa=isa, threads=1) as ctx:
        batch = plait.Batch()
        batch.add_sequence([(7 * i) % 250 for i in range(60)])
        return np.array(ctx.decode(batch).logits)
"""


@LINUX
def test_openblas_has_no_threads(blas):
    count = 'print(len(os.listdir("/proc/self/task")))'  # NumPy has threads too
    before, after = run(f"{COMPUTE}{count}\nplait.build_info()\nlogits('blas')\n{count}").split()
    assert before == after


@LINUX
def test_it_is_loaded_only_on_request(blas):
    # NumPy of a distribution may use the same library.
    count = 'print(sum("/libopenblas" in line for line in open("/proc/self/maps")))'
    without, default, loaded = run(
        f"{COMPUTE}{count}\nlogits(None)\n{count}\nplait.build_info()\n{count}"
    ).split()
    assert without == default
    assert int(loaded) >= int(default)


@LINUX
def test_it_computes_after_a_fork(blas):
    code = f"""{COMPUTE}
before = logits("blas")
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if np.array_equal(logits("blas"), before) else 1)
"""
    run(code)


MISSING = f"""{COMPUTE}
info = plait.build_info()
assert "blas" not in info["isas"] and "blas" in info["isas_built"], info
assert info["blas"] is None
try:
    logits("blas")
except plait.UnsupportedError as error:
    print(error)
logits("scalar")
"""


def assert_reported(message, problem):
    assert problem in message
    assert "libopenblas0" in message


def library(folder: Path, source: str | None) -> str:
    """Write a library under each name that is searched, and return LD_LIBRARY_PATH."""
    file = folder / "library"
    if source is None:
        file.write_bytes(b"no library")
    else:
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("no C compiler")
        (folder / "library.c").write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", file, folder / "library.c"], check=True)
    for name in ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so"):
        shutil.copy(file, folder / name)
    return str(folder)


FUNCTIONS = """
void cblas_sgemm(void) {}
void openblas_set_num_threads(int n) {}
int openblas_get_parallel(void) { return 1; }
char *openblas_get_config(void) { return "%s"; }
"""


@LINUX
@pytest.mark.skipif("blas" not in plait.build_info()["isas_built"], reason="PLAIT_BLAS=OFF")
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "not installed, or cannot be loaded"),
        ("int nothing;", "lacks functions"),
        (FUNCTIONS % "BLIS 1.0", "not OpenBLAS"),
        (FUNCTIONS % "OpenBLAS 0.3.21 USE64BITINT MAX_THREADS=64", "64-bit integers"),
    ],
    ids=["damaged", "incomplete", "other", "64-bit"],
)
def test_an_unusable_library_is_as_none(source, problem, tmp_path):
    assert_reported(run(MISSING, LD_LIBRARY_PATH=library(tmp_path, source)), problem)


@LINUX
@pytest.mark.skipif("blas" not in plait.build_info()["isas_built"], reason="PLAIT_BLAS=OFF")
def test_too_little_address_space_is_reported():
    """OpenBLAS itself would wait for memory for ever."""
    limited = """
import resource
limit, hard = resource.getrlimit(resource.RLIMIT_AS)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (20 << 20), hard))
info = plait.build_info()
resource.setrlimit(resource.RLIMIT_AS, (limit, hard))  # a context needs more than that
"""
    code = MISSING.replace("info = plait.build_info()", limited)
    assert_reported(run(code), "address space")
