"""Vision: an image encoder, which turns images into embeddings of a text model."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from plait import _core
from plait.arguments import integer, string
from plait.closeable import Closeable
from plait.context import Context
from plait.errors import ModelError, UnsupportedError
from plait.vision.images import MAX_PIXELS, to_rgb
from plait.vision.preparation import read_preparation, resized_table
from plait.vision.tiles import read_tiles, without_padding

if TYPE_CHECKING:
    import numpy.typing as npt

    from plait._core import Batch
    from plait.vision.images import ImageLike, Pixels
    from plait.vision.preparation import Rows


@dataclass(frozen=True, eq=False)
class ImageEmbeddings:
    """An image as input of a text model.

    Attributes:
        rows: Embeddings, float32 of shape (n, n_embd), not writable. For a model with deepstack inputs
            (Qwen3-VL), each row consists of all parts.
        grid: Rows and columns of the embeddings in the image.
        n_pos_per_token: Positions of an embedding: 4 for M-RoPE, otherwise 1.
        key: Hash of the pixels of the image.
        both_directions: Whether the embeddings attend to each other in both directions: in all layers
            of Gemma 3, and in those of Gemma 4 that have a window.
    """

    rows: npt.NDArray[np.float32]
    grid: tuple[int, int]
    n_pos_per_token: int
    key: bytes
    both_directions: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def digest(self) -> bytes:
        """Hash of what a text model receives. Unlike `key`, it depends on the encoder."""
        shape = repr((self.rows.shape, self.grid, self.n_pos_per_token, self.both_directions))
        return hashlib.sha256(shape.encode() + self.rows.tobytes()).digest()

    @property
    def span(self) -> int:
        """The number of positions that the image takes: the next token is at `start + span`."""
        return max(self.grid) if self.n_pos_per_token == 4 else len(self.rows)

    def positions(self, start: int) -> npt.NDArray[np.int32]:
        """Return the positions of the embeddings.

        With M-RoPE, all embeddings have the time `start`, and their rows and columns are counted from it.

        Args:
            start: Position of the first embedding.

        Returns:
            int32 array of shape (n, 4) for M-RoPE, otherwise (n,), as `Batch.add_embeddings` takes it.
        """
        start = integer(start, "start", 0)
        if self.n_pos_per_token == 1:
            return np.arange(start, start + len(self.rows), dtype=np.int32)
        row, column = np.indices(self.grid, np.int32).reshape(2, -1)
        time = np.full_like(row, start)
        return np.stack([time, row + start, column + start, np.zeros_like(row)], axis=1)

    def add_to(self, batch: Batch, start: int, seq: SupportsIndex = 0, logits: str = "none") -> int:
        """Add the embeddings to a batch.

        Args:
            batch: The batch.
            start: Position of the first embedding.
            seq: Sequence id.
            logits: Which embeddings request logits, as in `Batch.add_embeddings`.

        Returns:
            The position of the next token.
        """
        batch.add_embeddings(
            self.rows,
            seq=seq,
            pos=self.positions(start),
            logits=logits,
            both_directions=self.both_directions,
        )
        return start + self.span


class Vision(Closeable):
    """An image encoder: the file that belongs to a text model and turns images into its embeddings.

    Such files are called mmproj files. The families are those whose projector types are gemma3 (Gemma 3),
    gemma4v (Gemma 4), mlp (LLaVA 1.5 and 1.6), pixtral (Pixtral, Mistral Small 3.1),
    qwen2vl_merger, qwen2.5vl_merger and qwen3vl_merger. Images are prepared as transformers prepares
    them with Pillow. Needs Pillow (plait[vision]).

        vision = plait.Vision("mmproj-model.gguf")
        image = vision.encode("cat.jpg")
        start = image.add_to(batch, start=n_tokens)

    Calls from several threads run one after another.

    Args:
        path: Path of the mmproj file.
        min_pixels: Smaller images are enlarged to as many pixels, in models that take images of any size
            (Qwen-VL). None: from the file, or 4 embeddings.
        max_pixels: Larger images are reduced to as many pixels, likewise. None: from the file, or 1280
            embeddings.
        max_image_pixels: Images with more pixels are refused before they are decoded; at most 2^26.
        n_cached: Number of images whose embeddings are kept. An image is recognised by its pixels.
        mmap: Map the file into memory, as for `Model`.
        backend: Device, as for `Context`.
        threads: Number of CPU threads, as for `Context`.

    Raises:
        ModelError: The file cannot be read or is damaged.
        UnsupportedError: The file is of a family that is not supported.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        max_image_pixels: int = MAX_PIXELS,
        n_cached: int = 16,
        mmap: bool = False,
        backend: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._n_cached = integer(n_cached, "n_cached", 0)
        self._max_image_pixels = integer(max_image_pixels, "max_image_pixels", 1, MAX_PIXELS)
        self._options = {
            "backend": string(backend, "backend"),
            "threads": None if threads is None else integer(threads, "threads", 1),
        }
        self._tower = _core.open_image_model(path, mmap, False)
        limits = [None if n is None else integer(n, name, 1)
                  for name, n in (("min_pixels", min_pixels), ("max_pixels", max_pixels))]  # fmt: skip
        self._how = read_preparation(self._tower.metadata, self._tower.path, *limits)
        self._averages = self._how.family == "gemma3"
        self._projector = None if self._averages else _core.open_image_model(path, mmap, True)
        self._contexts: dict[bool, Context] = {}  # by whether it is the projector's
        self._cache: OrderedDict[bytes, ImageEmbeddings] = OrderedDict()
        self._positions = (
            self._tower.tensor("v.position_embd.weight")
            if self._has("v.position_embd.weight")
            else None
        )
        self._tiles = (
            read_tiles(self._tower.metadata, self._tower.path, self._how.image_size)
            if self._how.family == "mlp"
            else None
        )
        self._read_extra_tensors()

    def _has(self, name: str) -> bool:
        return name in self._tower.tensors

    def _read_extra_tensors(self) -> None:
        tower = self._tower
        self._class = (
            tower.tensor("v.class_embd").reshape(-1) if self._has("v.class_embd") else None
        )
        self._break = (
            tower.tensor("v.token_embd.img_break") if self._has("v.token_embd.img_break") else None
        )
        self._newline = next(
            (tower.tensor(name) for name in ("model.image_newline", "v.image_newline") if self._has(name)), None
        )  # fmt: skip
        if self._averages:
            self._norm = tower.tensor("mm.soft_emb_norm.weight")
            self._out = tower.tensor("mm.input_projection.weight")
        if self._class is not None and self._positions is None:
            raise ModelError(
                f"{tower.path}: v.class_embd needs v.position_embd.weight, which is missing"
            )
        # The text models of Gemma 4 E2B and E4B, which are this wide, are causal for images too. Files do not tell.
        is_causal = self._how.family == "gemma4v" and self.n_embd in (1536, 2560)
        self._both_directions = self._how.family in ("gemma3", "gemma4v") and not is_causal
        if self._positions is None or self._how.family == "gemma4v":
            return
        n = len(self._positions) - (self._class is not None)
        side = math.isqrt(n) if self._how.any_size else self._how.image_size // self._how.patch_size
        expected = side * side
        if n != expected or n < 1:
            raise ModelError(
                f"{tower.path}: v.position_embd.weight: expected {expected} rows of patches, got {n}"
            )

    def __repr__(self) -> str:
        return f"<plait.Vision {self._how.family}: n_embd={self.n_embd}, {self._tower.path!r}>"

    @property
    def projector_type(self) -> str:
        """The projector type that the file names, such as "qwen2.5vl_merger"."""
        return self._how.family

    @property
    def n_embd(self) -> int:
        """Length of a row of embeddings, which must be the input width of the text model."""
        return int(self._out.shape[1]) if self._projector is None else self._projector.n_embd

    @property
    def n_pos_per_token(self) -> int:
        """Positions of an embedding: 4 for M-RoPE (Qwen-VL), otherwise 1."""
        return 4 if self._how.family.startswith("qwen") else 1

    def close(self) -> None:
        """Release the memory of the encoder. Does nothing if it is already closed."""
        with self._lock:
            for ctx in self._contexts.values():
                ctx.close()
            self._contexts.clear()
            self._cache.clear()
            self._n_cached = -1

    def encode(self, image: ImageLike) -> ImageEmbeddings:
        """Return the embeddings of an image.

        Args:
            image: uint8 array of shape (height, width, 3), PIL image, path of an image file, or its bytes.

        Returns:
            The embeddings, row by row. For Pixtral, a break follows each row but the last.

        Raises:
            TypeError: The image is of another type.
            ValueError: The array has another shape or type, the file is damaged, the image has more than
                max_image_pixels, one side is more than 200 times the other, or the encoder is closed.
            UnsupportedError: The image has more than 2^18 patches.
            FileNotFoundError: There is no such file.
            ModuleNotFoundError: Pillow is not installed.
            MemoryError: There is too little memory.
        """
        with self._lock:  # also while an image is decoded, so that only one takes memory
            if self._n_cached < 0:
                raise ValueError("the Vision is closed; create another")
            pixels = to_rgb(image, self._max_image_pixels)
            key = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
            found = self._cache.pop(key, None) or self._compute(pixels, key)
            self._cache[key] = found
            while len(self._cache) > self._n_cached:
                self._cache.popitem(last=False)
            return found

    def _compute(self, image: Pixels, key: bytes) -> ImageEmbeddings:
        how = self._how
        if self._tiles is not None:
            return self._compute_tiles(image, key)
        patches = how.patches(how.resize(image))
        rows, columns = patches.shape[:2]
        joined = how.join(self._run_tower(patches))
        if how.family == "gemma4v":
            joined = self._mean(joined)
        grid = (rows // how.merge, columns // how.merge)
        projector = self._projector
        found = self._average(joined) if projector is None else self._run(projector, joined, None)
        if self._break is not None:
            lines = found.reshape(*grid, -1)
            breaks = np.broadcast_to(self._break, (grid[0], 1, lines.shape[2]))
            found = np.concatenate([lines, breaks], axis=1).reshape(-1, lines.shape[2])[:-1]
            found = np.ascontiguousarray(found, np.float32)
        found.setflags(write=False)
        return ImageEmbeddings(found, grid, self.n_pos_per_token, key, self._both_directions)

    def _compute_tiles(self, image: Pixels, key: bytes) -> ImageEmbeddings:
        """Return the embeddings of the overview, then those of the tiles row by row, each row with its end."""
        assert self._tiles is not None

        def embeddings(tile: Pixels) -> Rows:
            assert self._projector is not None
            patches = self._how.patches(tile)
            found = self._run(self._projector, self._how.join(self._run_tower(patches)), None)
            return found.reshape(*patches.shape[:2], -1)

        overview, tiles = self._tiles.divide(image)
        first = embeddings(overview)
        rows = [np.concatenate([embeddings(tile) for tile in row], axis=1) for row in tiles]
        grid = without_padding(np.concatenate(rows), *image.shape[:2])
        shape = grid.shape[:2]
        if self._newline is not None:
            ends = np.broadcast_to(self._newline, (len(grid), 1, grid.shape[2]))
            grid = np.concatenate([grid, ends], axis=1)
        width = grid.shape[2]
        found = np.concatenate([first.reshape(-1, width), grid.reshape(-1, width)])
        found = np.ascontiguousarray(found, np.float32)
        found.setflags(write=False)
        return ImageEmbeddings(found, shape, 1, key)

    def _run_tower(self, patches: Rows) -> Rows:
        """Return the outputs of the patches, of shape (rows, columns, parts, width)."""
        rows, columns, n_pixels = patches.shape
        inputs = patches.reshape(-1, n_pixels)
        row, column = np.indices((rows, columns)).reshape(2, -1)
        window = self._how.windows(rows, columns).reshape(-1)
        if self._positions is not None:
            inputs = np.concatenate([inputs, self._position_vectors(rows, columns)], axis=1)
        order = np.lexsort((column, row, window))  # positions must not decrease
        inputs = inputs[order]
        places = np.stack([window, row, column, np.zeros_like(row)], axis=1)[order].astype(np.int32)
        if self._class is not None:
            assert self._positions is not None
            first = np.concatenate(
                [np.zeros(n_pixels, np.float32), self._class + self._positions[0]]
            )
            inputs = np.concatenate([first[None], inputs])
            places = np.concatenate([np.zeros((1, 4), np.int32), places])
        outputs = self._run(self._tower, inputs, places)
        found = np.empty((rows * columns, outputs.shape[1]), np.float32)
        found[order] = outputs[-len(order) :]
        width = int(self._tower.metadata["clip.vision.embedding_length"])
        return found.reshape(rows, columns, -1, width)

    def _position_vectors(self, rows: int, columns: int) -> Rows:
        """Return the position vectors of the patches, of shape (rows * columns, width)."""
        assert self._positions is not None
        if self._how.family == "gemma4v":
            by_column, by_row = self._positions
            if max(rows, columns) > len(by_row):
                raise ValueError(
                    f"the image has {rows} x {columns} patches, but the encoder has positions for {len(by_row)} per "
                    "side; choose a smaller max_pixels"
                )
            found: Rows = by_row[:rows, None] + by_column[None, :columns]
            return found.reshape(rows * columns, -1)
        table = self._positions[int(self._class is not None) :]
        return resized_table(table, rows, columns) if self._how.any_size else table

    def _average(self, joined: Rows) -> Rows:
        """Return the embeddings of Gemma 3: the mean of joined patches, normalised and multiplied.

        The file stores this matrix transposed, in a form that no kernel takes.
        """
        mean = joined.reshape(len(joined), -1, len(self._norm)).mean(axis=1, dtype=np.float32)
        epsilon = np.float32(self._tower.metadata["clip.vision.attention.layer_norm_epsilon"])
        scale = np.sqrt(np.mean(mean * mean, axis=1, keepdims=True) + epsilon)
        found: Rows = mean / scale * self._norm @ self._out
        return found

    def _mean(self, joined: Rows) -> Rows:
        """Return the means of joined patches, multiplied and standardised, as the projector of Gemma 4 takes them."""
        width = int(self._tower.metadata["clip.vision.embedding_length"])
        mean = joined.reshape(len(joined), -1, width).mean(axis=1, dtype=np.float32)
        found: Rows = mean * np.float32(math.sqrt(width))
        if self._has("v.std_bias"):
            found = (found - self._tower.tensor("v.std_bias")) * self._tower.tensor("v.std_scale")
        return found

    def _run(self, model: _core.Model, rows: Rows, positions: npt.NDArray[np.int32] | None) -> Rows:
        """Run one of the two models on all rows at once."""
        batch = _core.Batch()
        batch.add_embeddings(rows, pos=positions, logits="all")
        ctx = self._context(model, len(rows))
        return np.array(ctx.encode(batch).embeddings)

    def _context(self, model: _core.Model, n: int) -> Context:
        """Return a context for at least n rows, which replaces a smaller one."""
        key = model is self._projector
        ctx = self._contexts.get(key)
        if ctx is None or ctx.n_batch < n:
            if ctx is not None:
                del self._contexts[key]
                ctx.close()
            room = 1 << max(8, (n - 1).bit_length())
            if room > 1 << 18:
                raise UnsupportedError(
                    f"an image of {n} patches is too large; choose a smaller max_pixels"
                )
            ctx = Context(model, n_ctx=room, n_batch=room, n_ubatch=room, **self._options)  # type: ignore[arg-type]
            self._contexts[key] = ctx
        return ctx
