"""A handle of one sequence in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from plait.closeable import Closeable
from plait.errors import CacheFull, UnsupportedError

if TYPE_CHECKING:
    from plait import _core


class Sequence(Closeable):
    """One sequence of a context, from `Context.sequence()` or `fork()`.

    It goes wherever a sequence id goes. close(), leaving its `with` block, or dropping the last reference frees its
    cells and gives the id back; a closed handle raises ValueError.
    """

    __slots__ = ("__weakref__", "_ctx", "_held", "_id", "_kv")

    def __init__(self, ctx: _core.Context, kv: _core.KVCache, held: _core.HeldSequence) -> None:
        self._ctx: _core.Context | None = ctx
        self._kv = kv
        self._held = held  # gives the id back when this object dies
        self._id = held.id

    @property
    def id(self) -> int:
        """The sequence id."""
        self._open()
        return self._id

    def __index__(self) -> int:
        return self.id

    def __len__(self) -> int:
        """Number of cells it holds, shared ones included."""
        return self._open().seq_len(self._id)

    def __bool__(self) -> bool:
        """True, also when empty: a handle is not a container of tokens."""
        return True

    @property
    def pos(self) -> int:
        """The position where it goes on: 1 + the largest it holds, 0 when empty."""
        return self._open().seq_pos_max(self._id) + 1

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._ctx is None

    def fork(self, upto: int | None = None) -> Sequence:
        """A new sequence that holds what this one holds at positions below `upto`; None: all of it.

        Cells are shared where the memory can: nothing is copied until one of the two changes. Raises CacheFull when
        there is no free sequence (or no room for a copy), UnsupportedError when this memory cannot copy that part.
        """
        kv = self._open()
        assert self._ctx is not None
        fork = Sequence(self._ctx, kv, self._ctx.open_sequence())
        try:
            kv.seq_cp(self._id, fork.id, 0, upto)
        except BaseException:
            fork.close()
            raise
        return fork

    def truncate(self, n: int) -> None:
        """Forget position `n` and all after it; `n` at or beyond the end changes nothing.

        Raises ValueError for a negative `n`, UnsupportedError when this memory cannot remove that part.
        """
        kv = self._open()
        if not kv.seq_rm(self._id, n):
            raise UnsupportedError(
                f"truncate: a {kv.kind} memory cannot remove the positions from {n} on"
            )

    def rewind(self, n: int) -> int:
        """Go back to before position `n`, or as far before it as this memory can.

        Windows and recurrent states forget what a sequence no longer needs: it may go back only to what a fork of it
        still has, or to its beginning. A fork is a checkpoint. Any other memory goes back to `n` itself.

        Returns how many positions before `n` have to be fed again, from `pos` on; 0 also where `n` is at or beyond
        the end, which changes nothing. Raises ValueError for a negative `n`.
        """
        kv = self._open()
        wanted = min(n, self.pos)
        return wanted - kv.seq_rewind(self._id, n)

    def shift(self, keep: int, discard: int) -> None:
        """Forget positions [keep, keep + discard) and move what follows back by `discard`.

        Nothing is computed anew: cached keys are rotated, cached values stay. All or nothing. Raises ValueError for
        negative arguments, UnsupportedError where positions cannot change or that part cannot be removed, CacheFull
        when cells shared with other sequences would have to be copied and there is no room.
        """
        kv = self._open()
        if discard == 0:
            return
        if keep < 0 or discard < 0:
            raise ValueError(
                f"shift: expected keep and discard of at least 0, got {keep} and {discard}"
            )
        if not kv.can_shift:
            raise UnsupportedError(f"shift: this {kv.kind} memory cannot change positions")
        self._check_room(keep, keep + discard)
        if not kv.seq_rm(self._id, keep, keep + discard):
            raise UnsupportedError(
                f"shift: a {kv.kind} memory cannot remove positions [{keep}, {keep + discard})"
            )
        kv.seq_add(self._id, keep + discard, None, -discard)

    def _check_room(self, begin: int, end: int) -> None:
        """CacheFull unless the cells from position `end` on that others hold too could be copied.

        Cells of [begin, end) that nobody else holds will be free by then.
        """
        kv = self._open()
        cells = kv.cells()
        mine = cells[cells["seqs"][:, self._id]]
        if not len(mine):
            return
        shared = mine["seqs"].sum(axis=1) > 1
        pos = mine["pos"][:, 0]
        needed = int((shared & (pos >= end)).sum())
        free = kv.n_free + int((~shared & (pos >= begin) & (pos < end)).sum())
        if needed > free:
            raise CacheFull(
                f"shift: {needed} shared cells would be copied, {free} are free", needed, free
            )

    def close(self) -> None:
        """Free its cells and give the id back. Harmless when closed already, or when the context is."""
        self._ctx = None
        self._held.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sequence cannot be copied or pickled; fork() it")

    def __repr__(self) -> str:
        if self._ctx is None:
            return f"<plait.Sequence {self._id}, closed>"
        if self._ctx.closed:
            return f"<plait.Sequence {self._id} of a closed context>"
        return f"<plait.Sequence {self._id}: {len(self)} cells, goes on at position {self.pos}>"

    def _open(self) -> _core.KVCache:
        if self._ctx is None:
            raise ValueError(f"sequence {self._id} is closed")
        return self._kv
