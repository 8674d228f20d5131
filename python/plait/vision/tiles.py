"""The tiles of LLaVA 1.6: an overview of the image, and its parts at a higher resolution.

https://llava-vl.github.io/blog/2024-01-30-llava-next
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from plait.errors import ModelError
from plait.vision.images import pillow

if TYPE_CHECKING:
    import numpy.typing as npt

    from plait.vision.images import Pixels

_MAX_TILES: Final = 64


class Tiles:
    """How images are divided into tiles.

    Args:
        sizes: The heights and widths that an image may be resized to, in pixels.
        side: Side of a tile in pixels.
    """

    def __init__(self, sizes: list[tuple[int, int]], side: int) -> None:
        self._sizes = sizes
        self._side = side

    def divide(self, image: Pixels) -> tuple[Pixels, list[list[Pixels]]]:
        """Return the overview, and the tiles by row and column. The image is centred in them, beside black padding."""
        overview = _resized(image, self._side, self._side)
        height, width = self._size_for(*image.shape[:2])
        wide, high = width / image.shape[1], height / image.shape[0]
        if wide < high:
            inner = _resized(image, min(math.ceil(image.shape[0] * wide), height), width)
        else:
            inner = _resized(image, height, min(math.ceil(image.shape[1] * high), width))
        top, left = (height - inner.shape[0]) // 2, (width - inner.shape[1]) // 2
        whole = np.zeros((height, width, 3), np.uint8)
        whole[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        side = self._side
        return overview, [
            [whole[y : y + side, x : x + side] for x in range(0, width, side)]
            for y in range(0, height, side)
        ]

    def _size_for(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that keeps the most pixels of the image, and among those the smallest."""
        best, most, least = self._sizes[0], 0, math.inf
        for size in self._sizes:
            factor = min(size[1] / width, size[0] / height)
            kept = min(int(width * factor) * int(height * factor), height * width)
            wasted = size[0] * size[1] - kept
            if kept > most or (kept == most and wasted < least):
                best, most, least = size, kept, wasted
        return best


def without_padding(
    grid: npt.NDArray[np.float32], height: int, width: int
) -> npt.NDArray[np.float32]:
    """Return the part of a grid of embeddings that shows an image of this height and width, not its padding.

    Args:
        grid: Shape (rows, columns, n_embd).
        height: Height of the image.
        width: Width of the image.

    Returns:
        The rows and columns of the image.
    """
    rows, columns = grid.shape[:2]
    if width / height > columns / rows:
        n = (rows - int(round(height * (columns / width), 7))) // 2
        return grid[n : rows - n]
    n = (columns - int(round(width * (rows / height), 7))) // 2
    return grid[:, n : columns - n]


def read_tiles(metadata: Mapping[str, Any], path: str, side: int) -> Tiles | None:
    """Read the sizes that images may be resized to.

    Args:
        metadata: Key-value pairs of the file.
        path: Path of the file, for errors.
        side: Side of a tile in pixels.

    Returns:
        The tiles; None if the file has no sizes: LLaVA 1.5.

    Raises:
        ModelError: They are not pairs of multiples of the side of a tile.
    """
    key = "clip.vision.image_grid_pinpoints"
    values = metadata.get(key)
    if values is None:
        return None
    if (
        not isinstance(values, np.ndarray)
        or values.ndim != 1
        or values.dtype.kind not in "iu"
        or not 2 <= len(values) <= 256
        or len(values) % 2
    ):
        raise ModelError(f"{path}: {key}: expected pairs of heights and widths")
    pairs = [(int(height), int(width)) for height, width in values.reshape(-1, 2)]
    for height, width in pairs:
        n = (height // side) * (width // side)
        if min(height, width) < 1 or height % side or width % side or n > _MAX_TILES:
            raise ModelError(
                f"{path}: {key}: expected multiples of {side} with at most {_MAX_TILES} tiles, got {height} x {width}"
            )
    return Tiles(pairs, side)


def _resized(image: Pixels, height: int, width: int) -> Pixels:
    if image.shape[:2] == (height, width):
        return image
    module = pillow()
    picture = module.fromarray(image).resize((width, height), resample=module.Resampling.BICUBIC)
    return np.asarray(picture)
