"""Byte-pair encoding ("gpt2", "gemma4"): splits text by the expressions of patterns.py, then merges by rank.

Sennrich et al. 2016, arXiv:1508.07909; over bytes since Radford et al. 2019. The `tokenizers`
library does the splitting and merging; it is imported when a BPE vocabulary first encodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from plait.errors import ModelError
from plait.tokenizer.patterns import Digits
from plait.tokenizer.vocabulary import PREFIX, Vocabulary

if TYPE_CHECKING:
    import tokenizers

Result = TypeVar("Result")

_NEWLINES: Final = re.compile("(\n+)")
_DIGITS: Final = re.compile("[0-9]+")
_SPACES: Final = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte; printable Latin-1 characters represent themselves.

    https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode().
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


class Bpe:
    """Merges by rank, in O(n log n) time for a word of n bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pre = vocabulary.pre
        self._ids = vocabulary.to_id
        self._lowercase = vocabulary.lowercase and self._pre.words_only
        self._gap = len(vocabulary.tokens)
        self._library = _guarded(lambda: _build(vocabulary, self._gap))

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of `text`; characters without a token are omitted."""
        if not self._pre.newline_runs:
            return self._encode(text)
        output: list[int] = []
        rest = ""
        for piece in _NEWLINES.split(text):
            token = self._ids.get(piece) if piece.startswith("\n") else None
            if token is None:
                rest += piece
            else:
                output += self._encode(rest)
                output.append(token)
                rest = ""
        return output + self._encode(rest)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        if self._pre.words_only:
            pieces = [piece for piece in _SPACES.split(text) if piece]
        else:
            pieces = grouped(text, self._pre.digits)
        if self._lowercase:
            pieces = ["".join(map(_lower, piece)) for piece in pieces]
        encoding = _guarded(
            lambda: self._library.encode(pieces, is_pretokenized=True, add_special_tokens=False)
        )
        return [token for token in encoding.ids if token != self._gap]


def _build(vocabulary: Vocabulary, gap: int) -> tokenizers.Tokenizer:
    """Build the library's tokenizer. `gap` is the id of a token for unknown text, which prevents merges across it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    pre, to_id = vocabulary.pre, vocabulary.without_control()
    # A merge whose parts or result are not tokens can never be part of a result.
    merges = dict.fromkeys(
        (left, right)
        for left, right in vocabulary.merges
        if left in to_id and right in to_id and left + right in to_id
    )
    gap_name = " gap"  # words over the byte alphabet contain no space
    while gap_name in to_id:
        gap_name += " "
    library = Tokenizer(
        models.BPE(
            {**to_id, gap_name: gap},
            list(merges),
            unk_token=gap_name,
            byte_fallback=not pre.byte_level,
            ignore_merges=pre.ignore_merges,
        )
    )
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns
    ]
    if pre.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return library


def _lower(character: str) -> str:
    """Return the first character of the lower case of a character, as llama.cpp's table does."""
    return character.lower()[0]


def grouped(text: str, digits: Digits) -> list[str]:
    """Split numbers into groups of three characters from the end: "a 1234567 b" becomes "a 1", "234", "567", " b"."""
    cuts = [0]
    if digits is Digits.ASCII:
        for number in _DIGITS.finditer(text):
            start, end = number.span()
            cuts += range(start + (end - start) % 3, end, 3)
    elif digits is Digits.ATTACHED:
        for start, end in _numbers(text):
            first = (end - start) % 3 or 3
            cuts += range(start + first, end + 1, 3)
    return [text[start:end] for start, end in pairwise((*cuts, len(text))) if start < end]


def _numbers(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each run of characters of the Unicode category N."""
    from tokenizers import Regex, pre_tokenizers

    gaps = pre_tokenizers.Split(Regex(r"\p{N}+"), behavior="removed").pre_tokenize_str(text)
    end_before = 0
    for _, (start, end) in (*gaps, ("", (len(text), len(text)))):
        if end_before < start:
            yield end_before, start
        end_before = end


def _guarded(call: Callable[[], Result]) -> Result:
    """Call the library and convert its errors to ModelError, including Rust panics, which are BaseExceptions."""
    try:
        return call()
    except (KeyboardInterrupt, MemoryError, ImportError):
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ModelError(
                f"{PREFIX}merges: the tokenizers library rejects them: {error}"
            ) from error
        raise
