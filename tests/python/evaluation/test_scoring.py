"""score(), token_logprobs(), perplexity() and embed(): the results equal those of decoding the full text."""

import math

import numpy as np
import plait
import pytest
from plait.evaluation.scoring import score_pairs
from python.drive import feed, tokens
from python.model.test_encoders import tiny_bert

from python import gguf_writer


@pytest.fixture
def bert(tmp_path):
    return plait.Model(tiny_bert(tmp_path / "bert.gguf"))


CONTINUATIONS = [" hat", " in the end", "t", " then he told her", "ere", " so so so"]


def log_softmax(rows):
    rows = rows.astype(np.float64)
    highest = rows.max(axis=-1, keepdims=True)
    return rows - highest - np.log(np.exp(rows - highest).sum(axis=-1, keepdims=True))


def whole(model, ids, first, **options):
    """Return (log-probabilities, greedy flags) of ids[first:], decoded in one call."""
    with plait.Context(model, n_ctx=512, **options) as ctx:
        rows = feed(ctx, ids)[first - 1 : -1]
    targets = np.asarray(ids[first:])
    return (
        log_softmax(rows)[np.arange(len(targets)), targets],
        rows.argmax(axis=1) == targets,
        rows,
    )


def check(model, score, ids, first):
    logprobs, greedy, _ = whole(model, ids, first)
    assert score.tokens.tolist() == ids[first:]
    assert score.logprobs.tobytes() == logprobs.tobytes()
    assert (score.greedy == greedy).all()
    assert float(score) == score.logprob == math.fsum(logprobs)
    assert score.is_greedy == greedy.all()


class TestScore:
    def test_scores_equal_those_of_the_full_prompt(self, demo_model):
        encode = demo_model.tokenizer.encode
        context = "Once upon a time there was a"
        alone = encode(context).tolist()
        for text, score in zip(
            CONTINUATIONS, plait.score(demo_model, context, CONTINUATIONS), strict=True
        ):
            ids = encode(context + text).tolist()
            first = next(
                (i for i, (a, b) in enumerate(zip(alone, ids, strict=False)) if a != b), len(alone)
            )
            check(demo_model, score, ids, first)

    def test_a_token_across_the_boundary_counts_as_a_whole(self, demo_model):
        encode = demo_model.tokenizer.encode
        text = "Once upon a time there was"
        cut = next(
            n
            for n in range(8, len(text))
            if encode(text[:n]).tolist() != encode(text).tolist()[: len(encode(text[:n]))]
        )
        (score,) = plait.score(demo_model, text[:cut], [text[cut:]])
        ids, alone = encode(text).tolist(), encode(text[:cut]).tolist()
        first = next(i for i, (a, b) in enumerate(zip(ids, alone, strict=False)) if a != b)
        assert first < len(alone)
        check(demo_model, score, ids, first)

    def test_ids_in_every_kind_of_memory(self, any_model):
        with plait.Context(any_model, n_ctx=32) as ctx:
            if ctx.kv.kind in ("none", "cross"):
                pytest.skip("an encoder, or a decoder that needs one")
        n_vocab = min(any_model.n_vocab, 288)
        context, tails = tokens(40, 1, n_vocab), [tokens(n, n, n_vocab) for n in (1, 7, 3, 12)]
        # n_ctx as that of whole(): LongRoPE chooses its factors by it.
        with plait.Context(any_model, n_ctx=512, n_seq_max=5) as ctx:
            scores = plait.score(ctx, context, tails)
        for score, tail in zip(scores, tails, strict=True):
            check(any_model, score, context + tail, len(context))

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"n_batch": 5},
            {"n_seq_max": 1},
            {"n_seq_max": 2},
            {"n_seq_max": 8, "kv": "streams"},
            {"n_seq_max": 8, "kv_cells": 70},
        ],
    )
    def test_a_context_of_any_size_gives_the_same(self, tiny, options):
        context, tails = tokens(50, 1), [tokens(n, n) for n in (12, 7, 1, 12, 3)]
        want = plait.score(tiny, context, tails)
        with plait.Context(tiny, **{"n_ctx": 64, **options}) as ctx:
            got = plait.score(ctx, context, tails)
            assert ctx.kv.n_used == 0
        assert [s.logprobs.tolist() for s in got] == [s.logprobs.tolist() for s in want]

    def test_no_room_for_a_fork_in_a_recurrent_model(self, data_dir):
        model = plait.Model(data_dir / "conformance" / "mamba" / "model.gguf")
        context, tails = tokens(20, 1), [tokens(n, n) for n in (5, 3, 4)]
        with plait.Context(model, n_ctx=64, n_seq_max=1) as ctx:
            for score, tail in zip(plait.score(ctx, context, tails), tails, strict=True):
                check(model, score, context + tail, len(context))

    def test_questions_with_four_answers_are_computed_once(self, tiny):
        # At most the distinct tokens may be computed, here one fewer per answer.
        rng = np.random.default_rng(5)
        with plait.Context(tiny, n_ctx=64, n_seq_max=5) as ctx:
            for question in range(12):
                context = tokens(int(rng.integers(10, 40)), question)
                answers = [
                    tokens(int(rng.integers(1, 9)), 100 + question * 4 + i) for i in range(4)
                ]
                ctx.stats.reset()
                scores = plait.score(ctx, context, answers)
                assert ctx.stats.tokens == len(context) + sum(len(a) - 1 for a in answers)
                for score, answer in zip(scores, answers, strict=True):
                    check(tiny, score, context + answer, len(context))

    def test_the_likeliest_are_listed(self, tiny):
        context, tail = tokens(9, 1), tokens(4, 2)
        (score,) = plait.score(tiny, context, [tail], top_logprobs=5)
        rows = whole(tiny, context + tail, len(context))[2]
        for row, ids, logprobs in zip(rows, score.top_tokens, score.top_logprobs, strict=True):
            want = np.argsort(-row, kind="stable")[:5]
            assert ids.tolist() == want.tolist()
            np.testing.assert_array_equal(logprobs, log_softmax(row)[want])

    def test_greedy_text_is_greedy(self, tiny):
        events = [e.token for e in plait.generate(tiny, [[5, 6, 7]], max_tokens=6)]
        said, other = plait.score(tiny, [5, 6, 7], [events, [*events[:-1], (events[-1] + 1) % 200]])
        assert said.is_greedy
        assert not other.is_greedy
        assert other.greedy[:-1].all()

    def test_mistakes_are_named(self, tiny):
        with pytest.raises(ValueError, match="no tokens"):
            plait.score(tiny, [], [[1]])
        with pytest.raises(ValueError, match="continuation 1 adds no token"):
            plait.score(tiny, [1], [[1], []])
        with pytest.raises(TypeError, match="continuation 0"):
            plait.score(tiny, [1], [7])
        with pytest.raises(ValueError, match="top_logprobs is -1"):
            plait.score(tiny, [1], [[1]], top_logprobs=-1)
        with (
            plait.Context(tiny, n_ctx=8, n_seq_max=2) as ctx,
            pytest.raises(ValueError, match="continuation 0 has 11"),
        ):
            plait.score(ctx, tokens(6), [tokens(5)])
        assert plait.score(tiny, [1], []) == []


class TestPerplexity:
    def test_one_window_is_the_text(self, tiny):
        ids = tokens(60)
        score = plait.token_logprobs(tiny, ids)
        check(tiny, score, ids, 1)
        assert plait.perplexity(tiny, ids) == math.exp(-math.fsum(score.logprobs) / 59)

    @pytest.mark.parametrize(("window", "stride"), [(16, None), (16, 3), (16, 15), (7, 1), (60, 5)])
    @pytest.mark.parametrize("n_batch", [2048, 6])
    def test_windows_score_each_token_where_it_first_appears(self, tiny, window, stride, n_batch):
        ids = tokens(60)
        with plait.Context(tiny, n_ctx=64, n_batch=n_batch) as ctx:
            got = plait.token_logprobs(ctx, ids, window=window, stride=stride).logprobs
        want, begin = [], 0
        while len(want) < 59:
            rows = whole(tiny, ids[begin : begin + window], 1)[0]
            want += rows[len(want) - begin :].tolist()
            begin += stride or window // 2
        assert got.tolist() == want

    def test_a_trained_model_likes_its_own_words(self, demo_model):
        text = "There is a red kite in the kitchen. Tom has the drum."
        words = " ".join(text.split()[::-1])
        assert 1 < plait.perplexity(demo_model, text) < plait.perplexity(demo_model, words) / 2

    def test_mistakes_are_named(self, tiny):
        with pytest.raises(ValueError, match="it must have at least 2"):
            plait.perplexity(tiny, [1])
        with pytest.raises(ValueError, match="stride is 8"):
            plait.perplexity(tiny, tokens(20), window=8, stride=8)
        with (
            plait.Context(tiny, n_ctx=8) as ctx,
            pytest.raises(ValueError, match=r"= 7 \(the window is n_ctx = 8 of the context\)$"),
        ):
            plait.perplexity(ctx, tokens(20), stride=8)
        with pytest.raises(ValueError, match="window is 1"):
            plait.perplexity(tiny, tokens(20), window=1)
        with (
            plait.Context(tiny, n_ctx=8) as ctx,
            pytest.raises(ValueError, match="window is 9"),
        ):
            plait.perplexity(ctx, tokens(20), window=9)


@pytest.mark.parametrize("pair", [([5], [6, -1]), ([5], [6, 288]), ([-1], [6]), ([2**31], [6])])
def test_pairs_have_tokens_of_the_vocabulary(tiny, pair):
    assert tiny.n_vocab == 288
    with plait.Context(tiny, n_ctx=8, n_seq_max=2) as ctx:
        (found,) = score_pairs(ctx, [([5], [6, 287])])
        assert len(found) == 2
        with pytest.raises(
            IndexError, match=r"pair 1: token id (-1|288|2147483648) is outside the vocabulary"
        ):
            score_pairs(ctx, [([5], [6]), pair])


@pytest.mark.parametrize("side", ["12", [1.7], [None]])
def test_pairs_are_token_ids(tiny, side):
    with plait.Context(tiny, n_ctx=8, n_seq_max=2) as ctx:
        for pair in ((side, [5]), ([5], side)):
            with pytest.raises(TypeError, match="pair 0: a token id: expected an integer"):
                score_pairs(ctx, [pair])


class TestEmbed:
    @pytest.mark.parametrize("pooling", ["auto", "mean", "cls", "last"])
    def test_each_text_is_as_alone(self, bert, pooling):
        texts = [tokens(n, n, 200) for n in (3, 12, 1, 7, 7, 20, 2) * 4]
        got = plait.embed(bert, texts, pooling=pooling)
        assert got.dtype == np.float32
        for text, row in zip(texts, got, strict=True):
            with plait.Context(
                bert, n_ctx=32, embeddings=True, pooling="mean" if pooling == "auto" else pooling
            ) as ctx:
                batch = plait.Batch()
                batch.add_sequence(text)
                alone = ctx.encode(batch).embeddings[0].astype(np.float64)
            assert (row == (alone / np.linalg.norm(alone)).astype(np.float32)).all()

    def test_a_decoder_embeds_too(self, tiny):
        texts = ["the hat", "in the end", "a"]
        got = plait.embed(tiny, texts, normalize=False)
        assert got.shape == (3, tiny.n_embd)
        np.testing.assert_array_equal(got[1], plait.embed(tiny, texts[1], normalize=False)[0])
        np.testing.assert_allclose(np.linalg.norm(plait.embed(tiny, texts), axis=1), 1, rtol=1e-6)

    def test_mistakes_are_named(self, bert, data_dir):
        assert plait.embed(bert, []).shape == (0, bert.n_embd)
        with pytest.raises(ValueError, match="text 1 has no tokens"):
            plait.embed(bert, [[1], []])
        with pytest.raises(ValueError, match='pooling is "none"'):
            plait.embed(bert, [[1]], pooling="none")
        t5 = plait.Model(data_dir / "conformance" / "t5" / "model.gguf")
        with pytest.raises(plait.UnsupportedError, match="encoder"):
            plait.embed(t5, [[1, 2]])


@pytest.mark.parametrize("add_special", [True, False])
def test_an_end_that_the_caller_writes_is_scored(tmp_path, add_special):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata["tokenizer.ggml.add_eos_token"] = True
    path = gguf_writer.write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights())
    model = plait.Model(path)
    without, with_end = plait.score(model, "the", [" hat", " hat</s>"], add_special=add_special)
    assert with_end.tokens.tolist() == [*without.tokens, model.tokenizer.eos]
    ids = [*model.tokenizer.encode("the</s> hat", add_special=False)]
    (after,) = plait.score(model, "the</s>", [" hat"], add_special=add_special)
    assert after.tokens.tolist() == ids[ids.index(model.tokenizer.eos) + 1 :]
