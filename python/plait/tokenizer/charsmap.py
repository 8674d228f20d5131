"""SentencePiece's compiled text normaliser (tokenizer.ggml.precompiled_charsmap).

The value has three parts: a little-endian length in bytes; a double array of that length, which maps
prefixes of UTF-8 text to offsets; and the replacements, each terminated by a zero byte. Format:
https://github.com/google/sentencepiece/blob/master/src/normalizer.cc and Darts-clone,
https://github.com/s-yata/darts-clone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from plait.errors import ModelError
from plait.tokenizer.vocabulary import PREFIX

_KEY: Final = PREFIX + "precompiled_charsmap"


class CharsMap:
    """Replaces the longest known prefix at every position of a text, in time linear in the text."""

    def __init__(self, data: bytes | None) -> None:
        self._units: list[int] = []
        self._replacements = b""
        if data is None:
            return
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or 4 + size >= len(data):
            raise ModelError(
                f"{_KEY}: {len(data)} bytes cannot hold an array of {size} bytes and its replacements"
            )
        self._units = np.frombuffer(data, "<u4", size // 4, offset=4).tolist()
        self._replacements = data[4 + size :]

    def __call__(self, text: str) -> str:
        """Return the normalised text. Raises ModelError if the map refers to an invalid position."""
        if not self._units:
            return text
        data, position, output = text.encode(), 0, bytearray()
        while position < len(data):
            end, offset = self._longest(data, position)
            if end > position:
                output += self._replacement(offset)
            else:
                end = position + 1
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end += 1
                output += data[position:end]
            position = end
        return output.decode("utf-8", "replace")

    def _longest(self, data: bytes, position: int) -> tuple[int, int]:
        """Find the longest known prefix at `position`.

        Fields of a unit, from bit 0: the byte that leads to it (8 bits), whether its prefix has a
        value, whether its base is shifted by 8, and the base (22 bits). A value has bit 31 set.

        Returns:
            The end of the prefix and the offset of its replacement; (position, 0) if there is none.

        Raises:
            ModelError: A unit leads outside of the table.
        """
        end, offset, units = position, 0, self._units
        try:
            node = _base(units[0])
            for place in range(position, len(data)):
                node ^= data[place]
                unit = units[node]
                if data[place] == 0 or unit & 0x800000FF != data[place]:
                    break
                node ^= _base(unit)
                if unit & 0x100:
                    end, offset = place + 1, units[node] & 0x7FFFFFFF
        except IndexError:
            raise ModelError(f"{_KEY}: refers to unit {node}, but there are {len(units)}") from None
        return end, offset

    def _replacement(self, offset: int) -> bytes:
        stop = self._replacements.find(b"\0", offset)
        if stop < 0:
            raise ModelError(
                f"{_KEY}: the replacement at offset {offset} of {len(self._replacements)} bytes is not terminated"
            )
        return self._replacements[offset:stop]


def _base(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)
