"""Decoding token by token, and the clean-up of spaces that some vocabularies ask for."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final

# The "clean_up_tokenization_spaces" of Hugging Face, as llama.cpp does it: three passes, in this order.
_BEFORE_PUNCTUATION: Final = re.compile(r" (?=[?!.,])")
_BEFORE_CONTRACTION: Final = re.compile(r" (?='(?:s|m|re|ve))")
# The end of a text whose clean-up depends on what follows. More than two spaces are never dropped at one place.
_UNSETTLED: Final = re.compile(r" {1,2}(?:'[ ']*[rv]?)?\Z")


def clean_up_spaces(text: str) -> str:
    """Drop the spaces before ? ! . , and around a single apostrophe, and before 's 'm 're 've."""
    text = _BEFORE_PUNCTUATION.sub("", text)
    return _BEFORE_CONTRACTION.sub("", text.replace(" ' ", "'"))


class TokenStream:
    """Turns ids into text as they come; the pieces joined are what Tokenizer.decode() returns for all of them.

    A character is returned when its last byte has come. Bytes that cannot become a character are U+FFFD, one for each
    maximal part as the Unicode standard recommends (section 3.9). Not safe for use by several threads at once.
    """

    def __init__(
        self, piece: Callable[[int, bool], bytes], *, lstrip: bool, clean_up: bool
    ) -> None:
        """`piece(id, first)` gives the bytes of a token; made by Tokenizer.stream()."""
        self._piece = piece
        self._first = lstrip
        self._clean_up = clean_up
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def push(self, token: int) -> str:
        """The text that `token` completes, often empty inside a character of several tokens.

        Raises IndexError for an id outside the vocabulary, TypeError for what is no integer; the stream is unharmed.
        """
        data = self._piece(token, self._first)
        self._first = False
        return self._settle(self._decoder.decode(data))

    def flush(self) -> str:
        """What is left at the end; an unfinished character becomes U+FFFD. The stream can then start a new text."""
        text = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
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
