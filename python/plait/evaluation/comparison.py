"""Comparison of two runs of the same tokens, value by value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_context
from plait.display.plots import expect_axes, new_axes
from plait.evaluation.divergence import common_ids, divergence
from plait.evaluation.texts import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.cache.sequence import Sequence
    from plait.context import Context

Rows = npt.NDArray[np.float32]

_MAX_BYTES: Final = 64 << 20  # of captured values and logits in memory, about
_PATTERN: Final = re.compile(r"blk\.(\d+)\.")
# Values whose rows do not have a shape of their own: one array of scores by token and key.
_SKIPPED: Final = ("attn_pattern",)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How two runs of the same tokens differ.

    Attributes:
        first_difference: (layer, name, position) of the first value whose bits differ: in order of
            computation, then of position. The layer is None for a value outside the layers. None if
            all values and logits have the same bits.
        layers: Structured array with one row per value, in order of computation. Its fields are
            `name`; `max_abs`, the largest absolute difference of an element; `rms`, the root mean
            square of the differences; and `cosine`, the cosine of the angle between both values; NaN
            if one of them is all zeros.
        kl: Mean divergence of the second run's next-token distributions from the first's, in nats.
        top1_agreement: Share of the tokens after which both have the same most likely token.
        max_logit_error: Largest difference of a logit.
        n_tokens: Number of tokens.
    """

    first_difference: tuple[int | None, str, int] | None
    layers: npt.NDArray[np.void]
    kl: float
    top1_agreement: float
    max_logit_error: float
    n_tokens: int

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the root mean square of the differences by layer, with one line per kind of value.

        Args:
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        lines: dict[str, dict[int, float]] = {}
        for row in self.layers:
            if found := _PATTERN.match(row["name"]):
                kind = row["name"][found.end() :]
                lines.setdefault(kind, {})[int(found[1])] = row["rms"]
        ax = new_axes(7, 4) if ax is None else ax
        expect_axes(ax)
        for kind, by_layer in lines.items():
            ax.plot(list(by_layer), list(by_layer.values()), marker="o", markersize=3, label=kind)
        if any(rms > 0 for by_layer in lines.values() for rms in by_layer.values()):
            ax.set_yscale("log")
        ax.set(xlabel="layer", ylabel="RMS of the differences", title="differences by layer")
        ax.legend(fontsize="x-small", ncols=2)
        return ax

    def __str__(self) -> str:
        if self.first_difference is None:
            return f"all values and logits of {self.n_tokens} tokens have the same bits"
        _, name, position = self.first_difference
        lines = [
            f"first difference: {name} at position {position}",
            f"KL divergence {self.kl:.6f} nats, same most likely token {self.top1_agreement:.2%}, largest error of a "
            f"logit {self.max_logit_error:.4g}, over {self.n_tokens} tokens",
        ]
        lines += [
            f"  {row['name']}: max {row['max_abs']:.4g}, rms {row['rms']:.4g}, cosine {row['cosine']:.6f}"
            for row in most_different(self.layers, 5)
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<plait.Comparison of {self.n_tokens} tokens: {str(self).splitlines()[0]}>"


def most_different(layers: npt.NDArray[np.void], n: int) -> list[np.void]:
    """Return the `n` rows of `Comparison.layers` with the least cosines; those with NaN are first."""
    return sorted(layers, key=lambda row: np.nan_to_num(row["cosine"], nan=-2.0))[:n]


@dataclass
class _Sums:
    """What is known of one value after some of the tokens."""

    first: int | None = None  # the first position whose bits differ
    max_abs: float = 0.0
    squares: float = 0.0  # of differences
    dot: float = 0.0
    norms: list[float] = field(default_factory=lambda: [0.0, 0.0])
    n: int = 0

    def add(self, a: Rows, b: Rows, position: int) -> None:
        """Add the rows of consecutive positions."""
        apart = (_bits(a) != _bits(b)).reshape(len(a), -1).any(axis=1)
        if self.first is None and apart.any():
            self.first = position + int(apart.argmax())
        x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(_bits(a).ravel() == _bits(b).ravel(), 0.0, x - y)
            self.max_abs = float(np.maximum(self.max_abs, np.abs(error).max(initial=0.0)))
            self.squares += float(error @ error)
            self.dot += float(x @ y)
            self.norms = [self.norms[0] + float(x @ x), self.norms[1] + float(y @ y)]
        self.n += x.size

    def row(self, name: str) -> tuple[str, float, float, float]:
        """Return the row of `Comparison.layers`."""
        scale = (self.norms[0] * self.norms[1]) ** 0.5
        same = self.first is None
        cosine = 1.0 if same else self.dot / scale if scale else float("nan")
        return name, self.max_abs, (self.squares / max(self.n, 1)) ** 0.5, cosine


def compare(ctx_a: Context, ctx_b: Context, text: Text) -> Comparison:
    """Run the same tokens in two contexts and compare all their intermediate values and logits.

    The contexts may differ in the quantisation of their models, in backend, instruction set, cache
    types and other options, and in open edits and adapters. Each run takes a sequence of its own and
    frees it, so that the caches are as before. Tokens are processed in parts, so that values of a few
    tokens at a time are in memory.

    Values that only one of the contexts has, and attention patterns, are not compared.

    Args:
        ctx_a: The reference.
        ctx_b: The other context; it may be the same.
        text: Text or token ids; at most n_ctx tokens.

    Returns:
        The Comparison.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The models differ in architecture or shape, the text has no tokens or does not
            fit into n_ctx, or logits are NaN.
        CacheFull: A context has no free sequence or no room for the tokens.

    Example:
        print(plait.compare(f16, q4, "Once upon a time"))
    """
    expect_context(ctx_a, "compare", "ctx_a")
    expect_context(ctx_b, "compare", "ctx_b")
    if (difference := shape_difference(ctx_a, ctx_b)) is not None:
        raise ValueError(
            f"compare: the models differ: {difference}; compare models of one architecture and shape"
        )
    ids = _checked_ids(ctx_a, ctx_b, text)
    names = _common_names(ctx_a, ctx_b)
    sums = {name: _Sums() for name in names}
    logits = _Sums()
    kl, n_same = 0.0, 0
    step = min(_tokens_at_once(ctx, names) for ctx in (ctx_a, ctx_b))
    with ctx_a.sequence() as a, ctx_b.sequence() as b:
        for begin in range(0, len(ids), step):
            part = ids[begin : begin + step]
            ours, theirs = (_values(ctx, seq, part, names) for ctx, seq in ((ctx_a, a), (ctx_b, b)))
            for name in names:
                sums[name].add(ours[0][name], theirs[0][name], begin)
            logits.add(ours[1], theirs[1], begin)
            kl += sum(divergence(x, y) for x, y in zip(ours[1], theirs[1], strict=True))
            n_same += int((ours[1].argmax(axis=1) == theirs[1].argmax(axis=1)).sum())
    longest = max(map(len, names), default=1)
    kinds = [("name", f"U{longest}"), ("max_abs", "f8"), ("rms", "f8"), ("cosine", "f8")]
    return Comparison(
        next(
            (_place(name, one.first) for name, one in [*sums.items(), ("logits", logits)] if one.first is not None),
            None,
        ),
        np.array([one.row(name) for name, one in sums.items()], dtype=kinds),
        kl / len(ids),
        n_same / len(ids),
        logits.max_abs,
        len(ids),
    )  # fmt: skip


def shape_difference(ctx_a: Context, ctx_b: Context) -> str | None:
    """Describe the first difference in architecture or shape that compare() refuses; None if there is none."""
    a, b = ctx_a.model, ctx_b.model
    for name in ("arch", "n_layer", "n_embd"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            return f"{name} is {ours!r} and {theirs!r}"
    for name in _common_names(ctx_a, ctx_b):
        ours, theirs = ctx_a.value_shape(name), ctx_b.value_shape(name)
        if ours != theirs:
            return f"the shape of {name} is {ours!r} and {theirs!r}"
    return None


def _common_names(ctx_a: Context, ctx_b: Context) -> list[str]:
    """Return the names of the values to compare, in order of computation."""
    known = set(ctx_b.value_names())
    return [name for name in ctx_a.value_names() if name in known and not _is_skipped(name)]


def _checked_ids(ctx_a: Context, ctx_b: Context, text: Text) -> list[int]:
    ids = common_ids(ctx_a.model, ctx_b.model, text, True, True, "compare")
    n_ctx = min(ctx_a.n_ctx, ctx_b.n_ctx)
    if not 1 <= len(ids) <= n_ctx:
        raise ValueError(
            f"compare: the text has {len(ids)} tokens; it must have 1 to n_ctx = {n_ctx}"
        )
    return ids


def _values(
    ctx: Context, seq: Sequence, ids: list[int], names: list[str]
) -> tuple[dict[str, Rows], Rows]:
    """Decode tokens and return the values by name, one row per token, and the logits."""
    batch = Batch()
    batch.add_sequence(ids, seq=seq, logits="all")
    with ctx.capture(*names) as seen:
        logits = ctx.decode(batch).logits
    if logits is None:
        raise ValueError("compare: the context gives no logits")
    return {name: np.asarray(seen[name]) for name in names}, logits.copy()


def _tokens_at_once(ctx: Context, names: list[str]) -> int:
    floats = ctx.model.n_vocab + sum(int(np.prod(ctx.value_shape(name))) for name in names)
    return max(1, min(ctx.n_batch, _MAX_BYTES // (4 * floats)))


def _is_skipped(name: str) -> bool:
    return any(kind in name.split(".") for kind in _SKIPPED)


def _bits(rows: Rows) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")


def _place(name: str, position: SupportsIndex | None) -> tuple[int | None, str, int]:
    assert position is not None
    found = _PATTERN.match(name)
    return int(found[1]) if found else None, name, int(position)
