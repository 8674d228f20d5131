"""A cache as a map: a square for each row, in the colours of the sequences that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait.display import colours
from plait.display.page import escaped, table, title

if TYPE_CHECKING:
    from plait._core import KVCache

_ACROSS = 64  # squares in a line
_MOST_SQUARES = 2048  # of a stream; of more rows, several are a square
_MOST_STREAMS = 8
_MOST_SEQUENCES = 16  # in the table
_MOST_STRIPES = 4
_SIDE = 10  # pixels

Held = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Runs:
    """How the rows of one stream lie: `used` and `free` rows, in so many unbroken runs each."""

    used: int
    used_runs: int
    free: int
    free_runs: int
    longest_free: int


def runs_of(taken: npt.NDArray[np.bool_]) -> Runs:
    """The runs of rows that are taken and of those that are not, bool (rows,)."""
    edges = np.flatnonzero(np.diff(taken.astype(np.int8), prepend=-1, append=-1))
    lengths, kinds = np.diff(edges), taken[edges[:-1]]
    free = lengths[~kinds]
    return Runs(
        int(taken.sum()), int(kinds.sum()), int(free.sum()), len(free), int(free.max(initial=0))
    )


def cache_html(kv: KVCache) -> str:
    """The map, its runs, and which sequence holds what."""
    text = title(repr(kv))
    if repr(kv).endswith("closed>"):
        return text
    cells = kv.cells()
    per_stream = kv.n_cells // kv.n_streams if kv.n_streams else 0
    if per_stream:
        parts = []
        for stream in range(min(kv.n_streams, _MOST_STREAMS)):
            own = cells[cells["stream"] == stream]
            held = np.zeros((per_stream, kv.n_seq_max), np.bool_)
            row = own["row"] - stream * per_stream
            inside = (row >= 0) & (row < per_stream)  # memories of several windows have rows beyond
            held[row[inside]] = own["seqs"][inside]
            parts.append(_stream_html(held, stream if kv.n_streams > 1 else None))
        text += "".join(parts)
        if kv.n_streams > _MOST_STREAMS:
            text += f"<div>and {kv.n_streams - _MOST_STREAMS} more streams</div>"
    return text + _sequences(kv, cells["seqs"])


def _stream_html(held: Held, stream: int | None) -> str:
    runs = runs_of(np.asarray(held.any(axis=1)))
    name = "" if stream is None else f"stream {stream}: "
    each = -(-len(held) // _MOST_SQUARES)
    scale = f", {each} rows a square" if each > 1 else ""
    longest = f", the longest {runs.longest_free}" if runs.free_runs > 1 else ""
    used, free = _count(runs.used_runs, "run"), _count(runs.free_runs, "run")
    figures = f"{name}{runs.used} rows in {used}, {runs.free} free in {free}{longest}{scale}"
    return f"<div>{escaped(figures)}</div>{_svg(held, each)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _svg(held: Held, each: int) -> str:
    """Squares in lines; of several sequences striped, of several rows as full as these are."""
    n = -(-len(held) // each)
    width, height = min(n, _ACROSS) * _SIDE, -(-n // _ACROSS) * _SIDE
    squares = "".join(_square(i, held[i * each : (i + 1) * each]) for i in range(n))
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="max-width:100%;height:auto" role="img">{squares}</svg>'
    )


def _square(index: int, rows: Held) -> str:
    x, y = index % _ACROSS * _SIDE, index // _ACROSS * _SIDE
    full = rows.any(axis=1).mean()
    side = _SIDE - 1
    if not full:
        return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{colours.FREE}"/>'
    holders = np.flatnonzero(rows.any(axis=0)).tolist()
    names = ", ".join(map(str, holders))
    tip = f"<title>row {index * len(rows)}: sequence {names}</title>"
    shade = f' opacity="{0.4 + 0.6 * full:.2f}"' if full < 1 else ""
    shown = holders[:_MOST_STRIPES]
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
        for seq in live[:_MOST_SEQUENCES]
    )
    return f"<div>sequences {key}</div>" + table(
        ("sequence", "cells", "of them shared", "positions"), _rows(kv, held, live)
    )


def _rows(kv: KVCache, held: Held, live: list[int]) -> Iterator[tuple[str, ...]]:
    for seq in live[:_MOST_SEQUENCES]:
        own = held[:, seq]
        shared = int((held[own].sum(axis=1) > 1).sum())
        span = f"{kv.seq_pos_min(seq)} to {kv.seq_pos_max(seq)}"
        yield str(seq), str(int(own.sum())), str(shared), span
    if len(live) > _MOST_SEQUENCES:
        yield f"and {len(live) - _MOST_SEQUENCES} more", "", "", ""
