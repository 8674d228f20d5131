"""Colours of sequences, the same in all pictures."""

from __future__ import annotations

# Okabe and Ito's palette, which is safe for colour-blind readers (jfly.uni-koeln.de/color), without black.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900")
FREE = "#8884"


def of_sequence(seq: int) -> str:
    """Return the colour of a sequence; seven colours repeat."""
    return PALETTE[seq % len(PALETTE)]
