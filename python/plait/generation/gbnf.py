"""Converts grammars in llama.cpp's notation (GBNF) to llguidance's dialect of Lark.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from typing import Final

_SPACE: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_BAR: Final = re.compile(_SPACE_AND_LINES.pattern + r"\|")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_REPETITION: Final = re.compile(r"[*+?]|\{\s*(\d+)\s*(,\s*(\d*)\s*)?\}")
_TOKEN: Final = re.compile(r"<\[\d+\]>|<[^<>\[\]\s]+>")
_CODE: Final = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")
_EMPTY: Final = '""'
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n"} | {c: c for c in '\\"[]-^/'}


def to_lark(text: str) -> str:
    """Return the rules in Lark.

    GBNF is defined character by character. So that llguidance, which reads the longest text that a terminal matches,
    reads it in the same way, every terminal of the result matches one character.

    Args:
        text: The rules in GBNF. The start symbol is `root`.

    Returns:
        The rules, with the start symbol `start`.

    Raises:
        ValueError: The text is not GBNF, a rule is missing, there is no rule `root`, or brackets are nested too deeply.
    """
    try:
        return _Converter(text).rules()
    except RecursionError:
        raise ValueError("grammar: GBNF: brackets are nested too deeply") from None


class _Converter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._names: dict[str, str] = {}  # by the name in GBNF; Lark distinguishes fewer names
        self._bodies: dict[str, str] = {}

    def rules(self) -> str:
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            if not self._take("::="):
                raise self._error("::=")
            self._skip(_SPACE_AND_LINES)
            self._bodies[self._rule(name)] = self._alternatives(nested=False)
            if self._at < len(self._text) and not self._text.startswith(("\n", "\r"), self._at):
                raise self._error("the end of the rule")
            self._skip(_SPACE_AND_LINES)
        if "root" not in self._names or self._names["root"] not in self._bodies:
            raise ValueError("grammar: GBNF has no rule `root`, with which every text begins")
        for name, rule in self._names.items():
            if rule not in self._bodies:
                raise ValueError(f"grammar: the rule {name!r} is used but not defined")
        lines = [f"{rule}: {body}" for rule, body in self._bodies.items()]
        return "\n".join([f"start: {self._names['root']}", *lines, ""])

    def _rule(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

    def _group(self, body: str) -> str:
        """Return a new rule, in place of brackets, whose depth is limited."""
        name = f"g{len(self._bodies)}"
        self._bodies[name] = body
        return name

    def _alternatives(self, nested: bool) -> str:
        found = [self._sequence(nested)]
        while bar := _BAR.match(self._text, self._at):
            self._at = bar.end()
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence(nested))
        return " | ".join(found)

    def _sequence(self, nested: bool) -> str:
        found, space = [], _SPACE_AND_LINES if nested else _SPACE
        while (item := self._item()) is not None:
            self._skip(space)
            while repetition := _REPETITION.match(self._text, self._at):
                self._at = repetition.end()
                item = self._group(self._repeated(item, repetition))
                self._skip(space)
            found.append(item)
        return " ".join(found) or _EMPTY

    def _item(self) -> str | None:
        """Return the next item of a sequence, which may be repeated, or None at the end of the sequence."""
        if self._take('"'):
            literal = []
            while not self._take('"'):
                literal.append(f"/{_escaped(self._character())}/")
            return " ".join(literal) or _EMPTY
        if self._take("["):
            return self._class()
        if self._take("."):
            return r"/[\s\S]/"
        if self._take("("):
            self._skip(_SPACE_AND_LINES)
            inner = self._alternatives(nested=True)
            if not self._take(")"):
                raise self._error(")")
            return self._group(inner)
        if self._text.startswith("<", self._at):
            return self._match(_TOKEN, "a token, such as <[123]> or <think>")[0]
        name = _NAME.match(self._text, self._at)
        if name is None:
            return None
        self._at = name.end()
        return self._rule(name[0])

    def _class(self) -> str:
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error(f"a character from U+{first:04X} on")
            ranges.append(_escaped(first) + (f"-{_escaped(last)}" if last > first else ""))
        if not ranges:
            if negated:
                return r"/[\s\S]/"
            raise self._error("a character between [ and ]")
        return f"/[{'^' if negated else ''}{''.join(ranges)}]/"

    def _repeated(self, item: str, found: re.Match[str]) -> str:
        low, has_comma, high = found.groups()
        if " " in item:
            item = self._group(item)
        if low is None:
            return item + found[0]
        if not has_comma:
            high = low
        if high and int(high) < int(low):
            raise self._error(f"at least {low} in {found[0]}")
        if high and int(high) == 0:
            return _EMPTY  # Lark refuses 0 as an upper bound
        return f"{item}{{{low},{high}}}"

    def _character(self) -> int:
        """Read a character of a literal or of a class, and return its code point."""
        if self._at >= len(self._text):
            raise self._error("the end of the literal or of the class")
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        if code := _CODE.match(self._text, self._at):
            self._at = code.end()
            number = int(code[1] or code[2] or code[3], 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise self._error(f"a Unicode character; U+{number:04X} is none")
            return number
        escaped = self._text[self._at : self._at + 1]
        if escaped not in _ESCAPES:
            raise self._error(r"an escape: \n, \r, \t, \\, \", \[, \], \x41, \u0041 or \U00000041")
        self._at += 1
        return ord(_ESCAPES[escaped])

    def _take(self, text: str) -> bool:
        """Skip a text if it comes next; return whether it did."""
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(what)
        self._at = found.end()
        return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._at = self._match(pattern, "").end()

    def _error(self, expected: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 20].splitlines()
        return ValueError(
            f"grammar: GBNF, line {line}: expected {expected}, got {rest[0]!r}"
            if rest
            else f"grammar: GBNF, line {line}: expected {expected}, got the end of the line"
        )


def _escaped(character: int) -> str:
    """Return a character in a regular expression."""
    return rf"\x{{{character:x}}}"
