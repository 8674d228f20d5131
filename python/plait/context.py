"""Context, with what it shows of itself: its cache and its statistics."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import TYPE_CHECKING

from plait import _core
from plait.sequence import Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.model import Model


class KVCache(_core.KVCache):  # noqa: D101
    __doc__ = _core.KVCache.__doc__

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw which sequence holds which row, one line a sequence. Needs matplotlib (plait[viz])."""
        from plait import figures

        return figures.plot_cells(self, ax)

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.cache_html(self)


class Stats(_core.Stats):  # noqa: D101
    __doc__ = _core.Stats.__doc__

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.stats_html(self)


class Context(_core.Context):  # noqa: D101
    __doc__ = _core.Context.__doc__

    model: Model

    @functools.cached_property
    def kv(self) -> KVCache:
        """What the context remembers, and the operations on it."""
        return KVCache(self)

    @functools.cached_property
    def stats(self) -> Stats:
        """Counters and times since the context was made or `stats.reset()`."""
        return Stats(self)

    def sequence(self) -> Sequence:
        """A handle of a sequence that holds nothing and that nobody else was given.

        Raises CacheFull when none of the n_seq_max is left.
        """
        return Sequence(self, self.open_sequence())

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
