#!/usr/bin/env python3
"""Build and try plait on every Python that this machine has: ./dev pythons.

    pythons.py [--quick] [--core DIR] [--dist DIR] [VERSION...]

Looks for Python 3.10 to 3.14, with and without the GIL, on PATH, among pyenv's versions, and in PLAIT_PYTHONS (paths of
interpreters, separated by colons). Each one builds a wheel in build/pythons/VERSION. Only the bindings are compiled:
the rooms of cpp/ come from the finished build in DIR (build/release). The wheel is then installed into an empty
environment, where no compiler is on PATH, and `import plait`, the demo, the tests of the pytest plugin and those of
objects that threads share run there. tokenizers and PyYAML have no wheels for 3.13t: PIP_FIND_LINKS names a folder that
has them. Versions that were not found are printed. With VERSION (such as 3.12 or 3.14t), only these are tried, and each
must be there. --quick tries the oldest and the newest one besides that of this interpreter, as every CI run does.
--dist keeps the wheels in that folder; without it, the bindings are compiled with less optimisation, which takes less
time. The exit status is 1 if a version failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t"]
TESTS = [
    ROOT / "tests/python/evaluation/test_testing.py",
    ROOT / "tests/python/context/test_shared_objects.py",
]

# Prints the version and whether extension modules can be compiled and environments made.
ASK = """
import json, os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps([version, os.path.exists(header)]))
"""
SMOKE = """
import sys, plait
assert "site-packages" in plait.__file__, plait.__file__
assert len(plait.Model.demo().tokenizer.encode("Once upon a time")) > 0
print(sys.version.split()[0], plait.__version__, plait.build_info()["isas"][-1])
"""


def candidates() -> Iterator[Path]:
    """The paths where interpreters may be, the preferred ones first."""
    yield from (Path(p) for p in os.environ.get("PLAIT_PYTHONS", "").split(":") if p)
    folders = [Path(p) for p in os.environ.get("PATH", "").split(":") if p]
    for version in VERSIONS:
        yield from (folder / f"python{version}" for folder in folders)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    yield from sorted(pyenv.glob("3.*/bin/python3"), reverse=True)
    yield from (folder / "python3" for folder in folders)


def find_pythons() -> dict[str, Path]:
    """Return one interpreter of each version that can build extension modules."""
    found: dict[str, Path] = {}
    for path in candidates():
        if not path.is_file():
            continue
        done = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            continue
        version, has_header = json.loads(done.stdout)
        if version in VERSIONS and has_header:
            found.setdefault(version, path)
    return {version: found[version] for version in VERSIONS if version in found}


def ends(found: dict[str, Path]) -> list[str]:
    """Return the oldest and the newest version, other than that of this interpreter."""
    others = [version for version in found if version != "{}.{}".format(*sys.version_info[:2])]
    return others if len(others) < 2 else [others[0], others[-1]]


class Trial:
    """One version: its build, its empty environment and its log."""

    def __init__(self, version: str, interpreter: Path, core: Path, options: list[str]) -> None:
        self.interpreter = interpreter
        self.options = [f"PLAIT_CORE={core}", *options]
        self.folder = ROOT / "build/pythons" / version
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log.txt"

    def run(self, *command: object, cwd: Path = ROOT, **variables: str) -> str:
        """Run a command and return what it printed; raise CalledProcessError if it fails."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run([str(c) for c in command], cwd=cwd, env=env | variables, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
        done.check_returncode()
        return done.stdout

    def environment(self, name: str, *packages: str) -> Path:
        """Return the Python of a new environment with these packages."""
        python = self.folder / name / "bin/python"
        shutil.rmtree(self.folder / name, ignore_errors=True)
        self.run(self.interpreter, "-m", "venv", "--without-pip", self.folder / name)
        if packages:
            self.install(python, *packages)
        return python

    def install(self, python: Path, *what: object) -> None:
        """Install packages that have a wheel for this version: nothing is compiled."""
        self.run(
            sys.executable, "-m", "pip", "--python", python, "install", "--only-binary=:all:", *what
        )

    def build(self) -> Path:
        """Build the wheel, and return its path."""
        requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        python = self.environment("build-env", *requires)
        wheels = self.folder / "wheel"
        shutil.rmtree(wheels, ignore_errors=True)
        self.run(sys.executable, "-m", "pip", "--python", python, "wheel", "--no-index", "--no-deps",
                 "--no-build-isolation", "-w", wheels, "-C", f"build-dir={self.folder / 'cmake'}",
                 *(f"-Ccmake.define.{option}" for option in self.options), ROOT)  # fmt: skip
        (wheel,) = wheels.glob("plait-*.whl")
        return wheel

    def try_wheel(self, wheel: Path) -> str:
        """Install the wheel into an empty environment and run it there; return what the smoke test printed."""
        python = self.environment("empty")
        self.install(python, wheel, "pytest>=8")
        nowhere = self.folder / "nowhere"
        nowhere.mkdir(exist_ok=True)
        bare = {"PATH": str(nowhere)}
        printed = self.run(python, "-W", "error", "-c", SMOKE, cwd=nowhere, **bare)
        self.run(python, "-m", "plait.demo", "--seed", 7, "--more", 0, cwd=nowhere, **bare)
        self.run(python, "-m", "pytest", "-q", *TESTS, **bare)
        return printed.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core", type=Path, default=ROOT / "build/release")
    parser.add_argument("--dist", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("version", nargs="*")
    given = parser.parse_args()
    found = find_pythons()
    if missing := set(given.version) - set(found):
        parser.error(
            f"{', '.join(sorted(missing))}: not found; this machine has {', '.join(found)}"
        )
    passed = True
    options = [] if given.dist else ["CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]
    for version in given.version or (ends(found) if given.quick else found):
        begin = time.monotonic()
        print(f"Python {version} ... ", end="", flush=True)
        trial = Trial(version, found[version], given.core.resolve(), options)
        trial.log.unlink(missing_ok=True)
        try:
            wheel = trial.build()
            printed = trial.try_wheel(wheel)
        except subprocess.CalledProcessError as error:
            print(f"FAILED (exit status {error.returncode}); the output is in {trial.log}")
            passed = False
            continue
        if given.dist:
            given.dist.mkdir(parents=True, exist_ok=True)
            shutil.copy2(wheel, given.dist)
        print(f"passed, {time.monotonic() - begin:.0f} s: {printed}")
    absent = [version for version in VERSIONS if version not in found]
    if absent and not given.version:
        print(f"Not on this machine: Python {', '.join(absent)}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
