"""Edits of intermediate values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import MAX_POSITION, integer, items, string
from plait.inspect.capture import current_name, find_value, no_such_value

Rows = npt.NDArray[np.float32]
Change = Callable[[Rows], npt.ArrayLike]
Sequences = SupportsIndex | Iterable[SupportsIndex]
Positions = SupportsIndex | slice | range | npt.ArrayLike


class Edit(_core.Edit):
    """A change of an intermediate value that applies inside a `with ctx.edit(...)` block.

    Attributes:
        name: Name of the value.
        mode: "add", "replace" or "scale".
        sequences: The ids of the sequences whose rows are edited. None: all.
        positions: The positions whose rows are edited, a slice or an int32 array. None: all.
    """

    def __init__(
        self,
        context: _core.Context,
        name: str,
        what: Change | npt.ArrayLike,
        mode: str,
        seq: Sequences | None = None,
        positions: Positions | None = None,
    ) -> None:
        name = current_name(string(name, "edit: name"))
        string(mode, "edit: mode")
        known = context.value_names()
        found = find_value(known, name)
        if found is None:
            raise no_such_value("edit", known, name)
        if ".attn_pattern" in found:
            raise ValueError(
                f"edit: {name} can be captured, but not edited; edit attn_heads or q_rope instead"
            )
        sequences = _sequences(seq)
        self.mode = mode
        self.positions = _positions(positions)
        super().__init__(context, found, mode, sequences, _for_core(self.positions))
        self.sequences = None if sequences is None else tuple(int(each) for each in sequences)
        # __enter__ reads this attribute. Stored in the core, a function that refers to this object would be invisible
        # to the garbage collector.
        if callable(what):
            self._what: Change | Rows = what
        else:
            # A copy: a recording reads it later than the core.
            self._what = _rows(what, context.value_shape(found), self.positions).copy()
        self._context: Any = context  # a plait.Context
        if hasattr(context, "_edits"):
            context._edits[id(self)] = self

    def __enter__(self) -> Edit:
        with self._context._change():
            super().__enter__()
            self._context._open_edits.add(id(self))
        return self

    def __exit__(self, *error: object) -> None:
        with self._context._change():
            super().__exit__(*error)
            self._context._open_edits.discard(id(self))

    def __del__(self) -> None:
        """End an edit that is still open, for the epochs of the context as well."""
        context = getattr(self, "_context", None)
        if context is None or id(self) not in context._open_edits:
            return
        try:
            self.__exit__(None, None, None)
        except Exception:  # within a call of the context, after which the core ends the edit
            with self._context._change():
                self._context._open_edits.discard(id(self))

    def __repr__(self) -> str:
        return f"<plait.Edit of {self.name}>"


def _sequences(seq: Sequences | None) -> list[SupportsIndex] | None:
    if seq is None:
        return None
    if isinstance(seq, SupportsIndex) and not isinstance(seq, np.ndarray):
        return [seq]
    return items(seq, "edit: seq", "sequences or ids")


def _positions(positions: Positions | None) -> slice | npt.NDArray[np.int32] | None:
    """Return the positions as a slice with a positive step, or as an array."""
    if positions is None:
        return None
    if isinstance(positions, slice):
        start, stop, step = positions.start, positions.stop, positions.step
        begin = 0 if start is None else integer(start, "edit: positions: start", 0, MAX_POSITION)
        end = None if stop is None else integer(stop, "edit: positions: stop", 0, MAX_POSITION + 1)
        by = 1 if step is None else integer(step, "edit: positions: step", 1, MAX_POSITION)
        return slice(begin, end, by)
    listed = np.atleast_1d(np.asarray(positions))
    if listed.size == 0:
        listed = listed.astype(np.int32)
    if listed.dtype.kind not in "iu":
        raise TypeError(
            f"edit: positions: expected an int, a slice, a range or an array of integers, got {positions!r:.80}"
        )
    if listed.ndim > 1:
        raise ValueError(f"edit: positions: expected one axis, got the shape {listed.shape}")
    for position in listed[(listed < 0) | (listed > MAX_POSITION)]:
        integer(int(position), "edit: positions", 0, MAX_POSITION)
    return listed.astype(np.int32)


def _for_core(positions: slice | npt.NDArray[np.int32] | None) -> Any:
    """Return what the constructor of the core class takes: (start, stop, step), an array or None."""
    if isinstance(positions, slice):
        return positions.start, positions.stop, positions.step
    return positions


def _rows(
    array: npt.ArrayLike, shape: tuple[int, ...], positions: slice | npt.NDArray[np.int32] | None
) -> Rows:
    """Return one row, to which the array is broadcast, or a row for each position."""
    values = np.asarray(array)
    if values.dtype.kind not in "fiu":
        raise TypeError(
            f"edit: what: expected a function or an array of real numbers, got {array!r:.80}"
        )
    # The dimensions that a row for each position leaves out, as of the streams of Gemma 3n.
    parts = len(shape) + 1 - values.ndim
    if positions is not None and parts == 0:
        wanted = (_count(positions, len(values)), *shape)
        if values.shape != wanted:
            raise ValueError(
                f"edit: what: the array has shape {values.shape}; one row for each position needs {wanted}"
            )
        return np.ascontiguousarray(values, np.float32)
    if positions is not None and 0 < parts < len(shape) and values.shape != shape:
        has_end = not isinstance(positions, slice) or positions.stop is not None
        if has_end and values.shape == (_count(positions, len(values)), *shape[parts:]):
            rows = values.reshape(len(values), *(1,) * parts, *shape[parts:])
            return np.ascontiguousarray(np.broadcast_to(rows, (len(values), *shape)), np.float32)
    try:
        return np.ascontiguousarray(np.broadcast_to(values, shape), np.float32)
    except ValueError:
        hint = "; for a row per position, give positions" if values.ndim == len(shape) + 1 else ""
        raise ValueError(
            f"edit: what: the array has shape {values.shape}; it must broadcast to one row of shape {shape}{hint}"
        ) from None


def _count(positions: slice | npt.NDArray[np.int32], n_rows: int) -> int:
    """Return the number of positions. Raise ValueError if there is no last one."""
    if not isinstance(positions, slice):
        return len(positions)
    if positions.stop is None:
        raise ValueError(
            f"edit: positions: {n_rows} rows need as many positions, and the slice has no end; "
            "give it a stop"
        )
    return len(range(positions.start, positions.stop, positions.step))
