"""Print the stub python/plait/_core.pyi for the installed module. Run by `./dev stubs` and compared by a test."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Classes that cannot be constructed from Python define __new__; the stub entry has no information.
REFUSAL = re.compile(
    r' +@staticmethod\n +def __new__\(type, \*args, \*\*kwargs\):\n +"""\n[^"]*"""\n'
)


def make() -> str:
    """Return the text of the stub."""
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
    """Run a tool of this environment and show its output only if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{module} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.stdout.write(make())
