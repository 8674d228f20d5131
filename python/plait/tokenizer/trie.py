"""PrefixIndex, which finds the tokens that start at a position, and RWKV's greedy longest-match tokenizer.

RWKV: https://github.com/BlinkDL/RWKV-LM/tree/main/RWKV-v5/tokenizer ("world" vocabulary).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from plait.errors import ModelError
from plait.tokenizer.vocabulary import TOKENS, TokenType, Vocabulary

Text = TypeVar("Text", str, bytes)


class PrefixIndex(Generic[Text]):
    """Index of tokens by their first two characters or bytes, so that a lookup tries few lengths."""

    def __init__(self, tokens: Iterable[tuple[Text, int]]) -> None:
        self._ids: dict[Text, int] = {}
        lengths: dict[Text, set[int]] = {}
        for text, token in tokens:
            if text:
                self._ids.setdefault(text, token)
                lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths: dict[Text, list[int]] = {
            start: sorted(found, reverse=True) for start, found in lengths.items()
        }

    def matches(self, text: Text, start: int) -> Iterator[tuple[int, int]]:
        """Yield (end, id) of every token that starts at `start`, longest first."""
        left = len(text) - start
        for length in self._lengths.get(text[start : start + 2], ()):
            if length <= left:
                token = self._ids.get(text[start : start + length])
                if token is not None:
                    yield start + length, token
        if left > 1:
            token = self._ids.get(text[start : start + 1])
            if token is not None:
                yield start + 1, token


_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescape(token: str) -> bytes:
    r"""Return the bytes of an RWKV token, with the escapes \t \n \r \xHH, and \ before any other character."""
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _ESCAPED.get(match[2], match[2]),
        token.encode("utf-8", "surrogateescape"),
    )


class Rwkv:
    """Greedy longest match over UTF-8 bytes, in time linear in the text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._index = PrefixIndex(
            (unescape(token), index)
            for index, token in enumerate(vocabulary.tokens)
            if vocabulary.types[index] is not TokenType.CONTROL
        )
        self._unknown = vocabulary.ids.get("unknown")

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        data, position, output = text.encode(), 0, []
        while position < len(data):
            end, token = next(self._index.matches(data, position), (position + 1, self._unknown))
            if token is None:
                raise ModelError(
                    f"{TOKENS}: no token for the byte 0x{data[position]:02X}, and no unknown token"
                )
            output.append(token)
            position = end
        return output
