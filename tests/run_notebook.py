"""Run notebooks without a kernel: the cells of each in one namespace, displaying the last expression of a cell.

python tests/run_notebook.py NOTEBOOK...             store the outputs in the notebooks
python tests/run_notebook.py --check NOTEBOOK...     compare them with those that are stored
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import pprint
import re
import sys
from pathlib import Path
from typing import Any

MEASURED = "measured"  # tag of cells whose outputs are times or depend on the machine
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
NOISE = re.compile(
    r" at 0x[0-9a-f]+|(?:/[\w.+-]+)+/(?=plait/demo/)"
)  # addresses, and where plait is installed
TOLERANCE = 0.02  # relative and absolute; instruction sets differ in the last bits

Output = dict[str, Any]


def run(path: Path) -> list[tuple[str, list[Output]]]:
    """Return (source, outputs) of each cell; outputs are those of the notebook format, version 4."""
    space: dict[str, Any] = {"__name__": "__main__"}
    close_figures()  # a test that ran before may have left some open
    return [
        (source, outputs_of(source, f"{path.name}, cell {number}", space) if is_code else [])
        for number, (source, is_code) in enumerate(
            ("".join(cell["source"]), cell["cell_type"] == "code") for cell in read(path)["cells"]
        )
    ]


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def outputs_of(source: str, name: str, space: dict[str, Any]) -> list[Output]:
    """Run a cell and return what it printed, its value and its figures."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
    outputs: list[Output] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None and not source.rstrip().endswith(";"):
        outputs.append({"data": display(value), "metadata": {}, "output_type": "execute_result"})
    return outputs + figures()


def display(value: Any) -> dict[str, list[str]]:
    texts = {"text/plain": pprint.pformat(value, width=100, compact=True, sort_dicts=False)}
    if hasattr(value, "_repr_html_"):
        texts = {"text/html": value._repr_html_()} | texts
    return {kind: NOISE.sub("", text).splitlines(keepends=True) for kind, text in texts.items()}


def figures() -> list[Output]:
    """Return the open matplotlib figures; the end of a cell displays and closes them."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    outputs = []
    for number in pyplot.get_fignums():
        data = io.BytesIO()
        pyplot.figure(number).savefig(data, dpi=100, metadata={"Software": None})
        png = {"image/png": base64.b64encode(data.getvalue()).decode() + "\n"}
        outputs.append({"data": png, "metadata": {}, "output_type": "display_data"})
    close_figures()
    return outputs


def close_figures() -> None:
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def store(path: Path) -> None:
    """Run a notebook and store its outputs, without times and versions of the run."""
    notebook, count = read(path), 0
    for cell, (_, outputs) in zip(notebook["cells"], run(path), strict=True):
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            results = [o for o in outputs if o["output_type"] == "execute_result"]
            for output in results:
                output["execution_count"] = count
            cell["outputs"] = outputs
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def differences(path: Path) -> list[str]:
    """Run a notebook and return how its outputs differ from those that are stored."""
    found = []
    for number, (cell, (_, outputs)) in enumerate(zip(read(path)["cells"], run(path), strict=True)):
        measured = MEASURED in cell["metadata"].get("tags", [])
        stored = [part for output in cell.get("outputs", []) for part in parts(output)]
        got = [part for output in outputs for part in parts(output)]
        if [kind for kind, _ in stored] != [kind for kind, _ in got]:
            found.append(f"cell {number}: stored {stored}, got {got}")
        elif not measured:
            found += [
                f"cell {number}, {kind}: stored\n{old}\ngot\n{new}"
                for (kind, old), (_, new) in zip(stored, got, strict=True)
                if not same(old, new)
            ]
    return found


def parts(output: Output) -> list[tuple[str, str]]:
    """Return (kind, text) of an output; pictures only have their kind, since fonts differ."""
    if output["output_type"] == "stream":
        return [(output["name"], "".join(output["text"]))]
    return [
        (kind, "" if kind == "image/png" else "".join(text))
        for kind, text in sorted(output["data"].items())
    ]


def same(old: str, new: str) -> bool:
    """Return whether two texts are the same except for the last digits of their numbers."""
    if NUMBER.sub("0", old) != NUMBER.sub("0", new):
        return False
    pairs = zip(map(float, NUMBER.findall(old)), map(float, NUMBER.findall(new)), strict=True)
    return all(abs(a - b) <= TOLERANCE * max(1, abs(a)) for a, b in pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored outputs")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    args = parser.parse_args()
    different = []
    for notebook in args.notebooks:
        if args.check:
            different += differences(notebook)
        else:
            store(notebook)
    if different:
        sys.exit("\n\n".join(different))
