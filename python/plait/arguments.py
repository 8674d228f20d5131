"""Checks of arguments that several public functions share."""

from __future__ import annotations

from plait import _core


def expect_model(model: object, function: str) -> None:
    """Raise TypeError, which names `function`, if `model` is not a model."""
    if not isinstance(model, _core.Model):
        raise TypeError(f"{function}: expected a model, got {type(model).__name__}")


def expect_context(ctx: object, function: str) -> None:
    """Raise TypeError, which names `function`, if `ctx` is not a context."""
    if not isinstance(ctx, _core.Context):
        raise TypeError(f"{function}: expected a context, got {type(ctx).__name__}")
