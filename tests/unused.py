#!/usr/bin/env python3
"""Lists functions and constants of C++ headers that nothing uses, for ./dev lint.

Compilers report unused names with internal linkage only. This works on words instead: a name counts as used if it
occurs anywhere in cpp/ or bindings/ apart from its declaration and definition. A use in a test does not count.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ALLOWED = {
    "const_name": "pybind11 calls it",
    "init_instance": "pybind11 calls it",
    "can_quantize": "tests select formats with it",
    "unpack_row": "tests check packed weights with it",
    "taken_over": "tests count stolen work with it",
    "register_backend": "tests register a backend of their own",
    "guard": "its destructor unlocks",
    "other_guard": "its destructor unlocks",
}

INTRINSIC = re.compile(r"v\w+_[fsu]\d+")  # of NEON; those of x86 begin with an underscore


def sources() -> dict[str, str]:
    """The code of each file, without comments and strings."""
    names = subprocess.run(
        ["git", "ls-files", "cpp", "bindings"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    code = {}
    for name in names:
        path = ROOT / name
        if path.suffix in {".h", ".cpp", ".in"} and path.is_file():
            text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
            code[name] = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return code


def definitions(name: str, text: str) -> int:
    """How many function definitions of this name a .cpp file has: those start in the first column."""
    return len(re.findall(rf"^(?! )[\w:<>,*& \[\]]*\b{name}\([^;]*?\{{", text, re.MULTILINE))


def unused(code: dict[str, str]) -> list[str]:
    count = Counter(word for text in code.values() for word in re.findall(r"\w+", text))
    found = []
    for header in sorted(name for name in code if name.endswith(".h")):
        # A name after "std::", "." or "->" is a call in an inline function, not a declaration.
        declared = re.findall(
            r"(?<!std::)(?<!\.)(?<!->)\b([a-z]\w+)\s*\(|\b(k[A-Z]\w*)\s*(?:=|\{|\[)",
            code[header],
            re.MULTILINE,
        )
        implementation = code.get(header.removesuffix(".h") + ".cpp", "")
        for name in sorted(
            {function or constant for function, constant in declared} - set(ALLOWED)
        ):
            if INTRINSIC.fullmatch(name):
                continue
            here = len(re.findall(rf"\b{name}\b", code[header]))
            if here == 1 and count[name] == 1 + definitions(name, implementation):
                found.append(f"{header}: nothing uses {name}")
    return found


if __name__ == "__main__":
    problems = unused(sources())
    print(*problems, sep="\n")
    sys.exit(bool(problems))
