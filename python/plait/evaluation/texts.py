"""Conversion of texts to token ids."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.arguments import flag, integer, kind, refuse_unordered
from plait.model import Model

Text = str | Items[int] | npt.NDArray[np.integer]


def text_list(texts: str | Iterable[Text], name: str) -> list[Text]:
    """Return an argument that takes several texts as a list.

    Raises:
        TypeError: `texts` is a single str or bytes, or not iterable.
    """
    if isinstance(texts, str | bytes | bytearray):
        raise TypeError(f"{name} is {type(texts).__name__}; pass a list of texts: [{texts!r:.40}]")
    refuse_unordered(texts, name)
    if not isinstance(texts, Iterable):
        raise TypeError(f"{name}: expected a list of texts, got {kind(texts)}")
    return list(texts)


def token_ids(
    model: Model, text: Text, what: str, add_special: bool, parse_special: bool
) -> list[int]:
    """Return the token ids of a text. Token ids are returned as they are.

    Args:
        model: The model whose vocabulary applies.
        text: Text or token ids.
        what: The name of the text in messages.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().

    Raises:
        TypeError: `text` is neither.
        IndexError: A token id is outside the vocabulary.
    """
    add_special = flag(add_special, "add_special")
    parse_special = flag(parse_special, "parse_special")
    if isinstance(text, bytes | bytearray):
        raise TypeError(
            f"{what} is {type(text).__name__}; pass a str (for example data.decode()) or a list of token ids"
        )
    refuse_unordered(text, what)
    if isinstance(text, str):
        encoded = model.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return [int(token) for token in encoded]
    if not hasattr(text, "__iter__"):
        raise TypeError(f"{what}: expected str or token ids, got {kind(text)}")
    return checked_ids(model, text, what)


def checked_ids(model: Model, ids: Iterable[SupportsIndex], what: str) -> list[int]:
    """Return token ids as a list of int.

    Args:
        model: The model whose vocabulary applies.
        ids: The token ids.
        what: Their name in messages.

    Raises:
        TypeError: A token id is not an integer.
        IndexError: A token id is outside the vocabulary.
    """
    found = [integer(token, f"{what}: a token id") for token in ids]
    for token in found:
        if not 0 <= token < model.n_vocab:
            raise IndexError(
                f"{what}: token id {token} is outside the vocabulary of {model.n_vocab} tokens"
            )
    return found
