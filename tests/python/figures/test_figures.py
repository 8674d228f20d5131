"""Notebook displays of models, caches and outputs, and the values behind plots."""

import contextlib
import html
import re

import numpy as np
import plait
import pytest
from plait.display.cache_map import Runs, runs_of
from plait.figures import Attention, LogitLens, attention, logit_lens, plot_layers

TEXT = "Tom lives in Oslo. The kite is red. Q: Where does Tom live? A: Tom lives in"


@pytest.fixture
def plt():
    module = pytest.importorskip("matplotlib.pyplot", reason="plait[viz] is not installed")
    module.switch_backend("agg")
    yield module
    module.close("all")


def fill(ctx, lengths, start=5):
    batch = plait.Batch()
    for seq, n in enumerate(lengths):
        batch.add_sequence(range(start, start + n), seq=seq, logits="last")
    return ctx.decode(batch)


def test_runs():
    taken = np.array([1, 1, 0, 1, 0, 0, 0, 1], bool)
    assert runs_of(taken) == Runs(used=4, used_runs=3, free=4, free_runs=2, longest_free=3)
    assert runs_of(np.zeros(5, bool)) == Runs(0, 0, 5, 1, 5)
    assert runs_of(np.ones(5, bool)) == Runs(5, 1, 0, 0, 0)


def squares(html):
    """Return the colours of each square of the map."""
    found = re.findall(r"<g>.*?</g>|<rect [^>]*/>", html)
    return [re.findall(r'fill="([^"]+)"', square) for square in found]


def test_the_map_has_a_square_for_each_row(tiny):
    with plait.Context(tiny, n_ctx=8, n_seq_max=3, kv_cells=20) as ctx:
        fill(ctx, [4])
        ctx.kv.seq_cp(0, 1, 0, 2)
        ctx.kv.seq_rm(0, 3)
        html = ctx.kv._repr_html_()
        drawn = squares(html)
        assert [len(colours) for colours in drawn] == [2, 2, *[1] * 18]
        assert drawn[0] == drawn[1]
        assert drawn[2][0] in drawn[0]
        assert len(set(drawn[3])) == 1
        assert drawn[3] == drawn[19] != drawn[2]
        assert "3 rows in 1 run, 17 free in 1 run" in html
        assert "<title>row 0: sequence 0, 1</title>" in html
        assert html in ctx._repr_html_()


def test_each_stream_has_a_map(tiny):
    with plait.Context(tiny, n_ctx=6, n_seq_max=3, kv="streams") as ctx:
        fill(ctx, [2, 4])
        html = ctx.kv._repr_html_()
        assert "stream 0: 2 rows in 1 run, 4 free in 1 run" in html
        assert "stream 1: 4 rows in 1 run, 2 free in 1 run" in html
        assert "stream 2: 0 rows in 0 runs, 6 free in 1 run" in html


def test_large_caches_have_small_pages(tiny):
    with plait.Context(tiny, n_ctx=100_000, n_seq_max=40) as ctx:
        fill(ctx, [3] * 40)
        html = ctx.kv._repr_html_()
        assert len(html) < 300_000
        assert "rows per square" in html
        assert "and 24 more" in html


def test_the_last_square_may_stand_for_fewer_rows(tiny):
    with plait.Context(tiny, n_ctx=3001, n_batch=3001) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5] * 3001)
        ctx.decode(batch)
        html = ctx.kv._repr_html_()
    assert "2 rows per square" in html
    assert "<title>row 2998: sequence 0</title>" in html
    assert "<title>row 3000: sequence 0</title>" in html
    assert html.count("<title>") == 1501


def test_every_kind_of_memory_has_a_map(any_model):
    with plait.Context(any_model, n_ctx=32, n_seq_max=2) as ctx:
        assert ctx.kv.kind in ctx.kv._repr_html_()
        assert any_model.arch in ctx._repr_html_()
    assert any_model.arch in any_model._repr_html_()


def test_a_recurrent_memory_has_a_square_for_each_state(any_model, plt):
    """Its states are in more rows than it has cells, and move with each step."""
    with plait.Context(any_model, n_ctx=32, n_seq_max=4) as ctx:
        if ctx.kv.kind != "recurrent":
            return
        for n_steps in (1, 2):
            batch = plait.Batch()
            for seq in (0, 2, 3):
                batch.add_sequence([4, 5], seq=seq)
            ctx.decode(batch)
            html = ctx.kv._repr_html_()
            assert "3 rows in 1 run, 1 free in 1 run" in html, n_steps
            assert html.count("<title>") == 3
            (first, *_, last) = sorted(
                path.get_extents().intervalx.tolist()
                for drawn in ctx.kv.plot().collections
                for path in drawn.get_paths()
            )
            assert (first[0], last[1]) == (0, 3)


def test_model_html_escapes_metadata(tmp_path):
    from python import gguf_writer

    metadata = gguf_writer.llama_metadata() | {"general.name": "<script>alert(1)</script>"}
    metadata |= gguf_writer.vocabulary() | {"odd": b"\xff\xfe"}
    path = gguf_writer.write(tmp_path / "evil.gguf", metadata, gguf_writer.llama_weights())
    html = plait.Model(path)._repr_html_()
    assert "<script>" not in html
    html.encode()


def test_output_shows_the_likeliest_tokens(demo_model):
    with plait.Context(demo_model, n_ctx=64) as ctx:
        batch = plait.Batch()
        batch.add_sequence(demo_model.tokenizer.encode(TEXT), logits="last")
        out = ctx.decode(batch)
        html = out._repr_html_()
        assert "Oslo" in html
        p = np.exp(out.logits[0].astype(float))
        assert f"<td>{p.max() / p.sum():.4f}</td>" in html
        assert out.model is demo_model


def test_output_without_logits_or_model(tiny_path):
    model = plait.Model(tiny_path)
    with plait.Context(model, n_ctx=16, embeddings=True, pooling="mean") as ctx:
        out = fill(ctx, [3])
    assert "<table>" not in out._repr_html_()
    with plait.Context(model, n_ctx=64, n_seq_max=10) as ctx:
        out = fill(ctx, [2] * 10)
    assert "and 2 more rows" in out._repr_html_()
    del model, ctx
    assert out.model is None  # an output keeps no weights alive
    assert "<table>" in out._repr_html_()


def test_outputs_that_are_not_distributions(tiny):
    with plait.Context(tiny, n_ctx=16) as ctx:
        out = fill(ctx, [3])
        out.logits[:] = np.nan
        assert "no probabilities" in out._repr_html_()


def test_attention_equals_that_of_the_model(demo_model):
    found = attention(demo_model, TEXT)
    n = len(found.tokens)
    assert found.weights.shape == (demo_model.n_layer, 8, n, n)
    np.testing.assert_allclose(found.weights.sum(axis=3), 1)
    assert (np.triu(found.weights, 1) == 0).all()
    oslo = next(i for i, token in enumerate(found.tokens) if "Oslo" in token)
    assert found.weights[:, :, -1, oslo].max() > 0.5  # some head attends to the answer
    assert (found.spans >= 0).all()
    assert found.spans.max() < n


def test_attention_in_a_context_leaves_nothing(demo_model):
    with plait.Context(demo_model, n_ctx=64, n_seq_max=2) as ctx:
        alone = attention(demo_model, TEXT)
        np.testing.assert_array_equal(attention(ctx, TEXT).weights, alone.weights)
        assert ctx.kv.n_used == 0


@pytest.mark.parametrize("function", [attention, logit_lens])
def test_texts_longer_than_a_batch_are_read_in_parts(demo_model, function):
    with plait.Context(demo_model, n_ctx=64, n_batch=4) as ctx:
        found, alone = function(ctx, TEXT), function(demo_model, TEXT)
    name = "weights" if function is attention else "logprobs"
    np.testing.assert_allclose(getattr(found, name), getattr(alone, name), atol=1e-4)


def test_the_last_layer_of_the_lens_is_the_model(demo_model):
    found = logit_lens(demo_model, TEXT)
    assert found.logprobs.shape == (demo_model.n_layer, len(found.tokens), demo_model.n_vocab)
    np.testing.assert_allclose(np.exp(found.logprobs).sum(axis=2), 1, rtol=1e-4)
    assert "Oslo" in found.best[-1][-1]
    assert found.best[0][-1] != found.best[-1][-1]


def test_other_kinds_of_models_are_refused_or_correct(any_model):
    """Computed attention agrees with the model's own values; other models are refused with a reason."""
    if any_model.metadata.get("tokenizer.ggml.model", "no_vocab") == "no_vocab":
        pytest.skip("has no vocabulary")
    usual = any_model.arch in {"llama", "qwen2", "qwen3"}
    refused = contextlib.nullcontext() if usual else contextlib.suppress(plait.UnsupportedError)
    for function in (attention, logit_lens):
        with refused:
            function(any_model, "the hat")


def test_drawings(demo_model, plt):
    found = attention(demo_model, TEXT)
    assert len(found.plot(0, 1).images) == 1
    assert len(found.plot_spans().texts) == found.spans.size
    lens = logit_lens(demo_model, TEXT)
    ax = lens.plot(last=5)
    assert len(ax.texts) == 5 * demo_model.n_layer
    with plait.Context(demo_model, n_ctx=8, n_seq_max=2, kv="streams") as ctx:
        fill(ctx, [2, 3])
        starts = [
            path.get_extents().x0 for c in ctx.kv.plot().collections for path in c.get_paths()
        ]
        assert starts == [0, 8]


def test_dollars_in_tokens_are_no_formulas(plt):
    tokens = ["$$", "$x$", r"$\bad"]
    drawn = [
        Attention(np.ones((1, 1, 3, 3)), tokens).plot(0, 0),
        LogitLens(np.zeros((1, 3, 2), np.float32), tokens, [tokens]).plot(),
        plot_layers(np.ones((1, 3)), tokens),
    ]
    for ax in drawn:
        ax.figure.canvas.draw()
        shown = [*ax.get_xticklabels(), *ax.texts]
        shown += ax.get_yticklabels() if ax is drawn[0] else []
        assert len(shown) in (3, 6)
        assert not any(text.get_parse_math() for text in shown)


def test_a_map_of_layers_and_tokens_chooses_its_colours_by_the_signs(plt):
    tokens = ["a", "b", "c"]
    positive = plot_layers([[0, 1, 2], [0, 0, 4]], tokens, "logits")
    assert [label.get_text() for label in positive.get_xticklabels()] == tokens
    (image,) = positive.images
    assert (image.cmap.name, *image.get_clim()) == ("Blues", 0, 4)
    assert positive.figure.axes[1].get_ylabel() == "logits"
    signed = plot_layers([[-3, 1, 0]], tokens)
    (image,) = signed.images
    assert (image.cmap.name, *image.get_clim()) == ("RdBu_r", -3, 3)
    assert len(signed.figure.axes) == 1  # without a label, no colour bar
    assert plot_layers([[0, 0, 0]], tokens, limit=2, ax=signed).images[-1].get_clim() == (0, 2)


def test_a_map_that_does_not_fit_its_tokens_is_refused(plt):
    for values in ([1, 2], [[1, 2, 3]], np.zeros((0, 2))):
        with pytest.raises(ValueError, match=r"expected the shape \(n_layer, 2\)"):
            plot_layers(values, ["a", "b"])
    with pytest.raises(ValueError, match="expected finite numbers"):
        plot_layers([[1, np.nan]], ["a", "b"])
    with pytest.raises(ValueError, match="plot_layers: limit"):
        plot_layers([[1, 2]], ["a", "b"], limit=0)


def test_scores_completions_and_batches_have_rich_displays(demo_model):
    (score,) = plait.score(demo_model, "Tom lives in", [" Oslo. <b>"])
    page = score._repr_html_()
    assert page.count("<tr>") == 1 + len(score)
    assert f"{score.logprobs[0]:.4f}" in page
    (completion,) = plait.complete(demo_model, "Tom lives in Oslo. <i>", 4)
    page = completion._repr_html_()
    assert html.escape(completion.text) in page
    assert str(completion.finish_reason) in page
    batch = plait.Batch()
    batch.add_sequence([5, 6], seq=[0, 1], pos=3)
    batch.add_sequence(list(range(40)), seq=1, logits="all")
    page = batch._repr_html_()
    assert "<td>0</td><td>5</td><td>3</td><td>0, 1</td><td></td>" in page
    assert "<td>2</td><td>0</td><td>next</td><td>1</td><td>yes</td>" in page
    assert "and 10 more entries" in page
    assert "0 entries" in plait.Batch()._repr_html_()


def test_the_map_counts_the_sequences_that_hold_cells(tiny):
    with plait.Context(tiny, n_ctx=8, n_seq_max=6) as ctx:
        fill(ctx, [2, 3, 1, 1])
        assert "4 of 6 sequences" in ctx.kv._repr_html_()


def test_the_plot_of_times_is_linear_and_shows_shares(tiny, plt):
    with plait.Context(tiny, n_ctx=8, n_seq_max=2) as ctx:
        fill(ctx, [2, 3])
        ax = ctx.stats.plot()
        total = sum(ctx.stats.seconds.values())
    assert ax.get_xscale() == "linear"
    labels = [text.get_text() for text in ax.texts]
    shares = [f"({seconds / total:.0%})" for seconds in ctx.stats.seconds.values()]
    assert [label.split()[-1] for label in labels] == shares


def test_plots_have_no_background_and_ink_for_light_and_dark_pages(demo_model, plt):
    with plait.Context(demo_model, n_ctx=8) as ctx:
        fill(ctx, [2])
        axes = [ctx.kv.plot(), ctx.stats.plot()]
    axes.append(attention(demo_model, TEXT).plot_spans())
    for ax in axes:
        assert ax.figure.get_facecolor()[3] == 0
        assert ax.get_facecolor()[3] == 0
        for part in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.get_xticklabels()):
            assert part.get_color() == "#808080"
