"""A map of a cache in HTML: one square per row, in the colours of the sequences that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import expect
from plait.display import colours
from plait.display.page import escaped, table, title

if TYPE_CHECKING:
    from plait._core import KVCache

_SQUARES_PER_LINE = 64
_MAX_SQUARES = 2048  # per stream; in larger streams a square stands for several rows
_MAX_STREAMS = 8
_MAX_SEQUENCES = 16  # listed in the table
_MAX_STRIPES = 4
_SIDE = 10  # pixels

Held = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Runs:
    """Counts of contiguous runs of rows in one stream.

    Attributes:
        used: Number of used rows.
        used_runs: Number of runs of used rows.
        free: Number of free rows.
        free_runs: Number of runs of free rows.
        longest_free: Length of the longest run of free rows.
    """

    used: int
    used_runs: int
    free: int
    free_runs: int
    longest_free: int


def runs_of(taken: npt.NDArray[np.bool_]) -> Runs:
    """Count the runs of used and free rows; `taken` is bool (rows,)."""
    edges = np.flatnonzero(np.diff(taken.astype(np.int8), prepend=-1, append=-1))
    lengths, kinds = np.diff(edges), taken[edges[:-1]]
    free = lengths[~kinds]
    return Runs(
        int(taken.sum()), int(kinds.sum()), int(free.sum()), len(free), int(free.max(initial=0))
    )


def rows_of(kv: KVCache, cells: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
    """Return the row of each cell. States, which change rows with each step, are numbered in the order of their rows.

    Args:
        kv: The cache.
        cells: Some of its cells.
    """
    if kv.kind == "recurrent":
        return np.unique(cells["row"], return_inverse=True)[1]
    rows: npt.NDArray[np.intp] = cells["row"].astype(np.intp)
    return rows


def cache_html(kv: KVCache) -> str:
    """Return HTML with a map of the cache, its runs, and a table of its sequences.

    Args:
        kv: The cache.
    """
    expect(kv, _core.KVCache, "cache_html: kv", "a KVCache")
    text = title(repr(kv))
    if repr(kv).endswith("closed>"):
        return text
    cells = kv.cells()
    per_stream = kv.n_cells // kv.n_streams if kv.n_streams else 0
    if per_stream:
        parts = []
        for stream in range(min(kv.n_streams, _MAX_STREAMS)):
            own = cells[cells["stream"] == stream]
            held = np.zeros((per_stream, kv.n_seq_max), np.bool_)
            row = rows_of(kv, own) - stream * per_stream
            # Memories with several windows have further rows.
            inside = (row >= 0) & (row < per_stream)
            held[row[inside]] = own["seqs"][inside]
            parts.append(_stream_html(held, stream if kv.n_streams > 1 else None))
        text += "".join(parts)
        if kv.n_streams > _MAX_STREAMS:
            text += f"<div>and {kv.n_streams - _MAX_STREAMS} more streams</div>"
    return text + _sequences(kv, cells["seqs"])


def _stream_html(held: Held, stream: int | None) -> str:
    runs = runs_of(np.asarray(held.any(axis=1)))
    name = "" if stream is None else f"stream {stream}: "
    rows_per_square = -(-len(held) // _MAX_SQUARES)
    scale = f", {rows_per_square} rows per square" if rows_per_square > 1 else ""
    longest = f", longest {runs.longest_free}" if runs.free_runs > 1 else ""
    used, free = _count(runs.used_runs, "run"), _count(runs.free_runs, "run")
    figures = f"{name}{runs.used} rows in {used}, {runs.free} free in {free}{longest}{scale}"
    return f"<div>{escaped(figures)}</div>{_svg(held, rows_per_square)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _svg(held: Held, rows_per_square: int) -> str:
    """Draw squares in lines. Rows of several sequences are striped; squares of several rows are shaded by their use."""
    n = -(-len(held) // rows_per_square)
    width, height = min(n, _SQUARES_PER_LINE) * _SIDE, -(-n // _SQUARES_PER_LINE) * _SIDE
    squares = "".join(
        _square(i, i * rows_per_square, held[i * rows_per_square : (i + 1) * rows_per_square])
        for i in range(n)
    )
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="display:block;margin:4px 0;max-width:100%;height:auto" role="img">{squares}</svg>'
    )


def _square(index: int, first_row: int, rows: Held) -> str:
    x, y = index % _SQUARES_PER_LINE * _SIDE, index // _SQUARES_PER_LINE * _SIDE
    full = rows.any(axis=1).mean()
    side = _SIDE - 1
    if not full:
        return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{colours.FREE}"/>'
    holders = np.flatnonzero(rows.any(axis=0)).tolist()
    names = ", ".join(map(str, holders))
    tip = f"<title>row {first_row}: sequence {names}</title>"
    shade = f' opacity="{0.4 + 0.6 * full:.2f}"' if full < 1 else ""
    shown = holders[:_MAX_STRIPES]
    stripe = side / len(shown)
    bars = "".join(
        f'<rect x="{x}" y="{y + i * stripe:.3g}" width="{side}" height="{stripe:.3g}" '
        f'fill="{colours.of_sequence(seq)}"{shade}/>'
        for i, seq in enumerate(shown)
    )
    return f"<g>{tip}{bars}</g>"


def _sequences(kv: KVCache, held: Held) -> str:
    live = np.flatnonzero(held.any(axis=0)).tolist()
    if not live:
        return ""
    key = "".join(
        f'<span style="margin-right:1em"><span style="color:{colours.of_sequence(seq)}">&#9632;</span> {seq}</span>'
        for seq in live[:_MAX_SEQUENCES]
    )
    return f"<div>sequences {key}</div>" + table(
        ("sequence", "cells", "shared cells", "positions"), _rows(kv, held, live)
    )


def _rows(kv: KVCache, held: Held, live: list[int]) -> Iterator[tuple[str, ...]]:
    for seq in live[:_MAX_SEQUENCES]:
        own = held[:, seq]
        shared = int((held[own].sum(axis=1) > 1).sum())
        span = f"{kv.seq_pos_min(seq)} to {kv.seq_pos_max(seq)}"
        yield str(seq), str(int(own.sum())), str(shared), span
    if len(live) > _MAX_SEQUENCES:
        yield f"and {len(live) - _MAX_SEQUENCES} more", "", "", ""
