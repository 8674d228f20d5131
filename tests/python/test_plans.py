"""Plans: fused and unfused give the same bits, on every model there is."""

from __future__ import annotations

import json

import numpy as np
import plait
import pytest
from python.drive import same_bits

MODELS = [
    "conformance/llama-gqa", "conformance/mixtral", "conformance/qwen2", "conformance/gemma3", "conformance/gpt-oss",
    "conformance/deepseek2", "conformance/mamba", "conformance/jamba", "conformance/falcon-h1", "conformance/rwkv7",
    "conformance/qwen3next", "conformance/bloom", "conformance/phi3", "conformance/cohere2", "quant/Q8_0", "quant/Q4_0",
    "quant/Q4_K", "quant/Q6_K",
]  # fmt: skip


@pytest.fixture(scope="module")
def paths(data_dir):
    """Model files of the reference data, by the beginning of their names."""
    listed = json.loads((data_dir / "index.json").read_text())
    files = sorted({case["model"] for case in listed["cases"] if case.get("model")})
    return {name: next((data_dir / f for f in files if name in f), None) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_fused_plans_give_the_same_bits(paths, name, isa):  # S1-16
    if paths[name] is None:
        pytest.skip(f"no {name} in the reference data")
    try:
        model = plait.Model(paths[name])
    except plait.UnsupportedError as error:
        pytest.skip(str(error))
    ids = np.random.default_rng(1).integers(3, min(model.n_vocab, 500), 40).tolist()
    results = []
    for fuse in (True, False):
        with plait.Context(model, n_ctx=128, n_seq_max=2, isa=isa, fuse=fuse) as ctx:
            assert ctx.fuse is fuse
            batch = plait.Batch()
            batch.add_sequence(ids[:30], seq=0, logits="all")
            batch.add_sequence(ids[30:], seq=1, logits="last")
            prompt = ctx.decode(batch).logits.copy()
            step = plait.Batch()
            step.add(ids[3], seq=0, logits=True)
            step.add(ids[4], seq=1, logits=True)
            results.append((prompt, ctx.decode(step).logits.copy()))
    for fused, plain in zip(*results, strict=True):
        assert same_bits(fused, plain)
