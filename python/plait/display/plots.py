"""Plots of caches and statistics with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plait.display import colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait._core import KVCache, Stats


_SHARED: dict[str, Any] = {"alpha": 0.5, "hatch": "////", "edgecolor": "white", "linewidth": 0}


def new_axes(width: float, height: float) -> Axes:
    """Create a figure and return its axes. Raises ModuleNotFoundError without matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "plots need matplotlib: pip install plait[viz]", name="matplotlib"
        ) from None
    return plt.figure(figsize=(width, height), layout="constrained").add_subplot()


def plot_cells(kv: KVCache, ax: Axes | None = None) -> Axes:
    """Plot a line per sequence with a bar per run of rows it holds; rows shared with other sequences are hatched.

    Args:
        kv: The cache.
        ax: Axes to draw on. None creates a new figure.

    Returns:
        The axes.
    """
    if ax is None:
        ax = new_axes(9, 1.2 + 0.25 * min(kv.n_seq_max, 32))
    cells = kv.cells()
    per_stream = kv.n_cells // max(kv.n_streams, 1)
    shared = cells["seqs"].sum(axis=1) > 1
    for seq in np.flatnonzero(cells["seqs"].any(axis=0)).tolist():
        held = cells["seqs"][:, seq]
        for kind, style in ((~shared, {}), (shared, _SHARED)):
            runs = _runs(cells["row"][held & kind])
            if runs:
                colour = colours.of_sequence(seq)
                ax.broken_barh(runs, (seq - 0.4, 0.8), facecolors=colour, **style)
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
        ax.legend(handles=patches, loc="upper right", fontsize="small")
    return ax


def _runs(rows: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return (first, length) of each contiguous run of rows."""
    ordered = np.sort(rows)
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1) if len(ordered) else []
    return [(int(part[0]), len(part)) for part in parts]


def plot_stats(stats: Stats, ax: Axes | None = None) -> Axes:
    """Plot a bar per phase of a step, in microseconds per microbatch, on a logarithmic scale.

    Args:
        stats: The statistics.
        ax: Axes to draw on. None creates a new figure.

    Returns:
        The axes.
    """
    if ax is None:
        ax = new_axes(7, 2.6)
    phases = list(stats.seconds)
    microseconds = [1e6 * stats.seconds[phase] / max(stats.microbatches, 1) for phase in phases]
    bars = ax.barh(phases, microseconds)
    ax.bar_label(bars, [f"{value:,.1f}" for value in microseconds], padding=3)
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set(xlabel="microseconds per microbatch")
    ax.set_title(repr(stats).strip("<>"), fontsize="small")
    ax.set_xlim(0, 10 * max([1.0, *microseconds]))
    ax.invert_yaxis()
    return ax
