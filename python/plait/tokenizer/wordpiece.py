"""BERT's WordPiece: normalises text, splits it at white space and punctuation, and matches the longest tokens.

Devlin et al. 2018, arXiv:1810.04805;
https://github.com/google-research/bert/blob/master/tokenization.py. GGUF marks the start of a word
with U+2581 and omits BERT's "##". If accents are removed, only the first code point of a decomposed
character is kept, as in llama.cpp, which converted the vocabularies; for Hangul this differs from BERT.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from plait.errors import ModelError
from plait.tokenizer.trie import PrefixIndex
from plait.tokenizer.vocabulary import PREFIX, SPACE, Vocabulary

# Unicode's White_Space property. str.isspace() additionally includes the separators U+001C to U+001F.
_WHITESPACE: Final = frozenset(
    "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000"
) | frozenset(map(chr, range(0x2000, 0x200B)))
# Blocks whose characters BERT treats as words. Hugging Face's implementation has 0x2B920 instead of 0x2B820.
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPiece:
    """Greedy longest match within words, linear in the text for a bounded token length."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if "unknown" not in vocabulary.ids:
            raise ModelError(f"{PREFIX}unknown_token_id: missing, WordPiece needs it")
        self._unknown = vocabulary.ids["unknown"]
        self._index = PrefixIndex((token, index) for token, index in vocabulary.to_id.items())
        self._lowercase, self._strip = vocabulary.lowercase, vocabulary.strip_accents

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`; a word that tokens cannot cover becomes one unknown token."""
        output: list[int] = []
        for word in self._words(text):
            output += self._pieces(SPACE + word)
        return output

    def _words(self, text: str) -> list[str]:
        """Normalise each character and split the result into words.

        A character becomes text, text between spaces (punctuation and ideographs, which are separate
        words), or nothing.

        Returns:
            The words.
        """
        return "".join(
            _normalise(character, self._lowercase, self._strip) for character in text
        ).split(" ")

    def _pieces(self, word: str) -> list[int]:
        """Match the longest token repeatedly; a word that tokens cannot cover becomes one unknown token."""
        if word == SPACE:
            return []
        output, position = [], 0
        while position < len(word):
            found = next(self._index.matches(word, position), None)
            if found is None:
                return [self._unknown]
            position, token = found
            output.append(token)
        return output


@lru_cache(maxsize=1 << 16)
def _normalise(character: str, lowercase: bool, strip_accents: bool) -> str:
    if strip_accents:
        character = unicodedata.normalize("NFD", character)[0]
    if character in _WHITESPACE:
        return " "
    category, code = unicodedata.category(character), ord(character)
    if code in (0, 0xFFFD) or category in ("Cc", "Cf", "Cs", "Co"):
        return ""
    if strip_accents and category[0] == "M":
        return ""
    alone = category[0] == "P" or (code < 0x7F and category[0] == "S")
    alone = alone or any(first <= code <= last for first, last in _IDEOGRAPHS)
    lower = character.lower() if lowercase else character
    character = lower if len(lower) == 1 else character
    return f" {character} " if alone else character
