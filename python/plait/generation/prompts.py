"""Prompts as token ids, also for models without a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from plait.arguments import flag, integer, kind, refuse_unordered
from plait.errors import UnsupportedError
from plait.vision.encoder import ImageEmbeddings
from plait.vision.prompt import ImageTokens, image_row, text_tokens

if TYPE_CHECKING:
    from plait.model import Model
    from plait.tokenizer import Tokenizer

Prompt = str | Items[int] | Items[int | ImageEmbeddings] | npt.NDArray[np.integer]


class PromptTooLong(ValueError):
    """A prompt that has more tokens than the context takes."""


def require_fit(ids: Sized, n_ctx: int, name: str) -> None:
    """Check that a prompt fits into a context of `n_ctx` tokens.

    Raises:
        PromptTooLong: It does not; the message begins with `name`.
    """
    if len(ids) > n_ctx:
        raise PromptTooLong(
            f"{name} has {len(ids)} tokens, but n_ctx is {n_ctx}; shorten the prompt or use a larger n_ctx"
        )


class NoText:
    """The text stream of a model without a vocabulary: every token has empty text."""

    def push(self, token: int) -> str:
        """Return the empty text."""
        return ""

    def flush(self) -> str:
        """Return the empty text."""
        return ""


def tokenizer_of(model: Model) -> Tokenizer | None:
    """Return the tokenizer of a model, or None if its file has no vocabulary."""
    try:
        return model.tokenizer
    except UnsupportedError:
        if model.metadata.get("tokenizer.ggml.model") == "no_vocab":
            return None
        raise


def prompt_list(prompts: Prompt | Iterable[Prompt], function: str) -> list[Prompt]:
    """Return one or more prompts as a list. An iterable of integers is one prompt.

    Raises:
        TypeError: `prompts` is bytes or not iterable.
    """
    if isinstance(prompts, str):
        return [prompts]
    _refuse_bytes(prompts, f"{function}: prompts")
    refuse_unordered(prompts, f"{function}: prompts")
    if not hasattr(prompts, "__iter__"):
        raise TypeError(
            f"{function}: prompts: expected text, token ids or several of these, got {kind(prompts)}"
        )
    items = list(prompts)
    if items and all(hasattr(item, "__index__") and not hasattr(item, "__len__") for item in items):
        return [cast("list[int]", items)]
    return cast("list[Prompt]", items)


def encode(
    model: Model,
    prompt: Prompt,
    name: str,
    add_special: bool,
    parse_special: bool,
    *,
    images: bool = False,
) -> list[int]:
    """Return the token ids of a prompt.

    Args:
        model: The model whose vocabulary applies.
        prompt: Text, token ids, or an ImageTokens.
        name: The prompt's name in messages.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        images: Whether there may be images among the token ids. The result is then an ImageTokens.

    Raises:
        TypeError: The prompt is neither text nor token ids.
        ValueError: The prompt has no tokens.
        IndexError: A token id is outside the vocabulary.
        UnsupportedError: The prompt is text and the model has no vocabulary.
    """
    _refuse_bytes(prompt, f"generate: {name}")
    refuse_unordered(prompt, f"generate: {name}")
    add_special = flag(add_special, "generate: add_special")
    parse_special = flag(parse_special, "generate: parse_special")
    if isinstance(prompt, str):
        ids: list[int] = model.tokenizer.encode(
            prompt, add_special=add_special, parse_special=parse_special
        ).tolist()
    elif hasattr(prompt, "__iter__"):
        items = [
            item if isinstance(item, ImageEmbeddings) and images
            else integer(cast("int", item), f"generate: {name}: a token id")
            for item in prompt
        ]  # fmt: skip
        if images and isinstance(prompt, ImageTokens):
            ids = prompt
        elif any(isinstance(item, ImageEmbeddings) for item in items):
            ids = ImageTokens(items)
        else:
            ids = cast("list[int]", items)
    else:
        raise TypeError(f"generate: {name}: expected str or token ids, got {type(prompt).__name__}")
    if not ids:
        raise ValueError(f"generate: {name} has no tokens")
    if isinstance(ids, ImageTokens):
        for image in ids.images.values():
            check_image(image, model, name)
    for token in text_tokens(ids) if isinstance(ids, ImageTokens) else ids:
        if not 0 <= token < model.n_vocab:
            raise IndexError(
                f"generate: {name}: token id {token} is outside the vocabulary of "
                f"{model.n_vocab} tokens"
            )
    return ids


def check_image(image: ImageEmbeddings, model: Model, name: str) -> None:
    """Raise ValueError if the embeddings of an image are not inputs of the model."""
    given, taken = (image.rows.shape[1], image.n_pos_per_token), image_row(model)
    if given != taken:
        raise ValueError(
            f"generate: {name}: an image has rows of {given[0]} elements with {given[1]} positions, the model takes "
            f"{taken[0]} with {taken[1]}; the encoder does not belong to the model"
        )
    if len(image.positions(0)) != len(image):
        raise ValueError(
            f"generate: {name}: an image has {len(image)} rows, but a grid of {image.grid}; expected a row for each "
            "place of the grid"
        )


def _refuse_bytes(value: object, name: str) -> None:
    if isinstance(value, bytes | bytearray):
        raise TypeError(
            f"{name} is {type(value).__name__}; pass a str (for example data.decode()) or a list of token ids"
        )
