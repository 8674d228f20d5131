"""The layer for multi-token prediction, compared with llama.cpp; see test_llama_cpp.py."""

import os
import subprocess
from pathlib import Path

import numpy as np
import plait
import pytest
from plait.output_norm import OutputNorm
from python.drafting_models import MODELS, add_layer, source
from python.drive import tokens

PEER = os.environ.get("PLAIT_LLAMA_CPP")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PEER, reason="PLAIT_LLAMA_CPP names no interpreter"),
]


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_logits_are_those_of_llama_cpp(data_dir, tmp_path, name):
    model = add_layer(source(data_dir, name), tmp_path / "m.gguf")
    ids = tokens(12, 3, model.n_vocab)
    program = Path(__file__).with_name("llama_cpp_mtp.py")
    numbers, outputs = ",".join(map(str, ids)), tmp_path / "found.npz"
    subprocess.run([str(PEER), program, model.path, numbers, outputs], check=True, timeout=120)
    want = np.load(outputs)
    options = {"n_ctx": 16, "type_k": "f32", "type_v": "f32"}
    with (
        plait.Context(model, **options) as ctx,
        ctx.capture(f"blk.{model.n_layer - 1}.l_out") as seen,
    ):
        batch = plait.Batch()
        batch.add_sequence(ids)
        ctx.decode(batch)
    hidden = OutputNorm(model)(seen[f"blk.{model.n_layer - 1}.l_out"])
    layers = range(model.n_layer, model.n_layer + 1)
    with plait.Context(model, layers=layers, embeddings=True, pooling="none", **options) as layer:
        embeddings = model.tensor_rows("token_embd.weight", ids[1:])
        batch = plait.Batch()
        batch.add_embeddings(np.concatenate([hidden[:-1], embeddings], axis=1), logits="all")
        out = layer.decode(batch)
    for got, name in ((hidden, "hidden"), (out.embeddings, "states"), (out.logits, "logits")):
        np.testing.assert_allclose(got, want[name], rtol=0, atol=2e-3 * np.abs(want[name]).max())
