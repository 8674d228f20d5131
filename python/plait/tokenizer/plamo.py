"""PLaMo 2's tokenizer ("plamo2"): the segmentation with the highest sum of scores, found from the end of the text.

https://huggingface.co/pfnet/plamo-2-1b/blob/main/tokenization_plamo.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from plait.errors import ModelError
from plait.tokenizer.trie import PrefixIndex
from plait.tokenizer.vocabulary import TOKENS, TokenType, Vocabulary

# Scores are integers, in units of 1e-4.
_UNKNOWN_SCORE: Final = -10_000_000  # of a character that is spelled as bytes
_MIN_SCORE: Final = -20_000_000  # tokens with this score or a lower one are not used


class Plamo:
    """Viterbi segmentation. Of equal sums, the one with the longest first token counts."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes: dict[int, int] = {}
        ids: dict[str, int] = {}  # the last of equal tokens counts
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
            if kind is TokenType.BYTE:
                self._bytes[vocabulary.byte_of(token)] = token
            elif kind is not TokenType.CONTROL:
                ids[text] = token
        for byte in range(256):
            if byte not in self._bytes:
                raise ModelError(f"{TOKENS}: missing the byte token <0x{byte:02X}>")
        self._scores = {
            token: score
            for token in ids.values()
            if (score := _to_integer(vocabulary.scores[token])) > _MIN_SCORE
        }
        self._index = PrefixIndex(
            (text, token) for text, token in ids.items() if token in self._scores
        )

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`, without a byte order mark at its start."""
        text = text.removeprefix("\ufeff")
        n = len(text)
        best = [0] * (n + 1)  # score of the text from each position on
        # End and id of the token at each position; None: the bytes of a character.
        first: list[tuple[int, int | None]] = [(n, None)] * n
        for start in range(n - 1, -1, -1):
            options: list[tuple[int, int, int | None]] = [
                (best[end] + self._scores[token], end, token)
                for end, token in self._index.matches(text, start)  # longest first
            ]
            options.append((best[start + 1] + _UNKNOWN_SCORE, start + 1, None))
            best[start], end, token = max(options, key=itemgetter(0))
            first[start] = end, token
        return list(self._trace(text, first))

    def _trace(self, text: str, first: list[tuple[int, int | None]]) -> Iterator[int]:
        """Yield the tokens of the best segmentation in order."""
        start = 0
        while start < len(text):
            end, token = first[start]
            if token is not None:
                yield token
            else:
                yield from (self._bytes[byte] for byte in text[start:end].encode())
            start = end


def _to_integer(score: float) -> int:
    """Return the score in units of 1e-4, rounded to the nearest integer, halves away from zero."""
    if not math.isfinite(score):
        return _MIN_SCORE
    scaled = score * 1e4
    return int(scaled + math.copysign(0.5, scaled))
