"""Prints python/plait/_core.pyi as the installed module gives it: `./dev stubs` writes it, a test compares it."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Of classes that cannot be made from Python: only that their __new__ is their own, which says nothing.
REFUSAL = re.compile(
    r' +@staticmethod\n +def __new__\(type, \*args, \*\*kwargs\):\n +"""\n[^"]*"""\n'
)


def make() -> str:
    """The text of the stub."""
    with tempfile.TemporaryDirectory() as folder:
        run("pybind11_stubgen", "plait._core", "-o", folder, "--exit-code")
        if (Path(folder) / "plait" / "_core").is_dir():
            raise SystemExit("plait._core has submodules: one stub file is expected")
        stub = Path(folder) / "plait" / "_core.pyi"
        stub.write_text(REFUSAL.sub("", stub.read_text()))
        run("ruff", "check", "-q", "--isolated", "--select", "I", "--fix", str(stub))
        run("ruff", "format", "-q", "--isolated", "--line-length", "100", str(stub))
        return stub.read_text()


def run(module: str, *arguments: str) -> None:
    """Run a tool of this environment; its output only where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{module} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.stdout.write(make())
