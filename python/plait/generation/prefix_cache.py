"""Who holds which tokens: sequences that requests read, and those kept because others begin alike."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from plait.errors import CacheFull
from plait.generation.prefix_tree import PrefixTree
from plait.generation.request import Request

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.context import Context

_LEAST: Final = 8  # tokens that are worth a fork, or a wait for it


class Idle:
    """A sequence that nobody reads, kept for the tokens that it holds."""

    def __init__(self, tokens: list[int], seq: Sequence, used: int) -> None:
        self.filed = tokens
        self.seq: Sequence | None = seq
        self.used = used  # when it was last of use

    @property
    def n_held(self) -> int:
        """Number of its tokens."""
        return len(self.filed)


class PrefixCache:
    """Gives requests sequences, forks of others where their tokens begin alike, and takes them back.

    Caches with a row for each token (unified, streams) fork at any token. Windows and recurrent states fork as a
    whole: where waiting requests leave the tokens that another reads, that one stops for a moment and a fork is put
    aside, from which they start.
    """

    def __init__(
        self, ctx: Context, waiting: PrefixTree[Request], *, share: bool, keep: bool
    ) -> None:
        self.n_shared = 0  # tokens that were not computed again
        self._ctx = ctx
        self._waiting = waiting
        self._share = share
        self._keep = keep
        self._held: PrefixTree[Request | Idle] = PrefixTree()
        self._idle: dict[Idle, None] = {}
        self._parts = ctx.kv.kind in ("unified", "streams")
        self._clock = 0

    def __len__(self) -> int:
        return len(self._idle)

    def best(self, tokens: list[int]) -> tuple[Request | Idle | None, int]:
        """Who holds the longest beginning of these tokens that a fork can have, and its length. One token is left."""
        most, best, best_n = len(tokens) - 1, None, _LEAST - 1
        if not self._share:
            return None, 0
        for n, holders in self._held.matches(tokens):
            if n <= best_n:
                break
            for holder in holders:
                usable = min(n, holder.n_held, most)
                if not self._parts and usable < holder.n_held:
                    continue
                if usable > best_n:
                    best, best_n = holder, usable
        return best, best_n if best is not None else 0

    def coming(self, tokens: list[int]) -> int:
        """The length of the longest beginning that a request holds as soon as it has read so far."""
        most = len(tokens) - 1
        for n, holders in self._held.matches(tokens):
            wanted = min(n, most)
            if wanted < _LEAST:
                break
            if any(isinstance(h, Request) and h.n_held < wanted for h in holders):
                return wanted
        return 0

    def open(self, request: Request) -> bool:
        """Give a request a sequence. False where there is none for it now."""
        holder, n = self.best(request.all)
        seq = self._sequence(holder, n)
        while seq is None and self.evict(but=holder):
            seq = self._sequence(holder, n)
        if seq is None:
            return False
        request.seq, request.n_held = seq, seq.pos if holder is not None else 0
        request.filed = list(request.all)
        self._held.add(request.filed, request)
        self.n_shared += request.n_held
        return True

    def close(self, request: Request, useful: bool) -> None:
        """Take a request's sequence back. `useful`: others may want what it holds."""
        seq, held = request.seq, request.all[: request.n_held]
        assert seq is not None
        self._held.remove(request.filed, request)
        request.seq, request.n_held = None, 0
        wanted = self._wanted(held) if useful and seq.pos == len(held) else 0
        if wanted and self.best([*held[:wanted], -1])[1] < wanted:
            seq.truncate(wanted)
            self._put(held[:wanted], seq)
        else:
            seq.close()

    def abandon(self, request: Request) -> None:
        """Take a request's sequence back before clear(), whatever it is filed under."""
        seq, request.seq, request.n_held = request.seq, None, 0
        if seq is not None:
            seq.close()

    def until_branch(self, request: Request, n: int) -> int:
        """How many of the next n tokens a request reads before others want a fork."""
        if self._parts or not len(self._waiting):
            return n
        points = self._waiting.branches(request.all)
        ahead = [p for p in points if p >= _LEAST and p > request.n_held]
        return min([n, *(p - request.n_held for p in ahead)])

    def branch(self, request: Request) -> None:
        """Put a fork aside where others leave what this request reads."""
        n = request.n_held
        if self._parts or n < _LEAST or not len(self._waiting) or request.seq is None:
            return
        if n in self._waiting.branches(request.all) and all(
            idle.filed != request.all[:n] for idle in self._idle if idle.n_held == n
        ):
            with contextlib.suppress(CacheFull):  # without one they read it themselves
                self._put(request.all[:n], request.seq.fork())

    def sweep(self) -> None:
        """Let go of what no waiting request begins with."""
        for idle in [idle for idle in self._idle if not self._wanted(idle.filed)]:
            self._drop(idle)

    def evict(self, but: Request | Idle | None = None) -> bool:
        """Let go of the sequence that was of use the longest time ago; False where there is none but `but`."""
        others = [idle for idle in self._idle if idle is not but]
        if not others:
            return False
        self._drop(min(others, key=lambda idle: idle.used))
        return True

    def clear(self) -> None:
        """Let go of everything."""
        idle = list(self._idle)
        self._idle.clear()
        self._held.clear()
        for one in idle:
            if one.seq is not None:
                one.seq.close()

    def _sequence(self, holder: Request | Idle | None, n: int) -> Sequence | None:
        """A sequence that holds the first n tokens of the holder's."""
        try:
            if holder is None:
                return self._ctx.sequence()
            assert holder.seq is not None
            seq = holder.seq.fork(None if n == holder.n_held else n)
            if isinstance(holder, Idle):
                holder.used = self._tick()
            return seq
        except CacheFull:
            return self._adopted(holder, n) if isinstance(holder, Idle) else None

    def _adopted(self, idle: Idle, n: int) -> Sequence | None:
        """The idle sequence itself, where those who wait for it find as much with its new owner."""
        others = 0
        for length, requests in self._waiting.matches(idle.filed):
            others = max(others, len(requests) if length >= idle.n_held else 0)
        if not self._parts and others > 1:
            return None
        seq = idle.seq
        assert seq is not None
        self._forget(idle)
        seq.truncate(n)
        return seq

    def _wanted(self, held: list[int]) -> int:
        """How many of these tokens it pays to keep."""
        if self._keep:
            return len(held)
        for n, requests in self._waiting.matches(held):
            longest = max(len(request.all) for request in requests) - 1
            usable = min(n, longest)
            if usable < _LEAST:
                break
            if self._parts or usable == len(held):
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
        self._clock += 1
        return self._clock
