"""Stored results: logits of small models of every architecture, type of weight and type of cache, and dequantised rows.

What the arrays are and how they were made is said in the README beside them.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait
import plait.quant
import pytest

DATA = Path(
    os.environ.get("PLAIT_TEST_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data"
)
POOLING = {None: "auto", 0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
# llama.cpp rounds GELU to a table of f16. One token's logits in this case are 0.051 from the formulas in float64,
# 2.3 times the tolerance; with the table, the formulas give the stored logits. See test_gemma3n.py.
INEXACT = {"gemma3n-a/shared_prefix": 2.5}
# Each way of remembering and cutting must give the same logits.
LAYOUTS: dict[str, dict[str, Any]] = {
    "unified": {},
    "streams": {"kv": "streams"},
    "pieces of 7": {"n_ubatch": 7},
    "flash": {"flash_attention": True},
    "flash in streams": {"flash_attention": True, "kv": "streams"},
}


@functools.cache
def cases() -> dict[str, list[dict[str, Any]]]:
    """Return the cases of each supported model below conformance/, with their folder as "root"."""
    found: dict[str, list[dict[str, Any]]] = {}
    supported = plait.build_info()["architectures"]
    for root in (DATA, DATA.parent / "data-2026"):
        if not (root / "index.json").is_file():
            continue
        for case in json.loads((root / "index.json").read_text())["cases"]:
            if case["kind"] != "steps" or not str(case.get("model")).startswith("conformance/"):
                continue
            if root == DATA or case["arch"] in supported:
                name = Path(case["model"]).parent.name
                found.setdefault(name, []).append(case | {"root": root})
    return found


def model_of(name: str) -> plait.Model:
    case = cases()[name][0]
    return plait.Model(case["root"] / case["model"])


@functools.cache
def extra_cases(kind: str) -> dict[str, dict[str, Any]]:
    """Return the cases of a folder beside conformance/, "quant" or "kv", by name."""
    if not (DATA / "index.json").is_file():
        return {}
    listed = json.loads((DATA / "index.json").read_text())["cases"]
    return {
        case["id"].removeprefix(f"{kind}/"): case | {"root": DATA}
        for case in listed
        if case["kind"] == "steps" and str(case.get("model")).startswith(f"{kind}/")
    }


def options(case: dict[str, Any], layout: dict[str, Any]) -> dict[str, Any]:
    given = case["context"]
    made = {key: given[key] for key in ("n_ctx", "n_seq_max", "type_k", "type_v") if key in given}
    made["flash_attention"] = bool(given.get("fa", 0))
    made["swa_full"] = bool(given.get("swa_full", False))
    if given.get("embeddings"):
        made |= {"embeddings": True, "pooling": POOLING[given.get("pooling")]}
    return made | layout


def batch_of(step: dict[str, Any], arrays: Any) -> plait.Batch:
    seqs = arrays[step["seq"]].reshape(len(arrays[step["seq"]]), -1)
    wanted, positions = arrays[step["out"]].astype(bool), arrays[step["pos"]]
    made = plait.Batch()
    if "embd" in step:
        axes = positions.T if positions.ndim == 2 else positions
        made.add_embeddings(arrays[step["embd"]], seq=int(seqs[0, 0]), pos=axes, logits=wanted)
        return made
    for token, pos, ids, out in zip(arrays[step["tokens"]], positions, seqs, wanted, strict=True):
        made.add(int(token), pos=int(pos), seq=[int(s) for s in ids if s >= 0], logits=bool(out))
    return made


def span(step: dict[str, Any]) -> tuple[int, int | None]:
    p0, p1 = step.get("p0", 0), step.get("p1", -1)
    return max(p0, 0), None if p1 < 0 else p1


def play(
    ctx: plait.Context, case: dict[str, Any], arrays: Any, expect: str = "expect"
) -> Iterator[tuple[Any, Any]]:
    """Yield the result and the stored result of each step. `expect`: which of the stored results."""
    for step in case["steps"]:
        match step["op"]:
            case "seq_rm":
                assert ctx.kv.seq_rm(step["seq"], *span(step)) is step["expect_return"]
            case "seq_cp":
                ctx.kv.seq_cp(step["src"], step["dst"], *span(step))
            case "seq_add":
                ctx.kv.seq_add(step["seq"], *span(step), step["delta"])
            case op:
                out = getattr(ctx, op)(batch_of(step, arrays))
                if expect in step:
                    pooled = case["context"].get("embeddings")
                    yield out.embeddings if pooled else out.logits, arrays[step[expect]]


def compare(
    got: np.ndarray, want: np.ndarray, case: dict[str, Any], tolerance: str = "tolerance"
) -> None:
    assert got.shape == want.shape, case["id"]
    off, nmse = np.abs(got - want).max(), ((got - want) ** 2).sum() / (want**2).sum()
    assert off <= case[tolerance]["max_abs"] * INEXACT.get(case["id"], 1), f"{case['id']}: {off}"
    assert nmse <= case[tolerance]["nmse"], f"{case['id']}: {nmse}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", cases() or ["none"])
def test_stored_logits(
    name, layout, data_dir
):  # S0-03, S1-09, S2-11, S2-14, S2-15, S2-28, S2-32, S4-03, S4-15, S4-28 to 30, S4-41
    model = model_of(name)
    for case in cases()[name]:
        shares = any(arr.get("op") == "decode" and "shared" in case["id"] for arr in case["steps"])
        if LAYOUTS[layout].get("kv") == "streams" and shares:
            continue  # a token of several sequences requires shared rows
        with plait.Context(model, **options(case, LAYOUTS[layout])) as ctx:
            for got, want in play(ctx, case, np.load(case["root"] / case["data"])):
                compare(got, want, case)


@pytest.mark.parametrize("name", cases() or ["none"])
def test_instruction_sets_agree_with_scalar(name, isa, data_dir):  # S2-34
    if isa == "scalar":
        pytest.skip("it is what the others are compared with")
    model = model_of(name)
    for case in cases()[name][:2]:  # a prompt; single tokens
        played = []
        for one in ("scalar", isa):
            with plait.Context(model, **options(case, {"isa": one})) as ctx:
                arrays = np.load(case["root"] / case["data"])
                played.append([got.copy() for got, _ in play(ctx, case, arrays)])
        assert played[0]
        for scalar, vectors in zip(*played, strict=True):
            compare(vectors, scalar, case)


@pytest.mark.parametrize("name", extra_cases("quant") or ["none"])
def test_stored_logits_of_every_type_of_weight(name, isa, data_dir):
    """Against the same weights as floats; the tolerance is that of activations rounded to int8."""
    case = extra_cases("quant")[name]
    with plait.Context(plait.Model(DATA / case["model"]), **options(case, {"isa": isa})) as ctx:
        played = list(play(ctx, case, np.load(DATA / case["data"]), "expect_dequant_f32"))
    assert played
    for got, want in played:
        compare(got, want, case)


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("name", extra_cases("kv") or ["none"])
def test_stored_logits_of_every_type_of_cache(name, kv, data_dir):
    """Floats against float64 arithmetic that rounds keys and values alone, blocks against a cache of floats.

    Blocks store a transform of heads (docs/decisions/0029), which the stored arithmetic does not.
    """
    case = extra_cases("kv")[name]
    floats = {case["context"]["type_k"], case["context"]["type_v"]} <= {"f32", "f16", "bf16"}
    expect, tolerance = ("expect_sim", "tolerance_sim") if floats else ("expect", "tolerance")
    arrays = np.load(DATA / case["data" if floats else "reference_data"])
    with plait.Context(plait.Model(DATA / case["model"]), **options(case, {"kv": kv})) as ctx:
        played = list(play(ctx, case, arrays, expect))
    assert played
    for got, want in played:
        compare(got, want, case, tolerance)


def test_stored_rows_of_every_block_type(data_dir):
    """The bytes of ggml's quantiser have the values of gguf-py, bit for bit."""
    arrays = np.load(data_dir / "quant" / "dequant.npz")
    types = sorted(name.removesuffix("_bytes") for name in arrays.files if name.endswith("_bytes"))
    assert len(types) > 20
    for name in types:
        want = arrays[f"{name}_deq"]
        got = plait.quant.dequantize(arrays[f"{name}_bytes"], name)
        assert got.reshape(want.shape).tobytes() == want.tobytes(), name
