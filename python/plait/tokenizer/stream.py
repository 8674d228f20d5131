"""Incremental decoding, and the removal of spaces that some vocabularies specify."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final

# "clean_up_tokenization_spaces" of Hugging Face, as implemented in llama.cpp: three passes in this order.
_BEFORE_PUNCTUATION: Final = re.compile(r" (?=[?!.,])")
_BEFORE_CONTRACTION: Final = re.compile(r" (?='(?:s|m|re|ve))")
# The end of a text whose clean-up depends on the following text. At most two spaces are removed at one place.
_UNSETTLED: Final = re.compile(r" {1,2}(?:'[ ']*[rv]?)?\Z")


def clean_up_spaces(text: str) -> str:
    """Remove spaces before ? ! . , and around a single apostrophe, and before 's 'm 're 've."""
    text = _BEFORE_PUNCTUATION.sub("", text)
    return _BEFORE_CONTRACTION.sub("", text.replace(" ' ", "'"))


class TokenStream:
    """Decodes token ids one at a time; the concatenated results equal Tokenizer.decode() of all ids.

    A character is returned once its last byte has arrived. Invalid UTF-8 becomes U+FFFD, one per
    maximal subpart as the Unicode standard recommends (section 3.9). Not safe to use from several
    threads at once. Created by Tokenizer.stream().
    """

    def __init__(
        self, piece: Callable[[int, bool], bytes], *, lstrip: bool, clean_up: bool
    ) -> None:
        """Create a stream.

        Args:
            piece: Called as piece(id, first); returns the bytes of a token.
            lstrip: Remove a leading space from the first token.
            clean_up: Remove spaces before punctuation.
        """
        self._piece = piece
        self._lstrip = self._first = lstrip
        self._clean_up = clean_up
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def push(self, token: int) -> str:
        """Return the text that a token completes; it is empty while a character is incomplete.

        Args:
            token: The token id.

        Raises:
            IndexError: The id is outside the vocabulary. The stream is unchanged.
            TypeError: The id is not an integer. The stream is unchanged.
        """
        data = self._piece(token, self._first)
        self._first = False
        return self._settle(self._decoder.decode(data))

    def flush(self) -> str:
        """Return the remaining text; an incomplete character becomes U+FFFD. The stream can then start a new text."""
        text = self._pending + self._decoder.decode(b"", final=True)
        self._pending, self._first = "", self._lstrip
        self._decoder.reset()
        return clean_up_spaces(text) if self._clean_up else text

    def _settle(self, text: str) -> str:
        if not self._clean_up:
            return text
        text = self._pending + text
        unsettled = _UNSETTLED.search(text)
        end = unsettled.start() if unsettled else len(text)
        self._pending = text[end:]
        return clean_up_spaces(text[:end])
