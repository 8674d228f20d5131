"""How the answers of a Chat are generated: as requests to an engine, or in a sequence that can shift."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from plait import _core
from plait._core import Batch
from plait.closeable import Closeable
from plait.context import Context, SharedContext, model_of
from plait.errors import UnsupportedError
from plait.generation.draws import token_id
from plait.generation.engine import Engine, generate_ids
from plait.generation.events import Event
from plait.generation.request_pool import POOLED
from plait.generation.sampler import Sampler
from plait.generation.stops import StopConditions, StopStrings

if TYPE_CHECKING:
    import numpy.typing as npt

    from plait.model import Model

    Row = npt.NDArray[np.float32]

_SINKS: Final = 4  # leading tokens to keep, as attention sinks: Xiao et al. 2023, arXiv:2309.17453
_log = logging.getLogger("plait")


@dataclass(frozen=True)
class Turn:
    """The prompt of an answer, and how to generate it.

    Attributes:
        number: The index of its events, and the key that a plain function receives as a sampler.
        prompt: Token ids.
        n_system: How many of them are the system message.
        limit: Max tokens of the answer.
        sampler: Chooses tokens, as in generate().
        stop: What ends the answer.
        shown: Ids of control tokens that are part of the text.
    """

    number: int
    prompt: list[int]
    n_system: int
    limit: int
    sampler: Callable[..., int] | None
    stop: StopConditions
    shown: frozenset[int]


class Turns(Closeable):
    """Generates the answers of one conversation.

    Args:
        ctx: The context.

    Attributes:
        ctx: The context.
        room: Max tokens of a sequence.
        limit: The argument of Context that `room` comes from.
        n_reused: Tokens of the last prompt that were cached.
        n_forgotten: Tokens removed from the cache so far.
        shifts: Whether tokens are removed when the context is full.
    """

    shifts = False
    n_reused = 0
    n_forgotten = 0

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.room = min(ctx.n_ctx, ctx.kv.n_cells) if ctx.kv.kind in POOLED else ctx.n_ctx
        self.limit = "n_ctx" if self.room == ctx.n_ctx else "kv_cells"

    def start(self, turn: Turn) -> Generator[Event, None, None]:
        """Compute the prompt and return the events of the answer, without `parts`."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        raise NotImplementedError


def turns_of(model: Model | Context | SharedContext, shifts: bool) -> Turns:
    """Return where a conversation runs.

    Args:
        model: A Model, for which a context is created; a Context; or an Engine.
        shifts: Whether tokens are removed from the cache when the context is full.

    Raises:
        UnsupportedError: `shifts`, but the memory of the context cannot shift.
    """
    source = model_of(model, "Chat")
    ctx = model.ctx if isinstance(model, SharedContext) else model
    owned = None if isinstance(ctx, Context) else Context(source)
    found = ctx if isinstance(ctx, Context) else owned
    assert found is not None
    try:
        if shifts:
            return ShiftingTurns(found, owned)
        return EngineTurns(model if isinstance(model, Engine) else found, owned)
    except BaseException:
        if owned is not None:
            owned.close()
        raise


# -- in an engine --------------------------------------------------------------------------------------


class _Shared:
    """The engine of a context that several conversations use, and their number."""

    lock = threading.RLock()  # a finalizer may run while it is held
    of: ClassVar[dict[Context, _Shared]] = {}

    def __init__(self, ctx: Context) -> None:
        self.engine = Engine(ctx)
        self.n_users = 0

    @classmethod
    def acquire(cls, ctx: Context) -> Engine:
        """Return the engine of a context; the first conversation creates it."""
        with cls.lock:
            shared = cls.of.get(ctx)
            if shared is None or shared.engine.closed:
                shared = cls.of[ctx] = cls(ctx)
            shared.n_users += 1
            return shared.engine

    @classmethod
    def release(cls, ctx: Context, engine: Engine) -> None:
        """Give the engine back; the last conversation closes it."""
        with cls.lock:
            shared = cls.of.get(ctx)
            if shared is None or shared.engine is not engine:
                return
            shared.n_users -= 1
            if shared.n_users:
                return
            del cls.of[ctx]
        engine.close()


class EngineTurns(Turns):
    """Answers that are requests to an engine, which shares prefixes and steps with other requests.

    Args:
        model: An Engine; or a Context, whose conversations share an engine.
        owned: A context to close at the end.
    """

    def __init__(self, model: Engine | Context, owned: Context | None) -> None:
        super().__init__(model if isinstance(model, Context) else model.ctx)
        self._engine = _Shared.acquire(model) if isinstance(model, Context) else model
        self._owned = owned
        release = _Shared.release if isinstance(model, Context) else _nothing
        self._end = weakref.finalize(self, release, self.ctx, self._engine)

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return not self._end.alive

    def start(self, turn: Turn) -> Generator[Event, None, None]:
        """Compute the prompt and return the events of the answer."""
        call, events = generate_ids(
            self._engine, turn.prompt, turn.limit, turn.sampler,
            stop=turn.stop, shown=turn.shown, index=turn.number,
            key=None if turn.sampler is None or isinstance(turn.sampler, Sampler) else turn.number,
        )  # fmt: skip
        first = next(events)
        assert call.request is not None
        self.n_reused = call.request.usage.n_cached
        return _continued(first, events)

    def close(self) -> None:
        """Leave the engine, and close what this conversation created."""
        self._end()
        if self._owned is not None:
            self._owned.close()


def _nothing(*_: object) -> None:
    pass


def _continued(first: Event, rest: Generator[Event, None, None]) -> Generator[Event, None, None]:
    try:
        yield first
        yield from rest
    finally:
        rest.close()


# -- in a sequence of its own --------------------------------------------------------------------------


class ShiftingTurns(Turns):
    """Answers in a sequence of their own, from which old tokens are removed when the context is full.

    What is left was computed with the removed tokens in view, so nobody else may use it.

    Args:
        ctx: The context.
        owned: The context again if it is to be closed at the end.

    Raises:
        UnsupportedError: The memory of the context cannot shift.
    """

    shifts = True

    def __init__(self, ctx: Context, owned: Context | None) -> None:
        if not (ctx.kv.can_shift and ctx.kv.can_partial_remove):
            raise UnsupportedError(
                f"Chat: full is 'shift', but the {ctx.kv.kind} memory of a {ctx.model.arch} model cannot remove tokens "
                f"and shift later ones"
            )
        super().__init__(ctx)
        self._owned = owned
        self._seq = ctx.sequence()
        self._tokenizer = ctx.model.tokenizer
        # The tokens that were decoded, of which [gap[0], gap[1]) were removed from the cache.
        self._decoded: list[int] = []
        self._gap = (0, 0)
        self._n_replaced = ctx.kv.n_replaced
        self._keep = _SINKS

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._seq.closed

    def start(self, turn: Turn) -> Generator[Event, None, None]:
        """Compute the prompt and return the events of the answer."""
        self._keep = min(max(turn.n_system, _SINKS), self.room // 2)
        return self._answer(turn, self._prefill(turn.prompt))

    def close(self) -> None:
        """Free the cells, and the context if this conversation created it."""
        self._seq.close()
        if self._owned is not None:
            self._owned.close()

    def _prefill(self, prompt: list[int]) -> Row:
        """Decode the tokens of the prompt that are not cached and return the logits after the last one."""
        if self._is_changed():
            self._decoded, self._gap = [], (0, 0)
            self._n_replaced = self.ctx.kv.n_replaced
        self._rewind(prompt)
        n = len(self._decoded)
        row: Row | None = None
        while n < len(prompt):
            self._make_room()
            piece = prompt[n : n + min(self.ctx.n_batch, self.room - self._seq.pos)]
            row = self._feed(piece)
            n += len(piece)
        assert row is not None
        return row

    def _is_changed(self) -> bool:
        """Return whether another caller changed the sequence, for example with KVCache.clear() or a rollback."""
        n_cached = len(self._decoded) - (self._gap[1] - self._gap[0])
        return self._seq.pos != n_cached or self._n_replaced != self.ctx.kv.n_replaced

    def _rewind(self, prompt: list[int]) -> None:
        """Remove from the cache what differs from the prompt, and at least the last token of the prompt."""
        n = min(common_length(self._decoded, prompt), len(prompt) - 1)
        begin, end = self._gap
        self._seq.rewind(n - (end - begin) if n >= end else min(n, begin))
        self.n_reused = self._seq.pos  # a sliding window may have lost more
        if self.n_reused <= begin:  # no token after the gap is left
            self._gap = begin, end = 0, 0
        self._decoded = prompt[: self.n_reused + end - begin]

    def _feed(self, tokens: list[int]) -> Row:
        batch = Batch()
        batch.add_sequence(tokens, seq=self._seq, logits="last")
        row: Row = self.ctx.decode(batch).logits[0]
        self._decoded += tokens
        return row

    def _make_room(self) -> None:
        """Remove tokens from the cache if it is full."""
        if self._seq.pos < self.room:
            return
        discard = max(1, (self._seq.pos - self._keep) // 2)
        while not self._shifted(discard):
            discard //= 2
        begin, end = self._gap if self._gap[1] else (self._keep, self._keep)
        self._gap = (begin, end + discard)
        self.n_forgotten += discard
        _log.warning(
            "chat: %d tokens after the first %d were removed from the cache", discard, self._keep
        )

    def _shifted(self, discard: int) -> bool:
        """Remove tokens and return True. Returns False if those after them would not fill a sliding window."""
        try:
            self._seq.shift(self._keep, discard)
        except UnsupportedError:
            if discard == 1:
                raise
            return False
        return True

    def _answer(self, turn: Turn, row: Row) -> Generator[Event, None, None]:
        sampler, key = turn.sampler, turn.number
        if isinstance(sampler, Sampler):
            sampler, key = sampler.acquire(turn.prompt)
        stream = self._tokenizer.stream(continuing=True, shown=turn.shown)
        stops = StopStrings(turn.stop.strings)
        ends = self._tokenizer.eog | turn.stop.ids
        try:
            for n in range(1, turn.limit + 1):
                token = (
                    int(row.argmax())
                    if sampler is None
                    else token_id(sampler(row, seq=key), len(row))
                )
                logprob = float(_core.token_logprobs(row[np.newaxis], [token])[0])
                over = token in ends
                text, stopped = stops.push(stream.flush() if over else stream.push(token))
                reason = "stop" if over or stopped else None
                if reason is None and n == turn.limit:
                    rest, stopped = stops.push(stream.flush())
                    text += rest
                    reason = "stop" if stopped else "length"
                if reason is not None and not stopped:
                    text += stops.flush()
                yield Event(turn.number, token, text, logprob, reason)
                if reason is not None:
                    return
                if self._is_changed():
                    raise ValueError(
                        f"Chat: sequence {self._seq.id} was changed during an answer, for example by KVCache.clear() "
                        f"or the rollback of a transaction; close() the iterator of the answer before such calls"
                    )
                self._make_room()
                row = self._feed([token])
        finally:
            if isinstance(sampler, Sampler):
                sampler.release(key)


def common_length(a: list[int], b: list[int]) -> int:
    """Return how many leading tokens two lists share."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next(i for i in range(n) if a[i] != b[i])
