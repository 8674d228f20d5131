"""A Griffe extension for docstrings: examples are code, functions return generators, classes inherit as in Python."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:(?:[ ]{4}.*)?\n?)+?)(?=^\S|\Z)", re.MULTILINE)


def fenced(section: re.Match[str]) -> str:
    """Put the body of an `Example:` section into a fence."""
    return f"Example:\n    ```python\n{section[1].rstrip()}\n    ```\n\n"


class Docstrings(griffe.Extension):
    """Completes docstrings after their package is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark examples as code, and state the type of generators."""
        if obj.docstring is None:
            return
        obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)
        # Griffe would show the type that a generator returns at its end, which is None.
        if isinstance(obj, griffe.Function) and str(obj.returns).startswith("Generator["):
            typed = f"Returns:\n    ({obj.returns}): "
            obj.docstring.value = obj.docstring.value.replace("Returns:\n    ", typed, 1)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give each class without a docstring that of its first base that has one."""
        for module in (pkg, *_modules(pkg)):
            for found in module.classes.values():
                if not found.is_alias and found.docstring is None:
                    described = (base.docstring for base in found.mro() if base.docstring)
                    found.docstring = next(described, None)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    own = [found for found in module.modules.values() if not found.is_alias]
    return [*own, *(inner for found in own for inner in _modules(found))]
