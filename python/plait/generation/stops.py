"""Strings that end a generation, wherever the borders of tokens fall."""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """Holds text back while it may become a stop string."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = tuple(dict.fromkeys(strings))
        if "" in self._strings:
            raise ValueError("stop: the empty string would end every generation")
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is settled now, and whether a stop string has come: then all of it before the string."""
        if not self._strings:
            return text, False
        text = self._held + text
        found = [at for at in (text.find(string) for string in self._strings) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        settled = len(text) - self._unsettled(text)
        self._held = text[settled:]
        return text[:settled], False

    def flush(self) -> str:
        """What was held back, as nothing follows."""
        text, self._held = self._held, ""
        return text

    def _unsettled(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = min(len(text), max(map(len, self._strings)) - 1)
        for n in range(longest, 0, -1):
            if any(string.startswith(text[-n:]) for string in self._strings):
                return n
        return 0
