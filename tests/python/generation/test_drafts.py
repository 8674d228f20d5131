"""Speculative decoding: the text equals that without drafts."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import plait
import pytest
from plait.generation.drafts import DraftRequest
from python.drafting_models import MODELS, add_layer, source
from python.drive import tokens
from python.reference_data import model_path

from python import gguf_writer

STORY = "Once upon a time there was a little {} who lived in a {} by the {}."
WORDS = ["girl", "boy", "cat", "dog", "bird", "king", "man", "fish", "bear", "duck"]
PLACES = ["house", "tree", "box", "park", "boat"]


def prompts(n):
    return [
        STORY.format(WORDS[i % 10], PLACES[i // 10 % 5], ["sea", "road"][i // 50 % 2])
        for i in range(n)
    ]


class Scrambled:
    """Drafts whose first tokens are right and the others wrong."""

    def __init__(self, inner):
        self.inner, self.acceptance = inner, plait.Acceptance()

    def attach(self, ctx):
        self.inner.attach(ctx)

    def propose(self, asks):
        return [
            [*guess[: len(guess) // 2], *(3 + token % 7 for token in guess[len(guess) // 2 :])]
            for guess in self.inner.propose(asks)
        ]

    def release(self, key):
        self.inner.release(key)


def texts(model, asked, limit, **options):
    return [one.tokens for one in plait.complete(model, asked, limit, **options)]


def identical(model, n_prompts, n_tokens):
    asked = prompts(n_prompts)
    want = texts(model, asked, n_tokens)
    figures = {}
    itself = plait.DraftModel(model, n=3)
    other = plait.DraftModel(plait.Model(model.path), n=4, p_min=0.5)
    for name, draft in [
        ("lookup", plait.PromptLookup()),
        ("itself", itself),
        ("sure", other),
        ("scrambled", Scrambled(plait.DraftModel(model, n=4))),
    ]:
        assert texts(model, asked, n_tokens, draft=draft) == want, name
        figures[name] = draft.acceptance
    itself.close()
    assert figures["itself"].rate == 1
    assert figures["itself"].tokens_per_round > 3
    assert 0 < figures["lookup"].accepted < figures["lookup"].drafted
    assert 0.2 < figures["scrambled"].rate < 0.8
    assert figures["sure"].tokens_per_round > 1.5
    return figures


def test_greedy_text_is_the_same(demo_model):
    identical(demo_model, 12, 32)


@pytest.mark.slow
def test_greedy_text_of_a_hundred_prompts_is_the_same(demo_model):
    identical(demo_model, 100, 48)


def test_drawn_text_is_the_same_for_the_same_seed(demo_model):
    for draft in (plait.PromptLookup(min_ngram=1), plait.DraftModel(demo_model, n=3)):
        sampler = plait.Sampler(temperature=0.7, repetition_penalty=1.1, seed=5)
        want = texts(demo_model, prompts(6), 40, sampler=sampler)
        sampler.reset()
        assert texts(demo_model, prompts(6), 40, sampler=sampler, draft=draft) == want
        assert 0 < draft.acceptance.accepted < draft.acceptance.drafted


def test_drawn_text_has_the_same_distribution(demo_model):
    """Two-sample chi-squared test of token pairs with and without drafts, over many seeds."""
    n, counts = 900, []
    for seed, draft in [(1, None), (2, plait.DraftModel(demo_model, n=2))]:
        sampler = plait.Sampler(temperature=1.2, top_k=3, top_p=1, min_p=0, seed=seed, forced=[500])
        found = texts(demo_model, prompts(1), 4, sampler=sampler, n=n, draft=draft)
        pairs, times = np.unique(
            [one[1] * 1000 + one[2] for one in found if len(one) > 2], return_counts=True
        )
        counts.append(dict(zip(pairs.tolist(), times.tolist(), strict=True)))
    statistic, freedom = 0.0, -1
    totals = [sum(count.values()) for count in counts]
    for pair in counts[0].keys() | counts[1].keys():
        both = [count.get(pair, 0) for count in counts]
        if sum(both) < 10:
            continue
        freedom += 1
        for seen, total in zip(both, totals, strict=True):
            wanted = sum(both) * total / sum(totals)
            statistic += (seen - wanted) ** 2 / wanted
    assert freedom >= 2
    assert statistic < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("name", ["mamba", "rwkv7", "falcon-h1", "gemma3", "qwen3next"])
def test_memories_without_partial_removal(data_dir, name):
    """Such memories return to a fork after a rejected draft."""
    model = plait.Model(model_path(data_dir, name))
    asked = [tokens(12, seed, 100) for seed in range(3)]
    with plait.Context(model, n_ctx=64, n_seq_max=8) as ctx:
        want = texts(ctx, asked, 16)
        for draft in (
            plait.DraftModel(model, n=3),
            Scrambled(plait.DraftModel(model, n=3)),
            plait.PromptLookup(min_ngram=1),
        ):
            assert texts(ctx, asked, 16, draft=draft) == want
            assert ctx.kv.n_used == 0


def test_guesses_give_way_when_the_cache_is_full(tiny):
    asked = [tokens(12, seed) for seed in range(3)]
    want = texts(tiny, asked, 20)
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv_cells=60) as ctx:
        assert texts(ctx, asked, 20, draft=plait.DraftModel(tiny, n=6)) == want
        with plait.Context(tiny, n_ctx=64, n_seq_max=3) as roomy:
            small = plait.DraftModel(tiny, n=6, n_ctx=20)  # the draft cache runs out
            assert texts(roomy, asked, 20, draft=small) == want
        assert ctx.kv.n_used == 0


@pytest.mark.parametrize("n_cells", [24, 40])
def test_rejected_guesses_leave_no_cell_too_few(tiny, n_cells):
    """A generation ends at the same token when its drafts, all wrong, fill the last cells."""
    sampler = plait.Sampler(seed=1, banned=tiny.tokenizer.eog)
    with plait.Context(tiny, n_ctx=n_cells, n_seq_max=1) as ctx:
        (want,) = plait.complete(ctx, [tokens(12)], 99, sampler)
        assert len(want.tokens) == n_cells - 11
        for n in (1, 5, 99):
            wrong = Faulty(lambda asks, n=n: [[5] * min(n, ask.max_tokens) for ask in asks])
            sampler.reset()
            (got,) = plait.complete(ctx, [tokens(12)], 99, sampler, draft=wrong)
            assert (got.tokens, got.finish_reason) == (want.tokens, "length")


def test_a_grammar_and_guesses(demo_model):
    pytest.importorskip("llguidance")
    draft = plait.PromptLookup(min_ngram=1)
    sampler = plait.Sampler(grammar="(ab){12}", seed=1)
    (one,) = plait.complete(demo_model, "ab ab ab", 40, sampler, draft=draft)
    assert one.text == "ab" * 12
    assert draft.acceptance.accepted > 0


def test_stop_in_the_middle_of_a_guess(demo_model):
    want = plait.complete(demo_model, prompts(1), 30)[0]
    for stop in (want.tokens[7], want.text[9:14]):
        plain = plait.complete(demo_model, prompts(1), 30, stop=[stop])[0]
        with plait.Context(demo_model, n_ctx=128) as ctx:
            draft = plait.DraftModel(demo_model, n=6)
            assert plait.complete(ctx, prompts(1), 30, stop=[stop], draft=draft)[0] == plain
            assert ctx.kv.n_used == 0


def test_prompt_lookup_finds_the_latest_longest_place():
    lookup = plait.PromptLookup(n=3, max_ngram=3, min_ngram=1)

    def ask(key, tokens_, most=9):
        return lookup.propose([DraftRequest(key, tokens_, most)])[0]

    text = [1, 2, 3, 4, 5, 1, 2, 9, 8, 1, 2]
    assert ask("a", text) == [9, 8, 1]
    assert ask("a", [*text, 3]) == [4, 5, 1]
    assert ask("a", [*text, 3, 4]) == [5, 1, 2]
    assert ask("a", [*text, 3, 4], most=1) == [5]
    assert ask("b", [1, 2, 3]) == []
    assert ask("c", [7, 7]) == [7]
    lookup.release("a")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: plait.PromptLookup(n=0), "n is 0; it must be at least 1"),
        (lambda model: plait.PromptLookup(max_ngram=1), "min_ngram is 2 and max_ngram is 1"),
        (lambda model: plait.PromptLookup(min_ngram=0), "min_ngram is 0; it must be at least 1"),
        (lambda model: plait.DraftModel(model, n=0), "n is 0; it must be at least 1"),
        (lambda model: plait.DraftModel(model, p_min=2), "p_min is 2; it must be between 0 and 1"),
    ],
)
def test_invalid_numbers_are_refused(tiny, make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny)


def test_another_vocabulary_is_refused(tiny, demo_model, tmp_path):
    with pytest.raises(ValueError, match="different vocabularies"):
        plait.generate(demo_model, "a", draft=plait.DraftModel(tiny))
    twin = plait.Model(gguf_writer.tiny_llama(tmp_path / "m.gguf", seed=9))
    draft = plait.DraftModel(twin, n=3)
    assert texts(tiny, ["the hat"], 20, draft=draft) == texts(tiny, ["the hat"], 20)
    assert draft.acceptance.rate < 0.5


# -- errors and lifetime -----------------------------------------------------------------------------


class Faulty:
    """Drafts by calling the functions that it is given."""

    def __init__(self, propose, release=lambda key: None):
        self.acceptance, self.propose, self.release = plait.Acceptance(), propose, release

    def attach(self, ctx):
        pass


def raising(asks):
    raise LookupError("no draft today")


@pytest.mark.parametrize(
    ("propose", "error", "message"),
    [
        (raising, LookupError, "no draft today"),
        (lambda asks: [[10**6] for _ in asks], IndexError, "the drafter returned token 1000000"),
        (lambda asks: [[-1] for _ in asks], IndexError, "the drafter returned token -1"),
        (lambda asks: [["a"] for _ in asks], TypeError, "the drafter returned 'a'"),
        (lambda asks: [[]], ValueError, "returned 1 drafts for 2 generations"),
    ],
)
def test_a_failing_drafter_ends_only_its_requests(tiny, propose, error, message):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx, plait.Scheduler(ctx) as scheduler:
        draft = Faulty(propose)
        bad = [scheduler.submit(tokens(5, i), 9, draft=draft) for i in range(2)]
        good = scheduler.submit(tokens(5, 2), 9, draft=plait.PromptLookup())
        while scheduler.busy:
            scheduler.step()
        for request in bad:
            assert isinstance(request.error, error)
            assert message in str(request.error)
        assert good.tokens == texts(tiny, [tokens(5, 2)], 9)[0]
        assert ctx.kv.n_used == 0


def test_a_drafter_that_fails_to_read_values_ends_only_its_requests(tiny):
    class Reading(Faulty):
        reads = "blk.0.l_out"

        def observe(self, key, tokens, start, states):
            raise LookupError("not read")

    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        bad = scheduler.submit(tokens(5, 0), 9, draft=Reading(lambda asks: [[] for _ in asks]))
        good = scheduler.submit(tokens(5, 1), 9)
        while scheduler.busy:
            scheduler.step()
        assert isinstance(bad.error, LookupError)
        assert bad.tokens == ()
        assert good.tokens == texts(tiny, [tokens(5, 1)], 9)[0]
        assert ctx.kv.n_used == 0


def test_a_failing_release_is_logged(tiny, caplog):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        draft = Faulty(lambda asks: [[] for _ in asks], raising)
        requests = [scheduler.submit(tokens(5, i), 9 + i, draft=draft) for i in range(2)]
        list(scheduler.run())
        assert [request.tokens for request in requests] == [
            texts(tiny, [tokens(5, i)], 9 + i)[0] for i in range(2)
        ]
    assert caplog.text.count("release() of the drafter failed") == 2
    assert "no draft today" in caplog.text


def test_an_incomplete_drafter_is_refused(tiny):
    draft = Faulty(raising)
    del draft.acceptance
    with pytest.raises(TypeError, match="got Faulty, which lacks acceptance"):
        plait.complete(tiny, [tokens(5)], 2, draft=draft)
    with pytest.raises(TypeError, match="which lacks acceptance, attach, propose, release"):
        plait.complete(tiny, [tokens(5)], 2, draft=3)


@pytest.mark.parametrize("make", [lambda model: plait.PromptLookup(), plait.DraftModel])
def test_an_engine_keeps_no_drafter(tiny, make):
    with plait.Engine(tiny, n_ctx=64) as engine:
        draft = make(tiny)
        kept = weakref.ref(draft)
        attached = []
        draft.attach = lambda ctx, attach=draft.attach: (attached.append(ctx), attach(ctx))
        for _ in range(3):
            engine.complete_sync(tokens(5), 9, draft=draft)
        assert attached == [engine.ctx] * 3
        del draft
        engine.complete_sync(tokens(5), 1)  # the thread has let go of the last request
        gc.collect()
        assert kept() is None


def test_a_draft_context_grows_with_what_it_is_used_for(demo_model):
    asked = prompts(1)
    fresh, reused = plait.DraftModel(demo_model, n=4), plait.DraftModel(demo_model, n=4)
    want = texts(demo_model, asked, 100, draft=fresh)
    texts(demo_model, asked, 8, draft=reused)
    before = reused.acceptance.drafted
    assert texts(demo_model, asked, 100, draft=reused) == want
    assert reused.acceptance.drafted - before == fresh.acceptance.drafted
    context = reused._ctx
    texts(demo_model, asked, 8, draft=reused)
    assert reused._ctx is context
    reused.close()
    assert texts(demo_model, asked, 8, draft=reused) == [want[0][:8]]


def n_draft_cells(model, options, **of_verifying):
    with plait.Context(model, n_ctx=64, n_seq_max=8, **of_verifying) as ctx:
        draft = plait.DraftModel(model, n=3, **options)
        draft.attach(ctx)
        cells = draft._ctx.kv.n_cells
        draft.close()
    return cells


def test_a_draft_context_has_cells_for_those_of_its_scheduler(tiny):
    assert n_draft_cells(tiny, {}) == 8 * 67
    assert n_draft_cells(tiny, {}, kv="streams") == 8 * 67
    assert n_draft_cells(tiny, {}, kv_cells=100) == 100 + 8 * 3
    assert n_draft_cells(tiny, {"kv_cells": 90}, kv_cells=100) == 90
    assert n_draft_cells(tiny, {"kv": "streams"}, kv_cells=100) == 8 * 67
    assert n_draft_cells(tiny, {"n_ctx": 10, "n_seq_max": 2}, kv_cells=100) == 2 * 10


def test_a_draft_context_has_cells_for_every_scheduler(tiny):
    draft = plait.DraftModel(tiny, n=1)
    for n_ctx, n_seq_max, cells in [(64, 2, 100), (32, 4, 60)]:
        with plait.Context(tiny, n_ctx=n_ctx, n_seq_max=n_seq_max, kv_cells=cells) as ctx:
            draft.attach(ctx)
    assert (draft._ctx.n_ctx, draft._ctx.n_seq_max, draft._ctx.kv.n_cells) == (65, 4, 102)
    draft.close()


@pytest.mark.parametrize(("name", "other"), [("mamba", "gemma3"), ("gemma3", "mamba")])
def test_a_draft_model_with_another_kind_of_memory(data_dir, name, other):
    """The cells of a recurrent memory are its sequences; they do not limit the tokens to draft for."""
    asked = [tokens(12, seed, 100) for seed in range(4)]
    with plait.Context(plait.Model(model_path(data_dir, name)), n_ctx=64, n_seq_max=8) as ctx:
        draft = plait.DraftModel(plait.Model(model_path(data_dir, other)), n=3)
        want = texts(ctx, asked, 16)
        assert texts(ctx, asked, 16, draft=draft) == want
        assert draft._ctx.kv.n_cells == {"gemma3": 8 * 67, "mamba": 8}[other]
        assert draft.acceptance.drafted > 0
        assert draft._ctx.kv.n_used == 0


def test_generations_without_room_in_the_draft_cache_continue_without_drafts(tiny):
    """Generations that have room keep their cells, so the draft model decodes no text twice."""
    sampler = plait.Sampler(seed=1, banned=tiny.tokenizer.eog)
    prompt, n, limit = tokens(40), 6, 20
    with plait.Context(tiny, n_ctx=64, n_seq_max=n, kv_cells=180) as ctx:  # they share the prompt
        want = texts(ctx, prompt, limit, sampler=sampler, n=n)
        sampler.reset()
        draft = plait.DraftModel(tiny, n=3)
        assert texts(ctx, prompt, limit, sampler=sampler, n=n, draft=draft) == want
    assert draft._ctx.kv.n_cells == 180 + 3 * n
    assert draft.acceptance.drafted > 2 * limit  # three have room
    assert draft._ctx.stats.tokens < 3 * (40 + 4 * limit)
    assert draft._ctx.kv.n_used == 0


def test_a_text_longer_than_the_draft_context_takes_no_room_from_others(tiny):
    draft = plait.DraftModel(tiny, n=3, n_ctx=20)
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        draft.attach(ctx)
    asks = [DraftRequest("long", tokens(30), 9), DraftRequest("short", tokens(5), 9)]
    assert [len(tokens_) for tokens_ in draft.propose(asks)] == [0, 3]
    draft.close()


def test_a_closed_draft_model_is_opened_by_the_next_request(tiny):
    draft = plait.DraftModel(tiny, n=3)
    want = texts(tiny, [tokens(5, i) for i in range(3)], 24)
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx, plait.Scheduler(ctx) as scheduler:
        running = scheduler.submit(tokens(5, 0), 24, draft=draft)
        plain = scheduler.submit(tokens(5, 1), 24)
        for _ in range(3):
            scheduler.step()
        draft.close()
        before = draft.acceptance.drafted
        scheduler.step()
        assert draft.acceptance.drafted == before > 0
        later = scheduler.submit(tokens(5, 2), 24, draft=draft)
        list(scheduler.run())
        assert draft.acceptance.drafted > before
        assert draft.acceptance.rate == 1
    assert [request.tokens for request in (running, plain, later)] == want
    draft.close()


def close_while_an_engine_runs(model, draft):
    """Close a drafter over and over while requests of an engine use it, and one that does not."""
    asked = [tokens(6, i, model.n_vocab) for i in range(5)]
    want = texts(model, asked, 40)
    with plait.Engine(model, n_ctx=64, n_seq_max=3) as engine, ThreadPoolExecutor(5) as pool:
        for _ in range(3):
            options = [{}, *[{"draft": draft}] * 4]
            calls = [
                pool.submit(engine.complete_sync, ids, 40, **given)
                for ids, given in zip(asked, options, strict=True)
            ]
            while not all(call.done() for call in calls):
                draft.close()
                time.sleep(0.002)
            assert [call.result().tokens for call in calls] == want


def test_a_draft_model_may_be_closed_at_any_time(tiny):
    close_while_an_engine_runs(tiny, plait.DraftModel(tiny, n=3))


def test_a_layer_for_multi_token_prediction_may_be_closed_at_any_time(data_dir, tmp_path):
    model = add_layer(source(data_dir, MODELS[2]), tmp_path / "m.gguf")
    close_while_an_engine_runs(model, plait.MTP(pauses=False))
