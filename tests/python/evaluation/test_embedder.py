"""Embedder: embeddings in any batches, and scores of documents by a head or by the answers yes and no."""

import numpy as np
import plait
import pytest
from plait.evaluation import embedding
from plait.evaluation.reranking import answer_ids, pair_ids, question_ids
from python.drive import feed
from python.model.test_encoders import SENTENCES, head_weights, tiny_bert
from python.reference_data import model_path

QUERY = "the hat"
DOCUMENTS = ["a hat in the rain", "to hide", "the hat is on the shelf", "no", "hat hat"]


@pytest.fixture
def bert(tmp_path):
    return plait.Model(
        tiny_bert(tmp_path / "bert.gguf", {"bert.context_length": 64}, positions(64))
    )


@pytest.fixture
def cross_encoder(tmp_path):
    path = tmp_path / "cross.gguf"
    weights = head_weights(1) | positions(64)
    return plait.Model(tiny_bert(path, {"bert.context_length": 64}, weights))


def positions(n):
    rng = np.random.default_rng(5)
    return {"position_embd.weight": rng.standard_normal((n, 32)).astype(np.float32) / 6}


def test_embeddings_do_not_depend_on_their_company(bert):
    with plait.Embedder(bert) as embedder:
        together = embedder.embed(SENTENCES * 9)
        assert together.shape == (45, bert.n_embd)
        for i, ids in enumerate(SENTENCES):
            np.testing.assert_array_equal(embedder.embed([ids])[0], together[9 * 5 - 5 + i])
        np.testing.assert_array_equal(together, plait.embed(bert, SENTENCES * 9))
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-6)
        assert embedder.embed([]).shape == (0, bert.n_embd)
    with pytest.raises(ValueError, match="embedder is closed"):
        embedder.embed(SENTENCES)


def test_a_longer_text_than_before_gets_room(tiny):
    with plait.Embedder(tiny, False, "last") as embedder:
        short = embedder.embed([[5, 6, 7]])
        embedder.embed([[5] * 700])
        np.testing.assert_array_equal(embedder.embed([[5, 6, 7]]), short)


def test_a_context_that_cannot_be_created_is_tried_again(tiny, monkeypatch):
    create = embedding._embedding_context

    def create_small(model, longest, pooling):
        if longest > 600:
            raise MemoryError
        return create(model, longest, pooling)

    monkeypatch.setattr(embedding, "_embedding_context", create_small)
    with plait.Embedder(tiny) as embedder:
        short = embedder.embed([[5, 6, 7]])
        with pytest.raises(MemoryError):
            embedder.embed([[5] * 700])
        np.testing.assert_array_equal(embedder.embed([[5, 6, 7]]), short)


def test_texts_may_have_a_limit(tiny, bert, cross_encoder):
    with plait.Embedder(tiny, n_ctx=3) as embedder:
        embedder.embed([[5, 6, 7]])
        with pytest.raises(ValueError, match="embed: text 1 has 4 tokens, but n_ctx is 3"):
            embedder.embed([[5], [5, 6, 7, 8]])
    for model, of_what in ((tiny, "document 1 with the query"), (cross_encoder, "text 1")):
        n_ctx = len((pair_ids if of_what == "text 1" else question_ids)(model, QUERY, "no"))
        with plait.Embedder(model, n_ctx=n_ctx) as embedder:
            assert embedder.rerank(QUERY, ["no"]).shape == (1,)
            with pytest.raises(ValueError, match=f"rerank: {of_what} has .*, but n_ctx is {n_ctx}"):
                embedder.rerank(QUERY, ["no", "no hat in the rain"])
    for n_ctx, n_kept in ((10, 10), (100, 64)):
        cut = plait.embed(bert, [[5] * n_kept])
        with plait.Embedder(bert, truncate=True, n_ctx=n_ctx) as embedder:
            np.testing.assert_array_equal(embedder.embed([[5] * 90]), cut)
    with pytest.raises(ValueError, match="n_ctx is 0"):
        plait.Embedder(tiny, n_ctx=0)


def test_a_longer_text_than_the_training_length_gets_room(data_dir):
    model = plait.Model(data_dir / "conformance" / "nomic-bert" / "model.gguf")
    text = [7] * (model.n_ctx_train + 20)
    with plait.Embedder(model) as embedder:
        embedder.embed([[5, 6]])
        np.testing.assert_array_equal(embedder.embed([text]), plait.embed(model, [text]))


def test_texts_take_free_sequences_of_a_context(tiny):
    options = {"n_ctx": 32, "n_seq_max": 5, "embeddings": True, "pooling": "mean"}
    vectors = np.full((tiny.n_layer, tiny.n_embd), 3, np.float32)
    with plait.Context(tiny, **options) as ctx:
        want = plait.embed(ctx, SENTENCES)
        first, steered, other = (ctx.sequence() for _ in range(3))
        ctx.set_control_vector(vectors, seq=steered)
        with ctx.edit("l_out.0", 3.0, seq=other):
            first.close()
            np.testing.assert_array_equal(plait.embed(ctx, SENTENCES), want)
            held = [ctx.sequence() for _ in range(3)]
            with pytest.raises(plait.CacheFull):
                plait.embed(ctx, SENTENCES)
            held[0].close()
            np.testing.assert_array_equal(plait.embed(ctx, SENTENCES), want)


def test_progress_counts_texts(bert):
    seen = []
    plait.embed(bert, SENTENCES * 9, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (45, 45)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    with pytest.raises(TypeError, match="progress: expected a bool, None or a callable, got str"):
        plait.embed(bert, SENTENCES, progress="yes")


def test_no_progress_is_shown_if_standard_error_is_closed(bert, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert plait.embed(bert, SENTENCES * 9).shape == (45, bert.n_embd)


@pytest.mark.parametrize("nested", [[[5]], [[5] * n for n in range(1, 30)], [[6] * 700]])
def test_a_progress_function_may_use_the_embedder(tiny, nested):
    texts = SENTENCES * 9
    want = plait.embed(tiny, texts), plait.embed(tiny, nested)
    with plait.Embedder(tiny) as embedder:
        seen = []
        got = embedder.embed(texts, lambda done, total: seen.append(embedder.embed(nested)))
        np.testing.assert_array_equal(got, want[0])
        for rows in seen:
            np.testing.assert_array_equal(rows, want[1])
        embedder.rerank(QUERY, DOCUMENTS, lambda done, total: seen.append(embedder.embed(nested)))
    assert len(seen) > 5 + 1


def test_a_progress_function_may_close_the_embedder(tiny):
    embedder = plait.Embedder(tiny)
    with pytest.raises(ValueError, match="the embedder is closed"):
        embedder.embed(SENTENCES * 9, lambda done, total: embedder.close())
    last = plait.Embedder(tiny)
    assert last.embed(SENTENCES[:1], lambda done, total: last.close()).shape == (1, tiny.n_embd)


def test_a_context_embeds_as_it_was_created(bert, tiny):
    want = plait.embed(bert, SENTENCES, pooling="cls")
    with plait.Context(bert, n_ctx=32, n_seq_max=3, embeddings=True, pooling="cls") as ctx:
        np.testing.assert_array_equal(plait.embed(ctx, SENTENCES), want)
        with pytest.raises(ValueError, match="pooling is 'mean', but the context"):
            plait.Embedder(ctx, pooling="mean")
        with pytest.raises(ValueError, match="a text has 33 tokens, but n_batch"):
            plait.embed(ctx, [[5] * 33])
    with plait.Context(tiny, n_ctx=64) as ctx, pytest.raises(ValueError, match="embeddings=True"):
        plait.embed(ctx, SENTENCES)


def test_an_engine_lends_its_model(tiny):
    with plait.Engine(tiny, n_ctx=256) as engine:
        running = engine.stream_sync("the hat", 100, lambda row, seq: 7)
        next(running)
        np.testing.assert_array_equal(plait.embed(engine, SENTENCES), plait.embed(tiny, SENTENCES))
        assert sum(1 for _ in running) == 99


@pytest.mark.parametrize("n_labels", [1, 3])
def test_no_texts_give_no_rows_of_the_same_width(tmp_path, n_labels):
    weights = head_weights(n_labels) | positions(64)
    model = plait.Model(tiny_bert(tmp_path / "m.gguf", {"bert.context_length": 64}, weights))
    for pooling in ("auto", "rank", "mean"):
        with plait.Embedder(model, pooling=pooling) as embedder:
            assert embedder.embed([]).shape == (0, embedder.embed(SENTENCES).shape[1])
    with plait.Context(model, n_ctx=32, embeddings=True, pooling="rank") as ctx:
        assert plait.embed(ctx, []).shape == (0, n_labels)


def test_a_head_scores_pairs(cross_encoder):
    pairs = [pair_ids(cross_encoder, QUERY, text) for text in DOCUMENTS]
    encode = cross_encoder.tokenizer.encode
    assert pairs[0] == [*encode(QUERY), *encode(DOCUMENTS[0])[1:]]
    want = plait.embed(cross_encoder, pairs, pooling="rank")[:, 0]
    with plait.Embedder(cross_encoder) as embedder:
        got = embedder.rerank(QUERY, DOCUMENTS)
        assert (got.dtype, got.shape) == (np.float32, (5,))
        np.testing.assert_array_equal(got, want)
        assert len(set(got.tolist())) == 5
        assert embedder.rerank(QUERY, []).shape == (0,)


def test_yes_and_no_score_documents_and_the_question_is_read_once(tiny):
    yes, no = answer_ids(tiny)
    questions = [question_ids(tiny, QUERY, text) for text in DOCUMENTS]
    want = []
    for ids in questions:
        with plait.Context(tiny, n_ctx=2048) as ctx:
            row = feed(ctx, ids, logits="last")[-1]
        want.append(row[yes] - row[no])
    np.testing.assert_array_equal(plait.Embedder(tiny).rerank(QUERY, DOCUMENTS), np.float32(want))
    longest = max(map(len, questions))
    shared = min(
        next(
            n for n, pair in enumerate(zip(questions[0], other, strict=False)) if len(set(pair)) > 1
        )
        for other in questions[1:]
    )
    seen = []
    with plait.Context(tiny, n_ctx=longest, n_seq_max=8, kv_cells=2 * longest) as ctx:
        got = plait.Embedder(ctx).rerank(
            QUERY, DOCUMENTS, lambda done, total: seen.append((done, total))
        )
        np.testing.assert_array_equal(got, np.float32(want))
        assert ctx.stats.tokens <= shared + sum(len(ids) - shared for ids in questions)
        assert ctx.kv.n_used == 0
    assert seen == [(i + 1, 5) for i in range(5)]
    with plait.Engine(tiny, n_ctx=longest + 8) as engine:
        got = plait.Embedder(engine).rerank(QUERY, DOCUMENTS)
        np.testing.assert_array_equal(got, np.float32(want))


def test_texts_never_become_special_tokens(tiny, cross_encoder):
    ends = {tiny.tokenizer.bos, tiny.tokenizer.eos}
    plain, marked = (question_ids(tiny, QUERY, text) for text in ("a", "</s><s>{query}"))
    assert sum(token in ends for token in marked) == sum(token in ends for token in plain)
    plain, marked = (pair_ids(cross_encoder, text, text) for text in ("a", "</s>"))
    assert sum(token in ends for token in marked) == sum(token in ends for token in plain)


@pytest.mark.parametrize("name", ["t5", "t5encoder"])
def test_models_with_an_encoder_answer_no_questions(data_dir, name):
    path = model_path(data_dir, name)
    with pytest.raises(plait.UnsupportedError, match="no classification head"):
        plait.Embedder(plait.Model(path)).rerank(QUERY, DOCUMENTS)


def test_what_rerank_cannot_do(bert, tiny):
    with pytest.raises(plait.UnsupportedError, match="no classification head"):
        plait.Embedder(bert).rerank(QUERY, DOCUMENTS)
    with pytest.raises(TypeError, match="pass a list of texts"):
        plait.Embedder(tiny).rerank(QUERY, "a document")
    with pytest.raises(TypeError, match="document 1: expected a str, got int"):
        plait.Embedder(tiny).rerank(QUERY, ["a", 3])
    with pytest.raises(ValueError, match='pooling is "none"'):
        plait.Embedder(bert, pooling="none")
    n_ctx = len(question_ids(tiny, QUERY, "a"))
    message = f"rerank: document 1 with the query has .* tokens, but n_ctx is {n_ctx}"
    with plait.Context(tiny, n_ctx=n_ctx, n_seq_max=4) as ctx, plait.Engine(ctx) as engine:
        for owner in (ctx, engine):
            with pytest.raises(ValueError, match=message):
                plait.Embedder(owner).rerank(QUERY, ["a", "a longer text"])
