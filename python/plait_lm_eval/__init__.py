"""What makes `lm_eval --model plait` work: docs/decisions/0018.

plait-lm-eval.pth imports this at the start of a process whose command line names lm_eval, and of no other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def _introduce() -> None:
    from lm_eval.api import registry

    known: Any = getattr(registry, "model_registry", None)
    if hasattr(known, "register"):  # by name; plait is imported when somebody asks for it
        if "plait" not in known:
            known.register("plait", target="plait.lm_eval:PlaitLM")
    else:  # before 0.4.10
        import plait.lm_eval  # noqa: F401


class _Models(MetaPathFinder):
    """Waits for the import of lm_eval.models, which makes the harness's own models known."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "lm_eval.models":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_introduce(module: ModuleType) -> None:
                run(module)
                _introduce()

            spec.loader.exec_module = run_and_introduce  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Models())
