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
        """Write a sequence's keys and values for other programs: .npz, or .safetensors where that is installed.

        "blk.3.keys" and "blk.3.values": float32 (n_pos, n_head_kv, head_dim), those of keys() and values(). Layers
        without rows are left out. save() is what load() takes up again.

        Raises ValueError for another kind of file, UnsupportedError for a memory without keys and values.
        """
        from plait.cache.export import export

        export(self, path, seq, self._n_layer)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw which sequence holds which row, one line a sequence. Needs matplotlib (plait[viz])."""
        from plait.display.plots import plot_cells

        return plot_cells(self, ax)

    def _repr_html_(self) -> str:
        from plait.display.cache_map import cache_html

        return cache_html(self)
