"""Colours of sequences, the same in every picture."""

from __future__ import annotations

# Okabe and Ito's palette for all kinds of eyes (jfly.uni-koeln.de/color), without black.
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900")
FREE = "#8884"


def of_sequence(seq: int) -> str:
    """A colour for a sequence; those seven apart share one."""
    return _PALETTE[seq % len(_PALETTE)]
