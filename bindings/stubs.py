"""Print the stub python/plait/_core.pyi for the installed module. Run by `./dev stubs` and compared by a test."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# pybind11_stubgen reads types from docstrings only for functions without a signature.
STUBGEN = """
import inspect, sys, types
from pybind11_stubgen import main

full = inspect.getfullargspec


def without_builtins(func):
    if not isinstance(func, types.FunctionType):
        raise TypeError("unsupported callable")
    return full(func)


inspect.getfullargspec = without_builtins
main(sys.argv[1:])
"""
# Classes that cannot be constructed from Python define __new__; the stub entry has no information.
REFUSAL = re.compile(
    r' +@staticmethod\n +def __new__\((type, )?\*args, \*\*kwargs\):\n +"""\n[^"]*"""\n'
)


def make() -> str:
    """Return the text of the stub."""
    with tempfile.TemporaryDirectory() as folder:
        run("-c", STUBGEN, "plait._core", "-o", folder, "--exit-code")
        if (Path(folder) / "plait" / "_core").is_dir():
            raise SystemExit("plait._core has submodules: one stub file is expected")
        stub = Path(folder) / "plait" / "_core.pyi"
        stub.write_text(REFUSAL.sub("", stub.read_text()))
        run("-m", "ruff", "check", "-q", "--isolated", "--select", "I", "--fix", str(stub))
        run("-m", "ruff", "format", "-q", "--isolated", "--line-length", "100", str(stub))
        return stub.read_text()


def run(*arguments: str) -> None:
    """Run the Python of this environment and show its output only if it fails."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arguments[1]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.stdout.write(make())
