"""docs/quality.md, from the reports of bench/quality.py."""

from __future__ import annotations

from typing import Any

from .performance import provenance
from .reports import Report

HEAD = """# Quality

What quantised caches and quantised weights cost, in plait and in llama.cpp. `./dev evidence quality` measures it and
writes this page; everything on it comes from the [reports](evidence/reports) of `bench/quality.py`.

- **Models.** `demo` is the model in the package (heads of 32), on stories it was not trained on. `stories260K` (heads
  of 8) and `random-64` (random weights, heads of 64) are models of the reference data, on texts that they generate.
  `-outliers` are copies in which one pair of channels per head of the keys is 20 to 100 times larger, and the same pair
  of the queries smaller, so that the model computes the same.
- **KL** is the divergence from the same engine with F32 weights and an F32 cache, in nats per token: the mean over all
  tokens and its standard error, which comes from the means of the texts. A ratio below 1 means that plait loses less.
  Ratios are noisy where the standard errors are large.
- **Answers** is the share of questions about a story that greedy decoding answers with exactly the right words.
- llama.cpp refuses caches of block types for heads whose size is not a multiple of the block. It transforms the keys
  with a Hadamard matrix only if the head size is a multiple of 64, as it is in `random-64`.
- Weight types are measured with F32 caches, with all matrices in the type whose rows are whole blocks of it. The
  columns are the files of plait, those with an importance matrix of other texts, and those of llama-quantize without
  one, all computed by plait. Where the sizes differ, the engines store the remaining matrices in different types,
  and the ratio is omitted.
- `budget N` is a file whose types were chosen for at most N bits per weight. The KL divergence behind the choice was
  measured on other texts.
"""

Row = dict[str, Any]


def page(found: list[Report]) -> str:
    """Return the page."""
    ours = [report for report in found if report["part"] == "quality"]
    return HEAD + ("".join(map(section, ours)) if ours else "\nNot measured.\n")


def section(report: Report) -> str:
    """Return the tables of a machine."""
    machine, result = report["machine"], report.get("quality")
    origin = provenance(report).replace("Kernels or scheduling have", "Code that it depends on has")
    title = f"\n## {machine['cpu']}, {machine['isa']}\n\n{origin}"
    if not result:
        return f"{title}\n\n```text\n{report['log']}\n```\n"
    peer = f" llama-cpp-python {result['llama.cpp']}." if result["llama.cpp"] else ""
    return f"{title}{peer}\n" + caches(result["caches"]) + weights(result["weights"])


def caches(rows: list[Row]) -> str:
    """Return the table of cache types."""
    lines = [
        "\n### Caches\n\n| model | K/V | KL, plait | KL, llama.cpp | ratio | perplexity, plait | llama.cpp "
        "| answers, plait | llama.cpp |\n|---|---|---|---|---|---|---|---|---|\n"
    ]
    for row in rows:
        a, b = row.get("plait"), row.get("llama.cpp")
        lines.append(
            f"| {row['model']} | {row['type_k']}/{row['type_v']} | {kl(a)} | {kl(b)} | {ratio(row)} | {perplexity(a)} "
            f"| {perplexity(b)} | {answers(a)} | {answers(b)} |\n"
        )
    return "".join(lines)


def weights(rows: list[Row]) -> str:
    """Return the table of weight types."""
    lines = [
        "\n### Weights\n\n| model | type | bits per weight | KL, plait | with imatrix | llama-quantize | ratio "
        "| perplexity, plait | llama-quantize | answers, plait |\n|---|---|---|---|---|---|---|---|---|---|\n"
    ]
    for row in rows:
        a, b = row.get("plait"), row.get("llama.cpp")
        bits = f"{row['bits']:.2f}" if "bits" in row else ""
        lines.append(
            f"| {row['model']} | {row['type']} | {bits} | {kl(a)} | {kl(row.get('plait with imatrix'))} | {kl(b)} "
            f"| {ratio(row)} | {perplexity(a)} | {perplexity(b)} | {answers(a)} |\n"
        )
    return "".join(lines)


def kl(figures: Row | None) -> str:
    """Format a divergence with its standard error."""
    return f"{figures['kl']:.2e} ± {figures['kl_error']:.0e}" if figures else "-"


def ratio(row: Row) -> str:
    """Format the ratio of the divergences."""
    return f"{row['ratio']:.2f}" if "ratio" in row else ""


def perplexity(figures: Row | None) -> str:
    """Format a perplexity."""
    return f"{figures['perplexity']:.3f}" if figures else "-"


def answers(figures: Row | None) -> str:
    """Format the share of right answers."""
    return f"{figures['answers']:.0%}" if figures and figures["answers"] is not None else "-"
