#!/usr/bin/env python3
"""Write the pictures of README.md and of the site to images/, each for light and for dark pages.

Usage: python docs/pictures.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import plait

IMAGES = Path(__file__).with_name("images")
STORY = "Tom lives in Oslo. The kite is {}. Q: What colour is the kite? A: The kite is"
QUESTIONS = ("Where does Tom live?", "What colour is the kite?")
COLOURS = ("red", "blue")  # of the kite: in the run that is read, and in the run that is patched

# Text, empty cells and full cells. The blue and the orange are Okabe and Ito's, safe for colour-blind readers.
THEMES = {
    "light": {"ink": "#24292f", "none": "#eef1f4", "full": "#0072b2", "mark": "#b35900"},
    "dark": {"ink": "#d0d7de", "none": "#21262d", "full": "#56b4e9", "mark": "#e69f00"},
}
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
CELL = 22  # pixels of a row of the cache
SIDE, GAP, LEFT, TOP, BOTTOM, RIGHT = 30, 2, 78, 44, 74, 20  # pixels


def recovered() -> tuple[list[str], np.ndarray]:
    """Patch the output of each layer at each token of one story into a run of another story.

    Returns:
        The text of each token, and float64 (n_layer, n_tokens): 0 if the answer of the patched run is as wrong as
        without the patch, 1 if it is as right as in the run that the values came from. Both are differences of the
        logits of the two colours.
    """
    model = plait.Model.demo()
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    right, wrong = (int(encode(colour, add_special=False)[0]) for colour in COLOURS)
    source, target = (encode(STORY.format(colour)) for colour in COLOURS)
    with plait.Context(model, n_ctx=64) as ctx:

        def difference(tokens: np.ndarray) -> float:
            ctx.kv.clear()
            batch = plait.Batch()
            batch.add_sequence(tokens, seq=0)
            row = ctx.decode(batch).logits[0]
            return float(row[right] - row[wrong])

        with ctx.capture("l_out.*") as values:
            best = difference(source)
        worst = difference(target)
        table = np.zeros((model.n_layer, len(source)))
        for layer, token in np.ndindex(*table.shape):

            def patch(
                rows: np.ndarray, value: str = f"l_out.{layer}", token: int = token
            ) -> np.ndarray:
                rows[token] = values[value][token]
                return rows

            with ctx.edit(f"l_out.{layer}", patch):
                table[layer, token] = (difference(target) - worst) / (best - worst)
    texts = [decode([token]).strip() or "start" for token in source.tolist()]
    return texts, table


def heat_map(texts: list[str], table: np.ndarray, theme: dict[str, str]) -> str:
    """Draw the result of recovered() as SVG: a row per layer, the last one on top, and a column per token."""
    n_layer, n = table.shape
    width, height = LEFT + n * SIDE + RIGHT, TOP + n_layer * SIDE + BOTTOM
    return "\n".join(
        [
            _head(width, height, theme),
            "<title>Share of the answer that one patched value restores, by layer and token</title>",
            f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">How much of the answer “{COLOURS[0]}” does one '
            "value carry?</text>",
            *_cells(table, theme),
            *_labels(texts, n_layer, theme),
            "</svg>\n",
        ]
    )


def _head(width: int, height: int, theme: dict[str, str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="13" fill="{theme["ink"]}">'
    )


def _cells(table: np.ndarray, theme: dict[str, str]) -> Iterator[str]:
    for (layer, token), share in np.ndenumerate(np.clip(table, 0, 1)):
        x, y = LEFT + token * SIDE, TOP + (len(table) - 1 - layer) * SIDE
        box = f'width="{SIDE - GAP}" height="{SIDE - GAP}" rx="3"'
        yield f'<rect x="{x}" y="{y}" {box} fill="{theme["none"]}"/>'
        if share >= 0.01:
            yield f'<rect x="{x}" y="{y}" {box} fill="{theme["full"]}" opacity="{share:.2f}"/>'


def _labels(texts: list[str], n_layer: int, theme: dict[str, str]) -> Iterator[str]:
    for layer in range(n_layer):
        y = TOP + (n_layer - layer - 0.5) * SIDE + 4
        yield f'<text x="{LEFT - 8}" y="{y:g}" text-anchor="end">layer {layer}</text>'
    below = TOP + n_layer * SIDE + 14
    for i, text in enumerate(texts):
        x = LEFT + (i + 0.5) * SIDE
        same = text not in COLOURS
        style = "" if same else f' fill="{theme["mark"]}" font-weight="700"'
        label = text if same else " → ".join(reversed(COLOURS))
        yield (
            f'<text transform="translate({x:g} {below}) rotate(-45)" text-anchor="end"{style}>{escape(label)}</text>'
        )


def shared_rows() -> np.ndarray:
    """Read a story, fork it twice and read a question in each fork.

    Returns:
        bool (n_rows, 3): which sequences hold each row in use.
    """
    model = plait.Model.demo()
    encode = model.tokenizer.encode
    with plait.Context(model, n_ctx=64, n_seq_max=3) as ctx:
        for seq, text in enumerate(("Tom lives in Oslo. The kite is red.", *QUESTIONS)):
            if seq:
                ctx.kv.seq_cp(0, seq)
            batch = plait.Batch()
            batch.add_sequence(encode(text, add_special=not seq), seq=seq)
            ctx.decode(batch)
        cells = ctx.kv.cells()
        return np.asarray(cells["seqs"][cells["seqs"].any(axis=1)])


def cache_map(held: np.ndarray, theme: dict[str, str]) -> str:
    """Draw the result of shared_rows() as SVG: a line per sequence, a column per row of the cache."""
    n, n_seqs = held.shape
    left = 250
    width, height = left + n * CELL + RIGHT, 52 + n_seqs * CELL
    names = ("sequence 0: the story", *(f"fork {i}: {q}" for i, q in enumerate(QUESTIONS, 1)))
    lines = [
        _head(width, height, theme),
        "<title>Rows of the cache and the sequences that hold them</title>",
    ]
    shared = int((held.sum(axis=1) > 1).sum())
    lines.append(
        f'<text x="{left}" y="20">{shared} shared rows</text>'
        f'<text x="{left + shared * CELL}" y="20">{n - shared} rows of one sequence</text>'
    )
    for seq, name in enumerate(names):
        y = 34 + seq * CELL
        lines.append(
            f'<text x="{left - 10}" y="{y + CELL - 7}" text-anchor="end">{escape(name)}</text>'
        )
        for row in range(n):
            fill = (
                theme["none"]
                if not held[row, seq]
                else theme["full"]
                if held[row].sum() > 1
                else theme["mark"]
            )
            box = f'width="{CELL - GAP}" height="{CELL - GAP}" rx="2"'
            lines.append(f'<rect x="{left + row * CELL}" y="{y}" {box} fill="{fill}"/>')
    return "\n".join([*lines, "</svg>\n"])


def flow(boxes: list[tuple[str, str]], back: tuple[int, ...], theme: dict[str, str]) -> str:
    """Draw boxes with arrows from each to the next, as SVG.

    Args:
        boxes: The name and the description of each; the description may have several lines.
        back: Boxes from which a dashed arrow leads to the first: an error there changes nothing.
        theme: The colours.

    Returns:
        The picture.
    """
    side, gap, top, high = 142, 24, 8, 84
    width = len(boxes) * (side + gap) - gap + 2
    height = top + high + (48 if back else 8)
    arrow = (
        '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{theme["ink"]}"/></marker>'
    )
    lines = [_head(width, height, theme), f"<defs>{arrow}</defs>"]
    stroke = f'stroke="{theme["ink"]}" fill="none" marker-end="url(#a)"'
    for i, (name, text) in enumerate(boxes):
        x = 1 + i * (side + gap)
        box = f'width="{side}" height="{high}" rx="6" fill="{theme["none"]}"'
        lines.append(f'<rect x="{x}" y="{top}" {box} stroke="{theme["full"]}"/>')
        middle = x + side / 2
        title = f'y="{top + 22}" text-anchor="middle" font-weight="700"'
        lines.append(f'<text x="{middle:g}" {title}>{escape(name)}</text>')
        for k, line in enumerate(text.split("\n")):
            place = f'x="{middle:g}" y="{top + 44 + 16 * k}" text-anchor="middle" font-size="12"'
            lines.append(f"<text {place}>{escape(line)}</text>")
        if i:
            lines.append(f'<path d="M{x - gap} {top + high / 2:g}H{x - 2}" {stroke}/>')
    if back:
        first, low = 1 + side / 2, top + high + 20
        for i in back:
            x = 1 + i * (side + gap) + side / 2
            path = f"M{x:g} {top + high}V{low}H{first:g}V{top + high + 2}"
            lines.append(f'<path d="{path}" {stroke} stroke-dasharray="4 3"/>')
        lines.append(
            f'<text x="{first + 8:g}" y="{low + 18}" font-size="12">an error: nothing has changed</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


CALL = [
    ("batch", "tokens, sequences,\npositions"),
    ("rows", "free rows of\nthe cache"),
    ("plan", "compiled graph,\nfound or built"),
    ("run", "threads or\na device"),
    ("output", "logits in NumPy"),
    ("commit", "the cache has\nthe new rows"),
]
PATH = [
    ("Batch", "prepared, split\ninto microbatches"),
    ("Memory::place", "chooses cache rows:\na memory view\nand a plan key"),
    ("plan cache", "hit: the plan\nmiss: Model::build,\ncompile"),
    ("run", "inputs are copied,\na backend runs\nthe plan"),
    ("Memory::commit", "outputs are ready,\nrows are in the cache"),
]
LOOKUP = [
    ("step", "5 tokens,\n2 sequences,\n2 outputs"),
    ("key", "8 tokens,\n2 outputs,\nno edits"),
    ("look up", "found: use it\nnot found: build\nand keep it"),
    ("plan", "kernels and\naddresses"),
    ("run", "with this step's\ninputs"),
]
CHARTS = {"call": (CALL, (1, 3)), "lookup": (LOOKUP, ()), "path": (PATH, ())}


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    texts, table = recovered()
    for name, theme in THEMES.items():
        for picture, text in (
            ("patching", heat_map(texts, table, theme)),
            ("cache", cache_map(shared_rows(), theme)),
            *((name, flow(*chart, theme)) for name, chart in CHARTS.items()),
        ):
            (IMAGES / f"{picture}-{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
