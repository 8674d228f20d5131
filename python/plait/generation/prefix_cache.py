"""PrefixCache: sequences of running requests, and kept sequences whose prefixes other requests can use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from plait.errors import CacheFull
from plait.generation.prefix_tree import PrefixTree
from plait.generation.request import Request
from plait.generation.stored_prefixes import MIN_PREFIX, REMOVING_KINDS, StoredPrefixes
from plait.vision.prompt import Positions, n_before_image, without_part

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.context import Context
    from plait.generation.prefix_store import PrefixStore


class Idle:
    """A sequence that no request uses, kept because its tokens may be the prefix of another request."""

    def __init__(
        self, tokens: list[int], seq: Sequence, used: int, epoch: int, positions: Positions
    ) -> None:
        self.filed = tokens
        self.positions = positions
        self.seq: Sequence | None = seq
        self.used = used  # time of last use
        self.epoch = epoch  # of the context when the sequence was opened

    @property
    def n_cached(self) -> int:
        """Number of tokens that the sequence holds."""
        return len(self.filed)

    @property
    def is_whole(self) -> bool:
        """Whether the sequence still holds its tokens, which KVCache.clear() and seq_keep() remove."""
        return self.seq is not None and self.seq.pos == self.positions[self.n_cached]


class PrefixCache:
    """Opens sequences for requests, as forks of sequences with a common prefix where possible.

    Memories with one row per token (unified, streams) can fork a sequence at any token. Windows and
    recurrent states can only be forked as a whole. For those, a running request pauses where the
    tokens of a waiting request diverge, and a fork taken there serves the waiting request later.

    What was computed with other adapters, control vectors or edits is not shared.

    Args:
        ctx: The context.
        waiting: The waiting requests, filed under their tokens.
        share: Whether requests share prefixes.
        keep: Whether sequences of finished requests are kept even if no waiting request uses them.
        store: Where prefixes are saved and loaded.
    """

    def __init__(
        self,
        ctx: Context,
        waiting: PrefixTree[Request],
        *,
        share: bool,
        keep: bool,
        store: PrefixStore | None,
    ) -> None:
        self.n_shared = 0  # tokens that were not recomputed
        self._ctx = ctx
        self._waiting = waiting
        self._share = share
        self._keep = keep
        self._held: PrefixTree[Request | Idle] = PrefixTree()
        self._idle: dict[Idle, None] = {}
        self._forks_anywhere = ctx.kv.kind in REMOVING_KINDS
        self._time = 0
        self._stored = None if store is None else StoredPrefixes(store, ctx)

    def __len__(self) -> int:
        return len(self._idle)

    def best(self, tokens: list[int]) -> tuple[Request | Idle | None, int]:
        """Return the holder of the longest forkable common prefix and the length of that prefix.

        At least one token is left to compute.
        """
        limit, best, best_n = len(tokens) - 1, None, MIN_PREFIX - 1
        if not self._share:
            return None, 0
        for n, holders in self._held.matches(tokens):
            if n <= best_n:
                break
            for holder in holders:
                if holder.epoch != self._ctx._epoch:
                    continue
                usable = without_part(tokens, min(n, holder.n_cached, limit))
                if not self._forks_anywhere and usable < holder.n_cached:
                    continue
                if usable > best_n:
                    best, best_n = holder, usable
        return best, best_n if best is not None else 0

    def available(self, tokens: list[int]) -> int:
        """Return the length of the longest prefix that open() need not compute."""
        return max(
            self.best(tokens)[1], self._stored.find(_storable(tokens)) if self._stored else 0
        )

    def coming(self, tokens: list[int]) -> int:
        """Return the length of the longest prefix that a running request will hold once it has processed more of its
        tokens.
        """
        limit = len(tokens) - 1
        for n, holders in self._held.matches(tokens):
            wanted = min(n, limit)
            if wanted < MIN_PREFIX:
                break
            if any(
                isinstance(h, Request) and h.n_cached < wanted and h.epoch == self._ctx._epoch
                for h in holders
            ):
                return wanted
        return 0

    def open(self, request: Request) -> bool:
        """Open a sequence for a request. Returns False if none is available now."""
        request.epoch = self._ctx._epoch
        seq = self._loaded(request.all)
        holder, n = self.best(request.all)
        if seq is not None:
            n = seq.pos
        seq = seq or self._sequence(holder, n)
        while seq is None and self.evict(keep=holder):
            seq = self._sequence(holder, n)
        if seq is None and isinstance(holder, Idle) and len(self._held) == len(self._idle):
            seq = self._adopted(holder, n)  # no running request will free a sequence
        if seq is None:
            return False
        request.seq, request.n_cached = seq, n
        request.marks = self._marks(request)
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
        is_whole = seq.pos == request.positions[len(held)]
        wanted = without_part(held, self._wanted(held)) if useful and is_whole else 0
        if wanted and self.best([*held[:wanted], -1])[1] < wanted:
            seq.truncate(request.positions[wanted])
            self._put(held[:wanted], seq, request)
        else:
            seq.close()

    def abandon(self, request: Request) -> None:
        """Close the sequence of a request without updating the tree; clear() must follow."""
        seq, request.seq, request.n_cached = request.seq, None, 0
        if seq is not None:
            seq.close()

    def until_branch(self, request: Request, n: int) -> int:
        """Return how many of the next `n` tokens the request can process before another request requires a fork."""
        points = request.marks
        if not self._forks_anywhere and len(self._waiting):
            points = points | self._waiting.branches(request.all)
        ahead = [p for p in points if p >= MIN_PREFIX and p > request.n_cached]
        return min([n, *(p - request.n_cached for p in ahead)])

    def processed(self, request: Request) -> None:
        """Keep a fork, and save the prefix, if other requests may resume at the request's current length."""
        n, tokens, seq = request.n_cached, request.all, request.seq
        if n < MIN_PREFIX or seq is None:
            return
        if self._forks_anywhere:
            branches = False
            saves = n == n_before_image(tokens) and request.n_generated == 0
        else:
            branches = n < len(tokens) and n in self._waiting.branches(tokens)
            saves = (branches or n in request.marks) and n <= n_before_image(tokens)
        if branches:
            self._keep_fork(request, seq)
        if saves and self._stored is not None:
            self._stored.save(seq, tokens[:n], request.epoch)

    def _keep_fork(self, request: Request, seq: Sequence) -> None:
        n = request.n_cached
        if all(idle.filed != request.all[:n] for idle in self._idle if idle.n_cached == n):
            # Without room for a fork, the waiting requests compute the prefix themselves.
            with contextlib.suppress(CacheFull):
                self._put(request.all[:n], seq.fork(), request)

    def sweep(self) -> None:
        """Close the kept sequences that no request can use."""
        epoch = self._ctx._epoch
        for idle in [i for i in self._idle if i.epoch != epoch or not self._wanted(i.filed)]:
            self._drop(idle)

    def drop_changed(self) -> None:
        """Close the kept sequences that another caller changed."""
        for idle in [i for i in self._idle if not i.is_whole]:
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

    def end(self) -> None:
        """Close what is left. No other method may follow."""
        self.clear()
        if self._stored is not None:
            self._stored.close()

    def _loaded(self, tokens: list[int]) -> Sequence | None:
        """Return a sequence with a prefix of the store. None if it has none that is longer than that of a holder."""
        if self._stored is None:
            return None
        n = self.best(tokens)[1]
        if self._stored.find(_storable(tokens)) <= n:
            return None
        while (seq := self._sequence(None, 0)) is None:
            if not self.evict():
                return None
        if self._stored.load(seq, _storable(tokens)) > n:
            return seq
        seq.close()
        return None

    def _marks(self, request: Request) -> frozenset[int]:
        """Return the lengths at which a prompt pauses: where a memory is saved that is saved as a whole.

        Where bits depend on the division of a prompt, its last token is computed alone, as after loading the others.
        """
        if self._stored is None or request.n_generated:
            return frozenset()
        end = len(_storable(request.all))
        if self._forks_anywhere:
            return frozenset() if self._stored.is_invariant else frozenset({end})
        return frozenset({end, self._stored.common(request.all[:end])})

    def _sequence(self, holder: Request | Idle | None, n: int) -> Sequence | None:
        """Return a sequence that holds the first `n` tokens of the holder, or None."""
        try:
            if holder is None:
                return self._ctx.sequence()
            assert holder.seq is not None
            seq = holder.seq.fork(None if n == holder.n_cached else holder.positions[n])
            if isinstance(holder, Idle):
                holder.used = self._tick()
            return seq
        except CacheFull:
            if isinstance(holder, Idle) and not self._is_awaited(holder):
                return self._adopted(holder, n)
            return None

    def _is_awaited(self, idle: Idle) -> bool:
        """Return whether other requests would lose the prefix if the next one took the sequence itself."""
        if self._forks_anywhere:
            return False
        return any(
            length >= idle.n_cached and len(requests) > 1
            for length, requests in self._waiting.matches(idle.filed)
        )

    def _adopted(self, idle: Idle, n: int) -> Sequence:
        """Return the idle sequence itself, truncated to its first `n` tokens."""
        seq = idle.seq
        assert seq is not None
        self._forget(idle)
        seq.truncate(idle.positions[n])
        return seq

    def _wanted(self, held: list[int]) -> int:
        """Return how many of these tokens are worth keeping."""
        if self._keep:
            return len(held)
        for n, requests in self._waiting.matches(held):
            longest = max(len(request.all) for request in requests) - 1
            usable = min(n, longest)
            if usable < MIN_PREFIX:
                break
            if self._forks_anywhere or usable == len(held):
                return usable
        return 0

    def _put(self, tokens: list[int], seq: Sequence, request: Request) -> None:
        idle = Idle(tokens, seq, self._tick(), request.epoch, request.positions)
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


def _storable(tokens: list[int]) -> list[int]:
    """Return the tokens that a stored prefix may replace: all but the last one, and nothing from an image on."""
    return tokens[: min(len(tokens) - 1, n_before_image(tokens))]
