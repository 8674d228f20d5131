"""Images in messages, and where they are in the tokens of a prompt."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import expect, kind
from plait.vision.prompt import ImageTokens, image_row

if TYPE_CHECKING:
    from plait.model import Model
    from plait.vision.encoder import Vision


# By projector type: the text that templates write for an image, and those before and after its embeddings.
_FORMS: Final = {
    "gemma3": ("<start_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n"),
    "gemma4v": ("<|image|>", "<|image>", "<image|>"),
    "mlp": ("<image>", "", ""),
    "pixtral": ("[IMG]", "", "[IMG_END]"),
    "qwen2vl_merger": ("<|image_pad|>", "", ""),
    "qwen2.5vl_merger": ("<|image_pad|>", "", ""),
    "qwen3vl_merger": ("<|image_pad|>", "", ""),
}


def take_images(messages: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Separate the images of messages from their text.

    Args:
        messages: Mappings, whose content may be a list with parts of the type "image", with the image in the key
            "image", or "image_url", with a data URL in "image_url" or in its "url".

    Returns:
        The messages, in which only {"type": "image"} is left of an image; and the images in order.

    Raises:
        ValueError: A URL is not a data URL.
        TypeError: A part has no image.
    """
    plain, images = [], []
    for i, message in enumerate(messages):
        if isinstance(message, Mapping) and isinstance(message.get("content"), list | tuple):
            parts = []
            for part in message["content"]:
                if isinstance(part, Mapping) and part.get("type") in ("image", "image_url"):
                    images.append(_image_of(part, i))
                    part = {"type": "image"}
                parts.append(part)
            message = {**message, "content": parts}
        plain.append(message)
    return plain, images


def has_images(prompt: Any) -> bool:
    """Return whether a prompt is messages with images."""
    return isinstance(prompt, list | tuple) and any(
        isinstance(part, Mapping) and part.get("type") in ("image", "image_url")
        for message in prompt
        if isinstance(message, Mapping) and isinstance(message.get("content"), list | tuple)
        for part in message["content"]
    )


def _image_of(part: Mapping[str, Any], index: int) -> Any:
    name = f"message {index}: {part['type']}"
    if part["type"] == "image":
        if part.get("image") is None:
            raise TypeError(f'{name}: expected the image in the key "image"')
        return part["image"]
    url = part.get("image_url")
    if isinstance(url, Mapping):
        url = url.get("url")
    if not isinstance(url, str):
        raise TypeError(f"{name}: expected a data URL, got {kind(url)}")
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise ValueError(
            f"{name}: expected data:image/...;base64,..., got {url[:40]!r}; addresses are not fetched"
        )
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name}: the data is not base64: {error}") from error


class ImagePrompt:
    """The images of conversations.

    Args:
        vision: The encoder.
        model: The text model.
        owner: Name of the caller in messages.

    Attributes:
        placeholder: The text that templates write for an image, and those before and after its embeddings.

    Raises:
        TypeError: `vision` is not a Vision.
        ValueError: The embeddings of the encoder are not inputs of the model.
    """

    def __init__(self, vision: Vision, model: Model, owner: str) -> None:
        from plait.vision.encoder import Vision

        expect(vision, Vision, f"{owner}: vision", "a Vision")
        given, taken = (vision.n_embd, vision.n_pos_per_token), image_row(model)
        if given != taken:
            raise ValueError(
                f"{owner}: vision: the encoder has rows of {given[0]} elements with {given[1]} positions, the model "
                f"takes {taken[0]} with {taken[1]}; they do not belong together"
            )
        self.placeholder = _FORMS[vision.projector_type]
        self._vision = vision
        self._owner = owner

    def insert(self, ids: list[int], images: list[Any], limit: int | None = None) -> list[int]:
        """Replace the placeholders of a prompt by images.

        Args:
            ids: Token ids of the prompt, with -1 for each image.
            images: The images, in the same order.
            limit: Max length of the prompt. Images are not encoded once it is exceeded.

        Returns:
            The prompt; an ImageTokens if there are images.

        Raises:
            ValueError: The numbers of placeholders and of images differ, or the prompt is too long; or an error of
                Vision.encode().
        """
        n = ids.count(-1)
        if n != len(images):
            raise ValueError(
                f"{self._owner}: the template writes {n} placeholders for {len(images)} images; it may not support "
                "images"
            )
        if not images:
            return ids
        found, length = [], len(ids) - n
        for image in images:
            encoded = self._vision.encode(image)
            length += len(encoded)
            found.append(encoded)
            if limit is not None and length > limit:
                raise ValueError(
                    f"{self._owner}: the prompt has more than {limit} tokens with the first {len(found)} of "
                    f"{len(images)} images, but n_ctx is {limit}; send fewer or smaller images"
                )
        given = iter(found)
        return ImageTokens(token if token >= 0 else next(given) for token in ids)
