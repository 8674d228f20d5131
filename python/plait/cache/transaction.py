"""Transactions: calls that take effect together or not at all."""

from __future__ import annotations

from plait import _core


class Transaction(_core.Transaction):
    """A `with` block of calls that can be undone, returned by `Context.transaction()`.

    Attributes:
        open: True inside the block, until rollback().
    """

    __slots__ = ()
