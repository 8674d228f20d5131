"""Quantised files of the embedded model have the perplexity that llama.cpp finds for them.

Run where llama-cpp-python is installed: pytest -m oracle tests/python/oracle/test_oracle_perplexity.py
"""

import numpy as np
import plait
import pytest
from plait.demo import corpus
from plait.files.quantize import quantize_file

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of third-party code
]

N_CTX = 256


@pytest.fixture(scope="module")
def text():
    return "\n".join(story.text for story in corpus.stories(7, 120, "unseen"))


@pytest.fixture(scope="module")
def model():
    return plait.Model.demo()


def windows(model, text):
    ids = model.tokenizer.encode(text)
    return [ids[i : i + N_CTX] for i in range(0, len(ids) - N_CTX, N_CTX)]


def mean_loss(logits_of, texts):
    losses = []
    for ids in texts:
        logits = logits_of(ids).astype(np.float64)
        peak = logits.max(axis=1, keepdims=True)
        log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
        losses.append((log_sum[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]).mean())
    return float(np.mean(losses))


def of_plait(path):
    ctx = plait.Context(plait.Model(path), n_ctx=N_CTX)

    def logits(ids):
        ctx.kv.clear()
        batch = plait.Batch()
        batch.add_sequence(ids, logits="all")
        return ctx.decode(batch).logits

    return logits


def of_llama_cpp(path):
    llama_cpp = pytest.importorskip("llama_cpp")
    llama = llama_cpp.Llama(str(path), n_ctx=N_CTX, n_batch=N_CTX, logits_all=True, verbose=False)

    def logits(ids):
        llama.reset()
        llama.eval([int(i) for i in ids])
        return np.array(llama.scores[: len(ids)])

    return logits


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_K", "Q6_K"])
def test_perplexity_equals_that_of_llama_cpp(model, text, tmp_path, dtype):
    path = tmp_path / "model.gguf"
    quantize_file(model, path, dtype, requantize=True)
    texts = windows(model, text)
    mine, theirs = (np.exp(mean_loss(of(path), texts)) for of in (of_plait, of_llama_cpp))
    print(f"{dtype}: {mine:.4f}, llama.cpp {theirs:.4f}")
    assert mine == pytest.approx(theirs, rel=0.005)
