"""Context, with what it shows of itself: its cache and its statistics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from plait import _core
from plait.arguments import expect_model
from plait.cache.kv_cache import KVCache
from plait.cache.sequence import Sequence
from plait.closeable import Closeable

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from plait.inspect.capture import Capture
    from plait.inspect.edit import Change, Edit
    from plait.inspect.graph import Graph, Trace
    from plait.model import Model


class Stats(_core.Stats):  # noqa: D101
    __doc__ = _core.Stats.__doc__

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw where the time of the steps went, phase by phase. Needs matplotlib (plait[viz])."""
        from plait.display.plots import plot_stats

        return plot_stats(self, ax)

    def _repr_html_(self) -> str:
        from plait.display.tables import stats_html

        return stats_html(self)


class Context(_core.Context, Closeable):  # noqa: D101
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
        return Sequence(self, self.kv, self.open_sequence())

    def graph(
        self,
        n_tokens: int = 1,
        n_seqs: int = 1,
        n_outputs: int = 1,
        *,
        embeddings: bool = False,
        encode: bool = False,
    ) -> Graph:
        """The plan of a step of `n_tokens` tokens of `n_seqs` sequences that wants `n_outputs` rows.

        `embeddings`: the tokens are given as embeddings. `encode`: the graph of encode(). The plan is built if no step
        of that shape ran before, and counted in `stats` like a step's. Raises ValueError for a step that this context
        cannot be asked for.
        """
        from plait.inspect.graph import Graph

        nodes = self.graph_nodes(n_tokens, n_seqs, n_outputs, embeddings=embeddings, encode=encode)
        return Graph(nodes)

    def capture(self, *patterns: str) -> Capture:
        """A context manager that records values between input and output, in the calls inside it.

        `with ctx.capture("blk.3.attn_out", "l_out.*") as seen: ctx.decode(batch)`, then `seen["blk.3.attn_out"]`:
        float32 (n_tokens, ...), the rows of all calls in the order of their batches. Values after the last layer
        (result_norm, result_output) have a row for each entry that asked for one. `patterns` are names or globs of
        value_names(); "l_out.3" is the same as "blk.3.l_out".

        Calls without a capture cost nothing for it; the first with a new set of names builds plans of its own.

        Raises ValueError for a pattern that matches nothing, and inside another capture of this context.
        """
        from plait.inspect.capture import Capture

        return Capture(self, patterns)

    def edit(self, name: str, what: Change | npt.ArrayLike, mode: str = "add") -> Edit:
        """A context manager that changes a value between input and output, in the calls inside it.

        `with ctx.edit("l_out.3", direction): ctx.decode(batch)`. `name` is one of value_names(); "l_out.3" is the same
        as "blk.3.l_out". `what` is an array for one token's row, the same for all: added with mode "add", in the
        value's place with mode "replace". Or it is a function, which gets the rows as float32 (n_tokens, ...) and
        returns as many: those of a microbatch, in the order of the batch. Values after the last layer have a row for
        each entry that asked for output. What a call does not need is not computed, and its function not called: a
        call without outputs leaves out the end of the last layer.

        What the function raises ends the call, and the cache is as it was before. It may not call this context.
        Edits may be open at the same time, also several of one value, which follow each other in the order in which
        they were opened. What is cached stays as it was computed, and a saved state says nothing of edits. Calls
        without an edit cost nothing for it; the first with a new set of names builds plans of its own.

        Raises ValueError for an unknown name or an array of another shape.
        """
        from plait.inspect.edit import Edit

        return Edit(self, name, what, mode)

    def trace(self) -> Trace:
        """A context manager that notes which thread ran which operation when, in the calls inside it.

        `with ctx.trace() as trace: ctx.decode(batch)`, then `trace.events` or `trace.save("trace.json")`.
        """
        from plait.inspect.graph import Trace

        return Trace(self)

    def _repr_html_(self) -> str:
        from plait.display.tables import context_html

        return context_html(self)


def model_of(model: Model | Context, what: str) -> Model:
    """The model of a function's argument that may be a context; TypeError, which names `what`, for anything else."""
    source = model.model if isinstance(model, Context) else model
    expect_model(source, what)
    return source
