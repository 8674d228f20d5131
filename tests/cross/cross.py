"""Build plait for another processor and run its tests there under qemu-user: ./dev cross aarch64.

    cross.py [--data DIR] [--checks DIR] aarch64|riscv64 [PART...]

Parts, in this order: root (a Debian root of that processor), packages (Python packages for it), build, cpp (the C++
tests), python (the fast part of the Python suite), conformance, invariance and demo. Without PART, all of them run. The
parts root and packages leave stamps and are not repeated; the build is incremental. The tests run on all cores.
Everything lies in build/PROCESSOR; the output of a part is in build/PROCESSOR/log/PART.txt. A part that fails does not
stop the others, except for root, packages and build. The exit status is 1 if a part failed.

aarch64 runs the kernels for NEON. plait has no kernels of its own for riscv64: the conformance check and the demo use
the instruction set "blas" there, which is the default, and the other parts use "scalar".

Debian packages that are needed: debootstrap, qemu-user-static, and g++-aarch64-linux-gnu or g++-riscv64-linux-gnu.
debootstrap needs root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
CORES = len(os.sched_getaffinity(0))
MIRROR = os.environ.get("PLAIT_DEBIAN_MIRROR", "http://deb.debian.org/debian")
DEBIAN_PACKAGES = [
    "python3", "libpython3-dev", "libstdc++-12-dev", "libc6-dev", "googletest", "libopenblas-dev",
]  # fmt: skip
# Of the extra "test": without wheels for each processor, or only used by the notebooks.
WITHOUT = ("matplotlib", "ipykernel")


class Processor(NamedTuple):
    """What differs between processors."""

    debian: str  # Debian's name
    cpu: str  # of qemu: all features
    suite: str  # the oldest stable release of Debian that has it
    python: str  # of the suite
    tags: tuple[str, ...]  # of wheels
    # Debian's Python packages, where few have wheels. Then only tokenizers is installed by pip, without what it needs
    # to load from a hub.
    packages: tuple[str, ...] = ()
    # The instruction set for tests that compare bits, where those of the default one depend on the batch.
    invariant: str | None = None


PROCESSORS = {
    "aarch64": Processor(
        "arm64", "max", "bookworm", "3.11",
        ("manylinux2014", "manylinux_2_17", "manylinux_2_28"),
    ),
    "riscv64": Processor(
        "riscv64", "rv64", "trixie", "3.13",
        ("manylinux_2_31", "manylinux_2_39"),
        ("python3-numpy", "python3-pytest", "python3-hypothesis", "python3-jinja2", "python3-pil"),
        "scalar",
    ),
}  # fmt: skip
# The tests of the suite that depend on the processor. The longest file is in the first folder, so that no core waits
# for it at the end.
PYTHON_TESTS = [
    "tests/python/files",
    "tests/python/context",
    "tests/python/cache",
    "tests/python/ops",
]
THREADS = "tests/python/context/test_threads.py"
# qemu does not apply RLIMIT_AS, and is too slow to end a call within a quarter of a second or a process that loads the
# hub's client within ten. The C compiler that a test finds is the host's.
DESELECTED = [
    "tests/python/context/test_blas.py::test_an_unusable_library_is_as_none",
    "tests/python/context/test_blas.py::test_too_little_address_space_is_reported",
    "tests/python/cache/test_requirements_memory.py"
    "::test_a_context_whose_steps_do_not_fit_into_memory_is_not_created",
    "tests/python/files/test_hub.py::test_a_hub_that_cannot_be_reached_is_not_tried_again_and_again",
    f"{THREADS}::test_too_few_threads_are_enough",
    f"{THREADS}::test_ctrl_c_ends_a_decode_within_a_quarter_second_and_leaves_the_cache_as_it_was",
]
# The fuzzers run for a given time, in which they would do little under qemu; and qemu does not apply RLIMIT_AS.
CPP_TESTS = "-Fuzz*:FileCalls.EmptyFilesMapAndFailingMapsAreErrors"

QEMU_PYTHON = """#!/bin/sh
# The Python of the root, under qemu. Its subprocesses run in the same way.
here=$(dirname "$(readlink -f "$0")")
export PYTHONHOME="$here/root/usr"
exec {qemu} -0 "$0" -L "$here/root" "$here/root/usr/bin/{python}" "$@"
"""


def on_all_cores(call: Callable[[Any], None], arguments: Iterable[Any]) -> None:
    """Call a function with each argument; raise an exception of a call when all have ended."""
    with ThreadPoolExecutor(CORES) as pool:
        calls = [pool.submit(call, argument) for argument in arguments]
    for each in calls:
        each.result()


class Cross:
    """The folder and the environment of one processor."""

    def __init__(self, arch: str, data: Path, checks: Path) -> None:
        self.arch = arch
        self.processor = PROCESSORS[arch]
        self.qemu = [f"qemu-{arch}-static", "-cpu", self.processor.cpu]
        isa = self.processor.invariant
        self.for_bits = {"PLAIT_ISA": isa} if isa else {}  # variables of tests that compare bits
        self.folder = ROOT / "build" / arch
        self.root = self.folder / "root"
        self.cmake = self.folder / "cmake"
        self.packages_folder = self.folder / "packages"
        self.interpreter = self.folder / "python"
        self.data = data
        self.checks = checks
        (self.folder / "log").mkdir(parents=True, exist_ok=True)

    def run(self, *command: object, **variables: object) -> None:
        """Run a command; raise CalledProcessError if it fails."""
        env = {
            k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"
        }
        env |= {name: str(value) for name, value in variables.items()}
        subprocess.run([str(c) for c in command], cwd=ROOT, env=env, check=True, stdin=subprocess.DEVNULL,
                       stdout=self.log, stderr=subprocess.STDOUT)  # fmt: skip

    def python(self, *arguments: object, **variables: object) -> None:
        """Run Python under qemu, with plait as built."""
        path = f"{self.cmake / 'site'}:{self.cmake / 'tests'}:{self.packages_folder}"
        self.run(
            self.interpreter,
            *arguments,
            PYTHONPATH=path,
            PLAIT_TEST_DATA=self.data,
            PLAIT_OPS_DIR=self.cmake / "tests",
            PYTHONDONTWRITEBYTECODE=1,
            **variables,
        )

    def make_root(self) -> None:
        """Unpack the packages; none of their scripts runs, so no emulation of system calls of root is needed."""
        shutil.rmtree(self.root, ignore_errors=True)
        packages = ",".join([*DEBIAN_PACKAGES, *self.processor.packages])
        self.run("debootstrap", "--foreign", f"--arch={self.processor.debian}", "--variant=minbase",
                 f"--include={packages}", self.processor.suite, self.root, MIRROR)  # fmt: skip
        # /lib and others are links, which dpkg-deb --extract would replace.
        unpack = 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink'
        for package in sorted((self.root / "var/cache/apt/archives").glob("*.deb")):
            self.run("bash", "-o", "pipefail", "-c", unpack, "bash", package, self.root)
        libraries = self.root / f"usr/lib/{self.arch}-linux-gnu"
        # As the scripts of OpenBLAS's package do.
        for name in ("libopenblas.so.0", "libblas.so.3", "liblapack.so.3"):
            (libraries / name).symlink_to(f"openblas-pthread/{name}")

    def make_packages(self) -> None:
        python = f"python{self.processor.python}"
        self.interpreter.write_text(QEMU_PYTHON.format(qemu=" ".join(self.qemu), python=python))
        self.interpreter.chmod(self.interpreter.stat().st_mode | stat.S_IXUSR)
        if self.processor.packages:
            wanted = ["--no-deps", "tokenizers"]
        else:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
            wanted = [name for name in wanted if not name.startswith(WITHOUT)]
        tags = [f"--platform={tag}_{self.arch}" for tag in self.processor.tags]
        self.run(sys.executable, "-m", "pip", "install", "--upgrade", "--target", self.packages_folder, *tags,
                 f"--python-version={self.processor.python}", "--only-binary=:all:", *wanted)  # fmt: skip

    def build(self) -> None:
        pybind11 = subprocess.run([sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True,
                                  text=True)  # fmt: skip
        headers = f"{self.root}/usr/include/python{self.processor.python}"
        toolchain = [
            "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",  # of all but kernels, which are always optimised
            f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/tests/cross/toolchain.cmake", f"-DPLAIT_ROOT={self.root}",
            f"-DPLAIT_PROCESSOR={self.arch}",
        ]  # fmt: skip
        # From its sources: the compiler of another release of Debian may not read the library of the root.
        googletest = self.folder / "googletest"
        self.run("cmake", "-S", self.root / "usr/src/googletest", "-B", googletest, *toolchain)
        self.run("cmake", "--build", googletest)
        self.run("cmake", "--install", googletest, "--prefix", googletest / "installed")
        self.run(
            "cmake", "-S", ROOT, "-B", self.cmake, *toolchain,
            f"-DGTest_DIR={googletest}/installed/lib/cmake/GTest",
            "-DPLAIT_UNITY=ON", "-DPLAIT_TESTS=ON", "-DPLAIT_VULKAN=OFF", "-DPLAIT_WERROR=ON",
            f"-DPython_EXECUTABLE={self.interpreter}", f"-DPython_INCLUDE_DIR={headers}",
            f"-Dpybind11_DIR={pybind11.stdout.strip()}",
        )  # fmt: skip
        self.run("cmake", "--build", self.cmake, "--parallel", CORES)

    def cpp(self) -> None:
        def run_share(index: int) -> None:
            self.run(*self.qemu, "-L", self.root, self.cmake / "tests/plait_tests",
                     "--gtest_brief=1", f"--gtest_filter={CPP_TESTS}", PLAIT_TEST_DATA=self.data,
                     GTEST_TOTAL_SHARDS=CORES, GTEST_SHARD_INDEX=index, **self.for_bits)  # fmt: skip

        on_all_cores(run_share, range(CORES))

    def pytest(self) -> None:
        deselect = [f"--deselect={test}" for test in DESELECTED]

        def run_file(path: Path) -> None:
            self.python("-m", "pytest", "-q", "-m", "not slow and not oracle and not timing",
                        *deselect, path, **self.for_bits)  # fmt: skip

        files = [
            path for folder in PYTHON_TESTS for path in sorted(ROOT.glob(f"{folder}/test_*.py"))
        ]
        on_all_cores(run_file, files)

    def conformance(self) -> None:
        self.python(self.checks / "conformance.py", "--data", self.data)

    def invariance(self) -> None:
        self.python(self.checks / "invariance.py", "--data", self.data, **self.for_bits)

    def demo(self) -> None:
        self.python("-m", "plait.demo", "--seed", 7, "--more", 0)

    def parts(self) -> dict[str, Callable[[], None]]:
        return {
            "root": self.make_root,
            "packages": self.make_packages,
            "build": self.build,
            "cpp": self.cpp,
            "python": self.pytest,
            "conformance": self.conformance,
            "invariance": self.invariance,
            "demo": self.demo,
        }

    def perform(self, name: str, part: Callable[[], None]) -> bool:
        """Run a part unless it has left a stamp; return whether it passed."""
        path, stamp = self.folder / "log" / f"{name}.txt", self.folder / f".{name}"
        keeps = name in {"root", "packages"}
        print(f"{name} ... ", end="", flush=True)
        if keeps and stamp.exists():
            print("done before")
            return True
        begin = time.monotonic()
        try:
            with path.open("wb") as self.log:
                part()
        except subprocess.CalledProcessError as error:
            print(f"FAILED (exit status {error.returncode}); the output is in {path}")
            return False
        lines = path.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        print(f"passed, {time.monotonic() - begin:.0f} s: {last[:100]}")
        if keeps:
            stamp.touch()
        return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = ROOT.parent / "shared"
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("PLAIT_TEST_DATA", shared / "data"))
    )
    parser.add_argument(
        "--checks",
        type=Path,
        default=shared / "check",
        help="folder of conformance.py and invariance.py",
    )
    parser.add_argument("arch", choices=PROCESSORS)
    parser.add_argument("part", nargs="*")
    given = parser.parse_args()
    cross = Cross(given.arch, given.data.resolve(), given.checks.resolve())
    parts = cross.parts()
    if unknown := set(given.part) - set(parts):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(parts)}")
    passed = True
    for name in given.part or parts:
        if not cross.perform(name, parts[name]):
            passed = False
            if name in {"root", "packages", "build"}:
                break
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
