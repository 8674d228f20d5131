"""compare(): the first difference, the statistics of each value against NumPy, and what stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait
import pytest
from plait.numerics import log_softmax

from python import gguf_writer

IDS = np.random.default_rng(3).integers(3, 280, 40).tolist()


def read(ctx: plait.Context) -> tuple[dict[str, np.ndarray], np.ndarray]:
    with ctx.sequence() as seq, ctx.capture("*") as seen:
        batch = plait.Batch()
        batch.add_sequence(IDS, seq=seq, logits="all")
        logits = ctx.decode(batch).logits.copy()
    return dict(seen), logits


def test_equal_runs(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(tiny, n_ctx=64, kv="streams") as b:
        report = plait.compare(a, b, IDS)
        assert report.first_difference is None
        assert report.kl == report.max_logit_error == 0
        assert report.top1_agreement == 1
        assert (report.layers["max_abs"] == 0).all()
        assert (report.layers["cosine"] == 1).all()
        assert "same bits" in str(report)
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        assert plait.compare(ctx, ctx, IDS).first_difference is None


def test_the_statistics_are_those_of_numpy(
    tiny: plait.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the tokens are processed in parts."""
    import plait.evaluation.comparison as module

    monkeypatch.setattr(module, "_MAX_BYTES", 40_000)
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(tiny, n_ctx=64, type_v="q4_0") as b:
        known = [name for name in a.value_names() if not name.endswith("attn_pattern")]
        report = plait.compare(a, b, IDS)
        ours, theirs = read(a), read(b)
    assert report.n_tokens == len(IDS)
    names = report.layers["name"].tolist()
    assert names == known
    for row in report.layers:
        x, y = (side[0][row["name"]].astype(np.float64).ravel() for side in (ours, theirs))
        assert row["max_abs"] == pytest.approx(np.abs(x - y).max())
        assert row["rms"] == pytest.approx(np.sqrt(np.mean((x - y) ** 2)))
        assert row["cosine"] == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    first = next(name for name in names if not np.array_equal(ours[0][name], theirs[0][name]))
    apart = (ours[0][first] != theirs[0][first]).reshape(len(IDS), -1).any(axis=1)
    layer = int(first.split(".")[1])
    assert report.first_difference == (layer, first, int(apart.argmax()))
    assert report.max_logit_error == pytest.approx(np.abs(ours[1] - theirs[1]).max())
    p, q = (log_softmax(rows) for rows in (ours[1], theirs[1]))
    assert report.kl == pytest.approx((np.exp(p) * (p - q)).sum(axis=1).mean(), rel=1e-6)
    assert report.top1_agreement == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    assert first in str(report)


def test_the_summary_begins_with_values_without_an_angle(tiny: plait.Model) -> None:
    with (
        plait.Context(tiny, n_ctx=64) as a,
        plait.Context(tiny, n_ctx=64) as b,
        b.edit("ffn_out.1", np.zeros(tiny.n_embd, np.float32), "replace"),
    ):
        report = plait.compare(a, b, IDS)
    cosines = report.layers["cosine"]
    assert np.isnan(cosines).sum() == 1
    shown = [float(line.split()[-1]) for line in str(report).splitlines()[2:]]
    expected = [np.nan, *np.sort(cosines)[:4]]
    np.testing.assert_allclose(shown, expected, atol=1e-6)


def test_parts_fit_both_contexts(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(tiny, n_ctx=64, n_batch=4) as b:
        assert plait.compare(a, b, IDS).first_difference is None
        assert plait.compare(b, a, IDS).first_difference is None


def test_an_edit_is_found(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(tiny, n_ctx=64) as b:
        with b.edit("l_out.1", np.full(tiny.n_embd, 0.5, np.float32)):
            report = plait.compare(a, b, IDS)
        assert report.first_difference is not None
        layer, name, position = report.first_difference
        assert (layer, position) == (1, 0)
        assert name == "blk.1.l_out"
        row = report.layers[report.layers["name"] == name][0]
        assert row["rms"] == pytest.approx(0.5, rel=1e-4)
        assert plait.compare(a, b, IDS).first_difference is None


def test_caches_are_as_before(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as a, plait.Context(tiny, n_ctx=64) as b:
        held = a.sequence()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=held)
        a.decode(batch)
        before = a.kv.to_bytes()
        plait.compare(a, b, "in the end")
        assert a.kv.to_bytes() == before
        assert b.kv.n_used == 0


def test_misuse(tiny: plait.Model, demo_model: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=16) as a, plait.Context(demo_model, n_ctx=64) as b:
        with pytest.raises(ValueError, match="compare: the models differ: n_layer is"):
            plait.compare(a, b, "a")
        with pytest.raises(
            ValueError, match="compare: the text has 40 tokens; it must have 1 to n_ctx = 16"
        ):
            plait.compare(a, a, IDS)
        with pytest.raises(TypeError, match="compare: ctx_b: expected a Context"):
            plait.compare(a, tiny, IDS)
        with pytest.raises(ValueError, match="the text has 0 tokens"):
            plait.compare(a, a, [])
        held = a.sequence()
        with pytest.raises(plait.CacheFull):
            plait.compare(a, a, [5, 6])
        held.close()


def test_models_of_other_shapes_are_refused(tiny: plait.Model, tmp_path: Path) -> None:
    half = gguf_writer.N_FFN // 2
    metadata = gguf_writer.llama_metadata() | {"llama.feed_forward_length": half}
    weights = gguf_writer.llama_weights()
    for name, rows in weights.items():
        if "ffn_down" in name:
            weights[name] = np.ascontiguousarray(rows[:, :half])
        elif "ffn_gate" in name or "ffn_up" in name:
            weights[name] = rows[:half]
    path = gguf_writer.write(tmp_path / "half.gguf", metadata | gguf_writer.vocabulary(), weights)
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(plait.Model(path), n_ctx=64) as b:
        message = (
            rf"the models differ: the shape of blk\.0\.ffn_up is \({2 * half},\) and \({half},\)"
        )
        with pytest.raises(ValueError, match=message):
            plait.compare(a, b, IDS)


def test_the_plot(tiny: plait.Model) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with plait.Context(tiny, n_ctx=64) as a, plait.Context(tiny, n_ctx=64, type_k="q4_0") as b:
        ax = plait.compare(a, b, IDS).plot()
        assert ax.get_yscale() == "log"
        assert len(ax.get_lines()) > 5
        assert plait.compare(a, b, IDS[:3]).plot(ax) is ax
    pyplot.close(ax.figure)
