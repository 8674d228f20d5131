"""Snapshots of model outputs, stored in files next to the tests."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.arguments import expect, flag, kind, string
from plait.context import model_of
from plait.testing.greedy import continuations, text_of
from plait.whole_file import replace_file

if TYPE_CHECKING:
    from plait.context import Context
    from plait.model import Model


class Snapshot:
    """Compares values with the entries of a JSON file, or writes them.

    The fixture plait_snapshot gives each test of a class and each set of parameters a file of its own. Entries that are
    not checked are kept.

    Args:
        path: The file.
        update: True to write entries instead of comparing.
    """

    def __init__(self, path: str | os.PathLike[str], update: bool = False) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"Snapshot: path: expected a path, got {kind(path)}")
        self.path = Path(path)
        self.update = flag(update, "Snapshot: update")

    def check(self, name: str, value: Any) -> None:
        """Assert that a value equals the stored entry. Numbers are compared by value; True is not 1.

        Args:
            name: Name of the entry.
            value: A value that JSON can represent.

        Raises:
            AssertionError: The value differs, or there is no such entry.
            TypeError: JSON cannot represent the value.
            ValueError: The value has NaN or infinity, which JSON cannot represent, or a text to write has a lone
                surrogate, which UTF-8 cannot represent; or the file is damaged.
        """
        __tracebackhide__ = True
        string(name, "Snapshot.check: name")
        held = self._read()
        try:
            value = json.loads(json.dumps(value, allow_nan=False))
        except ValueError as error:
            raise ValueError(
                f"Snapshot.check: {name}: expected a value that JSON can represent, without NaN and infinity: {error}"
            ) from None
        if self.update:
            self._write(held | {name: value})
            return
        if name not in held:
            raise AssertionError(
                f"no snapshot {name!r} in {self.path}; run pytest --plait-update to write it"
            )
        if not _is_same(value, held[name]):
            raise AssertionError(
                f"snapshot {name!r} of {self.path} differs; run pytest --plait-update to replace it\n"
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
        """Check the greedy continuation of each prompt and return the texts by prompt.

        A text includes the space with which the continuation starts.

        Args:
            model: A Model or a Context.
            prompts: One prompt or several.
            max_tokens: Max tokens per continuation.
            name: Name of the entry.
            add_special: As in Tokenizer.encode().

        Returns:
            The continuations by prompt.

        Raises:
            TypeError: `prompts` has elements that are not str.
            AssertionError: A continuation differs, or there is no such entry.
        """
        __tracebackhide__ = True
        string(name, "Snapshot.generate: name")
        if not isinstance(prompts, Iterable):
            raise TypeError(f"Snapshot.generate: prompts: expected texts, got {kind(prompts)}")
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        for prompt in asked:
            string(prompt, "Snapshot.generate: prompts")
        source = model_of(model, "Snapshot.generate")
        generated = continuations(model, asked, max_tokens, add_special)
        texts = {
            prompt: text_of(source, *tokens)
            for prompt, tokens in zip(asked, generated, strict=True)
        }
        self.check(name, texts)
        return texts

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():
            return {}
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            expect(held, dict, "the content", "a JSON object")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path} is not a snapshot file: {error}; restore it, or delete it and run pytest --plait-update"
            ) from None
        values: dict[str, Any] = held
        return values

    def _write(self, held: dict[str, Any]) -> None:
        data = json.dumps(held, indent=2, ensure_ascii=False, sort_keys=True).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, data)


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal. Python's operator takes booleans for numbers."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_same(value, b[name]) for name, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _difference(held: Any, value: Any) -> list[str]:
    """Return a diff of both values as JSON."""
    old, new = (
        json.dumps(side, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
        for side in (held, value)
    )
    return list(difflib.unified_diff(old, new, "snapshot", "now", lineterm="", n=1))
