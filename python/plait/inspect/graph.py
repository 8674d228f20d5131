"""Execution plans as tables and drawings, and traces of their execution."""

from __future__ import annotations

import html
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait import _core

_SOURCES = ("weight", "input", "storage")


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a plan, or one of its sources: a weight, an input or a cache.

    Attributes:
        index: Index in the plan.
        op: Name of the operation.
        name: Name of a weight or an input, or of the value in the model, such as "blk.3.attn_out".
        layer: Layer, -1 if the node belongs to none.
        dtype: Element type.
        shape: Shape. Axis 0 is the capacity of the plan if `counts` is not empty.
        counts: Quantity that axis 0 counts: "tokens", "outputs" or "moves".
        nbytes: Size in bytes.
        stage: Stage. Operations of one stage can run concurrently.
        inputs: Indices of the input nodes.
        fused: Names of the operations that this one combines.
        writes_cache: True if the operation writes to the cache.
        output: True if the result is an output of the plan.
        device: Device that computes the node; for sources, the first device that reads it.
    """

    index: int
    op: str
    name: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    counts: str
    nbytes: int
    stage: int
    inputs: tuple[int, ...]
    fused: tuple[str, ...]
    writes_cache: bool
    output: bool
    device: str

    @property
    def is_source(self) -> bool:
        """True for nodes that are not computed: weights, inputs and caches."""
        return self.op in _SOURCES


class Graph(Sequence[Node]):
    """The nodes of a plan in execution order."""

    def __init__(self, nodes: Sequence[dict[str, Any]]) -> None:
        self._nodes = [
            Node(
                index=i, **(node | {"inputs": tuple(node["inputs"]), "fused": tuple(node["fused"])})
            )
            for i, node in enumerate(nodes)
        ]

    def __getitem__(self, index: int) -> Node:  # type: ignore[override]
        return self._nodes[index]

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def operations(self) -> list[Node]:
        """The nodes that are computed."""
        views = ("reshape", "send", "receive")
        return [node for node in self._nodes if not node.is_source and node.op not in views]

    @property
    def n_stages(self) -> int:
        """Number of stages, which equals the number of times that all threads synchronise."""
        return len({node.stage for node in self.operations})

    def _rows(self) -> Iterator[dict[str, str]]:
        several = len({node.device for node in self.operations}) > 1
        for node in self._nodes:
            if node.is_source:
                continue
            row = {
                "#": str(node.index),
                "op": node.op,
                "name": node.name,
                "shape": "x".join(map(str, node.shape)),
                "dtype": node.dtype,
                "bytes": str(node.nbytes),
                "stage": str(node.stage),
            }
            if several:
                row["device"] = node.device
            row["fused from"] = "+".join(node.fused)
            row["inputs"] = " ".join(self._nodes[i].name or f"#{i}" for i in node.inputs)
            yield row

    def _table(self) -> list[tuple[str, ...]]:
        """Return a header and one row per operation."""
        rows = list(self._rows())
        return [tuple(rows[0]), *(tuple(row.values()) for row in rows)] if rows else []

    def __str__(self) -> str:
        rows = self._table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, [*widths[:-1], 0])) for row in rows)

    def __repr__(self) -> str:
        common = ", ".join(
            f"{n} {op}" for op, n in Counter(n.op for n in self.operations).most_common(4)
        )
        return (
            f"<plait.Graph: {len(self.operations)} operations in {self.n_stages} stages: {common}>"
        )

    def _repr_html_(self) -> str:
        def line(tag: str, row: tuple[str, ...]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

        lines = "".join(line("td" if i else "th", row) for i, row in enumerate(self._table()))
        title = f"<b>{html.escape(repr(self).strip('<>'))}</b>"
        return f"{title}<details><summary>operations</summary><table>{lines}</table></details>"

    def dot(self) -> str:
        """Return the graph in Graphviz's language. Weights are omitted; caches and inputs are boxes."""
        lines = ["digraph plan {", '  node [shape=ellipse, fontname="sans-serif", fontsize=10];']
        for node in self._nodes:
            if node.op == "weight":
                continue
            label = "\\n".join(filter(None, (node.op, node.name, "x".join(map(str, node.shape)))))
            style = ", shape=box" if node.is_source else ", style=bold" if node.output else ""
            lines.append(f'  n{node.index} [label="{label}"{style}];')
            lines += [
                f"  n{i} -> n{node.index};" for i in node.inputs if self._nodes[i].op != "weight"
            ]
        return "\n".join([*lines, "}"])


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Work of one thread on one operation.

    Attributes:
        op: Name of the operation.
        name: Name of the value that it computes.
        thread: Index of the thread.
        begin: Start in seconds since the trace began.
        end: End in seconds since the trace began.
    """

    op: str
    name: str
    thread: int
    begin: float
    end: float


class Trace(_core.Trace):
    """Timings of the operations that run inside a `with ctx.trace()` block."""

    def __init__(self, context: _core.Context) -> None:
        super().__init__(context)
        self._events: list[TraceEvent] = []

    if TYPE_CHECKING:

        def __enter__(self) -> Trace: ...

    @property
    def events(self) -> list[TraceEvent]:
        """The recorded events in unspecified order. Empty until the `with` block has ended."""
        taken = self.taken()
        if taken is not None:
            start = min((begin for *_, begin, _ in taken), default=0)
            self._events = [
                TraceEvent(op, name, thread, (begin - start) * 1e-9, (end - start) * 1e-9)
                for op, name, thread, begin, end in taken
            ]
        return self._events

    def save(self, path: str | PathLike[str]) -> None:
        """Write the events for chrome://tracing or https://ui.perfetto.dev (Trace Event Format, complete events).

        Args:
            path: The JSON file to write.
        """
        events = [
            {
                "name": event.name or event.op, "cat": event.op, "ph": "X", "pid": 0, "tid": event.thread,
                "ts": event.begin * 1e6, "dur": (event.end - event.begin) * 1e6,
            }
            for event in self.events
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def seconds_by_op(self) -> dict[str, float]:
        """Return the thread time of each operation in seconds, longest first."""
        total: defaultdict[str, float] = defaultdict(float)
        for event in self.events:
            total[event.op] += event.end - event.begin
        return dict(sorted(total.items(), key=lambda item: -item[1]))
