#!/usr/bin/env python3
"""Writes api.md: every public name with its signature and docstring.

    python docs/api.py [--print]

Signatures are those of the sources and of the stubs, docstrings those of the module that is imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "plait"
MODULES = ("plait", "plait.quant", "plait.testing", "plait.figures")
HEAD = """# API reference

Written by [api.py](api.py) from docstrings and stubs. `pytest --fixtures` and `plait COMMAND
--help` print what belongs to them. Shapes are outermost first; log-probabilities are natural logarithms.
"""

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names_of(module: Any) -> list[str]:
    """The public names of a module, sorted as people read."""
    return sorted((n for n in module.__all__ if not n.startswith("__")), key=str.lower)


def source_of(thing: Any) -> Node | None:
    """The definition of a class or a function in the sources or the stubs."""
    file = Path(ROOT, "python", *thing.__module__.split("."))
    for path in (file.with_suffix(".py"), file / "__init__.py", file.with_suffix(".pyi")):
        if path.is_file():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, Node) and node.name == thing.__name__:
                    return node
    return None


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    """(a, b=1) -> R, without self and without the modules of types."""
    arguments = node.args
    if method and arguments.args:
        arguments.args = arguments.args[1:]
    text = f"({ast.unparse(arguments)})"
    if node.returns is not None and ast.unparse(node.returns) != "None":
        text += f" -> {ast.unparse(node.returns)}"
    for long in ("typing.", "numpy.typing.", "collections.abc.", "npt.", "_core."):
        text = text.replace(long, "")
    return text.replace("SupportsIndex", "int").replace("SupportsFloat", "float")


def docstring(thing: Any) -> str:
    """Its docstring, with sections of NumPy's kind as they are."""
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{thing!r} has no docstring")
    return text


def quoted(text: str) -> str:
    """Docstrings are plain text: shown as they are typed."""
    return f"```text\n{text}\n```"


def members(cls: type) -> Iterator[tuple[str, Any, Node | None]]:
    """(name, what it is, its definition) of public members, those of bases of ours included."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("plait"):
            continue
        node = source_of(base)
        body = node.body if isinstance(node, ast.ClassDef) else []
        found = {n.name: n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        for name in vars(base):
            if name not in seen and not name.startswith("_") and name in dir(cls):
                seen.add(name)
                yield name, inspect.getattr_static(cls, name), found.get(name)


def member(cls: type, name: str, thing: Any, node: Node | None) -> str | None:
    """A line and a docstring, or nothing for fields that the class's docstring tells of."""
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    value = getattr(thing, "__func__", thing)
    text = inspect.getdoc(value)
    if not function or isinstance(thing, property):
        if isinstance(thing, property) or hasattr(thing, "func"):
            return f"**`{cls.__name__}.{name}`**\n{quoted(text or '')}" if text else None
        if not function:
            return None
    plain = isinstance(thing, staticmethod)
    shown = signature(node, method=not plain) if function else "()"
    return f"**`{cls.__name__}.{name}{shown}`**\n{quoted(text or docstring(value))}"


def entry(name: str, thing: Any) -> str:
    """The section of a name."""
    node = source_of(thing) if hasattr(thing, "__module__") else None
    if isinstance(thing, type):
        made = ""
        if isinstance(node, ast.ClassDef):
            for base in thing.__mro__:
                of_base = source_of(base) if base.__module__.startswith("plait") else None
                body = of_base.body if isinstance(of_base, ast.ClassDef) else []
                init = next((n for n in body if getattr(n, "name", "") == "__init__"), None)
                if isinstance(init, ast.FunctionDef):
                    made = signature(init, method=True)
                    break
        parts = [f"### `{name}{made}`", quoted(docstring(thing))]
        parts += filter(None, (member(thing, *found) for found in members(thing)))
        return "\n\n".join(parts)
    shown = signature(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
    return f"### `{name}{shown}`\n\n{quoted(docstring(thing))}"


def page() -> str:
    """The whole reference."""
    parts = [HEAD]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        summary = (module.__doc__ or "").splitlines()[0]
        parts.append(f"## `{module_name}`\n\n{summary}")
        for name in names_of(module):
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                parts.append(entry(name, thing))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
    else:
        (ROOT / "docs" / "api.md").write_text(page(), encoding="utf-8")
