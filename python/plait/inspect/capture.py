"""Capture of intermediate values as arrays."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait import _core

Rows = npt.NDArray[np.float32]


class _Type(type(_core.Capture), type(Mapping)):  # type: ignore[misc]
    """Metaclass of a class that derives from both a core class and Mapping."""


class Capture(_core.Capture, Mapping[str, Rows], metaclass=_Type):
    """Intermediate values of the calls inside a `with ctx.capture(...)` block.

    A mapping from names, as in Context.value_names(), to the rows of all calls, concatenated in
    call order. Both spellings of a name work: "l_out.3" and "blk.3.l_out".

    Attributes:
        names: Names of the captured values.
        calls: One mapping from names to rows per call.
    """

    def __init__(self, context: _core.Context, patterns: tuple[str, ...]) -> None:
        super().__init__(context, matching("capture", context.value_names(), patterns))

    if TYPE_CHECKING:

        def __enter__(self) -> Capture: ...

    def __getitem__(self, name: str) -> Rows:
        found = next((known for known in self.names if name in spellings(known)), None)
        if found is None:
            raise KeyError(name)
        rows = [call[found] for call in self.calls if found in call]
        if len(rows) == 1:
            return rows[0]
        return np.concatenate(rows) if rows else np.empty((0,), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<plait.Capture of {len(self)} values in {len(self.calls)} calls>"


def no_such_value(what: str, known: list[str], name: str) -> ValueError:
    """Return the error for an unknown value name, with the most similar names."""
    known_spellings = [spelling for value in known for spelling in spellings(value)]
    similar = difflib.get_close_matches(name, known_spellings, n=3, cutoff=0.5) or known[-3:]
    return ValueError(
        f'{what}: this model has no value named "{name}"; similar names: {", ".join(similar)}'
    )


def spellings(name: str) -> tuple[str, ...]:
    """Return the accepted spellings of a value name: "blk.3.l_out" and "l_out.3"."""
    parts = name.split(".")
    if parts[0] != "blk":
        return (name,)
    return name, ".".join([parts[2], parts[1], *parts[3:]])


def matching(what: str, known: list[str], patterns: tuple[str, ...]) -> list[str]:
    """Return the known names that match a pattern, in their order; errors begin with `what`."""
    if not patterns:
        raise ValueError(f"{what}: patterns: expected at least one name or pattern, got none")
    names = list[str]()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{what}: patterns: expected a str, got {type(pattern).__name__}")
        found = [name for name in known if any(fnmatchcase(n, pattern) for n in spellings(name))]
        if not found:
            raise no_such_value(what, known, pattern)
        names += found
    return sorted(set(names), key=known.index)
