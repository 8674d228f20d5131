"""A Griffe extension: examples in docstrings are Python code, and classes inherit docstrings as in Python."""

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
        """Mark examples as code."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)

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
