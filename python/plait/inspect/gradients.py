"""Gradients of a scalar of the logits with respect to intermediate values, with frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import integer
from plait.inspect.capture import current_name, find_value, matching

Rows = npt.NDArray[np.float32]
Loss = Callable[[Rows], tuple[float, Rows]]
"""A function of the logits (n_outputs, n_vocab) that returns its value and its derivative."""


@dataclass(frozen=True)
class Logit:
    """A loss: the logit of one token.

    Attributes:
        token: The token id.
        position: Row of `Output.logits`; negative rows count from the end.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A token is negative.
    """

    token: int
    position: int = -1

    def __post_init__(self) -> None:
        _check(self, token=0, position=None)

    def __call__(self, logits: Rows) -> tuple[float, Rows]:
        """Return the value and its derivative with respect to the logits."""
        row, token = _place(logits, self.position, self.token)
        slope = np.zeros_like(logits)
        slope[row, token] = 1.0
        return float(logits[row, token]), slope


@dataclass(frozen=True)
class LogitDifference:
    """A loss: the logit of token `a` less the logit of token `b`.

    Attributes:
        a: Token id whose logit counts positively.
        b: Token id whose logit counts negatively.
        position: Row of `Output.logits`; negative rows count from the end.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A token is negative.
    """

    a: int
    b: int
    position: int = -1

    def __post_init__(self) -> None:
        _check(self, a=0, b=0, position=None)

    def __call__(self, logits: Rows) -> tuple[float, Rows]:
        """Return the value and its derivative with respect to the logits."""
        row, a = _place(logits, self.position, self.a)
        _, b = _place(logits, self.position, self.b)
        slope = np.zeros_like(logits)
        slope[row, a] += 1.0
        slope[row, b] -= 1.0
        return float(logits[row, a]) - float(logits[row, b]), slope


@dataclass(frozen=True)
class LogProbability:
    """A loss: the natural logarithm of the probability of one token.

    Attributes:
        token: The token id.
        position: Row of `Output.logits`; negative rows count from the end.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A token is negative.
    """

    token: int
    position: int = -1

    def __post_init__(self) -> None:
        _check(self, token=0, position=None)

    def __call__(self, logits: Rows) -> tuple[float, Rows]:
        """Return the value and its derivative with respect to the logits."""
        row, token = _place(logits, self.position, self.token)
        shifted = logits[row].astype(np.float64) - logits[row].max()
        exponentials = np.exp(shifted)
        total = exponentials.sum()
        slope = np.zeros_like(logits)
        slope[row] = -exponentials / total
        slope[row, token] += 1.0
        return float(shifted[token] - np.log(total)), slope


class _Type(type(_core.Gradients), type(Mapping)):  # type: ignore[misc]
    """Metaclass of a class that derives from both a core class and Mapping."""


class Gradients(_core.Gradients, Mapping[str, Rows], metaclass=_Type):
    """The gradients of the calls inside a `with ctx.gradients(...)` block.

    A mapping from names, as in Context.value_names(), to float32 arrays of the shape of the value.
    The rows of several calls are concatenated in call order. Both spellings of a name work:
    "l_out.3" and "blk.3.l_out".

    Attributes:
        names: Names of the values.
        losses: Value of the loss in each call.
        calls: One mapping from names to gradients per call.
    """

    def __init__(self, context: _core.Context, patterns: tuple[str, ...], of: Loss) -> None:
        if not callable(of):
            raise TypeError(
                "gradients: of: expected a plait.Logit, LogitDifference, LogProbability or a function of the logits, "
                f"got {type(of).__name__}"
            )
        super().__init__(context, matching("gradients", _core.Gradients.known(context), patterns))
        # __enter__ reads this attribute. Stored in the core, a function that refers to this object would be invisible
        # to the garbage collector.
        self._of = of

    if TYPE_CHECKING:

        def __enter__(self) -> Gradients: ...

    def __getitem__(self, name: str) -> Rows:
        found = find_value(self.names, current_name(name)) if isinstance(name, str) else None
        if found is None:
            raise KeyError(name)
        rows = [call[found] for call in self.calls]
        if len(rows) == 1:
            return rows[0]
        return np.concatenate(rows) if rows else np.empty((0,), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<plait.Gradients of {self._of}: {len(self)} values in {len(self.losses)} calls>"


def _check(loss: object, **least: int | None) -> None:
    """Convert the attributes to int; `least` has the smallest value of each, or None."""
    for name, smallest in least.items():
        value = integer(getattr(loss, name), f"{type(loss).__name__}: {name}", smallest)
        object.__setattr__(loss, name, value)  # the class is frozen


def _place(logits: Rows, position: int, token: int) -> tuple[int, int]:
    """Return the row and the token as indices; raise IndexError if the logits have neither."""
    n_rows, n_vocab = logits.shape
    if not -n_rows <= position < n_rows:
        raise IndexError(
            f"gradients: position {position} does not exist: the call has {n_rows} rows of logits; mark the token with "
            "logits=True"
        )
    if token >= n_vocab:
        raise IndexError(f"gradients: token {token} does not exist: expected 0 to {n_vocab - 1}")
    return position % n_rows, token
