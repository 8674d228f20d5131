"""PrefixCache: sequences of running requests, and kept sequences whose prefixes other requests can use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from plait.errors import CacheFull
from plait.generation.prefix_tree import PrefixTree
from plait.generation.request import Request

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.context import Context

_MIN_PREFIX: Final = 8  # min tokens for which forking, or waiting for a fork, pays off


class Idle:
    """A sequence that no request uses, kept because its tokens may be the prefix of another request."""

    def __init__(self, tokens: list[int], seq: Sequence, used: int) -> None:
        self.filed = tokens
        self.seq: Sequence | None = seq
        self.used = used  # time of last use

    @property
    def n_cached(self) -> int:
        """Number of tokens that the sequence holds."""
        return len(self.filed)


class PrefixCache:
    """Opens sequences for requests, as forks of sequences with a common prefix where possible.

    Memories with one row per token (unified, streams) can fork a sequence at any token. Windows and
    recurrent states can only be forked as a whole. For those, a running request pauses where the
    tokens of a waiting request diverge, and a fork taken there serves the waiting request later.

    Args:
        ctx: The context.
        waiting: The waiting requests, filed under their tokens.
        share: Whether requests share prefixes.
        keep: Whether sequences of finished requests are kept even if no waiting request uses them.
    """

    def __init__(
        self, ctx: Context, waiting: PrefixTree[Request], *, share: bool, keep: bool
    ) -> None:
        self.n_shared = 0  # tokens that were not recomputed
        self._ctx = ctx
        self._waiting = waiting
        self._share = share
        self._keep = keep
        self._held: PrefixTree[Request | Idle] = PrefixTree()
        self._idle: dict[Idle, None] = {}
        self._forks_anywhere = ctx.kv.kind in ("unified", "streams")
        self._time = 0

    def __len__(self) -> int:
        return len(self._idle)

    def best(self, tokens: list[int]) -> tuple[Request | Idle | None, int]:
        """Return the holder of the longest forkable common prefix and the length of that prefix.

        At least one token is left to compute.
        """
        limit, best, best_n = len(tokens) - 1, None, _MIN_PREFIX - 1
        if not self._share:
            return None, 0
        for n, holders in self._held.matches(tokens):
            if n <= best_n:
                break
            for holder in holders:
                usable = min(n, holder.n_cached, limit)
                if not self._forks_anywhere and usable < holder.n_cached:
                    continue
                if usable > best_n:
                    best, best_n = holder, usable
        return best, best_n if best is not None else 0

    def coming(self, tokens: list[int]) -> int:
        """Return the length of the longest prefix that a running request will hold once it has processed more of its
        tokens.
        """
        limit = len(tokens) - 1
        for n, holders in self._held.matches(tokens):
            wanted = min(n, limit)
            if wanted < _MIN_PREFIX:
                break
            if any(isinstance(h, Request) and h.n_cached < wanted for h in holders):
                return wanted
        return 0

    def open(self, request: Request) -> bool:
        """Open a sequence for a request. Returns False if none is available now."""
        holder, n = self.best(request.all)
        seq = self._sequence(holder, n)
        while seq is None and self.evict(keep=holder):
            seq = self._sequence(holder, n)
        if seq is None:
            return False
        request.seq, request.n_cached = seq, seq.pos if holder is not None else 0
        request.filed = list(request.all)
        self._held.add(request.filed, request)
        self.n_shared += request.n_cached
        request.begin(request.n_cached)
        return True

    def close(self, request: Request, useful: bool) -> None:
        """Close the sequence of a request.

        Args:
            request: The request.
            useful: Whether other requests may use the tokens that the sequence holds.
        """
        seq, held = request.seq, request.all[: request.n_cached]
        assert seq is not None
        self._held.remove(request.filed, request)
        request.seq, request.n_cached = None, 0
        wanted = self._wanted(held) if useful and seq.pos == len(held) else 0
        if wanted and self.best([*held[:wanted], -1])[1] < wanted:
            seq.truncate(wanted)
            self._put(held[:wanted], seq)
        else:
            seq.close()

    def abandon(self, request: Request) -> None:
        """Close the sequence of a request without updating the tree; clear() must follow."""
        seq, request.seq, request.n_cached = request.seq, None, 0
        if seq is not None:
            seq.close()

    def until_branch(self, request: Request, n: int) -> int:
        """Return how many of the next `n` tokens the request can process before another request requires a fork."""
        if self._forks_anywhere or not len(self._waiting):
            return n
        points = self._waiting.branches(request.all)
        ahead = [p for p in points if p >= _MIN_PREFIX and p > request.n_cached]
        return min([n, *(p - request.n_cached for p in ahead)])

    def branch(self, request: Request) -> None:
        """Keep a fork if waiting requests diverge at the request's current length."""
        n = request.n_cached
        if self._forks_anywhere or n < _MIN_PREFIX or not len(self._waiting) or request.seq is None:
            return
        if n in self._waiting.branches(request.all) and all(
            idle.filed != request.all[:n] for idle in self._idle if idle.n_cached == n
        ):
            # Without room for a fork, the waiting requests compute the prefix themselves.
            with contextlib.suppress(CacheFull):
                self._put(request.all[:n], request.seq.fork())

    def sweep(self) -> None:
        """Close the kept sequences that no waiting request can use."""
        for idle in [idle for idle in self._idle if not self._wanted(idle.filed)]:
            self._drop(idle)

    def evict(self, keep: Request | Idle | None = None) -> bool:
        """Close the least recently used kept sequence other than `keep`. Returns False if there is none."""
        others = [idle for idle in self._idle if idle is not keep]
        if not others:
            return False
        self._drop(min(others, key=lambda idle: idle.used))
        return True

    def clear(self) -> None:
        """Close all kept sequences and forget all requests."""
        idle = list(self._idle)
        self._idle.clear()
        self._held.clear()
        for one in idle:
            if one.seq is not None:
                one.seq.close()

    def _sequence(self, holder: Request | Idle | None, n: int) -> Sequence | None:
        """Return a sequence that holds the first `n` tokens of the holder, or None."""
        try:
            if holder is None:
                return self._ctx.sequence()
            assert holder.seq is not None
            seq = holder.seq.fork(None if n == holder.n_cached else n)
            if isinstance(holder, Idle):
                holder.used = self._tick()
            return seq
        except CacheFull:
            return self._adopted(holder, n) if isinstance(holder, Idle) else None

    def _adopted(self, idle: Idle, n: int) -> Sequence | None:
        """Return the idle sequence itself if the requests that wait for it lose nothing, else None."""
        others = 0
        for length, requests in self._waiting.matches(idle.filed):
            others = max(others, len(requests) if length >= idle.n_cached else 0)
        if not self._forks_anywhere and others > 1:
            return None
        seq = idle.seq
        assert seq is not None
        self._forget(idle)
        seq.truncate(n)
        return seq

    def _wanted(self, held: list[int]) -> int:
        """Return how many of these tokens are worth keeping."""
        if self._keep:
            return len(held)
        for n, requests in self._waiting.matches(held):
            longest = max(len(request.all) for request in requests) - 1
            usable = min(n, longest)
            if usable < _MIN_PREFIX:
                break
            if self._forks_anywhere or usable == len(held):
                return usable
        return 0

    def _put(self, tokens: list[int], seq: Sequence) -> None:
        idle = Idle(tokens, seq, self._tick())
        self._idle[idle] = None
        self._held.add(tokens, idle)

    def _drop(self, idle: Idle) -> None:
        seq = idle.seq
        self._forget(idle)
        if seq is not None:
            seq.close()

    def _forget(self, idle: Idle) -> None:
        del self._idle[idle]
        self._held.remove(idle.filed, idle)
        idle.seq = None

    def _tick(self) -> int:
        self._time += 1
        return self._time
