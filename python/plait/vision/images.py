"""Images of the caller as RGB arrays, with limits on their size."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from plait.arguments import kind

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    from PIL.Image import Image

    Pixels: TypeAlias = npt.NDArray[np.uint8]
    ImageLike: TypeAlias = Pixels | Image | str | os.PathLike[str] | bytes

MAX_PIXELS: Final = 1 << 26  # of an image before it is resized
MAX_FILE_BYTES: Final = 1 << 28
MAX_ASPECT: Final = 200  # of the longer side to the shorter one, as in the reference of Qwen2-VL
_UNCLEAR_MODES: Final = ("F", "LAB", "La")
_FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def pillow() -> Any:
    """Return the module PIL.Image.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
    """
    try:
        import PIL.Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "images need Pillow: pip install 'plait[vision]'", name="PIL"
        ) from error
    return PIL.Image


def to_rgb(image: ImageLike, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Return an image as an array.

    Transparency is blended onto white. Of 16 bits, the upper 8 are used; of an animation, the first
    frame. An image is turned as its EXIF orientation says.

    Args:
        image: uint8 array of shape (height, width, 3), PIL image, path of a file, or the bytes of a file.
        max_pixels: Larger images are refused before they are decoded.

    Returns:
        uint8 array of shape (height, width, 3), not writable by others.

    Raises:
        TypeError: The image is of another type.
        ValueError: The array has another shape or type, or the file is damaged, or the image is too large.
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: Pillow is not installed.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image, max_pixels)
    module = pillow()
    if isinstance(image, module.Image):
        return _from_pillow(image, "the image", max_pixels)
    if isinstance(image, (str, os.PathLike)):
        path = os.fspath(image)
        size = os.stat(path).st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got {size}")
        with open(path, "rb") as file:
            return _from_file(file.read(), str(path), max_pixels)
    if isinstance(image, bytes):
        if len(image) > MAX_FILE_BYTES:
            raise ValueError(f"image: expected at most {MAX_FILE_BYTES} bytes, got {len(image)}")
        return _from_file(image, "the image", max_pixels)
    raise TypeError(
        f"image: expected an array, a PIL image, a path or the bytes of a file, got {kind(image)}"
    )


def _from_array(image: npt.NDArray[Any], max_pixels: int) -> Pixels:
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image: expected the shape (height, width, 3), got {image.shape}")
    if image.dtype != np.uint8:
        raise ValueError(f"image: expected uint8, 0 to 255, got {image.dtype}")
    check_size((image.shape[1], image.shape[0]), "image", max_pixels)
    return np.array(image, order="C")


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Raise ValueError if an image of a width and height is empty, has too many pixels, or is too narrow."""
    width, height = size
    if width < 1 or height < 1:
        raise ValueError(f"{name}: expected at least one pixel, got {width} x {height}")
    if width * height > max_pixels:
        raise ValueError(
            f"{name}: {width} x {height} pixels, expected at most {max_pixels} in all; resize it first"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(
            f"{name}: {width} x {height} pixels; one side may be at most {MAX_ASPECT} times the other"
        )


def _from_file(data: bytes, name: str, max_pixels: int) -> Pixels:
    module = pillow()
    try:
        image = module.open(io.BytesIO(data), formats=_FORMATS)
    except module.DecompressionBombError as error:
        raise ValueError(f"{name} has too many pixels: {error}") from error
    except Exception as error:  # Pillow raises errors of many types for damaged files
        raise ValueError(
            f"{name} is damaged or of an unknown format; expected one of {', '.join(_FORMATS)} ({error})"
        ) from error
    with image:
        check_size(image.size, name, max_pixels)
        try:
            return _from_pillow(image, name, max_pixels)
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{name} is damaged: {error}") from error


def _from_pillow(image: Image, name: str, max_pixels: int) -> Pixels:
    from PIL import ImageOps

    check_size(image.size, name, max_pixels)
    try:  # an image that was only opened is read now
        image = ImageOps.exif_transpose(image)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    if image.mode.startswith("I"):
        return _from_16_bits(np.asarray(image), name)
    if image.mode in _UNCLEAR_MODES:
        raise ValueError(
            f"{name} has the mode {image.mode}, whose values have no certain colours; convert it to RGB first"
        )
    if image.mode == "RGBa":
        image = image.convert("RGBA")
    try:
        if "A" in image.getbands() or image.info.get("transparency") is not None:
            image = image.convert("RGBA")
            white = pillow().new("RGBA", image.size, (255, 255, 255, 255))
            image = pillow().alpha_composite(white, image)
        return np.array(image.convert("RGB"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _from_16_bits(values: npt.NDArray[Any], name: str) -> Pixels:
    """Return a grey image of 16 bits. Pillow would replace all values over 255 by white."""
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError(
            f"{name} has grey values of more than 16 bits, {values.min()} to {values.max()}; convert it to RGB first"
        )
    grey = (values >> 8).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)
