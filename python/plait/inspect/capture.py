"""Capture of intermediate values as arrays."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import expect
from plait.inspect.npy_files import NpyFiles

Rows = npt.NDArray[np.float32]
Sink = Callable[[dict[str, Rows]], object] | str | os.PathLike[str]


class _Type(type(_core.Capture), type(Mapping)):  # type: ignore[misc]
    """Metaclass of a class that derives from both a core class and Mapping."""


class Capture(_core.Capture, Mapping[str, Rows], metaclass=_Type):
    """Intermediate values of the calls inside a `with ctx.capture(...)` block.

    A mapping from names, as in Context.value_names(), to the rows of all calls, concatenated in
    call order. Both spellings of a name work: "l_out.3" and "blk.3.l_out".

    The rows of "attn_pattern" are a list with one array of shape (n_head, n_keys) for each token.
    With a sink, the rows of each call go there and nowhere else: the mapping has no rows.

    Attributes:
        names: Names of the captured values.
        calls: One mapping from names to rows per call.
    """

    def __init__(
        self, context: _core.Context, patterns: tuple[str, ...], sink: Sink | None = None
    ) -> None:
        super().__init__(context, matching("capture", context.value_names(), patterns))
        # __enter__ reads this attribute; see Edit._what.
        self._sink: Callable[[dict[str, Rows]], object] | None
        if sink is None or callable(sink):
            self._sink = sink
        else:
            expect(sink, (str, os.PathLike), "capture: sink", "a function or a path")
            if any(".attn_pattern" in name for name in self.names):
                raise ValueError(
                    "capture: sink: the rows of attn_pattern differ in length, so no .npy file can hold them; "
                    "use a function as sink"
                )
            shapes = {name: context.value_shape(name) for name in self.names}
            self._sink = NpyFiles(Path(sink), shapes)

    def __enter__(self) -> Capture:
        super().__enter__()
        if isinstance(self._sink, NpyFiles):
            try:
                self._sink.create()
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def __getitem__(self, name: str) -> Rows:
        wanted = current_name(name) if isinstance(name, str) else name
        found = find_value(self.names, wanted) if isinstance(wanted, str) else None
        if found is None:
            raise KeyError(name)
        rows = [call[found] for call in self.calls if found in call]
        if ".attn_pattern" in found:
            return [row for call in rows for row in call]  # type: ignore[return-value]
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


def current_name(name: str) -> str:
    """Return the present name of a value. The earlier name of "attn_heads" gives a DeprecationWarning."""
    parts = name.split(".")
    if "attn" not in parts[:3]:
        return name
    present = ".".join("attn_heads" if part == "attn" else part for part in parts)
    warnings.warn(f'"{name}" is now "{present}"', DeprecationWarning, stacklevel=4)
    return present


def spellings(name: str) -> tuple[str, ...]:
    """Return the accepted spellings of a value name: "blk.3.l_out" and "l_out.3"."""
    parts = name.split(".")
    if parts[0] != "blk":
        return (name,)
    return name, ".".join([parts[2], parts[1], *parts[3:]])


def find_value(known: Collection[str], name: str) -> str | None:
    """Return the known name of which this is a spelling; None if there is none."""
    if name in known:
        return name
    parts = name.split(".")
    found = ".".join(["blk", *parts[1:2], parts[0], *parts[2:]])
    return found if found in known else None


def matching(what: str, known: list[str], patterns: tuple[str, ...]) -> list[str]:
    """Return the known names that match a pattern, in their order; errors begin with `what`."""
    if not patterns:
        raise ValueError(f"{what}: patterns: expected at least one name or pattern, got none")
    chosen = set[str]()
    exact = frozenset(known)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{what}: patterns: expected a str, got {type(pattern).__name__}")
        wanted = current_name(pattern)
        one = find_value(exact, wanted)
        matches = (
            [one]
            if one is not None
            else [name for name in known if any(fnmatchcase(n, wanted) for n in spellings(name))]
        )
        if not matches:
            raise no_such_value(what, known, pattern)
        found = [
            name for name in matches if "attn_pattern" in wanted or ".attn_pattern" not in name
        ]
        if not found:
            raise ValueError(
                f'{what}: "{pattern}" matches only attn_pattern values, which are captured if the pattern contains '
                f'"attn_pattern"'
            )
        chosen.update(found)
    return [name for name in known if name in chosen]
