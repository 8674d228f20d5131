"""KVCache: the cache of a context, with export and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from plait import _core

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes


class KVCache(_core.KVCache):  # noqa: D101
    __doc__ = _core.KVCache.__doc__

    def __init__(self, context: _core.Context) -> None:
        super().__init__(context)
        self._n_layer = context.model.n_layer

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
        export(self, path, seq, self._n_layer)

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
