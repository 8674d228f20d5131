#!/usr/bin/env python3
"""Writes performance.md and its picture from what bench/compare.py measured.

    python docs/performance.py

Each file of bench/results is one machine: `compare.py ... --json bench/results/NAME.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
HEAD = """# Performance

Plait beside llama.cpp (as llama-cpp-python builds it on the machine itself): the same GGUF files with random weights at
the shapes of known models, the same threads and the same work, the two engines taking turns in one run. The ratio is
the median of the paired ratios; absolute figures drift with whatever else a machine does. Written by
[performance.py](performance.py) from [bench/results](../bench/results); `bench/compare.py` measures another machine.

Everything is measured with `invariant=True`: a sequence's logits are the same bits alone and in company.

- `pp:N`: a prompt of N tokens; `tg:N@D`: N tokens one by one after D; `btg:BxN@D`: N steps of B sequences, each after
  its own D tokens; `encode:BxN`: B texts of N tokens, one pooled embedding each (all in tokens per second).
- `load`: opening a file that the system has cached, a context and the first token (GB of the file per second), and the
  process's peak memory as a share of the file.
"""


def figure(found: dict[str, Any], engine: str) -> str:
    """Of an engine in a row, as the table shows it."""
    value = found["medians"].get(engine)
    if value is None:
        return "-"
    return f"{value / 1e9:.1f}" if found["case"] == "load" else f"{value:,.0f}"


def page() -> str:
    """The whole file."""
    parts = [HEAD]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        machine, build = result["machine"], result["machine"]["build"]
        parts.append(
            f"\n## {machine['cpu']}, {machine['cores']} cores, {build['isas'][-1]}\n\n"
            f"{build['compiler']}, commit {build['commit']}, {result['date']}.\n\n"
            "| model | case | plait | llama.cpp | ratio |\n|---|---|---|---|---|\n"
        )
        for model, rows in result["models"].items():
            for row in rows:
                peak = row.get("peak_of_file", {}).get("plait")
                note = f" (peak {peak:.2f})" if peak else ""
                parts.append(
                    f"| {model} | `{row['case']}` | {figure(row, 'plait')}{note} | {figure(row, 'llama.cpp')} "
                    f"| {row.get('ratio', float('nan')):.2f} |\n"
                )
        picture = path.with_suffix(".png")
        if picture.exists():
            parts.append(f"\n![ratios](../bench/results/{picture.name})\n")
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "performance.md").write_text(page())
