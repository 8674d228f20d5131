#!/usr/bin/env python3
"""Writes architectures.md: what each architecture remembers, and what its tests compare it with.

    PLAIT_TEST_DATA=... python docs/architectures.py

The names are those of the build's registry, the memory is what the file of the architecture asks for, the stored cases
are those of the reference data's index, and the classes of transformers those of tests/python/oracle/test_oracle*.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

import plait
from plait._core import read_metadata

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PLAIT_TEST_DATA") or ROOT / ".." / "shared" / "data")
HEAD = """# Architectures

Written by [architectures.py](architectures.py) from the registry and the lists of the tests; a test compares the two.

**Memory** is `ctx.kv.kind`: "unified" stands for either of "unified" and "streams", as `kv=` chooses, and "or" leaves
it to the file's hyperparameters. **Stored logits** are cases of the reference data
(`tests/python/model/test_reference.py`), each played in one table of rows and in streams, in pieces of seven tokens,
and with attention in one pass. **transformers** are the classes that random models of an architecture are compared with
(`tests/python/oracle/test_oracle*.py`). Defragmentation, saved states, rewinding and calls that end in the middle are
tested on every model of the reference data.

| architecture | what is particular | memory | stored logits | transformers |
|---|---|---|---|---|
"""


PARTICULAR = {
    "bert": "an encoder: both ways, no cache, pooling, heads that score",
    "bloom": "slopes on distance (ALiBi) in place of positions",
    "cohere2": "three layers with a window and rotation to one with neither, blocks side by side",
    "command-r": "blocks side by side, normalised heads",
    "deepseek2": "DeepSeek-V2, V3 and Lite: a latent cache, experts in groups and shared ones",
    "exaone4": "norms after blocks, layers with a window rotate and the others do not",
    "falcon-h1": "attention and `mamba2` side by side in every layer",
    "gemma": "scaled embeddings, GeGLU",
    "gemma2": "soft-capped scores and logits, every other layer with a window",
    "gemma3": "five layers with a window to one without, a rotation each",
    "glm4": "norms before and after blocks, half of a head rotated; with images, three positions a token",
    "gpt-oss": "attention sinks, every other layer with a window, experts with biases, MXFP4",
    "gpt2": "learned positions",
    "gptneox": "a part of each head rotated, blocks side by side or in turn",
    "granite": "multipliers of embeddings, scores, blocks and logits",
    "granitehybrid": "Granite 4: `granite` with layers of `mamba2`, experts, with or without positions",
    "jamba": "layers of `mamba` among layers of attention, experts in some",
    "lfm2": "short gated convolutions, attention in some layers",
    "llama": "grouped queries, tied embeddings, linear, YaRN and Llama 3 rope scaling, biases, mixtures of experts",
    "mamba": "selective scans in place of attention, FalconMamba",
    "mamba2": "one decay a head, heads in groups",
    "modern-bert": "an encoder of windows to both sides",
    "nemotron": "squared ReLU without a gate",
    "nomic-bert": "an encoder that rotates, with gates",
    "olmo2": "norms after blocks, OLMo 3 with its windows",
    "olmoe": "queries and keys normalised over all heads, small experts",
    "phi2": "blocks side by side, biases everywhere",
    "phi3": "one matrix for q, k and v, LongRoPE",
    "qwen2": "biases on q, k and v",
    "qwen2moe": "`qwen2` with experts and a gated shared one",
    "qwen2vl": "three positions a token, embeddings of images",
    "qwen3": "normalised heads",
    "qwen3moe": "`qwen3` with experts",
    "qwen3next": "gated delta nets, gated attention in every fourth layer, experts",
    "rwkv6": "a matrix of state for each head, decays that depend on the token",
    "rwkv7": "states that replace as they learn, values mixed with the first layer's",
    "smollm3": "every fourth layer without positions",
    "stablelm": "a part of each head rotated, heads normalised each by its own weight",
    "starcoder2": "biases everywhere",
    "t5": "an encoder and a decoder, biases by distance",
}
"""What is particular about each."""


def sources() -> dict[str, str]:
    """The file of each architecture, by the name that the registry gives it."""
    registry = (ROOT / "cpp" / "model" / "registry.cpp").read_text()
    made = dict(re.findall(r'Architecture\{"([^"]+)", (make_\w+)\}', registry))
    texts = [path.read_text() for path in sorted((ROOT / "cpp" / "model" / "arch").glob("*.cpp"))]
    return {
        name: next(text for text in texts if f"> {make}(const Hparams" in text)
        for name, make in made.items()
    }


def memory(source: str) -> str:
    """What memory_specs() of an architecture makes make_memory() choose."""
    own = re.search(r"MemorySpecs memory_specs\(\).*?\n    }\n", source, re.DOTALL)
    if own is None:  # the frame says it
        frame = re.search(r": public (\w+)Decoder ", source)[1].lower()
        source = (ROOT / "cpp" / "model" / f"{frame}_decoder.cpp").read_text()
        own = re.search(r"::memory_specs\(\).*?\n}\n", source, re.DOTALL)
    body = own[0]
    attends = "attention_spec" in body
    if "CrossSpec" in body:
        return "cross"
    if re.search(r"(mamba2?|rwkv|delta_net)_spec|RecurrentSpec", body):
        return "hybrid" if attends else "recurrent"
    if not attends:
        return "none"
    if "window" not in body:
        return "unified"
    return "sliding or unified"


def stored() -> dict[str, dict[str, list[str]]]:
    """Cases, by architecture and model of the reference data."""
    index = json.loads((DATA / "index.json").read_text())
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for case in index["cases"]:
        if case["kind"] == "steps" and str(case.get("model")).startswith("conformance/"):
            model = Path(case["model"]).parent.name
            arch = read_metadata(DATA / case["model"])["general.architecture"]
            found[arch][model].append(case["id"].rsplit("/", 1)[-1])
    return found


def compared() -> dict[str, set[str]]:
    """Classes of transformers, by architecture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from python.oracle import test_oracle, test_oracle_encoders

    found: dict[str, set[str]] = defaultdict(set)
    for one in (*test_oracle.ARCHITECTURES, *test_oracle_encoders.ARCHITECTURES):
        found[one.name].add(one.model)
    t5 = (ROOT / "tests" / "python" / "oracle" / "test_oracle_t5.py").read_text()
    found["t5"] = set(re.findall(r"transformers\.(\w+Generation)\b", t5))
    return found


def table() -> str:
    """The whole file."""
    cases, classes, texts = stored(), compared(), sources()
    rows = []
    for name in plait.build_info()["architectures"]:
        models = "; ".join(f"{model}: {', '.join(ids)}" for model, ids in cases[name].items())
        against = ", ".join(f"`{one}`" for one in sorted(classes[name]))
        said = f"`{name}` | {PARTICULAR[name]} | {memory(texts[name])}"
        rows.append(f"| {said} | {models or '-'} | {against or '-'} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    (ROOT / "docs" / "architectures.md").write_text(table())
