"""The tokens of prompts with images: each row of an image has a negative number in place of a token id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plait.model import Model
    from plait.vision.encoder import ImageEmbeddings

_ROW_BITS: Final = 20  # of a number; the others identify the image


def image_row(model: Model) -> tuple[int, int]:
    """Return the number of elements of an embedding of an image, and the number of its positions.

    Args:
        model: The text model. Some take a part for each of their first layers behind the embedding itself.
    """
    n_parts = 1 + int(model.metadata.get(f"{model.arch}.n_deepstack_layers", 0))
    return n_parts * model.n_embd, model.n_pos_per_token


class ImageTokens(list[int]):
    """The tokens of a prompt with images.

    The numbers of an image are derived from the hash of its embeddings: equal images have equal numbers wherever
    they are computed, and different images have different ones, so prompts are compared like lists of tokens.

    Attributes:
        images: The images by the number of their first row.
    """

    def __init__(self, items: Iterable[int | ImageEmbeddings]) -> None:
        super().__init__()
        self.images: dict[int, ImageEmbeddings] = {}
        for item in items:
            if isinstance(item, int):
                self.append(item)
                continue
            first = -1 - (int.from_bytes(item.digest[:16], "little") << _ROW_BITS)
            self.images[first] = item
            self += range(first, first - len(item), -1)


class Positions:
    """The positions of the tokens of a prompt and of the text after it.

    Args:
        tokens: The tokens of the prompt.
    """

    def __init__(self, tokens: list[int]) -> None:
        # By image: the index after its last row, and how many positions fewer than rows it has.
        self._images: list[tuple[int, int]] = []
        for i in starts(tokens):
            image = tokens.images[tokens[i]]  # type: ignore[attr-defined]
            self._images.append((i + len(image), len(image) - image.span))

    def __getitem__(self, n: int) -> int:
        """Return the position of the token with the index `n`, which is no row of an image but its first one."""
        return n - sum(fewer for end, fewer in self._images if end <= n)


def starts(tokens: list[int]) -> list[int]:
    """Return the indices of the first rows of images."""
    images = getattr(tokens, "images", {})
    return [i for i, token in enumerate(tokens) if token in images] if images else []


def n_before_image(tokens: list[int], begin: int = 0) -> int:
    """Return how many tokens there are from the index `begin` on before the next row of an image."""
    for i in range(begin, len(tokens)):
        if tokens[i] < 0:
            return i - begin
    return len(tokens) - begin


def without_part(tokens: list[int], n: int) -> int:
    """Return the largest number up to `n` of first tokens with whole images only."""
    if n >= len(tokens) or tokens[n] >= 0:
        return n
    return n - (-1 - tokens[n] & (1 << _ROW_BITS) - 1)


def text_tokens(tokens: list[int]) -> list[int]:
    """Return the token ids without the rows of images."""
    return [token for token in tokens if token >= 0]
