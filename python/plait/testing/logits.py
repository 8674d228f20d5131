"""Assertions about logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait._core import Output
from plait.arguments import expect_model, integer, kind, number
from plait.evaluation.divergence import divergence
from plait.numerics import log_softmax
from plait.testing.greedy import text_of

if TYPE_CHECKING:
    from plait.model import Model

Rows = npt.NDArray[np.float64]

_ROWS_SHOWN = 3


def assert_logits_close(
    actual: npt.ArrayLike | Output,
    expected: npt.ArrayLike | Output,
    *,
    atol: float = 1e-3,
    rtol: float = 1e-3,
    model: Model | None = None,
    top: int = 5,
) -> None:
    """Assert that |actual - expected| <= atol + rtol |expected| for every logit.

    Infinities and NaN are only equal to themselves. The failure message shows, for the rows that
    differ most, the most likely tokens of both sides with their probabilities, and the divergence
    KL(expected || actual) in nats.

    Args:
        actual: An output of decode(), or an array of shape (n_vocab,) or (n, n_vocab).
        expected: Like `actual`.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        model: If given, its tokenizer provides the text of tokens in the message.
        top: Number of most likely tokens in the message.

    Raises:
        AssertionError: A logit differs.
        ValueError: The shapes differ, or there are no logits to compare.
    """
    __tracebackhide__ = True
    atol, rtol = number(atol, "atol", 0), number(rtol, "rtol", 0)
    top = integer(top, "top", 0)
    if model is not None:
        expect_model(model, "assert_logits_close")
    ours, theirs = _rows(actual, "actual"), _rows(expected, "expected")
    if ours.shape != theirs.shape:
        raise ValueError(f"actual has the shape {ours.shape}, but expected has {theirs.shape}")
    far = ~np.isclose(ours, theirs, atol=atol, rtol=rtol, equal_nan=True)
    if not far.any():
        return
    with np.errstate(invalid="ignore"):
        apart = np.where(far, np.nan_to_num(np.abs(ours - theirs), nan=np.inf, posinf=np.inf), 0)
    worst = np.argsort(-apart.max(axis=1), kind="stable")[: min(_ROWS_SHOWN, far.any(axis=1).sum())]
    lines = [
        f"{int(far.sum())} of {far.size} logits in {int(far.any(axis=1).sum())} of {len(far)} rows differ by more "
        f"than atol = {atol:g} and rtol = {rtol:g}"
    ]
    for row in worst.tolist():
        lines += _row_report(row, ours[row], theirs[row], int(apart[row].argmax()), model, top)
    raise AssertionError("\n".join(lines))


def _rows(logits: npt.ArrayLike | Output, name: str) -> Rows:
    values = logits.logits if isinstance(logits, Output) else logits
    if values is None:
        raise ValueError(f"{name} is an output without logits")
    try:
        rows = np.atleast_2d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: expected an Output or an array of numbers, got {kind(logits)}"
        ) from None
    if rows.size == 0:
        raise ValueError(f"{name} holds no logits: its shape is {rows.shape}")
    if rows.ndim != 2:
        raise ValueError(f"{name}: expected the shape (n_vocab,) or (n, n_vocab), got {rows.shape}")
    return rows


def _row_report(
    row: int, ours: Rows, theirs: Rows, token: int, model: Model | None, top: int
) -> list[str]:
    head = f"row {row}: token {_token_text(token, model)} has {ours[token]:.6g}, expected {theirs[token]:.6g}"
    if not (_is_distribution(ours) and _is_distribution(theirs)):
        return [head, "  (no probabilities: the row holds NaN or +inf, or only -inf)"]
    ours_log, theirs_log = log_softmax(ours), log_softmax(theirs)
    lines = [f"{head}; KL(expected || actual) = {divergence(theirs, ours):.3g} nats"]
    if top == 0:
        return lines
    pairs = []
    for i, (a, b) in enumerate(
        zip(_most_likely(ours, top), _most_likely(theirs, top), strict=True)
    ):
        left = f"{_token_text(a, model)} {np.exp(ours_log[a]):.4f}"
        right = f"{_token_text(b, model)} {np.exp(theirs_log[b]):.4f}"
        pairs.append((str(i + 1), left, right, "" if a == b else "<"))
    width = max(len("actual"), *(len(left) for _, left, _, _ in pairs))
    lines.append(f"     {'actual':{width}}  expected")
    lines += [
        f"  {place:>2} {left:{width}}  {right}  {mark}".rstrip()
        for place, left, right, mark in pairs
    ]
    return lines


def _is_distribution(row: Rows) -> bool:
    return bool(np.isfinite(row.max()))


def _most_likely(row: Rows, n: int) -> list[int]:
    found: list[int] = np.argsort(-row, kind="stable")[:n].tolist()
    return found


def _token_text(token: int, model: Model | None) -> str:
    if model is None:
        return str(token)
    return f"{token} {text_of(model, token)!r}"
