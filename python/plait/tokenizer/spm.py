"""SentencePiece with scores ("llama"): repeatedly merges the adjacent pair whose union has the highest score.

Kudo and Richardson 2018, arXiv:1808.06226; the greedy merge is SentencePiece's BPE model.
Characters that are not tokens are encoded as bytes.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush
from typing import Final

from plait.errors import ModelError
from plait.tokenizer.vocabulary import SPACE, TOKENS, Vocabulary

_WORD: Final = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_INNER_SPACE: Final = re.compile(f"[^{SPACE}]{SPACE}")

_CACHE_WORDS: Final = 1 << 16
_CACHE_LENGTH: Final = 48  # characters; longer words rarely repeat


class Spm:
    """Merges by score, in O(n log n) time for a word of n characters."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.without_control()
        self._scores = vocabulary.scores
        self._longest = max(map(len, vocabulary.tokens))
        self._bytes = vocabulary.byte_tokens()
        # Merges do not cross the start of a word unless a token contains one.
        self._by_word = not any(_INNER_SPACE.search(token) for token in vocabulary.tokens)
        self._cache: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`, whose spaces have been replaced by U+2581."""
        if not self._by_word:
            return self._merge(text)
        output: list[int] = []
        for word in _WORD.findall(text):
            output += self._cached(word)
        return output

    def _cached(self, word: str) -> list[int]:
        found = self._cache.get(word)
        if found is None:
            found = self._merge(word)
            if len(word) <= _CACHE_LENGTH:
                if len(self._cache) >= _CACHE_WORDS:
                    self._cache.clear()
                self._cache[word] = found
        return found

    def _merge(self, text: str) -> list[int]:
        """Merge adjacent symbols until no pair is a token.

        Symbol i starts at character i and has `length[i]` characters, 0 once it is part of another.

        Returns:
            The ids of the tokens.
        """
        n = len(text)
        length, before, after = [1] * n, list(range(-1, n - 1)), list(range(1, n + 1))
        ids, scores, longest = self._ids, self._scores, self._longest
        queue: list[tuple[float, int, int, int]] = []  # -score, left, right, length of both
        for left in range(n - 1):
            token = ids.get(text[left : left + 2])
            if token is not None:
                queue.append((-scores[token], left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, size = heappop(queue)
            if not length[left] or not length[right] or length[left] + length[right] != size:
                continue  # outdated: one of the symbols has changed
            length[left], length[right] = size, 0
            after[left] = after[right]
            if after[left] < n:
                before[after[left]] = left
            for first, second in ((before[left], left), (left, after[left])):
                if first < 0 or second >= n:
                    continue
                size = length[first] + length[second]
                token = ids.get(text[first : first + size]) if size <= longest else None
                if token is not None:
                    heappush(queue, (-scores[token], first, second, size))
        output: list[int] = []
        start = 0
        while start < n:
            self._emit(text[start : start + length[start]], output)
            start = after[start]
        return output

    def _emit(self, symbol: str, output: list[int]) -> None:
        token = self._ids.get(symbol)
        if token is not None:
            output.append(token)
            return
        for byte in symbol.encode():
            if self._bytes[byte] < 0:
                raise ModelError(f'{TOKENS}: no byte token "<0x{byte:02X}>", and no unknown token')
            output.append(self._bytes[byte])
