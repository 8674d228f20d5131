"""Edits of intermediate values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import string
from plait.inspect.capture import no_such_value, spellings

Rows = npt.NDArray[np.float32]
Change = Callable[[Rows], npt.ArrayLike]


class Edit(_core.Edit):
    """A change of an intermediate value that applies inside a `with ctx.edit(...)` block."""

    def __init__(
        self, context: _core.Context, name: str, what: Change | npt.ArrayLike, mode: str
    ) -> None:
        string(name, "edit: name")
        if string(mode, "edit: mode") not in ("add", "replace"):
            raise ValueError(f'edit: mode: expected "add" or "replace", got {mode!r}')
        known = context.value_names()
        found = next((value for value in known if name in spellings(value)), None)
        if found is None:
            raise no_such_value("edit", known, name)
        super().__init__(context, found, mode == "add")
        # __enter__ reads this attribute. Stored in the core, a function that refers to this object would be invisible
        # to the garbage collector.
        self._what = what if callable(what) else _row(what, context.value_shape(found))

    if TYPE_CHECKING:

        def __enter__(self) -> Edit: ...

    def __repr__(self) -> str:
        return f"<plait.Edit of {self.name}>"


def _row(array: npt.ArrayLike, shape: tuple[int, ...]) -> Rows:
    """Broadcast the array to the shape of one token's row."""
    values = np.asarray(array)
    if values.dtype.kind not in "fiu":
        raise TypeError(
            f"edit: what: expected a function or an array of real numbers, got {array!r:.80}"
        )
    try:
        return np.ascontiguousarray(np.broadcast_to(values, shape), np.float32)
    except ValueError:
        raise ValueError(
            f"edit: what: the array has shape {values.shape}; it must broadcast to one row of shape {shape}"
        ) from None
