"""Run a notebook without a kernel: its cells in one namespace, displaying the last expression of each.

python run_notebook.py NOTEBOOK [PAGE]: also writes what the cells showed to an HTML file, to be looked at.
"""

import ast
import base64
import contextlib
import html
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(path: Path) -> list[tuple[str, str]]:
    """Return (source, displayed HTML) of each cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            shown.append((source, ""))
            continue
        tree = ast.parse(source, f"{path.name} cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        value = None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, tree_name(path, number), "exec"), space)
            if last is not None:
                value = eval(
                    compile(ast.Expression(last.value), tree_name(path, number), "eval"), space
                )
        hidden = source.rstrip().endswith(";") or value is None
        text = f"<pre>{html.escape(printed.getvalue())}</pre>" if printed.getvalue() else ""
        shown.append((source, text + ("" if hidden else display(value)) + figures()))
    return shown


def tree_name(path: Path, number: int) -> str:
    return f"{path.name}, cell {number}"


def display(value: Any) -> str:
    if hasattr(value, "_repr_html_"):
        return value._repr_html_()
    return f"<pre>{html.escape(repr(value))}</pre>"


def figures() -> str:
    """Return the open matplotlib figures; the end of a cell displays and closes them."""
    if "matplotlib.pyplot" not in sys.modules:
        return ""
    from matplotlib import pyplot

    text = ""
    for number in pyplot.get_fignums():
        data = io.BytesIO()
        pyplot.figure(number).savefig(data, dpi=80)
        text += f'<img src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'
    pyplot.close("all")
    return text


if __name__ == "__main__":
    told = run(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        page = "".join(
            f"<pre style='background:#eee'>{html.escape(s)}</pre>{out}" for s, out in told
        )
        style = "<meta charset=utf-8><body style='font-family:sans-serif;font-size:13px'>"
        Path(sys.argv[2]).write_text(style + page, encoding="utf-8")
