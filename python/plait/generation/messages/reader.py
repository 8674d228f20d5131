"""Incremental reading: formats are written as generators that wait for more text wherever they need it.

A reader decides only on text that later input cannot change, so that the result is the same however
the input is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final

from plait.generation.messages.message import Part, ToolCall

Wait = Generator[None, None, None]
_SPACE: Final = " \t\r\n"


class Reader:
    """The text of a reply that has arrived and has not been read. Each waiting method is a generator.

    Attributes:
        ended: Whether no more text will arrive.
    """

    def __init__(self) -> None:
        self.ended = False
        self._buffer = ""
        self._at = 0
        self._read: list[str] | None = None  # text since start(), if that is recorded

    def push(self, text: str) -> None:
        """Append text that has arrived."""
        self._buffer = self._buffer[self._at :] + text
        self._at = 0

    def record(self) -> None:
        """Start to record the text that is read."""
        self._read = []

    def recorded(self) -> str:
        """Return the text that was read since record(), and stop recording."""
        text, self._read = "".join(self._read or []), None
        return text

    def until(
        self, marks: tuple[str, ...], emit: Callable[[str], None]
    ) -> Generator[None, None, str | None]:
        """Read up to and including the first of `marks`, and return it; None if the text ends before.

        Text before the mark is passed to `emit` as soon as it cannot be the start of a mark.

        Returns:
            The mark that was read, or None.
        """
        found = _pattern(marks)
        longest = max(map(len, marks))
        while True:
            match = found.search(self._buffer, self._at)
            if match is not None:
                rest = self._buffer[match.start() :]
                emit(self._take(match.start()))
                longer = any(len(mark) > len(rest) and mark.startswith(rest) for mark in marks)
                if self.ended or not longer:
                    return self._take(match.end())
            else:
                held = 0 if self.ended else self._held(marks, longest)
                emit(self._take(len(self._buffer) - held))
                if self.ended:
                    return None
            yield

    def accept(self, *texts: str) -> Generator[None, None, str | None]:
        """Read the first of `texts` that comes next and return it; None, with nothing read, if none does."""
        for text in texts:
            while not self.ended and self._is_start_of(text):
                yield
            if self._buffer.startswith(text, self._at):
                return self._take(self._at + len(text))
        return None

    def peek(self) -> Generator[None, None, str]:
        """Return the next character without reading it; empty at the end."""
        while self._at == len(self._buffer) and not self.ended:
            yield
        return self._ahead(1)

    def spaces(self) -> Generator[None, None, str]:
        """Read white space and return it."""
        found: list[str] = []
        while True:
            character = yield from self.peek()
            if not character or character not in _SPACE:
                return "".join(found)
            found.append(self._take(self._at + 1))

    def rest(self) -> Generator[None, None, str]:
        """Read all text to the end and return it."""
        found: list[str] = []
        while True:
            found.append(self._take(len(self._buffer)))
            if self.ended:
                return "".join(found)
            yield

    def json(self, start: str = "") -> Generator[None, None, str]:
        """Read a JSON object or array, up to the bracket that closes it or the end, and return its text.

        Args:
            start: The opening bracket, if it has been read.

        Returns:
            The text of the object or array, as far as it was read.
        """
        found = [start]
        depth, quoted, escaped = len(start), False, False
        while True:
            for at in range(self._at, len(self._buffer)):
                character = self._buffer[at]
                if escaped:
                    escaped = False
                elif quoted:
                    escaped, quoted = character == "\\", character != '"'
                elif character == '"':
                    quoted = True
                elif character in "{[":
                    depth += 1
                elif character in "}]":
                    depth -= 1
                if depth <= 0 and not quoted:
                    found.append(self._take(at + 1))
                    return "".join(found)
            found.append(self._take(len(self._buffer)))
            if self.ended:
                return "".join(found)
            yield

    def _is_start_of(self, text: str) -> bool:
        ahead = self._ahead(len(text))
        return len(ahead) < len(text) and text.startswith(ahead)

    def _ahead(self, n: int) -> str:
        return self._buffer[self._at : self._at + n]

    def _take(self, end: int) -> str:
        text, self._at = self._buffer[self._at : end], end
        if self._read is not None and text:
            self._read.append(text)
        return text

    def _held(self, marks: tuple[str, ...], longest: int) -> int:
        """Return the length of the longest end of the buffer that a mark starts with."""
        tail = self._buffer[max(self._at, len(self._buffer) - longest + 1) :]
        for start in range(len(tail)):
            if any(mark.startswith(tail[start:]) for mark in marks):
                return len(tail) - start
        return 0


class Reply:
    """Collects the parts of a message. White space next to reasoning and tool calls is removed."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.calls: list[ToolCall] = []
        self._content = _Text("content", self.parts)
        self._reasoning = _Text("reasoning", self.parts, strip=True)

    def content(self, text: str) -> None:
        """Add text for the user."""
        self._content.add(text)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._reasoning.add(text)

    def separate(self) -> None:
        """Mark the border of a block, at which white space of the content is removed."""
        self._content.cut()
        self._reasoning.cut()

    def call(self, call: ToolCall) -> None:
        """Add a tool call."""
        self.separate()
        self.calls.append(call)
        self.parts.append(Part("tool_call", call=call))

    def finish(self) -> None:
        """Add the white space that was withheld at the end of the content."""
        self._content.finish()


class _Text:
    """Text of one kind, whose white space at the borders of blocks is withheld.

    Args:
        kind: The kind of its parts.
        parts: The list to which parts are added.
        strip: Whether the whole text is stripped.
    """

    def __init__(self, kind: str, parts: list[Part], strip: bool = False) -> None:
        self._kind = kind
        self._parts = parts
        self._strip = strip
        self._held = ""  # white space that is added if more text follows
        self._is_cut = strip  # whether the next text starts after a border
        self._empty = True

    def add(self, text: str) -> None:
        if self._is_cut:
            text = text.lstrip(_SPACE)
            if not text:
                return
            if not self._empty:
                self._held = self._held or "\n"
            else:
                self._held = ""
            self._is_cut = False
        solid = text.rstrip(_SPACE)
        if solid:
            self._parts.append(Part(self._kind, self._held + solid))
            self._held, self._empty = "", False
        self._held += text[len(solid) :]

    def cut(self) -> None:
        self._is_cut = True

    def finish(self) -> None:
        if self._held and not self._is_cut and not self._strip:
            self._parts.append(Part(self._kind, self._held))
        self._held = ""


def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    ordered = sorted(marks, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)))  # re keeps compiled patterns
