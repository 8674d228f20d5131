"""How a cache and its statistics look in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.context import KVCache, Stats

_MOST_SEQUENCES = 16


def cache_html(kv: KVCache) -> str:
    """The figures of a cache as a table, and which of its sequences hold what."""
    text = f"<b>{html.escape(repr(kv).strip('<>'))}</b>"
    if repr(kv).endswith("closed>"):
        return text
    held = kv.cells()["seqs"]
    rows = []
    live = np.flatnonzero(held.any(axis=0))
    for seq in live[:_MOST_SEQUENCES].tolist():
        own = held[:, seq]
        shared = int((held[own].sum(axis=1) > 1).sum())
        span = f"{kv.seq_pos_min(seq)} to {kv.seq_pos_max(seq)}"
        rows.append((str(seq), str(int(own.sum())), str(shared), span))
    if len(live) > _MOST_SEQUENCES:
        rows.append((f"and {len(live) - _MOST_SEQUENCES} more", "", "", ""))
    return text + _table(("sequence", "cells", "of them shared", "positions"), rows)


def stats_html(stats: Stats) -> str:
    """Counters, times by phase, and why plans were built."""
    counters = [
        ("tokens", f"{stats.tokens:,}"),
        ("microbatches", f"{stats.microbatches:,}"),
        ("plans built", f"{stats.plans_built:,}"),
        *((f"because: {reason}", f"{count:,}") for reason, count in stats.plan_misses.items()),
        ("plans reused", f"{stats.plans_reused:,}"),
        *((f"nodes on {device}", f"{count:,}") for device, count in stats.nodes.items()),
    ]
    times = [(phase, f"{seconds * 1e3:.2f}") for phase, seconds in stats.seconds.items()]
    return _table(("", "count"), counters) + _table(("phase", "ms"), times)


def plot_cells(kv: KVCache, ax: Axes | None = None) -> Axes:
    """A dot for each row that a sequence holds, coloured by position; shared rows stand above each other."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.figure(figsize=(9, 1 + 0.25 * min(kv.n_seq_max, 32))).add_subplot()
    cells = kv.cells()
    index, seq = np.nonzero(cells["seqs"])
    dots = ax.scatter(cells["row"][index], seq, c=cells["pos"][index, 0], marker="|", s=60)
    ax.set(
        xlabel="row", ylabel="sequence", title=repr(kv).strip("<>"), xlim=(-1, max(kv.n_cells, 1))
    )
    ax.set_ylim(kv.n_seq_max - 0.5, -0.5)
    ax.figure.colorbar(dots, ax=ax, label="position")
    return ax


def plot_stats(stats: Stats, ax: Axes | None = None) -> Axes:
    """A bar for each phase of a step, in microseconds per microbatch; time is on a logarithmic scale."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.figure(figsize=(7, 2.6)).add_subplot()
    phases = list(stats.seconds)
    each = [1e6 * stats.seconds[phase] / max(stats.microbatches, 1) for phase in phases]
    bars = ax.barh(phases, each)
    ax.bar_label(bars, [f"{value:,.1f}" for value in each], padding=3)
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set(xlabel="microseconds a microbatch")
    ax.set_title(repr(stats).strip("<>"), fontsize="small")
    ax.set_xlim(0, 10 * max([1.0, *each]))
    ax.invert_yaxis()
    return ax


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(tag: str, items: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(item)}</{tag}>" for item in items) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"
