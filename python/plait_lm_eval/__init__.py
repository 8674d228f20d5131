"""Registers plait as a model of lm_eval, so that `lm_eval --model plait` works: see docs/decisions/0018.

plait-lm-eval.pth imports this module at the start of a process, if its command line names lm_eval.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def _register() -> None:
    from lm_eval.api import registry

    known: Any = getattr(registry, "model_registry", None)
    if hasattr(known, "register"):  # registered by name; plait is imported on first use
        if "plait" not in known:
            known.register("plait", target="plait.lm_eval:PlaitLM")
    else:  # releases before 0.4.10
        import plait.lm_eval  # noqa: F401


class _ImportHook(MetaPathFinder):
    """Registers plait after the import of lm_eval.models, which registers the harness's own models."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "lm_eval.models":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _ImportHook())
