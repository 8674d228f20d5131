"""Handle of one sequence of a context."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from plait import _core
from plait.arguments import MAX_POSITION, integer
from plait.closeable import Closeable
from plait.errors import UnsupportedError


class Sequence(_core.SequenceHandle, Closeable):
    """Handle of one sequence of a context, returned by `Context.sequence()` and `fork()`.

    A handle is accepted wherever a sequence id is, by the calls of its own context. While it is open, calls that
    change its sequence require the handle: its id alone, also where it is the default `seq=0`, is a ValueError.

    close(), leaving its `with` block, or deleting the last reference frees the cells of the sequence and releases
    its id. Methods of a closed handle raise ValueError.

    Args:
        context: The context.

    Attributes:
        id: The sequence id.
        closed: True once close() was called.

    Raises:
        CacheFull: All n_seq_max sequences of the context are in use.
    """

    def __init__(self, context: _core.Context) -> None:
        super().__init__(context)
        self._id = self.id
        self._ctx = context
        # The object whose calls a recording sees.
        self._kv: _core.KVCache = getattr(context, "kv", None) or _core.KVCache(context)
        recorder = getattr(context, "_recorder", None)
        if recorder is not None:
            recorder.opened(self)

    def __index__(self) -> int:
        return self.id

    def __len__(self) -> int:
        """Number of cells that the sequence holds, including cells shared with other sequences."""
        return self._open().seq_len(self)

    def __bool__(self) -> bool:
        """True, even if the sequence is empty: a handle is not a container of tokens."""
        return True

    @property
    def pos(self) -> int:
        """Position of the next token: 1 + the largest stored position, or 0 if the sequence is empty."""
        return self._open().seq_pos_max(self) + 1

    def fork(self, upto: SupportsIndex | None = None) -> Sequence:
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
        if upto is not None:
            upto = integer(upto, "fork: upto", 0, MAX_POSITION)
        fork = Sequence(self._ctx)
        try:
            kv.seq_cp(self, fork, 0, upto)
        except BaseException:
            fork.close()
            raise
        return fork

    def truncate(self, n: SupportsIndex) -> None:
        """Remove position `n` and all later positions.

        Args:
            n: First position to remove. Nothing changes if it is at or after the end.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: `n` is negative.
            UnsupportedError: The memory cannot remove that range.
        """
        kv = self._open()
        n = integer(n, "truncate: n", 0, MAX_POSITION)
        # A range without an end would include the output of an encoder.
        if not kv.seq_rm(self, n, max(n, self.pos)):
            raise UnsupportedError(
                f"truncate: a {kv.kind} memory cannot remove positions from {n} on; use rewind()"
            )

    def rewind(self, n: SupportsIndex) -> int:
        """Remove position `n` and all later positions, and further ones where the memory requires it.

        Sliding-window and recurrent memories discard data that the sequence no longer needs. They
        can return only to a position that a fork of the sequence still holds, to the beginning, or to a
        position whose window is still stored; a fork therefore acts as a checkpoint. Other memories
        return exactly to `n`.

        Args:
            n: First position to remove. Nothing changes if it is at or after the end.

        Returns:
            Number of positions before `n` that were removed as well and must be decoded again,
            starting at `pos`.

        Raises:
            TypeError: `n` is not an integer.
            ValueError: `n` is negative.
        """
        kv = self._open()
        n = integer(n, "rewind: n", 0, MAX_POSITION)
        wanted = min(n, self.pos)
        # The smallest stored position is the first of the sequence, unless a window has freed earlier ones.
        may_free = kv.kind in ("sliding", "hybrid")
        first = 0 if may_free else max(0, kv.seq_pos_min(self))
        # Tokens with several axes can end after n although each begins before it.
        return max(0, wanted - max(first, kv.seq_rewind(self, n)))

    def shift(self, keep: SupportsIndex, discard: SupportsIndex) -> None:
        """Remove positions [keep, keep + discard) and move later positions back by `discard`.

        Nothing is recomputed: cached keys are rotated, cached values stay. On any error nothing has
        changed.

        Args:
            keep: Number of leading positions to keep.
            discard: Number of positions to remove after them.

        Raises:
            ValueError: An argument is negative.
            UnsupportedError: The memory cannot change positions, cannot remove that range, or has freed keys that
                later tokens would then attend to (a sliding window).
            CacheFull: Cells shared with other sequences must be copied, and there is no room.
        """
        kv = self._open()
        keep = integer(keep, "shift: keep", 0, MAX_POSITION)
        discard = integer(discard, "shift: discard", 0, MAX_POSITION - keep)
        if discard == 0:
            return
        kv._discard(self, keep, keep + discard)

    def close(self) -> None:
        """Free the cells and release the id. Does nothing if the handle or the context is already closed."""
        super().close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sequence cannot be copied or pickled; use fork()")

    def __repr__(self) -> str:
        if self.closed:
            return f"<plait.Sequence {self._id}, closed>"
        if self._ctx.closed:
            return f"<plait.Sequence {self._id} of a closed context>"
        return f"<plait.Sequence {self._id}: {len(self)} cells, next position {self.pos}>"

    def _open(self) -> _core.KVCache:
        """Return the cache of the context. Raises ValueError if the handle is closed."""
        self.id  # noqa: B018
        return self._kv
