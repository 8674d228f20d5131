"""Scheduler and generate(): the order of requests, shared prefixes, and cleanup."""

import asyncio
import random
import sys
import threading
import time
import types

import numpy as np
import plait
import pytest
from plait.generation import request_pool
from plait.generation.stops import StopStrings
from python.drafting_models import MODELS, add_layer, source
from python.drive import feed, tokens
from python.reference_data import model_path


def greedy(model, ids, n, **options):
    """Return greedy tokens, decoded alone without the scheduler."""
    said = []
    with plait.Context(model, n_ctx=len(ids) + n, **options) as ctx:
        row = feed(ctx, ids, logits="last")[-1]
        while len(said) < n:
            said.append(int(row.argmax()))
            if said[-1] in model.tokenizer.eog:
                break
            row = feed(ctx, said[-1:])[-1]
    return said


def said(events):
    found = {}
    for event in events:
        found.setdefault((event.index, event.sample), []).append(event.token)
    return found


@pytest.fixture(params=["unified", "streams"])
def kv(request):
    return request.param


# -- what prompts have in common -------------------------------------------------------------------


def shared_prompts(n, n_prefix=60, n_tail=5):
    prefix = tokens(n_prefix, 1)
    return [[*prefix, 100 + i, *tokens(n_tail - 1, 10 + i)] for i in range(n)]


@pytest.mark.parametrize("n_seq_max", [1, 2, 5])
def test_a_common_beginning_is_computed_once(tiny, kv, n_seq_max):
    prompts = shared_prompts(12)
    with plait.Context(tiny, n_ctx=128, n_seq_max=n_seq_max, kv=kv) as ctx:
        got = said(plait.generate(ctx, prompts, max_tokens=6))
        assert ctx.stats.tokens == 60 + sum(5 + len(one) - 1 for one in got.values())
        assert ctx.kv.n_used == 0
    for i, prompt in enumerate(prompts):
        assert got[i, 0] == greedy(tiny, prompt, 6)


@pytest.mark.slow
def test_two_hundred_prompts_compute_their_300_tokens_once(demo_model):
    """The number of computed tokens, and outputs equal to those of each prompt alone."""
    two_hundred(demo_model, 200)


def test_forty_prompts_compute_their_300_tokens_once(demo_model):
    two_hundred(demo_model, 40)


def two_hundred(model, n):
    text = "Once upon a time there was a little girl who lived in a house by the sea. " * 40
    prefix = model.tokenizer.encode(text).tolist()[:300]
    words = model.tokenizer.encode("cat dog tree boat sun moon hat bird fish house")[1:].tolist()
    prompts = [
        [*prefix, 300 + i, words[i % len(words)], words[i // len(words) % len(words)]]
        for i in range(n)
    ]
    with plait.Context(model, n_ctx=400, n_seq_max=16, kv_cells=6400) as ctx:
        got = said(plait.generate(ctx, prompts, max_tokens=16))
        assert ctx.stats.tokens == 300 + sum(3 + len(one) - 1 for one in got.values())
        assert ctx.kv.n_used == 0
        ctx.stats.reset()
        for i, prompt in enumerate(prompts):
            assert said(plait.generate(ctx, [prompt], max_tokens=16))[0, 0] == got[i, 0]


def test_prompts_within_prompts_and_equal_ones(tiny, kv):
    long = tokens(50, 3)
    prompts = [long, long[:30], long, long[:40] + tokens(4, 5), long[:20] + tokens(9, 6), long]
    with plait.Context(tiny, n_ctx=100, n_seq_max=4, kv=kv) as ctx:
        got = said(plait.generate(ctx, prompts, max_tokens=5))
        computed = ctx.stats.tokens
    for i, prompt in enumerate(prompts):
        assert got[i, 0] == greedy(tiny, prompt, 5)
    alone = sum(len(prompt) + len(got[i, 0]) - 1 for i, prompt in enumerate(prompts))
    assert computed < alone - 100


def test_without_sharing_everything_is_computed(tiny):
    prompts = shared_prompts(4)
    with plait.Context(tiny, n_ctx=128, n_seq_max=4) as ctx:
        with plait.Scheduler(ctx, share_prefixes=False) as scheduler:
            for prompt in prompts:
                scheduler.submit(prompt, 3)
            got = said(scheduler.run())
        assert scheduler.n_shared == 0
        assert ctx.stats.tokens == sum(65 + len(one) - 1 for one in got.values())


def test_prefixes_can_be_kept_between_requests(tiny):
    with plait.Context(tiny, n_ctx=128, n_seq_max=3) as ctx:
        with plait.Scheduler(ctx, keep_prefixes=True) as scheduler:
            first = scheduler.submit(tokens(60, 1), 4)
            list(scheduler.run())
            assert scheduler.n_kept == 1
            turn = [*first.prompt_tokens, *first.tokens, *tokens(5, 2)]
            before = ctx.stats.tokens
            second = scheduler.submit(turn, 4)
            list(scheduler.run())
            assert ctx.stats.tokens - before == 5 + 1 + len(second.tokens) - 1
            for seed in range(9):  # more than there are sequences
                scheduler.submit(tokens(20, 50 + seed), 2)
            list(scheduler.run())
            assert 0 < scheduler.n_kept <= 3
        assert ctx.kv.n_used == 0
    assert list(second.tokens) == greedy(tiny, turn, 4)


def test_kept_prefixes_give_way_to_prompts(tiny):
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=3, kv_cells=64) as ctx,
        plait.Scheduler(ctx, keep_prefixes=True) as scheduler,
    ):
        scheduler.submit(tokens(40, 1), 2)
        list(scheduler.run())
        assert ctx.kv.n_used > 40
        request = scheduler.submit(tokens(50, 2), 2)
        list(scheduler.run())
        assert len(request.tokens) == 2


@pytest.mark.parametrize(
    "name", ["mamba", "rwkv7", "falcon-h1", "gemma3", "qwen3next", "lfm2", "gpt-oss"]
)
def test_memories_that_fork_whole_sequences_share_at_branches(data_dir, name):
    """Recurrent states and windows: a fork is kept where prompts diverge."""
    model = plait.Model(model_path(data_dir, name))
    prefix, middle = tokens(40, 1, 100), tokens(20, 2, 100)
    prompts = [
        prefix + middle + tokens(3, 3, 100),
        prefix + tokens(4, 4, 100),
        prefix + middle + tokens(5, 5, 100),
        prefix + tokens(6, 6, 100),
    ]
    prompts += [list(prompts[0])]
    with plait.Context(model, n_ctx=128, n_seq_max=6) as ctx:
        with plait.Scheduler(ctx) as scheduler:
            for prompt in prompts:
                scheduler.submit(prompt, 4)
            got = said(scheduler.run())
            assert scheduler.n_shared >= 40 * 3
        assert ctx.kv.n_used == 0
        assert (
            ctx.stats.tokens
            == sum(len(prompt) + len(got[i, 0]) - 1 for i, prompt in enumerate(prompts))
            - scheduler.n_shared
        )
    for i, prompt in enumerate(prompts):
        assert got[i, 0] == greedy(model, prompt, 4)


# -- room ------------------------------------------------------------------------------------------


def test_the_youngest_request_is_preempted_and_resumed(tiny):
    prompts = [tokens(12, seed) for seed in range(4)]
    want = [greedy(tiny, prompt, 30) for prompt in prompts]
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv_cells=80) as ctx:
        with plait.Scheduler(ctx) as scheduler:
            requests = [scheduler.submit(prompt, 30) for prompt in prompts]
            events = list(scheduler.run())
        assert scheduler.n_preempted > 0
        assert requests[0].n_preempted == 0
        assert ctx.kv.n_used == 0
    assert [list(request.tokens) for request in requests] == want
    assert [said(events)[i, 0] for i in range(4)] == want  # no event is repeated
    assert {request.finish_reason for request in requests} <= {"stop", "length"}


def test_preemption_changes_no_draw(tiny):
    prompts = [tokens(12, seed) for seed in range(4)]

    def run(cells):
        sampler = plait.Sampler(temperature=1.0, presence_penalty=0.3, seed=4)
        with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv_cells=cells) as ctx:
            return said(plait.generate(ctx, prompts, max_tokens=30, sampler=sampler))

    assert run(80) == run(256)


def test_requests_start_by_priority_then_order_and_none_starves(tiny):
    with (
        plait.Context(tiny, n_ctx=32, n_seq_max=1) as ctx,
        plait.Scheduler(ctx, patience=4) as scheduler,
    ):
        for i in range(4):
            scheduler.submit(tokens(4, i), 2)
        scheduler.submit(tokens(4, 9), 2, priority=1)  # number 4: before those after number 0
        for i in range(6):
            scheduler.submit(tokens(4, 20 + i), 2, priority=2)  # 5 to 10, worth 8 places
        order = [event.index for event in scheduler.run() if event.finish_reason]
    assert order == [5, 6, 7, 0, 4, 8, 1, 9, 2, 10, 3]


def test_long_prompts_do_not_stop_running_generations(tiny):
    with (
        plait.Context(tiny, n_ctx=300, n_seq_max=2) as ctx,
        plait.Scheduler(ctx, chunk=20) as scheduler,
    ):
        scheduler.submit(tokens(5), 40)
        scheduler.step()
        scheduler.submit(tokens(200, 2), 3)
        for _ in range(9):
            assert [event.index for event in scheduler.step()] == [0]
        assert {event.index for event in scheduler.step()} == {0, 1}


# -- cancelling and failing ------------------------------------------------------------------------


def test_cancelled_requests_free_their_cells_at_once(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        one, other, third = (scheduler.submit(tokens(9, i), 20) for i in range(3))
        scheduler.step()
        one.cancel()
        assert one.finish_reason == "cancelled"
        assert ctx.kv.n_used == 9
        third.cancel()
        one.cancel()
        events = list(scheduler.run())
        assert {event.index for event in events} == {1}
        assert other.done
        assert not scheduler.busy
        assert list(other.tokens) == greedy(tiny, list(other.prompt_tokens), 20)


def test_a_context_without_logits_is_refused(tiny):
    with (
        plait.Context(tiny, n_ctx=32, embeddings=True, pooling="mean") as ctx,
        pytest.raises(plait.UnsupportedError, match="no logits"),
    ):
        list(plait.generate(ctx, "the hat"))


def test_cancel_from_another_thread(tiny):
    with plait.Context(tiny, n_ctx=512, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        request = scheduler.submit(tokens(9), 400)
        timer = threading.Timer(0.05, request.cancel)
        timer.start()
        list(scheduler.run())
        timer.join()
        assert request.finish_reason in ("cancelled", "stop")
        assert ctx.kv.n_used == 0


@pytest.mark.parametrize(("limit", "reason"), [(4, "length"), (20, "cancelled")])
def test_a_sampler_may_cancel_requests(tiny, monkeypatch, limit, reason):
    """The step that calls the sampler ends them, once each, and its other requests continue."""
    released = []
    release = plait.Sampler.release
    monkeypatch.setattr(
        plait.Sampler, "release", lambda self, key: (released.append(key), release(self, key))
    )

    def cancelling(row, generated):
        if own.done or len(own.tokens) == 3:
            own.cancel()
            other.cancel()

    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx, plait.Scheduler(ctx) as scheduler:
        greedy_but_cancelling = plait.Sampler(0, order=[cancelling, "temperature"])
        own = scheduler.submit(tokens(5, 1), limit, sampler=greedy_but_cancelling)
        other = scheduler.submit(tokens(5, 2), 20)
        third = scheduler.submit(tokens(5, 3), 20)
        events = list(scheduler.run())
        assert (own.finish_reason, other.finish_reason) == (reason, "cancelled")
        assert len(own.tokens) == len(other.tokens) == 4
        assert [event.token for event in events if event.index == 0] == list(own.tokens)
        assert list(third.tokens) == greedy(tiny, tokens(5, 3), 20)
        assert released == [own.key]
        assert ctx.kv.n_used == 0


def test_a_failing_request_does_not_affect_others(tiny):
    def broken(row, seq):
        raise RuntimeError("no luck")

    def outside(row, seq):
        return 10**6

    def nan(row, tokens):
        row[0] = np.nan

    with plait.Context(tiny, n_ctx=64, n_seq_max=5) as ctx, plait.Scheduler(ctx) as scheduler:
        good = scheduler.submit(tokens(5, 1), 5)
        bad = [
            scheduler.submit(tokens(5, 2), 5, sampler=broken),
            scheduler.submit(tokens(5, 3), 5, sampler=outside),
            scheduler.submit(tokens(5, 4), 5, sampler=plait.Sampler(order=[nan])),
        ]
        scheduler.step()
        assert scheduler.failed == bad
        while scheduler.busy:
            scheduler.step()
        assert list(good.tokens) == greedy(tiny, tokens(5, 1), 5)
        assert [type(request.error) for request in bad] == [RuntimeError, IndexError, ValueError]
        assert {request.finish_reason for request in bad} == {"error"}
        assert ctx.kv.n_used == 0


class Counter:
    """A plain sampler with a state per sequence, whose fourth call for the sequence `bad` raises."""

    def __init__(self, bad):
        self.bad, self.calls = bad, {}

    def __call__(self, row, seq):
        n = self.calls[seq] = self.calls.get(seq, 0) + 1
        if seq == self.bad and n == 4:
            raise LookupError("the fourth call")
        return int(np.argsort(-row)[n % 5])


def test_an_exception_of_a_shared_callable_repeats_no_other_call(tiny):
    def run(asked):
        sampler = Counter(bad=1)
        with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx, plait.Scheduler(ctx) as scheduler:
            found = [scheduler.submit(tokens(5, i), 6, sampler=sampler, key=i) for i in asked]
            while scheduler.busy:
                scheduler.step()
        assert sampler.calls == {i: 4 if i == 1 else 6 for i in asked}
        return found

    first, bad, last = run([0, 1, 2])
    assert isinstance(bad.error, LookupError)
    assert len(bad.tokens) == 3
    assert [first.tokens, last.tokens] == [one.tokens for one in run([0, 2])]


def test_an_exception_of_a_function_in_an_order_repeats_no_other_call(tiny):
    calls = []

    def function(row, seen):
        calls.append(tuple(seen))
        if len(calls) == 2:
            raise LookupError("the second call")

    sampler = plait.Sampler(seed=1, order=["top_k", function])
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx, plait.Scheduler(ctx) as scheduler:
        requests = [scheduler.submit(tokens(5, i), 3, sampler=sampler) for i in range(3)]
        while scheduler.busy:
            scheduler.step()
    assert [request.finish_reason for request in requests] == ["length", "error", "length"]
    assert len(calls) == len(set(calls)) == 7


def test_an_interrupted_step_loses_nothing(tiny):
    """KeyboardInterrupt in a sampler reaches the caller and does not affect later steps."""
    calls = []

    def interrupted(row, seq):
        calls.append(seq)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return int(row.argmax())

    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        requests = [scheduler.submit(tokens(5, i), 8, sampler=interrupted) for i in range(2)]
        with pytest.raises(KeyboardInterrupt):
            list(scheduler.run())
        list(scheduler.run())
        for i, request in enumerate(requests):
            assert list(request.tokens) == greedy(tiny, tokens(5, i), 8)


def test_a_prefix_that_is_kept_for_a_cancelled_request_is_closed(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=1) as ctx, plait.Scheduler(ctx) as scheduler:
        first, second = (scheduler.submit(tokens(20), 3 + i) for i in range(2))
        while not first.done:
            scheduler.step()
        assert scheduler.n_kept == 1
        second.cancel()
        assert not scheduler.busy
        assert scheduler.n_kept == 0
        assert ctx.kv.n_used == 0


def storm(model, kv, steps, seed, draft=None):
    """Requests arrive, are cancelled and fail at random; at the end no cell is in use."""
    luck = random.Random(seed)
    n_vocab = min(model.n_vocab, 288)
    prefixes = [tokens(20, i, n_vocab) for i in range(3)]

    def fickle(row, seq):
        if luck.random() < 0.02:
            raise RuntimeError("no luck")
        return int(row.argmax())

    cells = {"kv_cells": 150} if kv == "unified" else {}
    with plait.Context(model, n_ctx=64, n_seq_max=5, kv=kv, n_batch=32, **cells) as ctx:
        draft = draft or plait.PromptLookup()
        with plait.Scheduler(ctx, chunk=16) as scheduler:
            live = []
            for step in range(steps):
                if luck.random() < 0.4 and scheduler.n_waiting < 20:
                    prompt = luck.choice(prefixes)[: luck.randrange(1, 21)]
                    prompt = prompt + tokens(luck.randrange(1, 12), step, n_vocab)
                    live.append(
                        scheduler.submit(
                            prompt, luck.randrange(1, 30),
                            sampler=luck.choice([None, fickle, plait.Sampler(seed=step)]),
                            draft=luck.choice([None, draft]), priority=luck.randrange(3),
                        )
                    )  # fmt: skip
                if live and luck.random() < 0.1:
                    live.pop(luck.randrange(len(live))).cancel()
                scheduler.step()
                live = [request for request in live if not request.done]
                if not scheduler.busy:
                    assert ctx.kv.n_used == 0
            for request in live:
                request.cancel()
            assert not scheduler.busy
            assert scheduler.n_kept == 0
            assert ctx.kv.n_used == 0
            reached = {
                scheduler.n_preempted > 0,
                scheduler.n_shared > 0,
                draft.acceptance.drafted > 0,
            }
        assert [ctx.sequence().id for _ in range(1)] == [0]
    return reached


def test_random_cancels_and_failures_leave_no_rows(tiny, kv):
    storm(tiny, kv, 600, 1)


@pytest.mark.parametrize("name", ["mamba", "gemma3", "falcon-h1"])
def test_nor_do_they_in_states_and_windows(data_dir, name):
    storm(plait.Model(model_path(data_dir, name)), "unified", 300, 3)


@pytest.mark.parametrize("name", MODELS)
def test_nor_do_they_with_a_layer_for_multi_token_prediction(data_dir, tmp_path, name):
    model = add_layer(source(data_dir, name), tmp_path / "m.gguf")
    draft = plait.MTP(pauses=False)
    storm(model, "unified", 300, 4, draft)
    assert draft.acceptance.drafted > 0
    draft.close()


@pytest.mark.slow
def test_ten_thousand_steps_of_cancels_and_failures_leave_no_rows(tiny, kv):
    assert False not in storm(tiny, kv, 10_000, 2) or kv == "streams"


def test_a_closed_scheduler_takes_nothing(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        scheduler = plait.Scheduler(ctx)
        request = scheduler.submit("the hat", 5)
        scheduler.close()
        scheduler.close()
        assert request.finish_reason == "cancelled"
        with pytest.raises(ValueError, match="closed"):
            scheduler.submit("the hat")


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strings", "pieces", "want", "stopped"),
    [
        (["abc"], ["xa", "b", "cd"], "x", True),
        (["abc"], ["xab", "x", "ab"], "xabxab", False),
        (["aab"], ["aa", "ab"], "a", True),
        (["bc", "abcd"], ["ab", "c"], "a", True),
        (["end"], ["e", "n"], "en", False),
        ([], ["a", "b"], "ab", False),
    ],
)
def test_stop_strings(strings, pieces, want, stopped):
    watch, told, hit = StopStrings(strings), "", False
    for piece in pieces:
        text, hit = watch.push(piece)
        told += text
        assert not any(string in told for string in strings)
        if hit:
            break
    assert hit == stopped
    assert told + ("" if hit else watch.flush()) == want


def test_stop_strings_across_tokens(tiny):
    (full,) = plait.complete(tiny, "the hat", max_tokens=20)
    for at in range(2, len(full.text) - 6, 3):
        stop = full.text[at : at + 4]
        (cut,) = plait.complete(tiny, "the hat", max_tokens=20, stop=[stop, "\x00"])
        assert cut.text == full.text[: full.text.index(stop)]
        assert cut.finish_reason == "stop"
        assert cut.tokens == full.tokens[: len(cut.tokens)]
    (same,) = plait.complete(tiny, "the hat", max_tokens=20, stop="\x00\x00")
    assert same.text == full.text
    (token,) = plait.complete(tiny, "the hat", max_tokens=20, stop=full.tokens[4])
    assert token.tokens == full.tokens[: full.tokens.index(full.tokens[4]) + 1]
    with pytest.raises(ValueError, match="empty string"):
        plait.generate(tiny, "the hat", stop="")


def test_the_last_event_of_a_timeout_survives_an_interrupt(tiny, monkeypatch):
    def interrupted(row, seq):
        if last.done and not interrupts:
            interrupts.append(seq)
            raise KeyboardInterrupt
        return int(row.argmax())

    interrupts = []
    ahead = [0.0]  # seconds
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(request_pool, "time", clock)
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        last = scheduler.submit(tokens(5, 1), 50, timeout=60, index=7, stop="a" * 99)
        other = scheduler.submit(tokens(5, 2), 30, sampler=interrupted)
        events = scheduler.step()
        ahead[0] = 60
        with pytest.raises(KeyboardInterrupt):
            scheduler.step()
        other.cancel()
        assert scheduler.busy
        events += scheduler.run()
        assert not scheduler.busy
    own = [event for event in events if event.index == 7]
    assert [event.finish_reason for event in own] == [None, "timeout"]
    assert "".join(event.text for event in own) == last.text
    assert last.finish_reason == "timeout"


def test_stop_strings_with_a_long_chain_of_suffixes(demo_model):
    """Their number exceeds the recursion limit of Python."""
    n = 1200
    strings = ["x" * k + "b" for k in range(1, n)]
    scan = StopStrings(strings)
    assert scan.push("a" + "x" * n + "c") == ("a" + "x" * n + "c", False)
    assert scan.push("x" * n + "b") == ("x", True)

    x, b = (
        next(i for i in range(demo_model.n_vocab) if demo_model.tokenizer.token_bytes(i) == text)
        for text in (b"x", b"b")
    )
    with (
        plait.Context(demo_model, n_ctx=2048, n_seq_max=2) as ctx,
        plait.Scheduler(ctx) as scheduler,
    ):
        one = scheduler.submit(
            [5], 2000, sampler=lambda row, seq: b if len(one.tokens) == n else x, stop=strings
        )
        other = scheduler.submit(tokens(5), 2000, sampler=lambda row, seq: x)
        list(scheduler.run())
        assert (one.finish_reason, len(one.tokens), one.text) == ("stop", n + 1, "x")
        assert (other.finish_reason, len(other.tokens)) == ("length", 2000)


def test_text_that_fails_ends_only_its_request(tiny):
    class Broken:
        def push(self, token):
            raise RecursionError("too deep")

    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        bad, good = (scheduler.submit(tokens(5, i), 9) for i in range(2))
        bad.stream = Broken()
        scheduler.step()
        assert scheduler.failed == [bad]
        assert isinstance(bad.error, RecursionError)
        list(scheduler.run())
        assert list(good.tokens) == greedy(tiny, tokens(5, 1), 9)
        assert ctx.kv.n_used == 0


def test_top_tokens_are_reported(tiny):
    for event in plait.generate(tiny, "the hat", max_tokens=4, top_logprobs=3):
        assert len(event.top_logprobs) == 3
        assert event.top_logprobs[0] == (event.token, pytest.approx(event.logprob, abs=1e-9))
        assert [logprob for _, logprob in event.top_logprobs] == sorted(
            (logprob for _, logprob in event.top_logprobs), reverse=True
        )


# -- several of one prompt -------------------------------------------------------------------------


def test_samples_of_one_prompt_share_it(tiny):
    sampler = plait.Sampler(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=3)
    prompt = tokens(40)
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx:
        found = plait.complete(ctx, prompt, 6, sampler, n=6)
        assert ctx.stats.tokens <= 40 + 5 + 6 * 5
    assert [one.sample for one in found] == list(range(6))
    assert len({one.tokens for one in found}) > 3
    sampler.reset()
    (alone,) = plait.complete(tiny, prompt, 6, sampler)
    assert alone.tokens == found[0].tokens
    (best,) = plait.best_of(tiny, prompt, 4, 6, plait.Sampler(seed=1))
    assert best.mean_logprob == max(
        one.mean_logprob for one in plait.complete(tiny, prompt, 6, plait.Sampler(seed=1), n=4)
    )


def best_by_brute_force(model, prompt, width, n, stop=(), penalty=1):
    """Beam search that recomputes every text."""
    ends = model.tokenizer.eog.union(stop)
    beams, done = [((), 0.0)], []
    for step in range(n):
        grown = []
        for said_, total in beams:
            with plait.Context(model, n_ctx=64) as ctx:
                row = feed(ctx, prompt + list(said_), logits="last")[-1].astype(np.float64)
            logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
            grown += [((*said_, t), total + lp) for t, lp in enumerate(logprobs)]
        grown.sort(key=lambda beam: -beam[1])
        beams = []
        for beam in grown:
            if len(beams) == width:
                break
            (done if beam[0][-1] in ends or step == n - 1 else beams).append(beam)
    done.sort(key=lambda beam: -beam[1] / len(beam[0]) ** penalty)
    return [beam[0] for beam in done[:width]]


@pytest.mark.parametrize("width", [1, 3])
def test_beam_search(tiny, kv, width):
    prompt = tokens(8)
    with plait.Context(tiny, n_ctx=64, n_seq_max=width, kv=kv) as ctx:
        found = plait.beam_search(ctx, prompt, width, 4)
        assert ctx.kv.n_used == 0
    want = best_by_brute_force(tiny, prompt, width, 4)
    assert found[0].tokens == want[0]
    assert len(found) == width
    assert [one.mean_logprob for one in found] == sorted(
        (one.mean_logprob for one in found), reverse=True
    )
    if width == 1:
        assert list(found[0].tokens) == greedy(tiny, prompt, 4)


@pytest.mark.parametrize("width", [1, 3])
def test_beam_search_where_the_best_candidates_all_end(tiny, width):
    prompt = tokens(8)
    with plait.Context(tiny, n_ctx=64) as ctx:
        row = feed(ctx, prompt, logits="last")[-1]
    stop = np.argsort(-row)[: 9 * width].tolist()
    found = plait.beam_search(tiny, prompt, width, 4, length_penalty=4, stop=stop)
    assert len(found[0].tokens) > 1
    want = best_by_brute_force(tiny, prompt, width, 4, stop, penalty=4)
    assert [one.tokens for one in found] == want


def test_beam_search_refuses(tiny):
    with pytest.raises(ValueError, match="width is 0"):
        plait.beam_search(tiny, "a", 0)
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        with pytest.raises(plait.CacheFull):
            plait.beam_search(ctx, "the", 3)
        assert ctx.kv.n_used == 0
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=4, n_batch=2) as ctx,
        pytest.raises(ValueError, match="width is 4 but n_batch is 2; create the context with"),
    ):
        plait.beam_search(ctx, "the", 4)


# -- asyncio, progress -----------------------------------------------------------------------------


def test_async_events_are_the_same(tiny):
    async def collect():
        return [event async for event in plait.agenerate(tiny, ["the hat", "a"], 8)]

    assert sorted(asyncio.run(collect()), key=lambda e: e.index) == sorted(
        plait.generate(tiny, ["the hat", "a"], 8), key=lambda e: e.index
    )


def test_a_cancelled_task_frees_its_cells(tiny):
    async def cut_short(ctx, begun):
        async for _ in plait.agenerate(ctx, tokens(20), 200, lambda row, seq: 50):
            begun.set()

    async def main(ctx):
        begun = asyncio.Event()
        task = asyncio.create_task(cut_short(ctx, begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with plait.Context(tiny, n_ctx=500) as ctx:
        asyncio.run(main(ctx))
        assert ctx.kv.n_used == 0


def test_a_bar_of_tqdm(tiny, monkeypatch):
    bars = []

    class Bar:
        def __init__(self, total, **options):
            self.total, self.n, self.closed = total, 0, False
            bars.append(self)

        def update(self):
            self.n += 1

        def close(self):
            self.closed = True

    module = type(sys)("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", type(sys)("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    list(plait.generate(tiny, ["a", "b"], 3, progress=True))
    assert [(bar.total, bar.n, bar.closed) for bar in bars] == [(2, 2, True)]
    list(plait.generate(tiny, ["a", "b"], 3))
    assert len(bars) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: plait.Scheduler("ctx"),
        lambda ctx: plait.Scheduler(ctx).cancel(5),
        lambda ctx: plait.generate(ctx, "a", sampler=5),
        lambda ctx: plait.generate(ctx, "a", draft=5),
        lambda ctx: plait.generate(ctx, "a", stop=[1.5]),
        lambda ctx: plait.DraftModel("model"),
        lambda ctx: plait.beam_search("ctx", "a"),
        lambda ctx: plait.attention_sinks(5, 5),
        lambda ctx: plait.SelfExtend("ctx", 5),
        lambda ctx: plait.SelfExtend(ctx, 5),
        lambda ctx: plait.Chat("model"),
    ],
)
def test_arguments_of_wrong_types_are_type_errors(tiny, call):
    with plait.Context(tiny, n_ctx=16) as ctx, pytest.raises(TypeError):
        call(ctx)


def test_a_request_that_is_cancelled_before_the_step_has_seen_it(tiny, monkeypatch):
    """It arrives, and is cancelled, after the step has read the new requests."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx, plait.Scheduler(ctx) as scheduler:
        first = scheduler.submit(tokens(5), 3)
        read = scheduler._pool._read_inbox
        late = []

        def then_another_arrives():
            read()
            if not late:
                late.append(scheduler.submit(tokens(6), 3))
                scheduler._pool.cancelled.append(late[0])  # what cancel() does during a step

        monkeypatch.setattr(scheduler._pool, "_read_inbox", then_another_arrives)
        list(scheduler.run())
        assert late[0].finish_reason == "cancelled"
        assert first.tokens == tuple(greedy(tiny, tokens(5), 3))
        assert ctx.kv.n_used == 0
