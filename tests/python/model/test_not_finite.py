"""Weights and logits that are NaN or infinite give NaN or an error, never an invalid index or a hang. Goal G23."""

from __future__ import annotations

import numpy as np
import plait
import pytest
from python.hostile.generators import loaded

from python import gguf_writer

VALUES = {"NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf, "huge": 3e38, "denormal": 1e-42}
WEIGHTS = [
    "token_embd.weight",
    "blk.0.attn_norm.weight",
    "blk.0.attn_k.weight",
    "blk.1.ffn_down.weight",
    "output.weight",
]
SAMPLERS = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1e-30, "top_k": 0},
    {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0},
    {"temperature": 1, "top_k": 1, "top_p": 1e-9, "min_p": 1},
]


def damaged(folder, weight: str, value: float, whole: bool) -> plait.Model:
    weights = gguf_writer.llama_weights()
    weights[weight].reshape(-1)[:: 1 if whole else 97] = value
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    return plait.Model(gguf_writer.write(folder / "m.gguf", metadata, weights))


def expect_words(error: ValueError) -> None:
    assert any(word in str(error).lower() for word in ("nan", "inf"))


def sample_every_way(logits: np.ndarray) -> None:
    """Check that each sampler returns a token of each row, or reports that a row is not finite."""
    for row in logits:
        for options in SAMPLERS:
            try:
                token = plait.Sampler(**options, seed=1)(row)
            except ValueError as error:
                expect_words(error)
                assert not np.isfinite(row).all()
            else:
                assert 0 <= token < len(row)
                assert row[token] > -np.inf


@pytest.mark.goal("G23")
@pytest.mark.parametrize("whole", [False, True], ids=["some", "all"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_way_to_choose_a_token_survives(tmp_path, weight, value, whole):  # G23
    model = damaged(tmp_path, weight, VALUES[value], whole)
    good = plait.Model.demo()
    with plait.Context(model, n_ctx=64) as ctx, plait.Context(good, n_ctx=16) as other:
        batch = plait.Batch()
        batch.add_sequence([1, 5, 6, 7], logits="all")
        want = other.decode(batch).logits.copy()
        logits = ctx.decode(batch).logits
        sample_every_way(logits)
        for sampler in (None, plait.Sampler(seed=1)):
            try:
                events = list(plait.generate(model, [[1, 5]], max_tokens=4, sampler=sampler))
            except ValueError as error:
                expect_words(error)
            else:
                assert all(0 <= event.token < model.n_vocab for event in events)
        other.kv.clear()
        assert np.array_equal(other.decode(batch).logits, want)


@pytest.mark.goal("G23")
def test_every_sampler_survives_data_of_any_bits(data_dir, tmp_path, record_property):  # G23
    """The files of the generator of defects whose weights are all zero, all ones, or one number throughout."""
    program = data_dir.parent / "check" / "hostile" / "make_hostile.py"
    if not program.is_file():
        pytest.skip("no generators of defects (check/hostile) beside the reference data")
    maker = loaded(program).Maker((data_dir / "models" / "stories260K-f32.gguf").read_bytes(), 1)
    path, n = tmp_path / "m.gguf", 0
    for _, name, expect, data in maker.all():
        if expect == "raise" or not name.startswith("data_"):
            continue
        path.write_bytes(data)
        with plait.Context(plait.Model(path), n_ctx=64) as ctx:
            batch = plait.Batch()
            batch.add_sequence([1, 5, 6, 7], logits="all")
            sample_every_way(ctx.decode(batch).logits)
        n += 1
    assert n >= 5
    record_property(
        "figure",
        f"{n} files with data of any bits and {len(SAMPLERS)} samplers: a token or an error",
    )
