"""Context, with what it shows of itself: its cache and its statistics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, SupportsIndex

from plait import _core
from plait.closing import Closing
from plait.sequence import Sequence

if TYPE_CHECKING:
    from os import PathLike

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from plait.capture import Capture
    from plait.edit import Change, Edit
    from plait.graph import Graph, Trace
    from plait.model import Model


class KVCache(_core.KVCache):  # noqa: D101
    __doc__ = _core.KVCache.__doc__

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_layer = context.model.n_layer

    def export(self, path: str | PathLike[str], seq: SupportsIndex = 0) -> None:
        """Write a sequence's keys and values for other programs: .npz, or .safetensors where that is installed.

        "blk.3.keys" and "blk.3.values": float32 (n_pos, n_head_kv, head_dim), those of keys() and values(). Layers
        without rows are left out. save() is what load() takes up again.

        Raises ValueError for another kind of file, UnsupportedError for a memory without keys and values.
        """
        from plait.export import export

        export(self, path, seq, self._n_layer)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw which sequence holds which row, one line a sequence. Needs matplotlib (plait[viz])."""
        from plait import figures

        return figures.plot_cells(self, ax)

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.cache_html(self)


class Stats(_core.Stats):  # noqa: D101
    __doc__ = _core.Stats.__doc__

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw where the time of the steps went, phase by phase. Needs matplotlib (plait[viz])."""
        from plait import figures

        return figures.plot_stats(self, ax)

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.stats_html(self)


class Context(_core.Context, Closing):  # noqa: D101
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
        from plait.graph import Graph

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
        from plait.capture import Capture

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
        from plait.edit import Edit

        return Edit(self, name, what, mode)

    def trace(self) -> Trace:
        """A context manager that notes which thread ran which operation when, in the calls inside it.

        `with ctx.trace() as trace: ctx.decode(batch)`, then `trace.events` or `trace.save("trace.json")`.
        """
        from plait.graph import Trace

        return Trace(self)

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.context_html(self)


def model_of(model: Model | Context, what: str) -> Model:
    """The model of a function's argument that may be a context; TypeError, which names `what`, for anything else."""
    source = model.model if isinstance(model, Context) else model
    expect_model(source, what)
    return source


def expect_model(model: object, what: str) -> None:
    """Raise TypeError, which names `what`, for what is no model."""
    if not isinstance(model, _core.Model):
        raise TypeError(f"{what}: expected a model, got {type(model).__name__}")


def expect_context(ctx: object, what: str) -> None:
    """Raise TypeError, which names `what`, for what is no context."""
    if not isinstance(ctx, Context):
        raise TypeError(f"{what}: expected a context, got {type(ctx).__name__}")
