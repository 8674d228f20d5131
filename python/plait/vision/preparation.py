"""How the image encoders of each family want their images: resized, normalised, and cut into patches.

Every step computes what the image processors of transformers compute with Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from plait.errors import ModelError
from plait.vision.images import pillow

if TYPE_CHECKING:
    import numpy.typing as npt

    from plait.vision.images import Pixels

    Rows = npt.NDArray[np.float32]

_MIN_TOKENS: Final = 4  # of images that are resized to any size
_MAX_TOKENS: Final = 1280
_MAX_TOKENS_GEMMA4: Final = 280
_MAX_PIXELS: Final = 1 << 26


@dataclass(frozen=True)
class Preparation:
    """How images are prepared.

    Attributes:
        family: The projector type of the file.
        image_size: Side of the square that images are resized to, or the max side (Pixtral), in pixels.
        patch_size: Side of a patch in pixels.
        merge: Patches that are joined, per side.
        mean: Subtracted from the channels of pixels in 0 .. 1.
        std: Divides them.
        min_pixels: Least number of pixels of a resized image (Qwen-VL).
        max_pixels: Largest number of pixels of a resized image (Qwen-VL, Gemma 4).
        window: Side of a window in patches; 0: no windows.
    """

    family: str
    image_size: int
    patch_size: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min_pixels: int
    max_pixels: int
    window: int

    @property
    def unit(self) -> int:
        """Side of joined patches in pixels."""
        return self.patch_size * self.merge

    @property
    def any_size(self) -> bool:
        """Whether the number of embeddings depends on the size of the image."""
        return self.family not in ("gemma3", "mlp")

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to."""
        if self.family == "gemma3":
            return self.image_size, self.image_size
        if self.family == "mlp":  # the shorter side; the longer one is cropped
            side = self.image_size
            if height <= width:
                return side, int(side * width / height)
            return int(side * height / width), side
        if self.family == "pixtral":
            ratio = max(height, width) / self.image_size
            if ratio > 1:
                height, width = math.floor(height / ratio), math.floor(width / ratio)
            return max(1, -(-height // self.unit)) * self.unit, max(
                1, -(-width // self.unit)
            ) * self.unit
        if self.family == "gemma4v":
            return self._largest_size(height, width)
        return self._smart_size(height, width)

    def _largest_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest size of the same shape with at most `max_pixels` pixels."""
        unit = self.unit
        n = self.max_pixels // self.patch_size**2 // self.merge**2  # embeddings
        factor = math.sqrt(n * unit * unit / (height * width))
        rows, columns = math.floor(factor * height / unit), math.floor(factor * width / unit)
        if rows == 0:
            rows, columns = 1, min(width // height, n)
        elif columns == 0:
            rows, columns = min(height // width, n), 1
        return rows * unit, columns * unit

    def _smart_size(self, height: int, width: int) -> tuple[int, int]:
        unit = self.unit
        rows, columns = round(height / unit), round(width / unit)
        if rows * columns * unit * unit > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(1, math.floor(height / shrink / unit))
            columns = max(1, math.floor(width / shrink / unit))
        elif rows * columns * unit * unit < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * grow / unit), math.ceil(width * grow / unit)
        return rows * unit, columns * unit

    def resize(self, image: Pixels) -> Pixels:
        """Return the image in the size that the encoder takes."""
        height, width = self.size_for(*image.shape[:2])
        if (height, width) != image.shape[:2]:
            module = pillow()
            kernel = (
                module.Resampling.BILINEAR if self.family == "gemma3" else module.Resampling.BICUBIC
            )
            image = np.asarray(module.fromarray(image).resize((width, height), resample=kernel))
        if self.family == "mlp":
            side = self.image_size
            top, left = (height - side) // 2, (width - side) // 2
            image = image[top : top + side, left : left + side]
        return image

    def patches(self, image: Pixels) -> Rows:
        """Return the normalised pixels of the patches, by row and column, of a resized image.

        Returns:
            float32 array of shape (rows, columns, 3 * patch_size * patch_size); the channel varies slowest.
        """
        size = self.patch_size
        rows, columns = image.shape[0] // size, image.shape[1] // size
        pixels = (image * np.float64(1 / 255)).astype(np.float32)
        pixels = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        if self.family == "gemma4v":
            pixels = 2 * (pixels - np.float32(0.5))
        cut = pixels.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(cut).reshape(rows, columns, 3 * size * size)

    def windows(self, rows: int, columns: int) -> npt.NDArray[np.int32]:
        """Return the number of the window of each patch, of shape (rows, columns); zeros without windows."""
        if self.window == 0:
            return np.zeros((rows, columns), np.int32)
        row, column = np.indices((rows, columns)) // self.window
        return (row * -(-columns // self.window) + column).astype(np.int32)

    def join(self, patches: Rows) -> Rows:
        """Return the rows of joined patches.

        Args:
            patches: Shape (rows, columns, parts, width).

        Returns:
            Shape (n, parts * merge * merge * width). The patches of a part vary slowest, or fastest in
            Pixtral.
        """
        rows, columns, parts, width = patches.shape
        m = self.merge
        cut = patches.reshape(rows // m, m, columns // m, m, parts, width)
        order = (0, 2, 4, 5, 1, 3) if self.family == "pixtral" else (0, 2, 4, 1, 3, 5)
        return np.ascontiguousarray(cut.transpose(order)).reshape(-1, parts * m * m * width)


def resized_table(table: Rows, rows: int, columns: int) -> Rows:
    """Return the position vectors of a grid of patches: those of a square grid, interpolated.

    The corners of both grids are at the same place. The interpolation is linear along each axis.

    Args:
        table: Vectors of the square grid, of shape (side * side, width).
        rows: Rows of the other grid.
        columns: Columns of the other grid.

    Returns:
        float32 array of shape (rows * columns, width).
    """
    side = math.isqrt(len(table))
    square = table.reshape(side, side, -1)

    def along(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Rows]:
        at = np.arange(n, dtype=np.float32) * np.float32(side - 1) / np.float32(max(n - 1, 1))
        low = at.astype(np.intp)
        return low, np.minimum(low + 1, side - 1), at - low.astype(np.float32)

    top, bottom, down = along(rows)
    left, right, across = along(columns)
    across, down = across[None, :, None], down[:, None, None]
    upper = square[top][:, left] * (1 - across) + square[top][:, right] * across
    lower = square[bottom][:, left] * (1 - across) + square[bottom][:, right] * across
    found = upper * (1 - down) + lower * down
    return found.reshape(rows * columns, -1).astype(np.float32)


def read_preparation(
    metadata: Mapping[str, Any], path: str, min_pixels: int | None, max_pixels: int | None
) -> Preparation:
    """Read how an encoder's images are prepared.

    Args:
        metadata: Key-value pairs of the file, whose sizes have been checked.
        path: Path of the file, for errors.
        min_pixels: Replaces the least number of pixels of the file.
        max_pixels: Replaces the largest number of pixels of the file.

    Returns:
        The preparation.

    Raises:
        ModelError: A value is missing or out of range.
        ValueError: min_pixels or max_pixels is out of range.
    """

    def integer(key: str, fallback: int | None, most: int = 1 << 14) -> int:
        value = metadata.get("clip.vision." + key, fallback)
        if not isinstance(value, int) or not 1 <= value <= most:
            raise ModelError(f"{path}: clip.vision.{key}: expected 1 to {most}, got {value!r}")
        return value

    def channels(key: str) -> tuple[float, ...]:
        value = metadata.get("clip.vision." + key)
        if not isinstance(value, np.ndarray) or value.shape != (3,) or not np.isfinite(value).all():
            raise ModelError(
                f"{path}: clip.vision.{key}: expected three finite numbers, got {value!r}"
            )
        return tuple(float(v) for v in value)

    family = metadata.get("clip.projector_type") or metadata["clip.vision.projector_type"]
    patch = integer("patch_size", None, 256)
    default = {"gemma3": 4, "gemma4v": 3, "mlp": 1, "pixtral": 1}.get(family, 2)
    averages = family in ("gemma3", "gemma4v")
    merge = integer("projector.scale_factor" if averages else "spatial_merge_size", default, 16)
    if family == "mlp":
        merge = 1
    image_size = integer("image_size", None)
    std = channels("image_std")
    if min(std) <= 0:
        raise ModelError(f"{path}: clip.vision.image_std: expected positive numbers, got {std}")
    window = 0
    if family == "qwen2.5vl_merger":
        window = integer("window_size", 112) // (patch * merge) * merge
        if window == 0:
            raise ModelError(
                f"{path}: clip.vision.window_size: expected at least {patch * merge}, the joined patches"
            )
    if family in ("gemma3", "mlp") and image_size % (patch * merge) != 0:
        raise ModelError(
            f"{path}: clip.vision.image_size: expected a multiple of {patch * merge}, got {image_size}"
        )
    area = (patch * merge) ** 2
    max_tokens = _MAX_TOKENS_GEMMA4 if family == "gemma4v" else _MAX_TOKENS
    low, high = min_pixels, max_pixels
    if low is None:
        low = integer("image_min_pixels", _MIN_TOKENS * area, _MAX_PIXELS)
    if high is None:
        high = integer("image_max_pixels", max_tokens * area, _MAX_PIXELS)
    if not area <= high <= _MAX_PIXELS or not 1 <= low <= high:
        problem = (
            f"expected 1 <= min_pixels <= max_pixels and {area} <= max_pixels <= {_MAX_PIXELS}, "
            f"got {low} and {high}"
        )
        if min_pixels is None and max_pixels is None:
            raise ModelError(f"{path}: clip.vision.image_min_pixels, image_max_pixels: {problem}")
        raise ValueError(f"min_pixels, max_pixels: {problem}")
    return Preparation(
        family=str(family), image_size=image_size, patch_size=patch, merge=merge,
        mean=channels("image_mean"), std=std, min_pixels=low, max_pixels=high, window=window,
    )  # fmt: skip
