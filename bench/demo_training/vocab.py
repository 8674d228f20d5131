"""The demo model's tokenizer: a SentencePiece vocabulary in which every word of the corpus is one piece.

Pieces are made as byte-pair encoding makes them, over the list of words with a blank (U+2581) in front of each,
until every word is whole; the score of a piece is minus its rank. Encoding is what GGUF calls the `llama`
tokenizer: a blank in front of the text and one for each space, then the adjacent pair whose join has the highest
score is joined, the leftmost first, until none is left; a character without a piece becomes its UTF-8 bytes.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from dataclasses import dataclass

from plait.demo import corpus

BLANK = "\u2581"
UNK, BOS, EOS = range(3)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # the values of tokenizer.ggml.token_type


@dataclass(frozen=True)
class Vocab:
    """The pieces by id, as they stand in the file."""

    pieces: list[str]
    scores: list[float]
    kinds: list[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", {piece: i for i, piece in enumerate(self.pieces)})

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, BOS not among them."""
        ids: dict[str, int] = self.ids  # type: ignore[attr-defined]
        parts = list(BLANK + text.replace(" ", BLANK)) if text else []
        while True:
            joins = [
                (-self.scores[ids[a + b]], i)
                for i, (a, b) in enumerate(itertools.pairwise(parts))
                if a + b in ids and self.kinds[ids[a + b]] == NORMAL
            ]
            if not joins:
                break
            _, i = min(joins)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        out = []
        for part in parts:
            out += [ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()]
        return out


def words() -> list[str]:
    """Every word and mark that the corpus can hold, in a fixed order: the words with a blank in front."""
    found: set[str] = set()
    for split in ("train", "unseen"):
        for s in corpus.stories(0, 4000, split):
            for text in [s.text, *(f"{corpus.prompt(q)} {a}" for q, a in s.questions)]:
                found.update(text.split())
    return sorted({BLANK + re.sub(r"[.?]$", "", word) for word in found})


def build() -> Vocab:
    """Special tokens, the 256 bytes, then the pieces in the order in which they were joined."""
    whole = words()
    split = [list(word) for word in whole]
    joined: list[str] = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for parts in split:
            pairs.update(itertools.pairwise(parts))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        joined.append("".join(best))
        for parts in split:
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [joined[-1]]
                i += 1
    joined = list(dict.fromkeys(joined))
    characters = [BLANK, *string.ascii_letters, *string.digits, *".,?!:;'\"-"]
    text = joined + [c for c in characters if c not in joined]
    return Vocab(
        pieces=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *text],
        scores=[0.0] * 259 + [-float(rank) for rank in range(len(text))],
        kinds=[UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(text)],
    )
