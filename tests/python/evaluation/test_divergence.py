"""kl_divergence(), assert_close_models() and `plait compare`: against NumPy, in windows, and their errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import plait
import pytest
from plait.evaluation.divergence import KLDivergence, divergence
from plait.testing import assert_close_models

from python import gguf_writer

IDS = np.random.default_rng(5).integers(3, 280, 50).tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[plait.Model, plait.Model]:
    """A model and a copy with slightly different weights."""
    folder = tmp_path_factory.mktemp("pair")
    one = plait.Model(gguf_writer.tiny_llama(folder / "one.gguf"))
    weights = gguf_writer.llama_weights()
    rng = np.random.default_rng(2)
    for name, values in weights.items():
        if "ffn" in name:
            weights[name] = (values * (1 + 0.05 * rng.standard_normal(values.shape))).astype(
                np.float32
            )
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    return one, plait.Model(gguf_writer.write(folder / "other.gguf", metadata, weights))


def rows(model: plait.Model, ids: list[int]) -> np.ndarray:
    with plait.Context(model, n_ctx=len(ids)) as ctx:
        batch = plait.Batch()
        batch.add_sequence(ids, logits="all")
        logits = ctx.decode(batch).logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("window", "stride"), [(None, None), (20, 10), (20, 7), (13, 12)])
def test_the_divergence_is_that_of_numpy(
    pair: tuple[plait.Model, plait.Model], window: int | None, stride: int | None
) -> None:
    found = plait.kl_divergence(*pair, IDS, window=window, stride=stride)
    expected, agree = [], []
    begin, scored = 0, 1
    size = window or len(IDS)
    while scored < len(IDS):
        end = min(begin + size, len(IDS))
        p, q = (rows(model, IDS[begin:end])[scored - 1 - begin : -1] for model in pair)
        expected += (np.exp(p) * (p - q)).sum(axis=1).tolist()
        agree += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
        scored, begin = end, begin + (stride or size // 2)
    assert np.allclose(found.values, expected, atol=1e-9)
    assert found.n_tokens == len(IDS) - 1 == len(expected)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.median == pytest.approx(np.median(expected))
    assert found.p99 == pytest.approx(np.percentile(expected, 99))
    assert found.max == pytest.approx(np.max(expected))
    assert found.stderr == pytest.approx(np.std(expected) / np.sqrt(len(expected) - 1))
    assert found.top1 == pytest.approx(np.mean(agree))
    assert found.mean > 1e-4
    assert f"{found.mean:.6f}" in str(found)


def test_a_model_does_not_diverge_from_itself(pair: tuple[plait.Model, plait.Model]) -> None:
    found = plait.kl_divergence(pair[0], pair[0], "in the end the hat")
    assert (found.values == 0).all()
    assert found.top1 == 1
    assert np.isnan(plait.kl_divergence(pair[0], pair[0], [5, 6]).stderr)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([0, -800], [0, -np.inf], 0), ([0, -5], [0, -np.inf], np.inf), ([0, -np.inf], [0, -np.inf], 0),
        ([0, -np.inf], [0, 0], np.log(2)),
    ],
)  # fmt: skip
def test_impossible_tokens(p: list[float], q: list[float], expected: float) -> None:
    assert divergence(p, q) == pytest.approx(expected, abs=1e-12)


def test_contexts_keep_their_sequences(pair: tuple[plait.Model, plait.Model]) -> None:
    with (
        plait.Context(pair[0], n_ctx=64, n_seq_max=2) as a,
        plait.Context(pair[1], n_ctx=64, n_seq_max=2, type_k="q8_0") as b,
    ):
        held = a.sequence()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=held)
        a.decode(batch)
        before = a.kv.to_bytes()
        seen = []
        plait.kl_divergence(a, b, IDS, progress=lambda done, total: seen.append((done, total)))
        assert a.kv.to_bytes() == before
        assert b.kv.n_used == 0
        assert seen[-1] == (49, 49)


def test_misuse(pair: tuple[plait.Model, plait.Model], demo_model: plait.Model) -> None:
    one, other = pair
    with pytest.raises(ValueError, match="both must have the same vocabulary"):
        plait.kl_divergence(one, demo_model, "a")
    with pytest.raises(ValueError, match="kl_divergence: the text has 1 tokens"):
        plait.kl_divergence(one, other, [5])
    with pytest.raises(ValueError, match="kl_divergence: window is 1"):
        plait.kl_divergence(one, other, IDS, window=1)
    with pytest.raises(ValueError, match="kl_divergence: stride is 20"):
        plait.kl_divergence(one, other, IDS, window=20, stride=20)
    with pytest.raises(TypeError, match="kl_divergence: candidate: expected a Model"):
        plait.kl_divergence(one, "other.gguf", IDS)


def test_models_that_are_close_and_not(pair: tuple[plait.Model, plait.Model]) -> None:
    assert assert_close_models(pair[0], pair[0]).mean == 0
    found = assert_close_models(*pair, kl=10, top1=0)
    with pytest.raises(AssertionError) as failure:
        assert_close_models(*pair, kl=found.mean / 2, top1=1)
    message = str(failure.value)
    assert f"the mean divergence is {found.mean:.6f} nats, more than kl = " in message
    assert "less than top1 = 100.00%" in message
    assert f"after tokens {int(found.values.argmax()) + 1} (" in message
    with pytest.raises(ValueError, match="top1"):
        assert_close_models(*pair, top1=2)


def test_a_divergence_that_is_not_a_number_is_not_close(
    pair: tuple[plait.Model, plait.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = KLDivergence(np.array([np.nan, 0]), 1.0)
    monkeypatch.setattr("plait.testing.models.kl_divergence", lambda *_: found)
    with pytest.raises(AssertionError, match="the mean divergence is nan"):
        assert_close_models(*pair, kl=10, top1=0)


def test_models_without_a_vocabulary(tmp_path: Path) -> None:
    metadata = gguf_writer.llama_metadata() | {"tokenizer.ggml.model": "no_vocab"}
    path = gguf_writer.write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights())
    model = plait.Model(path)
    assert assert_close_models(model, model).n_tokens > 20


def test_the_command(
    pair: tuple[plait.Model, plait.Model], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.cli import main

    text = tmp_path / "text.txt"
    text.write_text("in the end the hat is on the cat")
    assert main(["compare", pair[0].path, pair[1].path, "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"KL divergence +0\.\d", shown)
    assert re.search(r"first difference +blk\.0\.", shown)
    assert main(["compare", pair[0].path, pair[1].path, "--text", str(text), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    ids = pair[0].tokenizer.encode(text.read_text())
    expected = plait.kl_divergence(*pair, ids)
    assert facts["kl"] == pytest.approx(expected.mean)
    assert facts["tokens"] == expected.n_tokens
    assert facts["first_difference"][0] == 0
    assert main(["compare", pair[0].path, pair[0].path, "--text", str(text)]) == 0
    assert "all values have the same bits" in capsys.readouterr().out


def test_the_command_lists_values_without_an_angle_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.cli import main

    weights = gguf_writer.llama_weights()
    weights["blk.1.ffn_down.weight"][:] = 0
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    paths = [
        str(gguf_writer.tiny_llama(tmp_path / "one.gguf")),
        str(gguf_writer.write(tmp_path / "zero.gguf", metadata, weights)),
    ]
    text = tmp_path / "text.txt"
    text.write_text("in the end")
    assert main(["compare", *paths, "--text", str(text), "--values", "1"]) == 0
    name, *_, cosine = capsys.readouterr().out.splitlines()[-1].split()
    assert (name, cosine) == ("blk.1.ffn_out", "nan")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert main(["compare", *paths, "--text", str(text), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out, parse_constant=refuse)
    cosines = {row["name"]: row["cosine"] for row in facts["values"]}
    assert cosines["blk.1.ffn_out"] is None
    assert cosines["blk.0.ffn_out"] == 1


def test_the_command_refuses_models_that_encode_the_text_differently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.cli import main

    vocabulary = gguf_writer.vocabulary()
    tokens = vocabulary["tokenizer.ggml.tokens"]
    i, j = tokens.index("e"), tokens.index("t")
    tokens[i], tokens[j] = tokens[j], tokens[i]
    metadata = gguf_writer.llama_metadata() | vocabulary
    one = gguf_writer.tiny_llama(tmp_path / "one.gguf")
    other = gguf_writer.write(tmp_path / "other.gguf", metadata, gguf_writer.llama_weights())
    text = tmp_path / "text.txt"
    text.write_text("eat")
    assert main(["compare", str(one), str(other), "--text", str(text)]) == 1
    assert "encode the text differently" in capsys.readouterr().err
