"""docs/performance.md and the figures of the README, from the reports of bench/ and `./dev bench`."""

from __future__ import annotations

import statistics
from typing import Any

from .reports import Report, changed

HEAD = """# Performance

This page compares the throughput of plait and llama.cpp. Both run the same GGUF files, which have random weights in the
shapes of known models, with the same number of threads and the same work. Each engine runs in a process of its own, and
they take turns within one run. The ratio is the median of the paired ratios. Absolute figures vary with the load on the
machine. llama.cpp is used through llama-cpp-python, compiled for the instruction sets that are named.

`./dev evidence compare contexts peers kernels` measures a machine and writes this page; everything on it comes from the
[reports](evidence/reports), of which there is one for each machine and instruction set. `bench/compare.py` compares
other models and cases, and `bench/paired.py` two builds of plait.

Notes on fairness:

- The instruction sets that llama.cpp was compiled for are in parentheses. Where a processor has AMX and this list does
  not, llama.cpp could be faster than the table shows.
- llama.cpp uses OpenMP where its build finds it, and its own threads elsewhere. The reports do not record which.
- Tables for weaker instruction sets, selected with `PLAIT_ISA`, stand for older processors.
- Random weights may produce attention scores with a larger spread than trained weights. Softmax weights below 2^-126
  then slow down llama.cpp on Intel processors, but not plait ([the reason](decisions/0019-denormals.md)). Part
  of a ratio may be due to this.
- Everything is measured with `invariant=True`: the logits of a sequence have the same bits whatever else is in the
  batch.

The cases:

- `pp:N`: a prompt of N tokens; `pp:N@D`: the same after D others. `tg:N@D`: N tokens one by one after D others.
  `btg:BxN@D`: N steps of B sequences, each after its own D tokens. `encode:BxN`: B texts of N tokens, one pooled
  embedding each. All are in tokens per second.
  "% of memory" is the rate at which weights were read, relative to the rate at which the same number of threads reads
  memory in the same minute (NumPy's maximum over half a gigabyte). It exceeds 100 % for models that fit in a CPU cache,
  and where kernels read faster than NumPy does or the bandwidth changes between the two measurements
  ([0055](decisions/0055-several-panels-for-one-row.md), [0057](decisions/0057-scales-in-front-of-codes.md)). Caches and
  the states of recurrent layers, which a step also reads, are not counted.
- `load`: the time to open a file that is in the page cache, create a context and compute the first token, in GB of the
  file per second. "peak" is the peak memory of the process relative to the size of the file.
- "spread": the lowest and the highest of the paired ratios, where there are several rounds.
- A signal, such as SIGSEGV, in place of a figure: llama.cpp crashes in this case.
"""

KERNEL_HEAD = """
### Kernels compared with the limits of the machine

Share of the theoretical limit that a matrix product reaches on one thread. For one row, the limit is the time to read
the weights from memory. For more rows, it is the time for the multiplications alone: f32 FMA, `vdpbf16ps`, `vpdpbusd`,
AMX's `tdpbssd` and `tdpbf16ps`, or with AVX2 a byte product that is widened and added each time, which 4-bit codes can
avoid.
`./dev bench` measures these limits first. Block types also have to apply scales, so they stay below the limit, and far
below it with [AMX](decisions/0016-amx-tiles.md), whose tiles multiply 32 or more of their rows. F16 weights take
[three products of BF16](decisions/0051-float-weights-in-amx-tiles.md) with AMX. Codes of
[8 bits with AVX2](decisions/0020-avx2-eight-bit-products.md) need a fourth instruction.
"""

PEERS = {"transformers": "PyTorch (transformers)", "openvino": "OpenVINO", "vllm": "vLLM"}
PEERS_HEAD = """
### Other engines

Engines that read other formats than GGUF, with random weights of the same shape in the type that is nearest to that of
plait, by `bench/peers/compare_peers.py`. int8 of OpenVINO has a scale per row, int4 one per 128 weights; int8 of vLLM
has a scale per row and activations of 8 bits, with embeddings and output in BF16.
"""

Row = dict[str, Any]


def page(found: list[Report]) -> str:
    """Return the page."""
    parts = [HEAD]
    more = {
        (table, report["machine"]["name"]): report
        for part, table in TABLES.items()
        for report in found
        if report["part"] == part
    }
    for report in found:
        if report["part"] == "compare":
            parts.append(comparison(report))
            for table in TABLES.values():
                if own := more.pop((table, report["machine"]["name"]), None):
                    parts.append(table(own))
    for (table, name), report in more.items():
        parts.append(f"\n## {name}\n{table(report)}")
    return "".join(parts)


def provenance(report: Report) -> str:
    """Return the sentence on commit, date and state of a report."""
    state = "" if report["status"] == "passed" else f" **The run {report['status']}.**"
    differs = f" with {len(report['modified'])} modified files" if report["modified"] else ""
    age = " Kernels or scheduling have changed since (stale)." if changed(report) else ""
    if not report["depends"]:
        age = " Whether the code has changed since was not recorded."
    origin = f" {report['origin']}" if report.get("origin") else ""
    return f"Commit {report['commit']}{differs}, {report['date']}.{age}{origin}{state}"


def ratios(row: Row, peer: str = "llama.cpp") -> list[float]:
    """Return the paired ratios of a row."""
    mine, theirs = row["all"]["plait"], row["all"].get(peer, [])
    return [a / b for a, b in zip(mine, theirs, strict=False)]


def comparison(report: Report) -> str:
    """Return the section of one machine."""
    machine = report["machine"]
    title = f"\n## {machine['cpu']}, {machine['cores']} cores, {machine['isa']}\n"
    return title + comparison_table(report)


def contexts_table(report: Report) -> str:
    """Return the table of long contexts."""
    return "\n### Long contexts\n" + comparison_table(report)


def comparison_table(report: Report) -> str:
    """Return the table of plait and llama.cpp: a row per model and case."""
    head, result = f"\n{provenance(report)}\n", report.get("compare")
    if not result:
        return f"{head}\n```text\n{report['log']}\n```\n"
    rounds = [len(row["all"]["plait"]) for rows in result["models"].values() for row in rows]
    peer = f"; llama-cpp-python {result['llama.cpp']}" if result["llama.cpp"] else ""
    lines = [
        f"{head}{result['machine']['build']['compiler']}, rounds: {min(rounds)} to {max(rounds)}{peer}.\n\n"
        "| model | case | plait | llama.cpp | ratio | spread |\n|---|---|---|---|---|---|\n"
    ]
    for model, rows in result["models"].items():
        for row in rows:
            found = ratios(row)
            spread = f"{min(found):.2f} to {max(found):.2f}" if len(found) > 1 else ""
            ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
            lines.append(
                f"| {model} | {case_of(row)} | {figure(row, 'plait')}{note(row)} | {figure(row, 'llama.cpp')} "
                f"| {ratio} | {spread} |\n"
            )
    return "".join(lines)


def figure(row: Row, engine: str) -> str:
    """Format the median of an engine for the table, or the signal of its crash."""
    value = row["medians"].get(engine)
    if value is None:
        return row.get("crashes", {}).get(engine, "-")
    return f"{value / 1e9:.1f}" if row["case"] == "load" else f"{value:,.0f}"


def note(row: Row) -> str:
    """Return the peak memory or the share of the memory bandwidth of a row."""
    peak, share = row.get("peak_of_file", {}).get("plait"), row.get("share_of_memory")
    text = f" (peak {peak:.2f})" if peak else ""
    return text + (f" ({share:.0%} of memory)" if share else "")


def case_of(row: Row) -> str:
    """Format a case with the options that differ from the default."""
    options = [f"{name}={value}" for name, value in row["options"].items()]
    others = [f"other busy processes: {row['busy']}"] if row["busy"] else []
    return ", ".join([f"`{row['case']}`", *options, *others])


def peers_table(report: Report) -> str:
    """Return the table of engines that read other formats: a row per model, case and engine."""
    result = report.get("peers")
    if not result:
        return f"{PEERS_HEAD}\n{provenance(report)}\n\n```text\n{report['log']}\n```\n"
    versions = ", ".join(f"{PEERS[name]} {version}" for name, version in result["versions"].items())
    lines = [
        f"{PEERS_HEAD}\n{provenance(report)} {versions}.\n\n"
        "| model | case | plait | engine | weights | tokens/s | ratio | spread |\n"
        "|---|---|---|---|---|---|---|---|\n"
    ]
    for model, rows in result["models"].items():
        for row in rows:
            for name, weights in row["weights"].items():
                found = ratios(row, name)
                lines.append(
                    f"| {model} | `{row['case']}` | {figure(row, 'plait')} | {PEERS[name]} | {weights} "
                    f"| {figure(row, name)} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |\n"
                )
    return "".join(lines)


def kernel_table(report: Report) -> str:
    """Return the table of kernels: a row per kernel and shape, a column per number of rows."""
    table: dict[str, dict[str, float]] = {}
    for one in report.get("kernels", {}).get("benchmarks", []):
        name, _, last = one["name"].rpartition("/")
        if name.startswith("linear/"):
            table.setdefault(name.removeprefix("linear/"), {})[last] = one["limit"]
    columns = sorted({n for row in table.values() for n in row}, key=int)
    lines = [
        f"| {name} | " + " | ".join(f"{100 * row[n]:.0f} %" if n in row else "" for n in columns)
        for name, row in table.items()
    ]
    return KERNEL_HEAD + (
        f"\n{provenance(report)}\n"
        f"\n| product | {' | '.join(f'{n} rows' if n != '1' else '1 row' for n in columns)} |\n"
        + "|---" * (len(columns) + 1)
        + "|\n"
        + "".join(f"{line} |\n" for line in lines)
    )


# The tables that follow the comparison of a machine, by part.
TABLES = {"contexts": contexts_table, "peers": peers_table, "kernels": kernel_table}


# --- README --------------------------------------------------------------------------------------

SHOWN = {
    ("llama-1b:Q4_K", "pp:512"): "prompt of 512 tokens",
    ("llama-1b:Q4_K", "tg:64@0"): "decoding one sequence",
    ("llama-1b:Q4_K", "btg:8x32@64"): "decoding eight sequences",
    ("qwen-0.5b:Q8_0", "pp:512"): "prompt of 512 tokens",
    ("qwen-0.5b:F16", "pp:512"): "prompt of 512 tokens",
    ("minilm:F16", "encode:64x32"): "sentence embeddings",
}
MARKS = ("<!-- figures: ./dev evidence -->\n", "<!-- end of figures -->\n")


def rows_of(report: Report) -> dict[tuple[str, str], Row]:
    """Return the rows of a report on an idle machine with default options, by model and case."""
    models = report.get("compare", {"models": {}})["models"]
    return {
        (model, row["case"]): row
        for model, rows in models.items()
        for row in rows
        if not row["busy"] and not row["options"] and "ratio" in row
    }


def readme(text: str, found: list[Report]) -> str:
    """Return the README with the figures between its marks replaced.

    The figures are those of the newest report of three rounds or more that has all rows, and of the newest one of the
    same processor with AVX2.
    """
    begin, end = (text.index(mark) for mark in MARKS)
    measured = [report for report in found if report["part"] == "compare" and is_shown(report)]
    newest = sorted(measured, key=lambda report: report["date"])
    strongest = [report for report in newest if report["machine"]["isa"] != "avx2"]
    if not strongest:
        return f"{text[: begin + len(MARKS[0])]}\nNo report has three rounds of these cases yet.\n\n{text[end:]}"
    cpu = strongest[-1]["machine"]["cpu"]
    avx2 = [r for r in newest if r["machine"]["isa"] == "avx2" and r["machine"]["cpu"] == cpu]
    return (
        text[: begin + len(MARKS[0])]
        + speed(strongest[-1], avx2[-1] if avx2 else None)
        + text[end:]
    )


def is_shown(report: Report) -> bool:
    """Return whether the README may show the figures of a report."""
    rows = rows_of(report)
    return (
        report["status"] == "passed"
        and SHOWN.keys() <= rows.keys()
        and all(len(rows[key]["all"]["plait"]) >= 3 for key in SHOWN)
    )


def speed(report: Report, avx2: Report | None) -> str:
    """Return the table of the README and the sentence on losses."""
    rows, weaker = rows_of(report), rows_of(avx2) if avx2 else {}
    machine, n = report["machine"], len(rows[next(iter(SHOWN))]["all"]["plait"])
    name = {"amx": "AMX", "avx512": "AVX-512"}.get(machine["isa"], machine["isa"])
    lines = [
        f"\n{machine['cpu']}, {machine['cores']} cores, commit {report['commit']}, {report['date']}, {n} rounds, "
        f"llama-cpp-python {report['compare']['llama.cpp']}"
        f"{'; in the last column, both are restricted to AVX2' if avx2 else ''}:\n\n"
        f"| | plait ({name}) | llama.cpp | ratio |{' ratio, AVX2 |' if avx2 else ''}\n"
        f"|---|---|---|---|{'---|' if avx2 else ''}\n"
    ]
    for (model, case), words in SHOWN.items():
        row = rows[model, case]
        last = f" {weaker[model, case]['ratio']:.2f} |" if avx2 else ""
        lines.append(
            f"| `{model}` `{case}`: {words} | {figure(row, 'plait')} | {figure(row, 'llama.cpp')} "
            f"| {row['ratio']:.2f} |{last}\n"
        )
    losses = [
        f"`{model}` `{case}` at {row['ratio']:.2f} of the speed"
        for (model, case), row in rows.items()
        if row["ratio"] < 1
    ]
    slower = ", ".join(losses) or "none"
    kept = kept_under_load(report)
    return "".join(lines) + f"\nCases of this run in which plait is slower: {slower}.{kept}\n\n"


def kept_under_load(report: Report) -> str:
    """Return the sentence on the throughput that is left while another process is busy."""
    idle, sentences = rows_of(report), []
    for engine in ("plait", "llama.cpp"):
        shares = [
            row["medians"][engine] / idle[model, row["case"]]["medians"][engine]
            for model, rows in report["compare"]["models"].items()
            for row in rows
            if row["busy"] == 1
            and not row["options"]
            and "ratio" in row
            and (model, row["case"]) in idle
        ]
        if shares:
            sentences.append(f"{engine} keeps {min(shares):.0%} to {max(shares):.0%}")
    if not sentences:
        return ""
    return f" With one of the cores busy, {' and '.join(sentences)} of its throughput."
