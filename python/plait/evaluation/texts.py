"""Texts as token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from plait.model import Model

Text = str | Items[int] | npt.NDArray[np.integer]


def token_ids(
    model: Model, text: Text, what: str, add_special: bool, parse_special: bool
) -> list[int]:
    """The token ids of a text; token ids are returned as they are. `what` names the text in messages."""
    if isinstance(text, str):
        ids = model.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return [int(token) for token in ids]
    if not hasattr(text, "__iter__"):
        raise TypeError(f"{what}: expected str or token ids, got {type(text).__name__}")
    return [operator.index(token) for token in text]
