#!/usr/bin/env python3
"""Writes rooms/<room>.md: what each room of cpp/, the bindings and the package are for, and what their files say they are.

    python docs/rooms.py

The introductions stand below, the tables are the first sentences of headers and modules.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTIONS = {
    "base": """
Errors, messages, logs, checksums: what every room uses. Nothing here knows what a tensor is.

Errors are classes by what a caller can do about them; Python gets one of the same name for each. `PLAIT_CHECK` is for
our own mistakes, never for what a file or a caller can cause. The library does not print: a log record goes to a sink,
and Python's is the logger `plait`.
""",
    "sampling": """
From a row of logits to a token. A `Sampler` is a list of stages over one row's `Candidates`; a stage narrows or changes
them, and a draw ends it. Every sequence has a state of its own: the tokens it has said, mirostat's surprise, and random
numbers that are a function of (seed, sequence, step), so nothing depends on what else is sampled in between. A file is one
method, with its paper.
""",
    "tensor": """
Types and shapes, the block formats, and bytes on a device. No graph, no file.

A file in `blocks/` is one format: its layout, its decoder, and its encoder where there is one. Decoders are bit for bit
ggml's. The encoders of types that a cache can have are those of ggml's reference; Q4_K and Q6_K are fitted by least
squares (`fit.h`). Kernels include these headers, so they are plain C in C++ clothes.
""",
    "gguf": """
Files, read as if they had been written by an enemy: every length is checked against the bytes that are left before
anything is allocated for it, and every message names the file, the key and the defect. Either a file opens, or
`ModelError` or `UnsupportedError` says why it does not.
""",
    "graph": """
Recipes. A graph is a list of nodes, each an operation on shapes; it holds no bytes and nothing of a step. An operation is
a function in `ops.h` with its formula and its source. The key of a graph (`plan_key.h`) is everything that its topology
may depend on, so two steps of one key are computed by one plan.
""",
    "batch": """
What the caller asks for: tokens or embeddings, of which sequences, at which positions. `prepare` checks it against the
past and fills in what was left open; `split` cuts it into pieces that can run at once. Nothing here changes anything.
""",
    "memory": """
What a context remembers, as bookkeeping: which rows hold which tokens of which sequences. It knows no bytes and no graph.
A step is placed first (`Placement`), and committed when everything has run; dropped, it has changed nothing. Edits
(copies, removals, shifts) say which rows are to be copied or rotated, and the runtime carries that out.

There is one file a variant; `HybridMemory` makes a memory of any mix of them. [How to choose](../index.md#which-cache).
""",
    "backend": """
Devices that hold bytes and run graphs. The CPU's kernels are written once over `simd/` and compiled once an instruction
set; which of them runs is chosen when a context is made. Each output is summed in one fixed order, so it does not depend
on threads, on the batch or on how a prompt is cut. The Vulkan backend records a plan once and replays it. Backends never
include each other; `joint/` makes one of several, whatever they are.
""",
    "plan": """
From a graph to something that can run: rows that nobody asks for are not computed, what nobody sees is dropped, what
costs less together is fused by the backend, every value gets its place in one arena, and operations that may run at the
same time form a stage. Plans are kept by key.
""",
    "model": """
Architectures: one file each in `arch/`, with the paper and the formula on top. A model is given the key of a step and
builds its graph; it never sees a batch, a view or a step. `decoder.h`, `rotary_decoder.h` and `encoder.h` are the frames
that they share, `blocks/` the phrases. [Add one](../../CONTRIBUTING.md#add-an-architecture); [those there
are](../architectures.md).
""",
    "runtime": """
The one-way road: a batch is prepared, cut, placed, and each piece finds its plan, is given its inputs, and runs; at last
the placement is committed. On any error before that nothing has changed. Also here: contexts, saved states, captures,
statistics, and the device's side of moving rows.
""",
    "bindings": """
The module `plait._core`: names, conversions and errors, no logic. Arguments are taken as any object and refused with words
that name the argument, its value and what was expected. The GIL is released while a model runs; a signal ends the call at
the next stage, and everything is as before it. A row of logits that Python holds keeps the buffer it is in.

`python bindings/stubs.py` writes the stubs from the module, docstrings included; a test compares.
""",
    "package": """
What Python adds to the module: tokenizers, grammars, generation, conversations, scores, figures, the command line, and the
places where people use it. Importing `plait` loads the module and little else; NumPy comes with the first array, tokenizers
with the first text. Extras (`viz`, `grammar`, `chat`, `hub`, `eval`, `ray`) are asked for by the call that needs them, with
the line that installs them.
""",
}

FOLDERS = {"bindings": "bindings", "package": "python/plait"}  # others: cpp/<room>


def first(text: str) -> str:
    """Its first sentence, for a cell of a table."""
    return re.split(r"(?<=[.:])\s(?=[A-Z\[`]|$)", text)[0].rstrip(":").replace("|", "\\\\|")


def sentence(path: Path) -> str:
    """The first sentence of a header's comment or a module's docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return first(" ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split()))
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return first(" ".join(filter(None, lines)))


def files(folder: Path) -> list[Path]:
    """What the table of a page lists."""
    if folder.name == "plait":
        modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
        return sorted(modules) + sorted(folder.glob("*/__init__.py"))
    return sorted(folder.glob("*.h")) + sorted(folder.glob("*/backend.h"))


def page(room: str) -> str:
    """The introduction, then a table of the files."""
    folder = ROOT / FOLDERS.get(room, f"cpp/{room}")
    text = f"# {room}\n{INTRODUCTIONS[room]}\n| file | what it is |\n|---|---|\n"
    for path in files(folder):
        name = path.relative_to(folder).as_posix().removesuffix("__init__.py")
        link = (Path("../..") / folder.relative_to(ROOT) / name).as_posix()
        text += f"| [{name}]({link}) | {sentence(path)} |\n"
    return text


if __name__ == "__main__":
    for room in INTRODUCTIONS:
        target = ROOT / "docs" / "rooms" / f"{room}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(page(room), encoding="utf-8")
