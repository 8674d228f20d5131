#!/usr/bin/env python3
"""Compare activation patching of plait with that of transformers and forward hooks, at one shape with random weights.

    patching.py [--types BF16,Q8_0] [--positions 32] [--rounds 3] [--threads 2] [--python INTERPRETER] [--json FILE]

The task: for each layer and each position of a prompt, the output of the layer at the position is replaced by that of
another prompt, and the logits of the last token are read. With 24 layers and 32 positions, these are 768 runs.

plait runs plait.patch_sweep(), which computes what a patch can change: the layers above it and the tokens from it on.
The prompts differ in every token. transformers computes the runs of a position as one batch of
complete prompts, with a hook on each layer that replaces its row, which is what tools on hooks do. Its weights are
F32 and BF16; the faster counts. Engines run in processes of their own, in turn; each figure is the median of the
rounds. INTERPRETER has torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = "qwen-0.5b"


def prompts(n_vocab: int, n: int) -> list[list[int]]:
    """Return the prompt to patch and the one that the values come from."""
    tokens: list[list[int]] = np.random.default_rng(3).integers(0, n_vocab, (2, n)).tolist()
    return tokens


def of_plait(path: str, n: int, threads: int) -> dict[str, float]:
    """Return the seconds of all runs, and the share of their tokens times layers that was computed."""
    import plait

    model = plait.Model(path)
    target, source = prompts(model.n_vocab, n)

    def run(layers: range | None) -> plait.PatchSweep:
        return plait.patch_sweep(
            model, source, target, layers=layers, threads=threads, progress=False,
            metric=lambda logits: logits.argmax(axis=1),
        )  # fmt: skip

    run(range(model.n_layer - 2, model.n_layer))
    begin = time.perf_counter()
    sweep = run(None)
    return {"seconds": time.perf_counter() - begin, "share": sweep.computed}


def of_transformers(dtype: str, n: int, threads: int) -> dict[str, float]:
    """Return the seconds of all runs."""
    import torch
    from models import SHAPES
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    s = SHAPES[SHAPE]
    config = Qwen2Config(
        vocab_size=s.n_vocab, hidden_size=s.n_embd, intermediate_size=s.n_ffn, num_hidden_layers=s.n_layer,
        num_attention_heads=s.n_head, num_key_value_heads=s.n_head_kv, rope_theta=s.rope_base, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()
    layers = model.model.layers
    target, source = (torch.tensor([tokens]) for tokens in prompts(s.n_vocab, n))

    def tensor(output: Any) -> Any:
        return output[0] if isinstance(output, tuple) else output

    @torch.inference_mode()
    def run(positions: range) -> list[Any]:
        values: list[Any] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, out: values.append(tensor(out).clone()))
            for layer in layers
        ]
        model(source, logits_to_keep=1)
        for hook in hooks:
            hook.remove()
        logits = []
        for position in positions:

            def put(i: int, at: int) -> Any:
                def replace(_: Any, __: Any, output: Any) -> Any:
                    tensor(output)[i, at] = values[i][0, at]
                    return output

                return replace

            hooks = [
                layer.register_forward_hook(put(i, position)) for i, layer in enumerate(layers)
            ]
            out = model(target.expand(len(layers), -1), logits_to_keep=1, use_cache=False)
            logits.append(out.logits[:, -1].argmax(dim=-1))
            for hook in hooks:
                hook.remove()
        return logits

    run(range(2))
    begin = time.perf_counter()
    run(range(n))
    return {"seconds": time.perf_counter() - begin}


def measure(python: str, engine: str, what: str, n: int, threads: int) -> dict[str, float] | None:
    """Run one engine in a process; None if it has no torch."""
    command = [
        python,
        __file__,
        "--one",
        engine,
        what,
        "--positions",
        str(n),
        "--threads",
        str(threads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{engine} {what}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all engines in turn and return the medians."""
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = []
        for dtype in args.types.split(","):
            path = str(Path(folder) / f"{dtype}.gguf")
            models = Path(__file__).with_name("models.py")
            subprocess.run([sys.executable, models, f"{SHAPE}:{dtype}", path], check=True)
            engines.append((sys.executable, "plait", path, f"plait {dtype}"))
        engines += [
            (args.python, "transformers", dtype, f"transformers {dtype}")
            for dtype in ("bfloat16", "float32")
        ]
        for _ in range(args.rounds):
            for python, engine, what, name in engines:
                one = measure(python, engine, what, args.positions, args.threads)
                if one:
                    found.setdefault(name, []).append(one)
                    print(name, one, flush=True)
    table = {
        name: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for name, rounds in found.items()
    }
    peers = [row["seconds"] for name, row in table.items() if name.startswith("transformers")]
    for name, row in table.items():
        if name.startswith("plait") and peers:
            row["ratio"] = min(peers) / row["seconds"]
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", default="BF16,Q8_0", help="weights of plait")
    parser.add_argument("--positions", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--python", default=sys.executable, help="interpreter with transformers")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        engine, what = args.one
        run = of_plait if engine == "plait" else of_transformers
        print(json.dumps(run(what, args.positions, args.threads)))
        return
    table = compare(args)
    for name, row in table.items():
        print(name, " ".join(f"{key} {value:.3g}" for key, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
