#!/usr/bin/env python3
"""Write architectures.md, each architecture's models, memory and references, and the models that README.md names.

    PLAIT_TEST_DATA=... python docs/architectures.py

The names come from the build's registry, the stored cases from the index of the reference data, the classes of
transformers from tests/python/oracle/test_oracle*.py. Models, particulars and memory are written here; tests check the
memory.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import plait
from plait._core import read_metadata

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PLAIT_TEST_DATA") or ROOT / ".." / "shared" / "data")
HEAD = """# Architectures

Written by [architectures.py](architectures.py) from the registry and the lists of the tests; a test compares the two.

**Memory** is `ctx.kv.kind`. "unified" stands for "unified" or "streams", whichever `kv=` selects; where two kinds are
listed, the file's hyperparameters decide. **Stored logits** lists cases of the reference data
(`tests/python/model/test_reference.py`); each is played with a unified table and with streams, in microbatches of
seven tokens, and with flash attention. **transformers** lists the classes that random models of the architecture are
compared with (`tests/python/oracle/test_oracle*.py`). Defragmentation, saved states, rollback and interrupted calls are
tested on every model of the reference data. Where both columns have none, a model of the same computation or NumPy is
the reference (`tests/python/model/test_related_architectures.py`).

Of the architectures that llama.cpp has and that people ask for, plait refuses `phimoe`: llama.cpp and transformers
disagree about its norms and routing. DeepSeek-V2 with groups of experts (236B, Coder-V2) ranks a group by its best
expert, as transformers does; llama.cpp ranks it by the sum of the two best, as in V3. Images need an encoder of their
own, which [`Vision`](how-to/images.md) opens: those of Gemma 3 and 4, LLaVA 1.5 and 1.6, Pixtral, Mistral Small 3.1,
Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

| architecture | models | what is particular | memory | stored logits | transformers |
|---|---|---|---|---|---|
"""


class Entry(NamedTuple):
    """One row of the table, without what the registry and the tests hold."""

    models: str
    particular: str
    memory: str


ARCHITECTURES = {
    "apertus": Entry(
        "Apertus",
        "xIELU in place of gates; normalised heads",
        "unified",
    ),
    "arcee": Entry(
        "Arcee AFM",
        "`llama` with a squared ReLU and no gate",
        "unified",
    ),
    "bailingmoe2": Entry(
        "Ling 2.0, Ring 2.0",
        "grouped experts with a sigmoid router; a part of each head rotated",
        "unified",
    ),
    "bert": Entry(
        "BERT, BGE, E5, MiniLM",
        "encoder with learned positions; pooling; scoring heads",
        "none",
    ),
    "bitnet": Entry(
        "BitNet b1.58",
        "matrices of three values with a factor each; a norm before each output matrix",
        "unified",
    ),
    "bloom": Entry(
        "BLOOM",
        "slopes on distance (ALiBi) in place of positions",
        "unified",
    ),
    "cohere2": Entry(
        "Command R7B, Command A",
        "three layers with a window and rotation, then one with neither; parallel blocks",
        "sliding or unified",
    ),
    "cohere2moe": Entry(
        "Command A with experts",
        "`cohere2` with experts; the mean with a shared one",
        "sliding or unified",
    ),
    "command-r": Entry(
        "Command R, Command R+",
        "parallel blocks; normalised heads in R+",
        "unified",
    ),
    "deepseek": Entry(
        "DeepSeekMoE",
        "small experts beside shared ones; dense first layers",
        "unified",
    ),
    "deepseek2": Entry(
        "DeepSeek-V2, V3, R1",
        "latent cache; grouped experts and shared ones",
        "unified",
    ),
    "dots1": Entry(
        "dots.llm1",
        "normalised heads; grouped experts and shared ones",
        "unified",
    ),
    "ernie4_5": Entry(
        "ERNIE 4.5 0.3B",
        "`llama` under another name",
        "unified",
    ),
    "ernie4_5-moe": Entry(
        "ERNIE 4.5",
        "experts and shared ones; dense first layers",
        "unified",
    ),
    "eurobert": Entry(
        "EuroBERT",
        "`llama` as an encoder",
        "none",
    ),
    "exaone-moe": Entry(
        "K-EXAONE",
        "three layers with a window and rotation, then one with neither; experts",
        "sliding or unified",
    ),
    "exaone4": Entry(
        "EXAONE 4",
        "norms after blocks; only layers with a window rotate",
        "sliding or unified",
    ),
    "falcon": Entry(
        "Falcon 7B, 40B",
        "parallel blocks; one matrix for q, k and v",
        "unified",
    ),
    "falcon-h1": Entry(
        "Falcon-H1",
        "attention and Mamba-2 side by side in every layer",
        "hybrid",
    ),
    "gemma": Entry(
        "Gemma",
        "scaled embeddings, GeGLU",
        "unified",
    ),
    "gemma-embedding": Entry(
        "EmbeddingGemma",
        "`gemma3` as an encoder with symmetric windows",
        "none",
    ),
    "gemma2": Entry(
        "Gemma 2",
        "soft-capped scores and logits; every other layer has a window",
        "sliding or unified",
    ),
    "gemma3": Entry(
        "Gemma 3",
        "five layers with a window, then one without; two bases of rotation",
        "sliding or unified",
    ),
    "gemma3n": Entry(
        "Gemma 3n E2B, E4B",
        "several residual streams; an embedding for each layer; the last layers read keys of earlier ones",
        "sliding or unified",
    ),
    "gemma4": Entry(
        "Gemma 4",
        "`gemma3n` without streams; heads of two sizes; experts beside a dense block",
        "sliding or unified",
    ),
    "glm4": Entry(
        "GLM-4-0414, GLM-4.1V",
        "norms before and after blocks; half of each head rotated; M-RoPE for images",
        "unified",
    ),
    "glm4moe": Entry(
        "GLM-4.5, GLM-4.6",
        "experts with a sigmoid router; dense first layers",
        "unified",
    ),
    "gpt-oss": Entry(
        "gpt-oss",
        "attention sinks; every other layer has a window; experts with biases; MXFP4",
        "sliding or unified",
    ),
    "gpt2": Entry(
        "GPT-2",
        "learned positions",
        "unified",
    ),
    "gptneox": Entry(
        "GPT-NeoX, Pythia, Dolly",
        "a part of each head rotated; parallel or sequential blocks",
        "unified",
    ),
    "granite": Entry(
        "Granite 3",
        "multipliers of embeddings, scores, residuals and logits",
        "unified",
    ),
    "granitehybrid": Entry(
        "Granite 4",
        "`granite` with Mamba-2 layers, experts, with or without positions",
        "hybrid",
    ),
    "granitemoe": Entry(
        "Granite 3 MoE",
        "`granite` with experts",
        "unified",
    ),
    "hunyuan-dense": Entry(
        "Hunyuan 0.5B to 7B",
        "heads normalised after rotation",
        "unified",
    ),
    "hunyuan-moe": Entry(
        "Hunyuan-A13B",
        "heads normalised after rotation; experts and a shared one",
        "unified",
    ),
    "internlm2": Entry(
        "InternLM2, InternLM2.5",
        "`llama` under another name",
        "unified",
    ),
    "jamba": Entry(
        "Jamba",
        "Mamba layers, some attention layers; experts in some",
        "hybrid",
    ),
    "jina-bert-v2": Entry(
        "Jina Embeddings v2",
        "encoder with slopes on distance (ALiBi) and gates",
        "none",
    ),
    "jina-bert-v3": Entry(
        "Jina Embeddings v3",
        "encoder with rotation",
        "none",
    ),
    "kimi-linear": Entry(
        "Kimi Linear",
        "delta attention with a decay per channel; latent attention without rotation; experts",
        "hybrid",
    ),
    "lfm2": Entry(
        "LFM2",
        "short gated convolutions; attention in some layers",
        "hybrid",
    ),
    "lfm2moe": Entry(
        "LFM2-8B-A1B",
        "`lfm2` with experts",
        "hybrid",
    ),
    "llama": Entry(
        "Llama, Mistral, Mixtral, Yi, TinyLlama",
        "grouped-query attention; linear, YaRN and Llama 3 rope scaling; optional biases and experts",
        "unified",
    ),
    "llama4": Entry(
        "Llama 4 Scout, Maverick, MobileLLM-R1",
        "chunks of positions; queries that grow with the position; one expert per token; MobileLLM has neither",
        "sliding or unified",
    ),
    "mamba": Entry(
        "Mamba, FalconMamba",
        "selective scans in place of attention",
        "recurrent",
    ),
    "mamba2": Entry(
        "Mamba-2",
        "one decay per head; heads in groups",
        "recurrent",
    ),
    "minicpm": Entry(
        "MiniCPM",
        "multipliers of embeddings, residuals and logits",
        "unified",
    ),
    "minicpm3": Entry(
        "MiniCPM3",
        "latent attention with full keys and values in the cache",
        "unified",
    ),
    "minimax-m2": Entry(
        "MiniMax-M2",
        "queries and keys normalised over all heads; experts with a sigmoid router",
        "unified",
    ),
    "mistral3": Entry(
        "Ministral 3",
        "`llama` with queries that grow with the position",
        "unified",
    ),
    "modern-bert": Entry(
        "ModernBERT",
        "encoder with symmetric windows",
        "none",
    ),
    "mpt": Entry(
        "MPT",
        "slopes on distance (ALiBi); clamped q, k and v",
        "unified",
    ),
    "nemotron": Entry(
        "Nemotron-4, Minitron",
        "squared ReLU without a gate",
        "unified",
    ),
    "nemotron_h": Entry(
        "Nemotron-H, Nemotron Nano 2",
        "layers of one block each: Mamba-2, attention or feed-forward",
        "hybrid",
    ),
    "nemotron_h_moe": Entry(
        "Nemotron 3 Nano",
        "`nemotron_h` with experts",
        "hybrid",
    ),
    "neo-bert": Entry(
        "NeoBERT",
        "encoder with rotation and gates; fused matrices",
        "none",
    ),
    "nomic-bert": Entry(
        "Nomic Embed",
        "encoder with rotation and gates",
        "none",
    ),
    "nomic-bert-moe": Entry(
        "Nomic Embed v2",
        "encoder with rotation; experts in every other layer",
        "none",
    ),
    "olmo": Entry(
        "OLMo",
        "norms without weights; clamped q, k and v",
        "unified",
    ),
    "olmo2": Entry(
        "OLMo 2, OLMo 3",
        "norms after blocks; windows in OLMo 3",
        "sliding or unified",
    ),
    "olmoe": Entry(
        "OLMoE",
        "queries and keys normalised over all heads; small experts",
        "unified",
    ),
    "phi2": Entry(
        "Phi-1, Phi-1.5, Phi-2",
        "parallel blocks; biases everywhere",
        "unified",
    ),
    "phi3": Entry(
        "Phi-3, Phi-3.5, Phi-4",
        "one matrix for q, k and v; LongRoPE",
        "sliding or unified",
    ),
    "plamo2": Entry(
        "PLaMo 2",
        "Mamba-2 whose b, c and dt are projections; attention in every other layer",
        "hybrid",
    ),
    "qwen2": Entry(
        "Qwen1.5, Qwen2, Qwen2.5",
        "biases on q, k and v",
        "unified",
    ),
    "qwen2moe": Entry(
        "Qwen1.5-MoE, Qwen2-MoE",
        "`qwen2` with experts and a gated shared expert",
        "unified",
    ),
    "qwen2vl": Entry(
        "Qwen2-VL, Qwen2.5-VL",
        "three positions per token; embeddings of images",
        "unified",
    ),
    "qwen3": Entry(
        "Qwen3",
        "normalised heads",
        "unified",
    ),
    "qwen35": Entry(
        "Qwen3.5",
        "`qwen3next` with three positions per token, dense",
        "hybrid",
    ),
    "qwen35moe": Entry(
        "Qwen3.5-MoE",
        "`qwen35` with experts",
        "hybrid",
    ),
    "qwen3moe": Entry(
        "Qwen3-MoE",
        "`qwen3` with experts",
        "unified",
    ),
    "qwen3next": Entry(
        "Qwen3-Next",
        "gated delta nets; gated attention in every fourth layer; experts",
        "hybrid",
    ),
    "qwen3vl": Entry(
        "Qwen3-VL",
        "three positions per token, which pairs take in turn; several embeddings per part of an image",
        "unified",
    ),
    "qwen3vlmoe": Entry(
        "Qwen3-VL-MoE",
        "`qwen3vl` with experts",
        "unified",
    ),
    "rwkv6": Entry(
        "RWKV-6",
        "a state matrix per head; decays that depend on the token",
        "recurrent",
    ),
    "rwkv6qwen2": Entry(
        "QRWKV6",
        "the time mix of `rwkv6` in the layers of `qwen2`; fewer heads of keys and values",
        "recurrent",
    ),
    "rwkv7": Entry(
        "RWKV-7",
        "the delta rule; values mixed with those of the first layer",
        "recurrent",
    ),
    "seed_oss": Entry(
        "Seed-OSS",
        "biases on q, k and v",
        "unified",
    ),
    "smallthinker": Entry(
        "SmallThinker",
        "a router that reads the layer's input; one of four layers without positions",
        "sliding or unified",
    ),
    "smollm3": Entry(
        "SmolLM3",
        "every fourth layer without positions",
        "unified",
    ),
    "stablelm": Entry(
        "StableLM",
        "a part of each head rotated; per-head norms in the 12B model",
        "unified",
    ),
    "starcoder": Entry(
        "StarCoder, SantaCoder",
        "`gpt2` with one key and value head",
        "unified",
    ),
    "starcoder2": Entry(
        "StarCoder2",
        "biases everywhere",
        "unified",
    ),
    "t5": Entry(
        "T5, Flan-T5",
        "encoder and decoder; biases by distance",
        "cross",
    ),
    "t5encoder": Entry(
        "T5, Flan-T5 encoders",
        "the encoder of `t5` alone",
        "none",
    ),
}


def stored() -> dict[str, dict[str, list[str]]]:
    """Return the case names by architecture and model of the reference data."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for root in (DATA, DATA.parent / "data-2026"):
        for case in json.loads((root / "index.json").read_text())["cases"]:
            if case["kind"] == "steps" and str(case.get("model")).startswith("conformance/"):
                model = Path(case["model"]).parent.name
                arch = read_metadata(root / case["model"])["general.architecture"]
                found[arch][model].append(case["id"].rsplit("/", 1)[-1])
    return found


def compared() -> dict[str, set[str]]:
    """Return the classes of transformers by architecture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from python.oracle import test_oracle, test_oracle_encoders

    found: dict[str, set[str]] = defaultdict(set)
    for one in (*test_oracle.ARCHITECTURES, *test_oracle_encoders.ARCHITECTURES):
        found[one.name].add(one.model)
    t5 = (ROOT / "tests" / "python" / "oracle" / "test_oracle_t5.py").read_text()
    found["t5"] = set(re.findall(r"transformers\.(\w+Generation)\b", t5))
    return found


def table() -> str:
    """Return the whole page."""
    cases, classes = stored(), compared()
    rows = []
    for name in plait.build_info()["architectures"]:
        entry = ARCHITECTURES[name]
        models = "; ".join(f"{model}: {', '.join(ids)}" for model, ids in cases[name].items())
        against = ", ".join(f"`{one}`" for one in sorted(classes[name]))
        first = f"`{name}` | {entry.models} | {entry.particular} | {entry.memory}"
        rows.append(f"| {first} | {models or '-'} | {against or '-'} |\n")
    return HEAD + "".join(rows)


KINDS = {
    "decoders": ("unified", "sliding or unified"),
    "recurrent models and hybrids": ("hybrid", "recurrent"),
    "encoders, encoder-decoders": ("none", "cross"),
}


def readme() -> str:
    """Return README.md with the models that the registry has, by the names that people know."""
    text = (ROOT / "README.md").read_text()
    for kind, memories in KINDS.items():
        entries = [ARCHITECTURES[arch] for arch in plait.build_info()["architectures"]]
        names = sorted({e.models for e in entries if e.memory in memories}, key=str.casefold)
        row = f"| {kind} | {'; '.join(names)} |"
        text, n = re.subn(rf"^\| {kind} \|.*$", lambda _, row=row: row, text, flags=re.MULTILINE)
        if n != 1:
            raise ValueError(f"README.md: expected one row {kind!r}, found {n}")
    n_architectures = len(plait.build_info()["architectures"])
    return re.sub(
        r"^\| architectures \| \d+ \|",
        f"| architectures | {n_architectures} |",
        text,
        flags=re.MULTILINE,
    )


if __name__ == "__main__":
    (ROOT / "docs" / "architectures.md").write_text(table())
    (ROOT / "README.md").write_text(readme())
