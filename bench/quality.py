#!/usr/bin/env python3
"""Measure what quantised caches and weights cost: KL divergence from F32, perplexity and answers, beside llama.cpp.

    quality.py [--data FOLDER] [--python INTERPRETER] [--texts 32] [--json quality.json]

The models are the one in the package, stories260K and a model with random weights and heads of 64, which the folder
of the reference data has, and copies of them in which a few channels of the keys are 20 to 100 times larger
(quality_models.py). Every engine is compared with itself: its logits with F32 weights and an F32 cache are the
reference of its own rows, so that other differences between the engines do not count. KL divergence is in nats per
token, the mean over all tokens, with the standard error of this mean. Weight types are measured with F32 caches:
the files of plait (quantize_file(), without and with an importance matrix of other texts) in both engines, and those of
llama-quantize with all matrices in the type, in plait. Files of `--budget` have the size of a fixed type.

Without llama-cpp-python, only plait is measured; --python selects an interpreter that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plait
from plait import quant
from plait.numerics import log_softmax
from quality_models import Case, Text, cases, save_texts

ENGINE = Path(__file__).with_name("llama_cpp_engine.py")
CACHES = [
    ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q5_1", "q5_1"), ("q5_0", "q5_0"), ("q4_1", "q4_1"), ("q4_0", "q4_0"),
    ("iq4_nl", "iq4_nl"), ("f16", "f16"),
]  # fmt: skip
WEIGHTS = (
    "Q8_0",
    "Q6_K",
    "Q5_K",
    "Q5_1",
    "Q5_0",
    "Q4_K",
    "Q4_1",
    "Q4_0",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "Q3_K",
    "Q2_K",
    "IQ3_S",
    "IQ3_XXS",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ1_M",
    "IQ1_S",
)
BUDGETS = ("Q3_K", "Q4_0", "Q5_0")  # types whose sizes are budgets

Logits = list[npt.NDArray[np.float32]]
Row = dict[str, Any]


def figures(texts: list[Text], reference: Logits, candidate: Logits) -> Row:
    """Return the figures of a row."""
    kl, nll, same, right = [], [], [], []
    for text, a, b in zip(texts, reference, candidate, strict=True):
        p, q = log_softmax(a), log_softmax(b)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        following = np.array(text.tokens[1:])
        nll.append(-q[np.arange(len(following)), following])
        best = b.argmax(axis=1)
        same.append(best == a.argmax(axis=1))
        if text.answer:  # right if greedy decoding gives exactly the answer
            right.append((best[:-1][-text.answer :] == following[-text.answer :]).all())
    all_kl = np.concatenate(kl)
    # Tokens of a text are not independent: the error comes from the means of the texts.
    means = np.array([one.mean() for one in kl])
    return {
        "kl": float(all_kl.mean()),
        "kl_error": float(means.std(ddof=1) / np.sqrt(len(means))),
        "kl_p99": float(np.quantile(all_kl, 0.99)),
        "perplexity": float(np.exp(np.concatenate(nll).mean())),
        "top1": float(np.concatenate(same).mean()),
        "answers": float(np.mean(right)) if right else None,
    }


def of_plait(path: Path, texts: list[Text], type_k: str = "f32", type_v: str = "f32") -> Logits:
    """Return the logits of plait."""
    model, found = plait.Model(path), []
    n_ctx = max(len(text.tokens) for text in texts)
    with plait.Context(model, n_ctx=n_ctx, type_k=type_k, type_v=type_v) as ctx:
        for text in texts:
            with ctx.sequence() as seq:
                batch = plait.Batch()
                batch.add_sequence(text.tokens, seq=seq, logits="all")
                found.append(ctx.decode(batch).logits.copy())
    return found


class LlamaCpp:
    """llama.cpp in processes of another interpreter."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        found = self._run(["-c", "import llama_cpp; print(llama_cpp.__version__)"])
        self.version = found.stdout.strip() if found.returncode == 0 else ""

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments], capture_output=True, text=True, check=False
        )

    def logits(self, path: Path, texts: list[Text], type_k: str, type_v: str) -> Logits | None:
        """Return the logits, or None if llama.cpp refuses the model with these types."""
        ids, out = self.folder / "texts.json", self.folder / "logits.npz"
        out.unlink(missing_ok=True)
        save_texts(texts, ids)
        options = {"threads": len(os.sched_getaffinity(0)), "type_k": type_k, "type_v": type_v}
        done = self._run([str(ENGINE), str(path), str(ids), json.dumps(options), str(out)])
        if done.returncode != 0 or not out.exists():
            return None
        with np.load(out) as file:
            return [file[str(i)] for i in range(len(texts))]

    def quantize(self, path: Path, target: Path, dtype: str) -> bool:
        """Write a file with llama-quantize's code; return whether it did."""
        arguments = [str(ENGINE), "--quantize", str(path), str(target), dtype]
        return self._run(arguments).returncode == 0 and target.exists()


def cache_rows(case: Case, peer: LlamaCpp | None) -> list[Row]:
    """Return a row per pair of cache types."""
    rows = []
    reference = of_plait(case.path, case.texts)
    theirs = peer.logits(case.path, case.texts, "f32", "f32") if peer else None
    for type_k, type_v in CACHES:
        row: Row = {"model": case.name, "type_k": type_k, "type_v": type_v}
        try:
            ours = of_plait(case.path, case.texts, type_k, type_v)
        except (ValueError, plait.Error) as error:
            row["refused"] = str(error)
        else:
            row["plait"] = figures(case.texts, reference, ours)
        if peer and theirs is not None:
            found = peer.logits(case.path, case.texts, type_k, type_v)
            row["llama.cpp"] = figures(case.texts, theirs, found) if found else None
        add_ratio(row)
        rows.append(row)
    return rows


def add_ratio(row: Row) -> None:
    """Add the ratio of both divergences where both engines have one."""
    ours, theirs = row.get("plait"), row.get("llama.cpp")
    if ours and theirs and theirs["kl"] > 0:
        row["ratio"] = ours["kl"] / theirs["kl"]


def bits_per_weight(model: plait.Model) -> float:
    """Return the bits of all tensors per weight."""
    return 8 * model.nbytes / sum(int(np.prod(t.shape)) for t in model.tensors.values())


def quantised(
    model: plait.Model, target: Path, dtype: str, imatrix: quant.ImportanceMatrix | None
) -> bool:
    """Write a file with all matrices in a type; return whether the model can have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            quant.quantize_file(
                model, target, dtype, output_type=dtype, imatrix=imatrix, progress=False
            )
        except plait.UnsupportedError:
            return False
    return True


def weight_rows(case: Case, peer: LlamaCpp | None, folder: Path) -> list[Row]:
    """Return a row per weight type."""
    model, rows = plait.Model(case.path), []
    reference = of_plait(case.path, case.texts)
    theirs = peer.logits(case.path, case.texts, "f32", "f32") if peer else None
    tokens = [token for text in case.calibration for token in text.tokens]
    matrix = quant.importance_matrix(model, tokens, window=min(256, len(tokens)))
    for dtype in WEIGHTS:
        row: Row = {"model": case.name, "type": dtype}
        target = folder / f"{case.name}-{dtype}.gguf"
        if not quantised(model, target, dtype, None):
            continue
        row["bits"] = bits_per_weight(plait.Model(target))
        row["plait"] = figures(case.texts, reference, of_plait(target, case.texts))
        if peer is not None and theirs is not None:
            found = peer.logits(target, case.texts, "f32", "f32")
            row["the file in llama.cpp"] = figures(case.texts, theirs, found) if found else None
        quantised(model, target, dtype, matrix)
        row["plait with imatrix"] = figures(case.texts, reference, of_plait(target, case.texts))
        other = folder / f"{case.name}-{dtype}-llama.gguf"
        if peer and peer.quantize(case.path, other, dtype):
            row["bits of llama.cpp"] = bits_per_weight(plait.Model(other))
            row["llama.cpp"] = figures(case.texts, reference, of_plait(other, case.texts))
        if row["bits"] == row.get("bits of llama.cpp"):
            add_ratio(row)
        rows.append(row)
    return rows + [
        budget_row(case, model, tokens, matrix, reference, bits, folder)
        for bits in sorted({round(row["bits"], 4) + 1e-4 for row in rows if row["type"] in BUDGETS})
    ]


def budget_row(
    case: Case,
    model: plait.Model,
    tokens: list[int],
    matrix: quant.ImportanceMatrix,
    reference: Logits,
    bits: float,
    folder: Path,
) -> Row:
    """Return the row of a file whose types were chosen for a size."""
    types = quant.choose_types(model, tokens, bits, window=256, progress=False)
    target = folder / f"{case.name}-budget.gguf"
    row: Row = {"model": case.name, "type": f"budget {bits:.2f}"}
    for label, imatrix in (("plait", None), ("plait with imatrix", matrix)):
        quant.quantize_file(model, target, tensor_types=types, imatrix=imatrix, progress=False)
        row[label] = figures(case.texts, reference, of_plait(target, case.texts))
    row["bits"] = bits_per_weight(plait.Model(target))
    return row


def shown(row: Row) -> str:
    """Return a row for a terminal."""
    name = row.get("type") or f"{row['type_k']}/{row['type_v']}"
    parts = [f"{row['model']:20} {name:14}"]
    for key, value in row.items():
        if isinstance(value, dict):
            answers = "" if value["answers"] is None else f" answers {value['answers']:.3f}"
            parts.append(
                f"{key}: kl {value['kl']:.3e} +- {value['kl_error']:.0e} ppl {value['perplexity']:.4f}{answers};"
            )
    return " ".join(parts) + (f" ratio {row['ratio']:.3f}" if "ratio" in row else "")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("PLAIT_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default, help="folder of the reference data")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with llama-cpp-python"
    )
    parser.add_argument("--texts", type=int, default=32, help="number of stories of the demo model")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    data = args.data if Path(args.data, "index.json").is_file() else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer = LlamaCpp(args.python, folder)
        found: Row = {
            "llama.cpp": peer.version,
            "isas": plait.build_info()["isas"],
            "caches": [],
            "weights": [],
        }
        for case in cases(folder, data, args.texts):
            for kind, rows in (
                ("caches", cache_rows(case, peer if peer.version else None)),
                ("weights", [] if case.name.endswith("-outliers") else
                 weight_rows(case, peer if peer.version else None, folder)),
            ):  # fmt: skip
                found[kind] += rows
                print("\n".join(map(shown, rows)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
