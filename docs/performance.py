#!/usr/bin/env python3
"""Writes performance.md and its picture from what bench/compare.py measured.

    python docs/performance.py

Each machine has two files in bench/results: NAME.json of `compare.py ... --json`, and NAME.kernels.json of
`./dev bench --benchmark_format=json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
KERNELS = ".kernels.json"
HEAD = """# Performance

Plait beside llama.cpp (as llama-cpp-python builds it on the machine itself, or for the instruction sets that are
named): the same GGUF files with random weights at the shapes of known models, the same threads and the same work, the
two engines taking turns in one run. The ratio is the median of the paired ratios; absolute figures drift with whatever
else a machine does. Written by [performance.py](performance.py) from [bench/results](../bench/results);
`bench/compare.py` measures another machine.

On processors with AMX llama.cpp was built without it: what GCC 12 makes of its code for AMX ends with an illegal
instruction. A machine's tables for weaker instruction sets (`PLAIT_ISA`) stand for older processors. Scores of random
weights may spread further than those of trained ones; weights of a softmax that fall below 2^-126 slow Intel's
processors down, llama.cpp with them, and not plait ([why](decisions/0019-denormals-are-zero.md)), so part of a ratio
may be that.

Everything is measured with `invariant=True`: a sequence's logits are the same bits alone and in company.

- `pp:N`: a prompt of N tokens; `tg:N@D`: N tokens one by one after D; `btg:BxN@D`: N steps of B sequences, each after
  its own D tokens; `encode:BxN`: B texts of N tokens, one pooled embedding each (all in tokens per second). Of memory:
  the bytes of the weights that were read, as a share of what the same threads read in the same minute when they do
  nothing else (NumPy's maximum of half a gigabyte). Models that stay in a cache exceed it.
- `load`: opening a file that the system has cached, a context and the first token (GB of the file per second), and the
  process's peak memory as a share of the file.
"""

KERNEL_HEAD = """
### Kernels beside the machine's limits

One thread; of the time that a product takes, the share that it would take at the limit: of one row, reading the
weights from memory; of more, the multiplications (f32 FMA, `vdpbf16ps`, `vpdpbusd`, AMX's `tdpbssd`; with AVX2 a
product of bytes that is widened and added each time, which 4-bit codes can do without), whose limits `./dev bench`
measures first. A block's scales are no multiplications, so block types stay below theirs, by far with
[AMX](decisions/0016-tiles-give-the-same-bits.md), whose tiles are for 32 rows and more; codes of [8 bits with
AVX2](decisions/0020-eight-bits-with-avx2.md) need a fourth instruction.
"""


def figure(found: dict[str, Any], engine: str) -> str:
    """Of an engine in a row, as the table shows it."""
    value = found["medians"].get(engine)
    if value is None:
        return "-"
    return f"{value / 1e9:.1f}" if found["case"] == "load" else f"{value:,.0f}"


def case_of(row: dict[str, Any]) -> str:
    """With what was not as usual."""
    options = [f"{name}={value}" for name, value in row["options"].items()]
    others = [f"beside busy processes: {row['busy']}"] if row["busy"] else []
    return ", ".join([f"`{row['case']}`", *options, *others])


def page() -> str:
    """The whole file."""
    parts = [HEAD]
    for path in sorted(RESULTS.glob("*.json")):
        if path.name.endswith(KERNELS):
            continue
        result = json.loads(path.read_text())
        rounds = [len(row["all"]["plait"]) for rows in result["models"].values() for row in rows]
        peer = f"; llama-cpp-python {result['llama.cpp']}" if result["llama.cpp"] else ""
        machine, build = result["machine"], result["machine"]["build"]
        parts.append(
            f"\n## {machine['cpu']}, {machine['cores']} cores, {machine['isa']}\n\n"
            f"{build['compiler']}, commit {build['commit']}, {result['date']}, "
            f"rounds: {min(rounds)} to {max(rounds)}{peer}.\n\n"
            "| model | case | plait | llama.cpp | ratio |\n|---|---|---|---|---|\n"
        )
        for model, rows in result["models"].items():
            for row in rows:
                peak = row.get("peak_of_file", {}).get("plait")
                share = row.get("share_of_memory")
                note = f" (peak {peak:.2f})" if peak else ""
                note += f" ({share:.0%} of memory)" if share else ""
                parts.append(
                    f"| {model} | {case_of(row)} | {figure(row, 'plait')}{note} | {figure(row, 'llama.cpp')} "
                    f"| {row.get('ratio', float('nan')):.2f} |\n"
                )
        picture = path.with_suffix(".png")
        if picture.exists():
            parts.append(f"\n![ratios](../bench/results/{picture.name})\n")
        measured = path.with_name(path.stem + KERNELS)
        if measured.exists():
            parts.append(kernels(json.loads(measured.read_text())["benchmarks"]))
    return "".join(parts)


def kernels(found: list[dict[str, Any]]) -> str:
    """One row a kernel and shape, one column a number of rows: the share of the limit that is reached."""
    table: dict[str, dict[str, float]] = {}
    for one in found:
        name, _, last = one["name"].rpartition("/")
        if name.startswith("linear/"):
            table.setdefault(name.removeprefix("linear/"), {})[last] = one["limit"]
    columns = sorted({n for row in table.values() for n in row}, key=int)
    lines = [
        f"| {name} | " + " | ".join(f"{100 * row[n]:.0f} %" if n in row else "" for n in columns)
        for name, row in table.items()
    ]
    return KERNEL_HEAD + (
        f"\n| product | {' | '.join(f'{n} rows' if n != '1' else '1 row' for n in columns)} |\n"
        + "|---" * (len(columns) + 1)
        + "|\n"
        + "".join(f"{line} |\n" for line in lines)
    )


if __name__ == "__main__":
    (ROOT / "docs" / "performance.md").write_text(page())
