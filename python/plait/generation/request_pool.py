"""RequestPool: the requests of a scheduler, and which of them hold a sequence."""

from __future__ import annotations

import bisect
import heapq
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from plait.errors import CacheFull
from plait.generation.events import Event
from plait.generation.prefix_cache import PrefixCache
from plait.generation.prefix_tree import PrefixTree
from plait.generation.request import Request
from plait.generation.sampler import Sampler

if TYPE_CHECKING:
    from plait.context import Context
    from plait.generation.prefix_store import PrefixStore

_log: Final = logging.getLogger("plait")
_LOOK_AHEAD: Final = 64  # max waiting requests examined while earlier ones wait for a prefix
POOLED: Final = ("unified", "sliding", "hybrid", "cross")  # kinds whose sequences share free cells


class RequestPool:
    """The requests of a scheduler: new, waiting or active.

    Requests arrive in `inbox` and leave by `cancelled` from any thread. All else belongs to the thread that steps.

    Args:
        ctx: The context.
        share: Whether requests share prefixes.
        keep: Whether sequences of finished requests are kept for later ones.
        live: Whether requests arrive at any time and other callers use the context.
        store: Where prefixes are loaded and saved.

    Attributes:
        inbox: Requests that have been submitted since the last step.
        cancelled: Requests to end.
        waiting: Requests without a sequence, by rank.
        active: Requests with a sequence.
        expired: Requests that have reached their timeout since the last step, with their last events.
        failed: Requests that failed in the last step.
        ended: Requests that have ended, for whatever reason, if `live`.
        n_preempted: Number of preemptions.
        prefixes: Opens and keeps the sequences.
    """

    def __init__(
        self, ctx: Context, *, share: bool, keep: bool, live: bool, store: PrefixStore | None
    ) -> None:
        self.inbox: deque[Request] = deque()
        self.cancelled: deque[Request] = deque()
        self.waiting: list[Request] = []
        self.active: list[Request] = []
        self.expired: list[tuple[Request, Event]] = []
        self.failed: list[Request] = []
        self.ended: list[Request] = []
        self.n_preempted = 0
        self._ctx = ctx
        self._live = live
        self._shares = share or keep
        self._pooled = ctx.kv.kind in POOLED
        self._tree: PrefixTree[Request] = PrefixTree()  # the waiting requests under their tokens
        self._deadlines: list[tuple[float, int, Request]] = []  # a heap
        self._n_replaced = ctx.kv.n_replaced
        self.prefixes = PrefixCache(ctx, self._tree, share=self._shares, keep=keep, store=store)

    def update(self) -> None:
        """Take up what has arrived, end what is cancelled or late, and start what has room.

        Raises:
            ValueError: Another caller changed the sequences of active requests.
        """
        self.failed = []
        self.drop_cancelled()
        self._drop_expired()
        self._check_sequences()
        self._admit()

    def drop_cancelled(self) -> None:
        """Read the inbox, and end the requests that were cancelled."""
        self._read_inbox()
        ended = False
        while self.cancelled:
            request = self.cancelled.popleft()
            if request.done:
                continue
            if request.seq is None:
                self._read_inbox()  # the request may have arrived since
                self._remove_waiting(request)
            self.end(request, "cancelled")
            ended = True
        if ended:
            self.prefixes.sweep()  # no step may follow

    def end_all(self, reason: str, error: BaseException | None = None) -> None:
        """End all requests and free their cells."""
        # After an interrupt, a request may be in some of these collections and missing in others.
        left = [*self.inbox, *self.waiting, *self.active]
        for _ in range(len(self.inbox)):
            self.inbox.popleft()
        for collection in (self.waiting, self.active, self._tree, self._deadlines):
            collection.clear()
        self.cancelled.clear()
        self.expired.clear()
        for request in left:
            self.prefixes.abandon(request)
            if not request.done:
                request.error = error
                self._finish(request, reason)
        self.prefixes.clear()
        self._n_replaced = self._ctx.kv.n_replaced

    def preempt(self, request: Request) -> None:
        """Take the sequence of an active request, which is computed again later."""
        self.prefixes.close(request, useful=False)
        request.n_preempted += 1
        self.n_preempted += 1
        self._wait(request)
        self.active.remove(request)

    def end(self, request: Request, reason: str) -> None:
        """Finish a request that is not waiting."""
        is_active = request.seq is not None
        if is_active:
            self.prefixes.close(request, useful=self._shares and reason in ("stop", "length"))
        self._finish(request, reason)
        if is_active:  # last: if the context was closed meanwhile, end_all() must find the request
            self.active.remove(request)

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request that is not waiting with an error."""
        request.error = error
        self.failed.append(request)
        self.end(request, "error")

    def is_full(self, request: Request) -> bool:
        """Return whether no cell is left for the next token and no other request or prefix could free one."""
        return (
            self._pooled
            and self._ctx.kv.n_free == 0
            and self.active == [request]
            and not len(self.prefixes)
            and not self.others_hold_cells(request)
        )

    def others_hold_cells(self, request: Request) -> bool:
        """Return whether the only active request can wait for cells that other callers hold."""
        kv = self._ctx.kv
        return (
            self._live
            and self._pooled
            and len(request.all) <= kv.n_cells
            and kv.n_used > request.n_cached
        )

    def _read_inbox(self) -> None:
        while self.inbox:
            request = self.inbox.popleft()
            self._wait(request)
            if request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, request.rank[1], request))
        if len(self._deadlines) > 64 + 2 * (len(self.waiting) + len(self.active)):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)

    def _wait(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=lambda r: r.rank)
        if self._shares:
            self._tree.add(list(request.all), request)

    def _remove_waiting(self, request: Request) -> None:
        at = bisect.bisect_left(self.waiting, request.rank, key=lambda r: r.rank)
        assert self.waiting[at] is request
        del self.waiting[at]
        if self._shares:
            self._tree.remove(request.all, request)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.done:
                continue
            if request.seq is None:
                self._remove_waiting(request)
            text = request.flush()
            self.end(request, "timeout")
            last = Event(request.index, -1, text, 0.0, "timeout", request.sample)
            self.expired.append((request, last))

    def _check_sequences(self) -> None:
        """Check that the cache holds the tokens of all running requests. If none runs, drop kept prefixes that changed.

        Raises:
            ValueError: The cache does not hold them.
        """
        replaced = self._ctx.kv.n_replaced
        if not self.active:
            if replaced != self._n_replaced:
                self.prefixes.clear()
            else:
                self.prefixes.drop_changed()
        elif replaced != self._n_replaced:
            raise ValueError(
                "step: load(), from_bytes(), copy_to() or the rollback of a transaction replaced the sequences that "
                "the scheduler uses; close the scheduler before such calls"
            )
        self._n_replaced = replaced
        for request in self.active:
            assert request.seq is not None
            if request.seq.pos != request.positions[request.n_cached]:
                raise ValueError(
                    f"step: sequence {request.seq.id} ends at position {request.seq.pos}, but prompt {request.index} "
                    f"has {request.n_cached} cached tokens; do not change sequences that a scheduler uses, or close "
                    f"the scheduler first"
                )

    def _admit(self) -> None:
        """Start waiting requests in order while sequences and cells for their prompts are free."""
        at = 0
        while at < len(self.waiting) and at < _LOOK_AHEAD:
            request = self.waiting[at]
            coming = self.prefixes.coming(request.all) if self._shares else 0
            if coming and coming > self.prefixes.available(request.all):
                at += 1  # waiting for the prefix is faster than computing it
                continue
            if not self._has_room(request):
                if self.active or (self._live and request.n_pending <= self._ctx.kv.n_cells):
                    break
                self._remove_waiting(request)
                free, needed = self._ctx.kv.n_free, request.n_pending
                self.fail(
                    request,
                    CacheFull(
                        f"generate: prompt {request.index} has {needed} tokens, but only {free} cells are free",
                        needed, free,
                    ),
                )  # fmt: skip
                continue
            if self._shares:
                self._tree.remove(request.all, request)
            opened = False
            try:  # it counts as waiting until it has a sequence
                opened = self.prefixes.open(request)
            finally:
                if self._shares:
                    self._tree.add(list(request.all), request)
            if opened:
                self._remove_waiting(request)
                self.active.append(request)
            elif not self.active and not self._live:
                self._remove_waiting(request)
                self.fail(request, self._no_sequence())
            else:
                break
        self.prefixes.sweep()

    def _no_sequence(self) -> CacheFull:
        n = self._ctx.n_seq_max
        return CacheFull(
            f"generate: all {n} sequences of the context are in use (n_seq_max is {n}); close one or create the "
            f"context with a larger n_seq_max",
            1, 0,
        )  # fmt: skip

    def _has_room(self, request: Request) -> bool:
        """Return whether there are cells for the prompt and for the next tokens of the active requests."""
        if not self._pooled:
            return True
        others = sum(max(r.n_pending, 1) for r in self.active)
        while True:
            holder, n = self.prefixes.best(request.all)
            if len(request.all) - n <= self._ctx.kv.n_free - others:
                return True
            if not self.prefixes.evict(keep=holder) and (self.active or not self.prefixes.evict()):
                return False

    def _finish(self, request: Request, reason: str) -> None:
        request.end(reason)
        if self._live:
            self.ended.append(request)
        if isinstance(request.sampler, Sampler):
            if request.own_key:
                request.sampler.release(request.key)
            else:
                request.sampler.start(request.key)
        if request.draft is not None:
            try:
                request.draft.release(request)
            except Exception as error:  # the request has ended, and no other one is affected
                _log.warning(
                    "generate: prompt %d: release() of the drafter failed",
                    request.index,
                    exc_info=error,
                )
