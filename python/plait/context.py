"""Context and its statistics."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from collections.abc import Sequence as Items
from copy import copy
from typing import TYPE_CHECKING, Any, SupportsIndex

from plait import _core
from plait.arguments import expect_model
from plait.cache.kv_cache import KVCache
from plait.cache.sequence import Sequence
from plait.closeable import Closeable
from plait.model import loading_order

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from plait.inspect.capture import Capture, Sink
    from plait.inspect.edit import Change, Edit, Positions, Sequences
    from plait.inspect.gradients import Gradients, Loss
    from plait.inspect.graph import Graph, Trace
    from plait.inspect.receipt import Receipt
    from plait.inspect.recorder import Recorder
    from plait.model import Model


class Stats(_core.Stats):  # noqa: D101
    __doc__ = _core.Stats.__doc__

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the time of each phase of a step. Needs matplotlib (plait[viz]).

        Args:
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        from plait.display.plots import plot_stats

        return plot_stats(self, ax)

    def _repr_html_(self) -> str:
        from plait.display.tables import stats_html

        return stats_html(self)


class Context(_core.Context, Closeable):  # noqa: D101
    __doc__ = _core.Context.__doc__

    model: Model

    # What a receipt needs to know: the given options, the edits that exist, and the arguments of the last set_lora()
    # and set_control_vector() for all sequences: () before the first, None after one for single sequences.
    _options: dict[str, Any]
    _isa: str
    _edits: weakref.WeakValueDictionary[int, Edit]
    _steering: dict[str, tuple[tuple[Any, ...], dict[str, Any]] | tuple[()] | None]
    _recorder: Recorder | None = None
    # Increases whenever adapters, control vectors or edits for all sequences may have changed: rows
    # of the cache that were computed in different epochs must not become one sequence.
    _epoch = 0
    _open_edits: set[int]  # ids of the objects
    _adapters: Items[tuple[_core.Adapter, float]] = ()  # in the order in which they are applied

    if not TYPE_CHECKING:  # type checkers read the signatures of _core.Context

        @functools.wraps(_core.Context.__init__)
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            options.pop("model", None)
            self._options = options
            self._isa = _core.choose_isa(options.get("isa"))
            self._edits = weakref.WeakValueDictionary()
            self._open_edits = set()
            self._steering = {"set_lora": (), "set_control_vector": ()}

        @functools.wraps(_core.Context.set_lora)
        def set_lora(self, *args: Any, **kwargs: Any) -> None:  # noqa: D102
            given = _for_all(args, kwargs)  # before anything changes: it allocates
            concerns_all = kwargs.get("seq") is None
            with self._change(concerns_all):
                super().set_lora(*args, **kwargs)
                self._steering["set_lora"] = given
                if concerns_all:
                    scales = (args[0] if args else kwargs["adapters"]) or {}
                    self._adapters = sorted(scales.items(), key=lambda one: loading_order(one[0]))

        @functools.wraps(_core.Context.set_control_vector)
        def set_control_vector(self, *args: Any, **kwargs: Any) -> None:  # noqa: D102
            given = _for_all(args, kwargs)  # before anything changes: it allocates
            with self._change(kwargs.get("seq") is None):
                super().set_control_vector(*args, **kwargs)
                self._steering["set_control_vector"] = given

    @contextlib.contextmanager
    def _change(self, concerns_all: bool = True) -> Iterator[None]:
        """Begin a new epoch before and after a change, since other threads may decode meanwhile."""
        self._epoch += concerns_all
        try:
            yield
        finally:
            self._epoch += concerns_all

    @property
    def isa(self) -> str:
        """Name of the CPU instruction set in use, one of build_info()["isas"]."""
        return self._isa

    @functools.cached_property
    def kv(self) -> KVCache:
        """The KV cache: what the context has stored, and the operations on it."""
        return KVCache(self)

    @functools.cached_property
    def stats(self) -> Stats:
        """Counters and times since the context was created or since `stats.reset()`."""
        return Stats(self)

    def sequence(self) -> Sequence:
        """Return a handle of a sequence that is empty and has no other open handle.

        While it is open, calls that change the sequence name it by the handle and not by its id.

        Raises:
            CacheFull: All n_seq_max sequences are in use.
        """
        return Sequence(self)

    def graph(
        self,
        n_tokens: SupportsIndex = 1,
        n_seqs: SupportsIndex = 1,
        n_outputs: SupportsIndex = 1,
        *,
        embeddings: bool = False,
        encode: bool = False,
    ) -> Graph:
        """Return the execution plan of a step of the given shape.

        If no step of that shape has run before, the plan is built and counted in `stats` like that
        of a step.

        Args:
            n_tokens: Number of tokens in the step.
            n_seqs: Number of sequences that the tokens belong to.
            n_outputs: Number of tokens that request output.
            embeddings: True if the input consists of embeddings instead of token ids.
            encode: True for the plan of encode() instead of decode().

        Raises:
            ValueError: This context cannot run such a step.
        """
        from plait.inspect.graph import Graph

        nodes = self.graph_nodes(n_tokens, n_seqs, n_outputs, embeddings=embeddings, encode=encode)
        return Graph(nodes)

    def capture(self, *patterns: str, sink: Sink | None = None) -> Capture:
        """Record intermediate values of the calls inside a `with` block.

        Calls outside of a capture are not slowed down. The first call with a new set of names
        builds a new plan.

        Args:
            patterns: Names or glob patterns from value_names(). "l_out.3" is the same as
                "blk.3.l_out".
            sink: Where the rows go, call by call, so that memory stays constant. A function
                receives a dict of names to float32 arrays for each call; an exception that it
                raises ends the call and leaves the cache unchanged, and it must not call this
                context. A path is a directory, in which each value gets a file such as
                "blk.3.l_out.npy", readable with np.load(mmap_mode="r") at any time. Files of these
                names are replaced when the block is entered. None keeps the rows in memory.

        Returns:
            A context manager and mapping from names to float32 arrays (n_tokens, ...): the rows of
            all calls in batch order. Values after the last layer (result_norm, result_output) have
            one row per token that requested output.

        Raises:
            TypeError: `sink` is neither a function nor a path.
            ValueError: A pattern matches nothing, or another capture of this context is open.
            OSError: A file cannot be written.

        Example:
            with ctx.capture("blk.3.attn_out", "l_out.*") as seen:
                ctx.decode(batch)
            seen["blk.3.attn_out"]
        """
        from plait.inspect.capture import Capture

        return Capture(self, patterns, sink)

    def gradients(self, *patterns: str, of: Loss) -> Gradients:
        """Compute gradients of a scalar of the logits in the calls inside a `with` block.

        Each call computes the scalar and its derivatives with respect to the values, with frozen
        weights, for example for attribution patching. Derivatives of weights in any format are
        those of their dequantised values, in float32; rounding of activations and of the cache has
        the derivative of the identity. Keys and values that earlier calls stored are constants, so
        decode the whole prompt in one call to include all paths.

        Derivatives are computed on one thread of the host. The call takes additional memory for
        the values that they read.

        Args:
            patterns: Names or glob patterns from value_names(). "l_out.3" is the same as
                "blk.3.l_out".
            of: The scalar: a plait.Logit, plait.LogitDifference or plait.LogProbability, or a
                function that takes the logits of the call, float32 (n_outputs, n_vocab), and
                returns the value and its derivative, an array of the same shape.

        Returns:
            A context manager and mapping from names to float32 arrays of the shape of the value,
            (n_tokens, ...): the derivative of the scalar with respect to each element. Its
            attribute `losses` has the scalar of each call.

        Raises:
            ValueError: A pattern matches nothing, other gradients of this context are open, or the
                context computes no logits. Also raised by a call that requests no logits or has
                more than n_ubatch tokens; the call then changes nothing.
            UnsupportedError: An operation between a value and the logits has no derivative.

        Example:
            with ctx.gradients("l_out.*", of=plait.Logit(token)) as grads:
                ctx.decode(batch)
            grads["l_out.3"]
        """
        from plait.inspect.gradients import Gradients

        return Gradients(self, patterns, of)

    def edit(
        self,
        name: str,
        what: Change | npt.ArrayLike,
        mode: str = "add",
        *,
        seq: Sequences | None = None,
        positions: Positions | None = None,
    ) -> Edit:
        """Change an intermediate value of the calls inside a `with` block.

        Several edits can be open at once. Edits of the same rows of a value apply in the order in
        which they were opened. On the CPU, rows that no edit selects keep the bits that they have
        without edits, and an edited sequence has the bits that it has with the same edit alone.

        Arrays are applied by the plan itself: the first call with a new set of values builds a
        plan, but other arrays, positions and sequences build none. Functions interrupt the plan.
        Cached rows keep the values they were computed with, and saved states do not record edits.
        An exception raised by a function ends the call and leaves the cache unchanged. The function
        must not call this context. Values that a call does not need are not computed, and their
        functions are not called: for example, a call without outputs omits the end of the last
        layer.

        Args:
            name: A name from value_names(). "l_out.3" is the same as "blk.3.l_out".
            what: An array that broadcasts to one token's row, which applies to every selected row;
                or an array of shape (n_positions, ...), with a row for each of `positions`, in
                their order; or a function that receives the selected rows of a microbatch in batch
                order, float32 (n, ...), and returns as many rows. It is called only if rows are
                selected. Values after the last layer have one row per token that requested output.
                If a token's row has several parts, as in Gemma 3n, an array may omit the axis of
                the parts and then applies to each of them.
            mode: "add" to add the array to the value, "replace" to replace the value, "scale" to
                multiply the value by the array. Ignored for functions.
            seq: The sequences whose rows are edited: an id, a `Sequence`, or several. None: all.
                The edit keeps the id of a `Sequence`, so close the edit before the `Sequence`.
            positions: The absolute positions whose rows are edited: an int, a slice, a range or an
                array of distinct integers. None: all.

        Returns:
            A context manager.

        Raises:
            TypeError: `seq` or `positions` are not integers, or the array has no real numbers.
            ValueError: The name or the mode is unknown; the array has the wrong shape, or has a row
                for each position of a slice without end; a sequence does not exist, is closed, or
                belongs to another context; a position is negative or given twice. In a call: a
                token belongs to several sequences that different edits of one value select.

        Example:
            with ctx.edit("l_out.3", direction, seq=2, positions=slice(4, None)):
                ctx.decode(batch)
        """
        from plait.inspect.edit import Edit

        return Edit(self, name, what, mode, seq, positions)

    def trace(self) -> Trace:
        """Record which thread runs which operation at what time, for the calls inside a `with` block.

        Returns:
            A context manager, whose records are complete when the block ends.

        Raises:
            ValueError: When the block begins: another trace of this context is open.

        Example:
            with ctx.trace() as trace:
                ctx.decode(batch)
            trace.save("trace.json")
        """
        from plait.inspect.graph import Trace

        return Trace(self)

    def record(self) -> Receipt:
        """Record the calls inside a `with` block, so that anyone can compute them again and compare.

        The receipt has the SHA-256 of the model file, the options, the instruction set, the
        adapters, control vectors and edits, and every call that changes the cache or computes
        something, from any thread, in the order in which they ran: with its arguments, and the
        SHA-256 of its output. It also has the state of the cache at the beginning, if that is not
        empty, and of every state that is loaded, so the file is as large as these. Calls that fail
        change nothing and are not recorded. Recordings of one context can be nested; each has the
        calls of its own block.

        An edit by a function cannot be stored: the receipt then has a `problem`, and
        plait.verify() refuses it. Captures and gradients change no results and are not recorded.
        Only calls of this object, its `kv` and its sequences are recorded, not those of a KVCache
        that was created in another way.

        Returns:
            A context manager. Its `save(path)` writes the file for plait.verify().

        Raises:
            UnsupportedError: Raised by entering the block: adapters or control vectors of single
                sequences were set before, or a transaction is open.

        Example:
            with ctx.record() as receipt:
                ctx.decode(batch)
            receipt.save("run.json")
            plait.verify("run.json", ctx.model)
        """
        from plait.inspect.receipt import Receipt
        from plait.inspect.recorder import start

        return Receipt(functools.partial(start, self))

    def _repr_html_(self) -> str:
        from plait.display.tables import context_html

        return context_html(self)


def _for_all(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return copies of the arguments of a call for all sequences, None if it is one for single sequences."""
    if kwargs.get("seq") is not None:
        return None
    return tuple(map(copy, args)), {name: copy(value) for name, value in kwargs.items()}


def context_with_at_most(kv_cells: int, model: Model, *, n_ctx: int, **options: Any) -> Context:
    """Create a context with as many cells as fit into memory.

    Args:
        kv_cells: Max number of cells. Halved until they fit, but at least `n_ctx`.
        model: The model.
        n_ctx: As in Context.
        options: More options of Context.

    Returns:
        The context.

    Raises:
        MemoryError: There is too little memory for `n_ctx` cells.
    """
    while True:
        try:
            return Context(model, n_ctx=n_ctx, kv_cells=kv_cells, **options)
        except MemoryError:
            if kv_cells <= n_ctx:
                raise
        kv_cells = max(kv_cells // 2, n_ctx)


class SharedContext(Closeable):
    """Base class of Engine: runs requests of many callers in one context."""

    @property
    def ctx(self) -> Context:
        """The context."""
        raise NotImplementedError

    def batch(self) -> Any:
        """Return a scheduler of requests that are waited for together."""
        raise NotImplementedError


def model_of(model: Model | Context | SharedContext, what: str, name: str = "model") -> Model:
    """Return the model of an argument that is a model, a context or an engine.

    Args:
        model: A Model; a Context or an Engine, whose model is returned.
        what: Name of the calling function, for the message.
        name: Name of the argument, for the message.

    Raises:
        TypeError: `model` is none of these.
    """
    if isinstance(model, SharedContext):
        model = model.ctx
    source = model.model if isinstance(model, Context) else model
    expect_model(source, what, name)
    return source
