"""SentencePiece's unigram model ("t5"): the segmentation with the highest sum of log probabilities.

Kudo 2018, arXiv:1804.10959; Viterbi as in https://github.com/google/sentencepiece/blob/master/src/unigram_model.cc.
"""

from __future__ import annotations

from typing import Final

from plait.errors import ModelError
from plait.tokenizer.charsmap import CharsMap
from plait.tokenizer.trie import PrefixIndex
from plait.tokenizer.vocabulary import PREFIX, SPACE, TokenType, Vocabulary

_UNKNOWN_PENALTY: Final = 10.0  # kUnkPenalty of SentencePiece, in nats below the least likely token
_MATCHED: Final = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class Unigram:
    """Viterbi segmentation, linear in the text for a bounded token length. Sums are float64, as in SentencePiece."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if "unknown" not in vocabulary.ids:
            raise ModelError(f"{PREFIX}unknown_token_id: missing, a unigram vocabulary needs it")
        self._unknown = vocabulary.ids["unknown"]
        types = vocabulary.types
        self._scores = [
            0.0 if kind is TokenType.USER_DEFINED else score
            for score, kind in zip(vocabulary.scores, types, strict=True)
        ]
        normal = [
            score
            for score, kind in zip(vocabulary.scores, types, strict=True)
            if kind is TokenType.NORMAL
        ]
        self._unknown_score = min(normal, default=0.0) - _UNKNOWN_PENALTY
        self._index = PrefixIndex(
            (token, index)
            for index, token in enumerate(vocabulary.tokens)
            if types[index] in _MATCHED
        )
        self._charsmap = CharsMap(vocabulary.charsmap)
        self._add_prefix = vocabulary.add_space_prefix
        self._merge_spaces = vocabulary.remove_extra_whitespaces

    def __call__(self, text: str) -> list[int]:
        """Normalise `text` and return its token ids."""
        text = self._normalise(text)
        n = len(text)
        best = [0.0] + [float("-inf")] * n  # score of the text before each position
        # Start and id of the last token before each position.
        back: list[tuple[int, int]] = [(0, self._unknown)] * (n + 1)
        for start in range(n):
            single = False
            for end, token in self._index.matches(text, start):
                single = single or end == start + 1
                score = best[start] + self._scores[token]
                if score > best[end]:
                    best[end], back[end] = score, (start, token)
            if not single and best[start] + self._unknown_score > best[start + 1]:
                best[start + 1], back[start + 1] = (
                    best[start] + self._unknown_score,
                    (start, self._unknown),
                )
        return self._trace(back, n)

    def _trace(self, back: list[tuple[int, int]], n: int) -> list[int]:
        """Return the tokens in order; adjacent unknown tokens become one."""
        output: list[int] = []
        place, last = n, -1
        while place > 0:
            start, token = back[place]
            if token != self._unknown or last != self._unknown:
                output.append(token)
            place, last = start, token
        output.reverse()
        return output

    def _normalise(self, text: str) -> str:
        """Apply the compiled replacements, then SentencePiece's handling of spaces."""
        text = self._charsmap(text)
        if self._merge_spaces:
            words = [word for word in text.split(" ") if word]
            return "".join(SPACE + word for word in words)
        stripped = text.lstrip(" ")
        prefix = SPACE if self._add_prefix and stripped else ""
        return (
            text[: len(text) - len(stripped)].replace(" ", SPACE)
            + prefix
            + stripped.replace(" ", SPACE)
        )
