"""Plots of caches and statistics with matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import expect, items, kind, number, string
from plait.display import colours
from plait.display.cache_map import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait._core import KVCache, Stats


_SHARED: dict[str, Any] = {"alpha": 0.5, "hatch": "////", "edgecolor": "white", "linewidth": 0}
# Readable on light and on dark pages, since figures have no background of their own.
INK = "#808080"
# Properties of the texts of tokens, in which dollar signs do not enclose formulas.
TOKEN_TEXT: dict[str, Any] = {"fontsize": "small", "parse_math": False}


def style() -> dict[str, Any]:
    """Return parameters of matplotlib for figures that suit light and dark pages and colour-blind readers.

    Returns:
        Values for matplotlib.rcParams: no background, grey text and lines, and the colours of plait's own figures.

    Example:
        plt.rcParams.update(plait.figures.style())
    """
    from cycler import cycler

    ink = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    backgrounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    return {
        **dict.fromkeys(backgrounds, "none"),
        **dict.fromkeys(ink, INK),
        "axes.prop_cycle": cycler(color=colours.PALETTE),
    }


def new_axes(width: float, height: float) -> Axes:
    """Create a figure without a background and return its axes. Raises ModuleNotFoundError without matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "plots need matplotlib: pip install 'plait[viz]'", name="matplotlib"
        ) from None
    parameters: Any = style()
    with plt.rc_context(parameters):
        return plt.figure(figsize=(width, height), layout="constrained").add_subplot()


def expect_axes(ax: object) -> None:
    """Raise TypeError, which names the argument, if `ax` is no matplotlib axes."""
    from matplotlib.axes import Axes

    expect(ax, Axes, "ax", "matplotlib axes")


def plot_cells(kv: KVCache, ax: Axes | None = None) -> Axes:
    """Plot a line per sequence with a bar per run of rows it holds; rows shared with other sequences are hatched.

    Args:
        kv: The cache.
        ax: Axes to draw on. None creates a new figure.

    Returns:
        The axes.
    """
    expect(kv, _core.KVCache, "plot_cells: kv", "a KVCache")
    if ax is None:
        ax = new_axes(9, 1.2 + 0.25 * min(kv.n_seq_max, 32))
    expect_axes(ax)
    cells = kv.cells()
    per_stream = kv.n_cells // max(kv.n_streams, 1)
    rows, shared = rows_of(kv, cells), cells["seqs"].sum(axis=1) > 1
    for seq in np.flatnonzero(cells["seqs"].any(axis=0)).tolist():
        held = cells["seqs"][:, seq]
        for which, options in ((~shared, {}), (shared, _SHARED)):
            runs = _runs(rows[held & which])
            if runs:
                colour = colours.of_sequence(seq)
                ax.broken_barh(runs, (seq - 0.4, 0.8), facecolors=colour, **options)
    ax.set(xlabel="row", ylabel="sequence", xlim=(0, max(kv.n_cells, 1)))
    ax.set_title(repr(kv).strip("<>"), fontsize="small")
    ax.set_yticks(range(min(kv.n_seq_max, 32)))
    ax.set_ylim(kv.n_seq_max - 0.5, -0.5)
    for stream in range(1, kv.n_streams):
        ax.axvline(stream * per_stream, color="#888", linewidth=0.8)
    if shared.any():
        from matplotlib.patches import Patch

        patches = [
            Patch(facecolor="#888", label="not shared"),
            Patch(facecolor="#888", label="shared", **_SHARED),
        ]
        ax.legend(
            handles=patches, loc="upper right", fontsize="small", labelcolor=INK, frameon=False
        )
    return ax


def _runs(rows: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return (first, length) of each contiguous run of rows."""
    ordered = np.sort(rows)
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1) if len(ordered) else []
    return [(int(part[0]), len(part)) for part in parts]


def plot_stats(stats: Stats, ax: Axes | None = None) -> Axes:
    """Plot a bar per phase of a step, in microseconds per microbatch, with its share of the whole.

    Args:
        stats: The statistics.
        ax: Axes to draw on. None creates a new figure.

    Returns:
        The axes.
    """
    expect(stats, _core.Stats, "plot_stats: stats", "a Stats")
    if ax is None:
        ax = new_axes(7, 2.6)
    expect_axes(ax)
    phases = list(stats.seconds)
    microseconds = [1e6 * stats.seconds[phase] / max(stats.microbatches, 1) for phase in phases]
    bars = ax.barh(phases, microseconds)
    total = sum(microseconds) or 1.0
    labels = [f"{value:,.1f} ({value / total:.0%})" for value in microseconds]
    ax.bar_label(bars, labels, padding=3, color=ax.xaxis.label.get_color())
    ax.set(xlabel="microseconds per microbatch")
    ax.set_title(repr(stats).strip("<>"), fontsize="small")
    ax.set_xlim(0, 1.3 * max([1.0, *microseconds]))
    ax.invert_yaxis()
    return ax


def plot_layers(
    values: npt.ArrayLike,
    tokens: Iterable[str],
    label: str = "",
    *,
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot a heat map of a number per layer and token, such as the effect of patching each value.

    Colours are blue for positive numbers; if any number is clearly negative, they are red for
    positive and blue for negative ones, with white at 0.

    Args:
        values: The numbers, shape (n_layer, n_tokens).
        tokens: The text of each token, n_tokens strings.
        label: What the numbers are, with their unit; the label of the colour bar. Empty: no colour bar.
        limit: The number at the end of the colour scale. None: the largest absolute value.
        ax: Axes to draw on. None creates a new figure.

    Returns:
        The axes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The shape does not fit the tokens, a number is not finite, or `limit` is not positive.

    Example:
        plait.figures.plot_layers([[0, 1, 2], [0, 0, 4]], ["The", "kite", "is"], "change in logits")
    """
    texts = [
        string(t, "plot_layers: tokens") for t in items(tokens, "plot_layers: tokens", "strings")
    ]
    numbers = _numbers(values, len(texts))
    string(label, "plot_layers: label")
    if limit is None:
        limit = float(np.abs(numbers).max()) or 1.0
    limit = number(limit, "plot_layers: limit", least=np.finfo(np.float64).tiny)
    signed = bool(numbers.min() < -0.02 * limit)
    if ax is None:
        ax = new_axes(2 + 0.32 * len(texts), 1.5 + 0.3 * len(numbers))
    expect_axes(ax)
    image = ax.imshow(
        numbers,
        cmap="RdBu_r" if signed else "Blues",
        vmin=-limit if signed else 0,
        vmax=limit,
        aspect="auto",
        origin="lower",
    )
    ax.set_xticks(range(len(texts)), texts, rotation=90, **TOKEN_TEXT)
    ax.set_yticks(range(len(numbers)))
    ax.set_ylabel("layer")
    if label:
        bar = ax.figure.colorbar(image, ax=ax)
        bar.ax.tick_params(colors=INK)
        bar.set_label(label, color=INK)
    return ax


def _numbers(values: npt.ArrayLike, n_tokens: int) -> npt.NDArray[np.float64]:
    """Return the values of plot_layers(), or raise the error that names them."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"plot_layers: values: expected an array of numbers, got {kind(values)}")
    if array.ndim != 2 or array.shape[1] != n_tokens or array.size == 0:
        raise ValueError(
            f"plot_layers: values: expected the shape (n_layer, {n_tokens}), one column per token, "
            f"got {array.shape}"
        )
    if not np.isfinite(array).all():
        raise ValueError("plot_layers: values: expected finite numbers, got infinity or NaN")
    return array.astype(np.float64)
