"""KVCache: the cache of a context, with export and plots."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, SupportsIndex

from plait import _core
from plait.arguments import MAX_POSITION
from plait.errors import UnsupportedError

if TYPE_CHECKING:
    from os import PathLike

    import numpy.typing as npt
    from matplotlib.axes import Axes


class KVCache(_core.KVCache):  # noqa: D101
    __doc__ = _core.KVCache.__doc__

    def __init__(self, context: _core.Context) -> None:
        super().__init__(context)
        self._layers = context.layers

    def export(self, path: str | PathLike[str], seq: SupportsIndex = 0) -> None:
        """Write the keys and values of a sequence to a file that other programs can read.

        The arrays are named "blk.<layer>.keys" and "blk.<layer>.values": float32 (n_pos, n_head_kv,
        head_dim), as keys() and values() return them. Layers without such rows are omitted. To read
        a sequence back into a context, use save() and load().

        Args:
            path: A path that ends in .npz, or in .safetensors if safetensors is installed.
            seq: The sequence, an id or a handle. Since it has a default, the id of an open handle is refused here.

        Raises:
            ValueError: The path has another suffix, or a handle owns the id.
            UnsupportedError: The memory stores no keys and values.
        """
        from plait.cache.export import export

        self.check_named(seq)
        export(self, path, seq, self._layers)

    if not TYPE_CHECKING:

        @functools.wraps(_core.KVCache.copy_to)
        def copy_to(self, other: _core.Context) -> None:  # noqa: D102
            if getattr(other, "_recorder", None) is None:
                super().copy_to(other)
            else:  # a recording sees the calls of the other cache
                other.kv.from_bytes(self.to_bytes())

    def evict(self, seq: SupportsIndex, positions: npt.ArrayLike) -> int:
        """Remove single positions from a sequence, wherever they are.

        The other positions stay as they are, so later tokens attend to what is left. Cells shared
        with other sequences stay in those sequences.

        Args:
            seq: The sequence, an id or a handle.
            positions: Positions to remove, in any order; an int, a range or an array of integers.
                Positions that the sequence does not hold are ignored.

        Returns:
            The number of positions removed.

        Raises:
            TypeError: A position is not an integer.
            ValueError: The id or a position is invalid.
            UnsupportedError: This kind of cache cannot remove these positions; nothing has changed.

        Example:
            ctx.kv.evict(0, range(4, 100, 2))
        """
        before = self.seq_len(seq)
        ranges = list(_ranges(positions))
        if self.kind not in ("unified", "streams"):
            ranges = self._end_first(seq, ranges)
        for begin, end in ranges:
            if not self.seq_rm(seq, begin, end):
                raise UnsupportedError(self._refusal(seq, begin, end))
        return before - self.seq_len(seq)

    def _end_first(
        self, seq: SupportsIndex, ranges: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Order ranges so that only the first can be refused.

        Recurrent states and sliding windows may refuse to remove the end of a sequence; what is before the end is
        refused either always or never. The ranges that reach the end are joined: they are refused together.

        Returns:
            The ranges, the one at the end first.

        Raises:
            UnsupportedError: A range before the end is refused.
        """
        import numpy as np

        if self.can_partial_remove:
            cells = self.cells()
            held = np.sort(cells["pos"][cells["seqs"][:, int(seq)], 0])
        else:  # a state holds all positions in one cell
            held = np.arange(self.seq_pos_min(seq), self.seq_pos_max(seq) + 1)
            ranges = [(a, b) for a, b in ranges if np.any((held >= a) & (held < b))]
        kept = held
        for begin, end in ranges:
            kept = kept[(kept < begin) | (kept >= end)]
        last = int(kept[-1]) if len(kept) else -1
        inner = [(begin, end) for begin, end in ranges if begin < last]
        if inner and not self.can_partial_remove:
            raise UnsupportedError(self._refusal(seq, *inner[0]))
        after = held[held > last]
        if not len(after):
            return inner
        # A window may have freed the positions before after[0], which count as part of the end.
        first = next(begin for begin, end in ranges if begin <= after[0] < end)
        return [(first, int(after[-1]) + 1), *inner]

    def _refusal(self, seq: SupportsIndex, begin: int, end: int) -> str:
        return (
            f"evict: a {self.kind} cache cannot remove positions {begin} to {end - 1} of a sequence that ends at "
            f"{self.seq_pos_max(seq)}"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot which sequence holds which rows, one line per sequence. Needs matplotlib (plait[viz]).

        Args:
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        from plait.display.plots import plot_cells

        return plot_cells(self, ax)

    def _repr_html_(self) -> str:
        from plait.display.cache_map import cache_html

        return cache_html(self)


def _ranges(positions: npt.ArrayLike) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the runs of consecutive positions, in order."""
    import numpy as np  # which `import plait` does not load

    given = np.asarray(positions)
    if given.size == 0:
        return
    if given.dtype.kind not in "iu" or given.ndim > 1:
        raise TypeError(
            f"evict: positions: expected an integer or a list of integers, got {positions!r:.80}"
        )
    wanted = np.unique(given)
    if not 0 <= wanted[0] <= wanted[-1] <= MAX_POSITION:
        wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise ValueError(f"evict: positions: expected 0 to {MAX_POSITION}, got {wrong}")
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    for run in np.split(wanted, breaks):
        yield int(run[0]), int(run[-1]) + 1
