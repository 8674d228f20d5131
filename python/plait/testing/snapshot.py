"""What models said when a test was written, kept in files beside the test."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.context import model_of
from plait.testing.greedy import continuations

if TYPE_CHECKING:
    from plait.context import Context
    from plait.model import Model


class Snapshot:
    """Compares values with a file of JSON, or writes it: one file for a test, an entry for each name.

    `path`: the file. `update`: whether entries are written instead of compared. Entries that a test does not ask for
    stay as they are.
    """

    def __init__(self, path: Path, update: bool = False) -> None:
        self.path = path
        self.update = update

    def check(self, name: str, value: Any) -> None:
        """Raise AssertionError unless `value`, which JSON can hold, is what the file has under `name`."""
        __tracebackhide__ = True
        held = self._read()
        value = json.loads(json.dumps(value))
        if self.update:
            self._write(held | {name: value})
            return
        if name not in held:
            raise AssertionError(
                f"no snapshot {name!r} in {self.path}; pytest --plait-update writes it"
            )
        if value != held[name]:
            raise AssertionError(
                f"snapshot {name!r} of {self.path} differs (pytest --plait-update takes the new one)\n"
                + "\n".join(_difference(held[name], value))
            )

    def generate(
        self,
        model: Model | Context,
        prompts: str | Iterable[str],
        max_tokens: int = 32,
        *,
        name: str = "generate",
        add_special: bool = True,
    ) -> dict[str, str]:
        """check() the greedy continuation of each prompt; returns them by prompt."""
        __tracebackhide__ = True
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        decode = model_of(model, "Snapshot.generate").tokenizer.decode
        said = continuations(model, asked, max_tokens, add_special)
        texts = {prompt: decode(tokens) for prompt, tokens in zip(asked, said, strict=True)}
        self.check(name, texts)
        return texts

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():
            return {}
        held: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return held

    def _write(self, held: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(held, indent=2, ensure_ascii=False, sort_keys=True)
        self.path.write_text(text + "\n", encoding="utf-8")


def _difference(held: Any, value: Any) -> list[str]:
    """Lines of both as JSON, those of the file with a minus, the new ones with a plus."""
    old, new = (
        json.dumps(side, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
        for side in (held, value)
    )
    return list(difflib.unified_diff(old, new, "snapshot", "now", lineterm="", n=1))
