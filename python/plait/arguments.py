"""Conversion of arguments, with errors that name the argument, its value and what was expected."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Mapping, Set
from typing import Final, SupportsFloat, SupportsIndex, TypeVar

from plait import _core

T = TypeVar("T")

MAX_POSITION: Final = (1 << 31) - 1


def expect_model(model: object, function: str, name: str = "model") -> None:
    """Raise TypeError, which names `function` and the argument, if `model` is not a model."""
    if not isinstance(model, _core.Model):
        raise TypeError(f"{function}: {name}: expected a Model, got {kind(model)}")


def expect_context(ctx: object, function: str, name: str = "ctx") -> None:
    """Raise TypeError, which names `function` and the argument, if `ctx` is not a context."""
    if not isinstance(ctx, _core.Context):
        raise TypeError(f"{function}: {name}: expected a Context, got {kind(ctx)}")


def kind(value: object) -> str:
    """Return the name of a value's type for messages."""
    return "None" if value is None else type(value).__name__


def expect(value: object, types: type[T] | tuple[type[T], ...], name: str, expected: str) -> None:
    """Raise TypeError, which names the argument, if the value has none of the types."""
    if not isinstance(value, types):
        raise TypeError(f"{name}: expected {expected}, got {kind(value)}")


def integer(
    value: SupportsIndex, name: str, least: int | None = None, most: int | None = None
) -> int:
    """Return an argument as an int.

    Args:
        value: The argument.
        name: The function and the argument, such as "generate: top".
        least: The smallest valid value. None: any.
        most: The largest valid value. None: any.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is out of range.
    """
    try:
        result = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {kind(value)}") from None
    if (least is not None and result < least) or (most is not None and result > most):
        if least is None:
            limits = f"at most {most}"
        else:
            limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} is {shown(result)}; it must be {limits}")
    return result


def items(value: Iterable[T], name: str, expected: str) -> list[T]:
    """Return an argument that is an iterable as a list.

    Args:
        value: The argument.
        name: The function and the argument.
        expected: What the iterable holds, for the message.

    Raises:
        TypeError: The value is text, bytes, or not iterable.
    """
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name}: expected a list of {expected}, got {kind(value)}")
    return list(value)


def refuse_unordered(value: object, name: str) -> None:
    """Raise TypeError, which names the argument, for a dict or a set in place of text or a list."""
    if isinstance(value, Mapping):
        hint = "; for messages, use Chat" if "role" in value or "content" in value else ""
        raise TypeError(f"{name}: expected text or a list, got {kind(value)}{hint}")
    if isinstance(value, Set):
        raise TypeError(f"{name}: expected text or a list, got {kind(value)}, which has no order")


def number(
    value: SupportsFloat | SupportsIndex,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return an argument as a float.

    Args:
        value: The argument.
        name: The function and the argument.
        least: The smallest valid value.
        most: The largest valid value.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is out of range or not finite.
    """
    result = to_float(value, name)
    if not math.isfinite(result):
        raise ValueError(f"{name} is {shown(value)}; it must be finite")
    if not least <= result <= most:
        limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{name} is {shown(value)}; it must be {limits}")
    return result


def to_float(value: SupportsFloat | SupportsIndex, name: str) -> float:
    """Return any number as a float. Raises TypeError, which names the argument, for anything else."""
    try:
        if not isinstance(value, str | bytes | bytearray):
            return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: expected a number, got {kind(value)}")


def flag(value: object, name: str) -> bool:
    """Return an argument as a bool. Raises TypeError, which names it, for anything but a bool."""
    numpy_bool = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    if not isinstance(value, bool) and not numpy_bool:
        raise TypeError(f"{name}: expected a bool, got {kind(value)}")
    return bool(value)


def string(value: object, name: str) -> str:
    """Return an argument that is a str. Raises TypeError, which names it, for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {kind(value)}")
    return value


def renamed(
    value: T, old: T | None, name: str, old_name: str, function: str, stacklevel: int = 3
) -> T:
    """Return the value of a parameter that has a deprecated other name, with a DeprecationWarning if that is used.

    Args:
        value: The value under the present name.
        old: The value under the deprecated name, or None.
        name: The present name.
        old_name: The deprecated name.
        function: The function, for the message.
        stacklevel: As in warnings.warn(); 3 is the caller of the calling function.
    """
    if old is None:
        return value
    warnings.warn(
        f"{function}: {old_name} is deprecated; use {name}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return old


def shown(value: object) -> str:
    """Return the representation of a value, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"{kind(value)} with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."
