"""Handle of one sequence of a context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from plait.closeable import Closeable
from plait.errors import CacheFull, UnsupportedError

if TYPE_CHECKING:
    from plait import _core


class Sequence(Closeable):
    """Handle of one sequence of a context, returned by `Context.sequence()` and `fork()`.

    A handle is accepted wherever a sequence id is. close(), leaving its `with` block, or deleting
    the last reference frees the cells of the sequence and releases its id. Methods of a closed
    handle raise ValueError.
    """

    __slots__ = ("__weakref__", "_ctx", "_held", "_id", "_kv")

    def __init__(self, ctx: _core.Context, kv: _core.KVCache, held: _core.HeldSequence) -> None:
        self._ctx: _core.Context | None = ctx
        self._kv = kv
        self._held = held  # releases the id when this object is deleted
        self._id = held.id

    @property
    def id(self) -> int:
        """The sequence id."""
        self._open()
        return self._id

    def __index__(self) -> int:
        return self.id

    def __len__(self) -> int:
        """Number of cells that the sequence holds, including cells shared with other sequences."""
        return self._open().seq_len(self._id)

    def __bool__(self) -> bool:
        """True, even if the sequence is empty: a handle is not a container of tokens."""
        return True

    @property
    def pos(self) -> int:
        """Position of the next token: 1 + the largest stored position, or 0 if the sequence is empty."""
        return self._open().seq_pos_max(self._id) + 1

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return self._ctx is None

    def fork(self, upto: int | None = None) -> Sequence:
        """Return a new sequence with the same content.

        Where the memory supports it, the two sequences share cells, which are copied only when one
        of them changes.

        Args:
            upto: Copy only positions below this one. None copies all.

        Raises:
            CacheFull: No sequence id is free, or there is no room for a copy.
            UnsupportedError: The memory cannot copy that range.
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
        """Remove position `n` and all later positions.

        Args:
            n: First position to remove. Nothing changes if it is at or after the end.

        Raises:
            ValueError: `n` is negative.
            UnsupportedError: The memory cannot remove that range.
        """
        kv = self._open()
        if not kv.seq_rm(self._id, n):
            raise UnsupportedError(
                f"truncate: a {kv.kind} memory cannot remove positions from {n} on; use rewind()"
            )

    def rewind(self, n: int) -> int:
        """Remove position `n` and all later positions, and further ones where the memory requires it.

        Sliding-window and recurrent memories discard data that the sequence no longer needs. They
        can return only to a position that a fork of the sequence still holds, or to the beginning;
        a fork therefore acts as a checkpoint. Other memories return exactly to `n`.

        Args:
            n: First position to remove. Nothing changes if it is at or after the end.

        Returns:
            Number of positions before `n` that were removed as well and must be decoded again,
            starting at `pos`.

        Raises:
            ValueError: `n` is negative.
        """
        kv = self._open()
        wanted = min(n, self.pos)
        return wanted - kv.seq_rewind(self._id, n)

    def shift(self, keep: int, discard: int) -> None:
        """Remove positions [keep, keep + discard) and move later positions back by `discard`.

        Nothing is recomputed: cached keys are rotated, cached values stay. On any error nothing has
        changed.

        Args:
            keep: Number of leading positions to keep.
            discard: Number of positions to remove after them.

        Raises:
            ValueError: An argument is negative.
            UnsupportedError: The memory cannot change positions, or cannot remove that range.
            CacheFull: Cells shared with other sequences must be copied, and there is no room.
        """
        kv = self._open()
        if discard == 0:
            return
        if keep < 0 or discard < 0:
            raise ValueError(
                f"shift: keep is {keep} and discard is {discard}; both must be at least 0"
            )
        if not kv.can_shift:
            raise UnsupportedError(f"shift: a {kv.kind} memory cannot change positions")
        self._check_room(keep, keep + discard)
        if not kv.seq_rm(self._id, keep, keep + discard):
            raise UnsupportedError(
                f"shift: a {kv.kind} memory cannot remove positions [{keep}, {keep + discard})"
            )
        kv.seq_add(self._id, keep + discard, None, -discard)

    def _check_room(self, begin: int, end: int) -> None:
        """Raise CacheFull if there is no room to copy the shared cells from position `end` on.

        Unshared cells in [begin, end) count as free, since they are removed first.
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
                f"shift: {needed} shared cells must be copied, but only {free} are free",
                needed,
                free,
            )

    def close(self) -> None:
        """Free the cells and release the id. Does nothing if the handle or the context is already closed."""
        self._ctx = None
        self._held.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sequence cannot be copied or pickled; use fork()")

    def __repr__(self) -> str:
        if self._ctx is None:
            return f"<plait.Sequence {self._id}, closed>"
        if self._ctx.closed:
            return f"<plait.Sequence {self._id} of a closed context>"
        return f"<plait.Sequence {self._id}: {len(self)} cells, next position {self.pos}>"

    def _open(self) -> _core.KVCache:
        if self._ctx is None:
            raise ValueError(f"sequence {self._id} is closed")
        return self._kv
