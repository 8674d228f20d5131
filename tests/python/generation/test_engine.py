"""Engine: many tasks and threads in one context, and what ends a request, all requests, or the engine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from types import SimpleNamespace

import plait
import pytest
from plait.generation.engine_stats import Counters
from python.drive import tokens
from python.reference_data import model_path


@pytest.fixture
def engine(tiny):
    with plait.Engine(tiny, n_seq_max=8, n_ctx=256) as made:
        yield made


def prompts_of(n, seed=0):
    """Random prompts, half of which share a prefix."""
    rng = random.Random(seed)
    shared = tokens(30, 99)
    made = []
    for i in range(n):
        own = tokens(rng.randint(1, 60), 1000 + 7 * seed + i)
        made.append([*shared, *own] if i % 2 else own)
    return made


def sampler_of(i):
    return None if i % 3 == 0 else plait.Sampler(temperature=1.2, seed=i)


def alone(model, prompts, limits):
    """The completion of each prompt, generated in a context of its own."""
    return [
        plait.complete(model, [prompt], limit, sampler_of(i))[0]
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.002)


# -- the same text as alone ------------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("cells", [256, 1024])
def test_fifty_tasks_with_random_cancellations_equal_running_alone(tiny, kv, cells):
    n = 50
    rng = random.Random(cells)
    prompts, limits = prompts_of(n), [rng.randint(1, 40) for _ in range(n)]
    want = alone(tiny, prompts, limits)
    victims = set(rng.sample(range(n), 15))

    async def ask(engine, i):
        await asyncio.sleep(rng.random() * 0.02)
        got = []
        async for event in engine.stream(prompts[i], limits[i], sampler_of(i)):
            got.append(event.token)
            if i in victims and rng.random() < 0.3:
                raise asyncio.CancelledError
        return got

    async def main(engine):
        tasks = [asyncio.create_task(ask(engine, i)) for i in range(n)]
        for i in sorted(victims)[:5]:
            asyncio.get_running_loop().call_later(rng.random() * 0.03, tasks[i].cancel)
        return await asyncio.gather(*tasks, return_exceptions=True)

    options = {"kv_cells": cells} if kv == "unified" else {}
    with plait.Engine(tiny, n_seq_max=6, n_ctx=200, kv=kv, prefixes=False, **options) as engine:
        found = asyncio.run(main(engine))
        until(lambda: engine.ctx.kv.n_used == 0)
        stats = engine.stats
    assert stats.n_active == stats.n_queued == 0
    n_ended = sum(not isinstance(one, BaseException) for one in found)
    assert n - len(victims) <= n_ended <= stats.n_finished
    assert stats.n_failed == 0
    for i, one in enumerate(found):
        if i in victims and isinstance(one, BaseException):
            assert isinstance(one, asyncio.CancelledError)
        else:
            assert tuple(one) == want[i].tokens


def test_every_kind_of_memory_gives_the_same_texts_under_pressure(any_model):
    try:
        plait.complete(any_model, [[5]], 1)
    except (plait.UnsupportedError, plait.BatchError) as error:
        pytest.skip(str(error))
    rng = random.Random(3)
    n_vocab = any_model.n_vocab
    shared = [rng.randrange(3, n_vocab) for _ in range(20)]
    prompts = [
        (shared if i % 2 else []) + [rng.randrange(3, n_vocab) for _ in range(rng.randint(1, 20))]
        for i in range(14)
    ]
    want = alone(any_model, prompts, [10] * 14)

    async def ask(engine, i):
        limit = 0.004 if i in (3, 7) else 60
        return await asyncio.wait_for(engine.complete(prompts[i], 10, sampler_of(i)), limit)

    async def main(engine):
        return await asyncio.gather(*(ask(engine, i) for i in range(14)), return_exceptions=True)

    for cells in (64, 512):
        with plait.Engine(any_model, n_seq_max=5, n_ctx=64, kv_cells=cells) as engine:
            found = asyncio.run(main(engine))
        for i, one in enumerate(found):
            if i in (3, 7) and isinstance(one, asyncio.TimeoutError):
                continue
            assert one == want[i]


def test_drafts_do_not_change_texts(tiny, engine):
    prompts = [tokens(8, i % 3) * 4 for i in range(9)]
    draft = plait.PromptLookup()

    async def main():
        return await asyncio.gather(
            *(
                engine.complete(prompt, 20, sampler_of(i), draft=draft)
                for i, prompt in enumerate(prompts)
            )
        )

    assert asyncio.run(main()) == alone(tiny, prompts, [20] * 9)
    assert draft.acceptance.drafted > 0


def test_threads_and_tasks_share_an_engine(tiny, engine):
    prompts = prompts_of(24, 3)
    want = alone(tiny, prompts, [12] * 24)
    got = {}

    def ask(i):
        got[i] = engine.complete_sync(prompts[i], 12, sampler_of(i))

    async def main():
        found = await asyncio.gather(
            *(engine.complete(prompts[i], 12, sampler_of(i)) for i in range(1, 24, 2))
        )
        got.update(zip(range(1, 24, 2), found, strict=True))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(0, 24, 2)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join()
    for i, completion in enumerate(want):
        assert (got[i].tokens, got[i].text) == (completion.tokens, completion.text)
        assert got[i].logprobs == completion.logprobs


def test_requests_of_one_prompt_and_sample_are_equal_and_samples_differ(engine):
    sampler = plait.Sampler(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=1)

    async def main():
        return await asyncio.gather(
            *(engine.complete("the hat", 8, sampler, sample=i // 2) for i in range(8))
        )

    found = asyncio.run(main())
    assert [found[i].tokens for i in range(0, 8, 2)] == [found[i].tokens for i in range(1, 8, 2)]
    assert len({one.tokens for one in found}) == 4
    again = engine.complete_sync("the hat", 8, plait.Sampler(1.5, 0, 1, 0, seed=5), seed=1)
    assert again.tokens == found[0].tokens


def test_generate_runs_in_an_engine_beside_other_requests(tiny, engine):
    prompts = prompts_of(12, 5)
    other = engine.stream_sync(tokens(20, 1), 200, lambda row, seq: 7)
    next(other)
    found = plait.complete(engine, prompts, 10)
    assert found == plait.complete(tiny, prompts, 10)
    assert sum(1 for _ in other) == 199

    async def main():
        return [event.token async for event in plait.agenerate(engine, prompts[0], 10)]

    assert tuple(asyncio.run(main())) == found[0].tokens
    events = plait.generate(engine, prompts, 100)
    next(events)
    events.close()
    until(lambda: engine.stats.n_active == 0)


# -- queueing --------------------------------------------------------------------------------------


def test_requests_that_exceed_the_cache_together_wait(tiny):
    prompts = [tokens(50, i) for i in range(12)]
    want = alone(tiny, prompts, [20] * 12)

    async def main(engine):
        return await asyncio.gather(
            *(engine.complete(prompt, 20, sampler_of(i)) for i, prompt in enumerate(prompts))
        )

    with plait.Engine(tiny, n_seq_max=12, n_ctx=80, kv_cells=160) as engine:
        found = asyncio.run(main(engine))
        assert engine.stats.n_preempted > 0
    assert [one.tokens for one in found] == [one.tokens for one in want]


def test_a_request_waits_for_cells_that_others_hold(tiny):
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=3, kv_cells=64) as ctx,
        plait.Engine(ctx) as engine,
    ):
        foreign = ctx.sequence()
        batch = plait.Batch()
        batch.add_sequence(tokens(50), seq=foreign)
        ctx.decode(batch)
        timer = threading.Timer(0.1, foreign.close)
        timer.start()
        done = engine.complete_sync(tokens(30), 5)
        timer.join()
        assert len(done.tokens) == 5
        assert done.timings.queued > 0.05


def test_a_prompt_that_does_not_fit_alone_harms_no_other(tiny):
    async def main(engine):
        return await asyncio.gather(
            engine.complete(tokens(20), 30), engine.complete(tokens(90, 2), 5),
            engine.complete(tokens(10, 3), 5), return_exceptions=True,
        )  # fmt: skip

    with plait.Engine(tiny, n_ctx=100, kv_cells=80) as engine:
        first, second, third = asyncio.run(main(engine))
    assert isinstance(second, plait.CacheFull)
    assert (len(first.tokens), len(third.tokens)) == (30, 5)


def test_a_short_prompt_does_not_wait_for_long_ones(tiny):
    with (
        plait.Context(tiny, n_ctx=1024, n_seq_max=6, kv_cells=4096) as ctx,
        plait.Scheduler(ctx, chunk=32, live=True) as scheduler,
    ):
        long = [scheduler.submit(tokens(900, i), 4) for i in range(3)]
        generating = scheduler.submit(tokens(4, 8), 200, sampler=lambda row, seq: 7)
        for _ in range(3):
            scheduler.step()
        assert generating.n_generated > 0
        short = scheduler.submit(tokens(12, 9), 2)
        before = ctx.stats.tokens
        scheduler.step()
        assert short.n_generated == 1
        assert ctx.stats.tokens - before <= 33  # the chunk limits the time of a step
        assert not any(request.n_generated for request in long)
        for _ in range(110):
            scheduler.step()
        assert all(request.done for request in long)  # nor do the long ones wait for ever


def test_higher_priorities_start_first(tiny):
    order = []
    all_queued = threading.Event()

    def held(row, seq):
        all_queued.wait()
        return 7

    async def ask(engine, i, priority):
        await engine.complete(tokens(8, i), 3, priority=priority)
        order.append(priority)

    async def main(engine):
        running = asyncio.create_task(engine.complete(tokens(8, 99), 2, held))
        while engine.stats.n_active == 0:
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(ask(engine, i, i % 3)) for i in range(9)]
        while engine.stats.n_queued < 9:
            await asyncio.sleep(0.001)
        all_queued.set()
        await asyncio.gather(running, *waiting)

    with plait.Engine(tiny, n_seq_max=1, n_ctx=256, prefixes=False) as engine:
        asyncio.run(main(engine))
    assert order == [2] * 3 + [1] * 3 + [0] * 3


def test_a_full_queue_makes_callers_wait(tiny):
    longest = 0

    async def watch(engine, tasks):
        nonlocal longest
        while not all(task.done() for task in tasks):
            longest = max(longest, engine._scheduler.n_waiting)
            await asyncio.sleep(0)

    async def main(engine):
        tasks = [asyncio.create_task(engine.complete(tokens(6, i), 4)) for i in range(40)]
        await asyncio.sleep(0.005)
        tasks[30].cancel()
        tasks[35].cancel()
        await watch(engine, tasks)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with plait.Engine(tiny, n_seq_max=2, n_ctx=64, max_queued=3) as engine:
        found = asyncio.run(main(engine))
        assert engine.stats.n_queued == 0
        threads = [
            threading.Thread(target=engine.complete_sync, args=(tokens(5, i), 3)) for i in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert longest <= 3
    assert [len(one.tokens) for one in found if isinstance(one, plait.Completion)] == [4] * 38


@pytest.mark.parametrize("name", ["gemma3", "mamba", "falcon-h1"])
def test_a_kept_prefix_of_several_requests_is_given_up_if_nothing_else_runs(data_dir, name):
    """With one sequence, the requests cannot fork the prefix that all of them would use."""
    model = plait.Model(model_path(data_dir, name))
    prefix = tokens(20, 1, 100)
    with plait.Engine(model, n_seq_max=1, n_ctx=128) as engine:
        engine.complete_sync(prefix, 1)

        async def main():
            asked = (engine.complete([*prefix, 40], 3, timeout=20) for _ in range(3))
            return await asyncio.gather(*asked)

        found = asyncio.run(main())
    (want,) = plait.complete(model, [[*prefix, 40]], 3)
    assert [one.tokens for one in found] == [want.tokens] * 3


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "falcon-h1"])
def test_a_request_that_fills_all_cells_ends_with_its_text(data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    with plait.Engine(model, n_seq_max=2, n_ctx=128, kv_cells=64) as engine:
        done = engine.complete_sync(tokens(40, 1, 100), 80, lambda row, seq: 50)
    assert (done.finish_reason, len(done.tokens)) == ("length", 25)


def test_a_refused_request_wakes_the_next_one_in_the_queue(tiny):
    async def main(engine):
        first = [asyncio.create_task(engine.complete(tokens(5), n)) for n in (8, 1)]
        await asyncio.sleep(0)
        more = [asyncio.create_task(engine.complete(tokens(n), 2)) for n in (100, 6)]
        return await asyncio.wait_for(asyncio.gather(*first, *more, return_exceptions=True), 20)

    with plait.Engine(tiny, n_seq_max=1, n_ctx=64, max_queued=1) as engine:
        found = asyncio.run(main(engine))
    assert isinstance(found[2], ValueError)
    assert [len(one.tokens) for one in (*found[:2], found[3])] == [8, 1, 2]


def test_a_task_that_is_destroyed_with_its_loop_gives_its_place_back(tiny):
    with plait.Engine(tiny, n_seq_max=1, n_ctx=64, max_queued=1) as engine:
        for _ in range(3):
            loop = asyncio.new_event_loop()
            tasks = [loop.create_task(engine.complete(tokens(5, i), 8)) for i in range(5)]
            loop.run_until_complete(asyncio.sleep(0))
            until(lambda: not engine._scheduler.busy and engine._stepper._n_reserved)  # for a task
            loop.close()
            while tasks:
                tasks.pop()._log_destroy_pending = False
            gc.collect()
            until(lambda: not engine._stepper._n_reserved)
        assert len(engine.complete_sync(tokens(5), 2).tokens) == 2


def test_agenerate_waits_for_a_full_queue_without_the_event_loop(tiny):
    async def last(engine):
        return [event async for event in plait.agenerate(engine, tokens(6), 2)][-1]

    async def main(engine):
        tasks = [asyncio.create_task(engine.complete(tokens(5, i), 30)) for i in range(4)]
        await asyncio.sleep(0)
        more = [asyncio.create_task(last(engine)) for _ in range(3)]
        await asyncio.sleep(0.002)
        more[1].cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, *more, return_exceptions=True), 20)

    with plait.Engine(tiny, n_seq_max=1, n_ctx=64, max_queued=1) as engine:
        *done, first, cancelled, third = asyncio.run(main(engine))
        until(lambda: not engine._scheduler.busy)
    assert [len(one.tokens) for one in done] == [30] * 4
    assert first.finish_reason == third.finish_reason == "length"
    assert isinstance(cancelled, asyncio.CancelledError)


# -- results ---------------------------------------------------------------------------------------


def test_usage_and_timings(engine):
    first = engine.complete_sync(tokens(40), 6)
    assert first.prompt_tokens == tuple(tokens(40))
    assert first.usage == plait.Usage(40, 0, 6)
    again = engine.complete_sync([*tokens(40), 7, 8], 3, top_logprobs=2)
    assert again.usage == plait.Usage(42, 40, 3)
    assert [len(top) for top in again.top_logprobs] == [2, 2, 2]
    assert 0 <= again.timings.queued <= again.timings.first_token <= again.timings.total < 60
    stats = engine.stats
    assert (stats.n_finished, stats.n_prompt, stats.n_cached, stats.n_generated) == (2, 82, 40, 9)
    assert stats.first_token_p50 <= stats.first_token_p95
    assert "2" in stats._repr_html_()
    assert "running" in repr(engine)


@pytest.mark.parametrize(("n", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (20, 10, 19), (21, 11, 20)])
def test_percentiles_are_the_smallest_values_that_enough_do_not_exceed(n, p50, p95):
    counters = Counters()
    for seconds in range(1, n + 1):
        timings = plait.Timings(queued=seconds, first_token=2 * seconds, total=60)
        ended = SimpleNamespace(usage=plait.Usage(1, 0, 1), timings=timings, finish_reason="stop")
        counters.add_end(ended)
    stats = counters.snapshot(
        n_active=0, n_queued=0, n_preempted=0, n_steps=0, n_cells=1, n_used_cells=0
    )
    assert (stats.queued_p50, stats.queued_p95) == (p50, p95)
    assert (stats.first_token_p50, stats.first_token_p95) == (2 * p50, 2 * p95)


def test_completions_of_generate_have_usage_and_prompt_tokens(tiny):
    (one,) = plait.complete(tiny, [tokens(9)], 3, top_logprobs=1)
    assert one.prompt_tokens == tuple(tokens(9))
    assert one.usage == plait.Usage(9, 0, 3)
    assert one.timings.total >= one.timings.first_token
    assert [top[0][0] for top in one.top_logprobs] == list(one.tokens)


def test_the_last_event_has_the_completion(engine):
    *before, last = engine.stream_sync("the hat", 5)
    assert [event.completion for event in before] == [None] * len(before)
    assert last.completion.text == "".join(event.text for event in [*before, last])
    assert last.completion.finish_reason == last.finish_reason


def test_a_timeout_ends_a_request_with_its_text_so_far(tiny):
    with plait.Engine(tiny, n_ctx=4096, kv_cells=4096) as engine:
        done = engine.complete_sync("the hat", 4000, lambda row, seq: 7, timeout=0.15)
        assert done.finish_reason == "timeout"
        assert 0 < len(done.tokens) < 4000
        never = engine.complete_sync("the hat", 5, timeout=0)
        assert (never.finish_reason, never.tokens) == ("timeout", ())
        assert engine.complete_sync("the hat", 5, timeout=60).finish_reason != "timeout"
        assert engine.stats.n_timeout == 2


def test_a_stream_ends_with_an_event_at_its_timeout(demo_model):
    """It has the text that was withheld because it could become a stop string."""
    ids = range(demo_model.n_vocab)
    x = next(token for token in ids if demo_model.tokenizer.token_bytes(token) == b"x")

    def slow(row, seq):
        time.sleep(0.01)
        return x

    async def streamed(engine, *args, **options):
        return [event async for event in engine.stream(*args, **options)]

    with plait.Engine(demo_model, n_ctx=512) as engine:
        options = {"stop": "x" * 300, "timeout": 0.2}
        for events in (
            list(engine.stream_sync("a", 400, slow, **options)),
            asyncio.run(streamed(engine, "a", 400, slow, **options)),
        ):
            *before, last = events
            done = last.completion
            assert before
            assert {event.text for event in before} == {""}
            assert (last.token, last.logprob, last.finish_reason) == (-1, 0, "timeout")
            assert last.text == done.text == "x" * len(before)
            assert done.tokens == tuple(event.token for event in before)
            assert done.finish_reason == "timeout"
        (only,) = engine.stream_sync("a", timeout=0)
        assert (only.text, only.completion.tokens) == ("", ())
        assert engine.stats.n_timeout == 3


def test_messages_become_a_prompt_and_a_message(demo_model):
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    with plait.Engine(demo_model, n_ctx=256) as engine:
        done = engine.complete_sync(
            [{"role": "user", "content": "Otto has a hat."}], 10, template=template
        )
        plain = engine.complete_sync("Otto has a hat.\n", 10, add_special=False)
        assert done.tokens == plain.tokens
        assert done.message.content == plain.text
        *_, last = engine.stream_sync(
            [{"role": "user", "content": "Otto has a hat."}], 10, template=template
        )
        assert last.completion.message == done.message
        assert plain.message is None
        with pytest.raises(ValueError, match="apply to messages"):
            engine.complete_sync("text", tools=[])


def test_tool_choice_requires_or_forbids_calls(demo_model):
    pytest.importorskip("llguidance")

    def weather(city: str) -> str:
        """Return the weather.

        Args:
            city: The city.
        """
        return city

    def clock() -> str:
        """Return the time."""
        return ""

    asked = [{"role": "user", "content": "Otto has a hat."}]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    options = {"tools": [weather, clock], "template": template, "sampler": plait.Sampler(seed=3)}
    with plait.Engine(demo_model, n_ctx=512) as engine:
        for choice in ("required", "clock", "weather"):
            done = engine.complete_sync(asked, 200, tool_choice=choice, **options)
            calls = done.message.tool_calls
            if done.finish_reason == "stop" or choice == "clock":
                assert calls
            assert all(call.name == choice for call in calls if choice != "required")
        without = engine.complete_sync(asked, 5, tool_choice="none", **options)
        assert without.tokens == engine.complete_sync(asked, 5, **options | {"tools": None}).tokens
        assert without.usage.n_prompt < engine.complete_sync(asked, 5, **options).usage.n_prompt
        for wrong, message in [
            ({"tool_choice": "other"}, "not among the tools"),
            ({"tool_choice": "required", "tools": None}, "there are no tools"),
            ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "exclude"),
        ]:
            with pytest.raises(ValueError, match=message):
                engine.complete_sync(asked, 5, **options | wrong)
        with pytest.raises(ValueError, match="apply to messages"):
            engine.complete_sync("text", tool_choice="required")


def test_required_calls_have_no_endless_white_space(demo_model):
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Add.",
                "parameters": {
                    "type": "object",
                    "properties": {"x": {"enum": [1, 2]}},
                    "required": ["x"],
                },
            },
        }
        for name in ("add", "sub")
    ]
    messages = [{"role": "user", "content": "Tom lives in Rome. Where does Tom live?"}]
    with plait.Engine(demo_model, n_ctx=1024) as engine:
        done = engine.complete_sync(
            messages, 200, tools=tools, tool_choice="required", template=template
        )
    assert done.finish_reason == "stop"
    (call,) = done.message.tool_calls
    assert call.arguments["x"] in (1, 2)


def test_a_timeout_counts_while_a_caller_waits_for_a_place(tiny):
    async def main(engine):
        first = [asyncio.create_task(engine.complete(tokens(5), 200)) for _ in range(3)]
        await asyncio.sleep(0)
        late = [asyncio.create_task(engine.complete(tokens(6), 2, timeout=0.01)) for _ in range(2)]
        last = asyncio.to_thread(engine.complete_sync, tokens(7), 2, timeout=0.01)
        found = await asyncio.gather(*late, last)
        assert not first[-1].done()
        await asyncio.gather(*first)
        return found

    with plait.Engine(tiny, n_seq_max=1, n_ctx=256, max_queued=1) as engine:
        found = asyncio.run(main(engine))
        assert engine._stepper._n_reserved == 0
    assert [(one.finish_reason, one.tokens) for one in found] == [("timeout", ())] * 3


# The end of a prompt opens the reasoning, as in the templates of DeepSeek R1.
REASONING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{# <tool_call> #}"
    "{% if tools %}{{ tools | tojson }}{% endif %}<think>\n"
)


def test_a_constrained_reply_has_no_reasoning(demo_model):
    """A grammar applies from the first token, so what it gives is content or a call."""
    pytest.importorskip("llguidance")

    def clock() -> str:
        """Return the time."""
        return ""

    asked = [{"role": "user", "content": "Otto has a hat."}]
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    with plait.Engine(demo_model, n_ctx=512) as engine:
        message = engine.complete_sync(asked, 20, template=REASONING, response_format=form).message
        assert json.loads(message.content) == {}
        assert message.reasoning == ""
        message = engine.complete_sync(
            asked, 60, template=REASONING, tools=[clock], tool_choice="required"
        ).message
        assert message.tool_calls[0].name == "clock"
        assert engine.complete_sync(asked, 5, template=REASONING).message.reasoning
        chat = plait.Chat(engine, template=REASONING, max_tokens=20)
        assert json.loads(chat.say("Otto has a hat.", response_format=form)) == {}
        grammar = plait.Grammar.regex("so</think>yes")
        message = engine.complete_sync(
            asked, 20, plait.Sampler(0, grammar=grammar), template=REASONING
        ).message
        assert (message.reasoning, message.content) == ("so", "yes")


def test_response_format_constrains_the_text(demo_model):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", "b"]}}}
    with plait.Engine(demo_model, n_ctx=256) as engine:
        for sampler in (None, plait.Sampler(seed=2)):
            done = engine.complete_sync("Otto", 20, sampler, response_format=form)
            assert done.text.strip() in ('"a"', '"b"')
        with pytest.raises(ValueError, match="type 'xml'"):
            engine.complete_sync("Otto", 20, response_format={"type": "xml"})
        with pytest.raises(TypeError, match=r"requires a plait\.Sampler"):
            engine.complete_sync("Otto", 20, lambda row, seq: 5, response_format=form)


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_of_one_request_harms_no_other(tiny, engine):
    def broken(row, seq):
        raise LookupError("broken sampler")

    async def main():
        return await asyncio.gather(
            *(engine.complete(tokens(9, i), 12, broken if i % 3 == 1 else None) for i in range(9)),
            return_exceptions=True,
        )

    found = asyncio.run(main())
    want = [plait.complete(tiny, [tokens(9, i)], 12)[0].tokens for i in range(9)]
    for i, one in enumerate(found):
        if i % 3 == 1:
            assert isinstance(one, LookupError)
        else:
            assert one.tokens == want[i]
    with pytest.raises(LookupError, match="broken sampler"):
        engine.complete_sync("a", 3, broken)
    with pytest.raises(LookupError, match="broken sampler"):
        list(engine.stream_sync("a", 3, broken))
    assert engine.stats.n_failed == 5


@pytest.mark.parametrize("source", ["engine", "model"])
def test_an_error_keeps_nothing_of_its_callers_alive(tiny, engine, source):
    class Local:
        """What a caller holds."""

    def broken(row, seq):
        raise LookupError("broken sampler")

    def call():
        local = Local()
        where = engine if source == "engine" else tiny
        with pytest.raises(LookupError, match="broken sampler"):
            plait.complete(where, [tokens(5), tokens(6)], 3, broken)
        if source == "engine":
            with pytest.raises(LookupError, match="broken sampler"):
                engine.complete_sync(tokens(5), 3, broken)
        return weakref.ref(local)

    gc.disable()  # reference counts alone must free it
    try:
        assert call()() is None
    finally:
        gc.enable()


def test_kept_prefixes_that_a_rollback_replaced_are_computed_again(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx, plait.Engine(ctx) as engine:
        want = engine.complete_sync(tokens(20), 4).tokens
        batch = plait.Batch()
        with ctx.transaction() as undone, ctx.sequence() as own:
            batch.add_sequence(tokens(5), seq=own)
            ctx.decode(batch)
            undone.rollback()
        assert engine.complete_sync(tokens(20), 4).tokens == want


@pytest.mark.parametrize("empty", [lambda kv, _: kv.clear(), lambda kv, seq: kv.seq_keep(seq)])
def test_kept_prefixes_that_others_emptied_are_computed_again(tiny, empty):
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx,
        ctx.sequence() as other,
        plait.Engine(ctx) as engine,
    ):
        want = [engine.complete_sync(tokens(20, seed), 4) for seed in range(2)]
        empty(ctx.kv, other)
        for seed in range(2):
            again = engine.complete_sync(tokens(20, seed), 4)
            assert (again.tokens, again.logprobs) == (want[seed].tokens, want[seed].logprobs)
            assert again.usage.n_cached == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"prompt": []}, ValueError),
        ({"prompt": [10**9]}, IndexError),
        ({"prompt": "a", "max_tokens": 0}, ValueError),
        ({"prompt": "a", "sampler": 3}, TypeError),
        ({"prompt": "a", "stop": [1.5]}, TypeError),
        ({"prompt": "a", "timeout": -1}, ValueError),
        ({"prompt": "a", "sampler": lambda row, seq: 1, "seed": 4}, TypeError),
        ({"prompt": list(range(300))}, (ValueError, IndexError)),
    ],
)
def test_invalid_arguments_raise_and_give_their_place_back(tiny, arguments, error):
    with plait.Engine(tiny, n_ctx=256, max_queued=1) as engine:
        for _ in range(3):
            with pytest.raises(error):
                engine.complete_sync(**arguments)

            async def ask():
                await engine.complete(**arguments)

            with pytest.raises(error):
                asyncio.run(ask())
        assert len(engine.complete_sync("a", 2).tokens) == 2


def test_a_step_that_fails_ends_all_requests_with_its_error(tiny, engine, monkeypatch, caplog):
    decode = engine.ctx.decode
    broken = threading.Event()

    def failing(batch):
        if broken.is_set():
            raise plait.BackendError("the device was lost")
        return decode(batch)

    monkeypatch.setattr(type(engine.ctx), "decode", lambda self, batch: failing(batch))

    async def main():
        tasks = [asyncio.create_task(engine.complete(tokens(9, i), 200)) for i in range(12)]
        while engine.stats.n_active < 3:
            await asyncio.sleep(0.001)
        broken.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(main())
    assert {type(one) for one in found} == {plait.BackendError}
    assert "a step failed" in caplog.text
    assert engine.ctx.kv.n_used == 0
    broken.clear()
    assert len(engine.complete_sync("a", 4).tokens) == 4


def test_a_closed_context_ends_requests_with_an_error(tiny, caplog):
    ctx = plait.Context(tiny, n_ctx=256, n_seq_max=2)
    with plait.Engine(ctx) as engine:
        events = engine.stream_sync("the hat", 200, lambda row, seq: 7)
        next(events)
        ctx.close()
        with pytest.raises(ValueError, match="closed"):
            list(events)
        with pytest.raises(ValueError, match="closed"):
            engine.complete_sync("a", 3)
        assert engine.stats.n_active == 0


# -- the end ---------------------------------------------------------------------------------------


def test_a_context_that_is_closed_during_a_step_ends_requests_with_an_error(tiny, caplog):
    ctx = plait.Context(tiny, n_ctx=256, n_seq_max=2)

    def closing(row, seq):
        ctx.close()
        return 7

    with plait.Engine(ctx) as engine:
        events = engine.stream_sync("the hat", 200, closing)
        with pytest.raises(ValueError, match="closed"):
            list(events)


def test_closing_ends_running_and_waiting_requests(tiny):
    engine = plait.Engine(tiny, n_seq_max=2, n_ctx=256, max_queued=2)

    def slow(row, seq):  # so that no request ends by itself before the engine does
        time.sleep(0.02)
        return 5

    async def main():
        tasks = [asyncio.create_task(engine.complete(tokens(9, i), 240, slow)) for i in range(9)]
        while engine.stats.n_active < 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    found = asyncio.run(main())
    assert {type(one) for one in found} <= {RuntimeError, ValueError}
    assert any("was closed while" in str(one) for one in found)
    assert engine.ctx.closed
    with pytest.raises(ValueError, match="engine is closed"):
        engine.complete_sync("a")
    assert "closed" in repr(engine)
    engine.close()


def test_a_given_context_survives_its_engine(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        with plait.Engine(ctx) as engine:
            engine.complete_sync(tokens(20), 3)
            assert ctx.kv.n_used > 0  # a kept prefix
        assert ctx.kv.n_used == 0
        with pytest.raises(TypeError, match="options of a context"):
            plait.Engine(ctx, n_ctx=32)


def test_a_forgotten_engine_ends_its_thread(tiny):
    def engines():
        return [t for t in threading.enumerate() if t.name.startswith("plait-engine")]

    before = len(engines())
    made = plait.Engine(tiny, n_ctx=64)
    ctx = made.ctx
    made.complete_sync("a", 2)
    assert len(engines()) == before + 1
    del made
    gc.collect()
    until(lambda: len(engines()) == before)
    assert ctx.closed


class SlowCompilation:
    """Lets the compilation of grammars wait until it is allowed to continue."""

    def __init__(self, monkeypatch):
        pytest.importorskip("llguidance", reason="needs the extra grammar")
        from plait.generation import grammar

        self.begun, self.allowed, self.error = threading.Event(), threading.Event(), None
        self._compile = grammar._compile
        monkeypatch.setattr(grammar, "_compile", self)

    def __call__(self, *args):
        self.begun.set()
        assert self.allowed.wait(20), "nothing else advanced meanwhile"
        if self.error is not None:
            raise self.error
        return self._compile(*args)

    async def begin(self, engine, sampler, seed=None):
        """Begin a completion, and return its task once the grammar is being compiled."""
        task = asyncio.create_task(engine.complete("the hat", 9, sampler, seed=seed))
        await asyncio.to_thread(self.begun.wait, 20)
        return task


@pytest.mark.parametrize("seed", [None, 3])
def test_tasks_advance_while_a_grammar_is_compiled(demo_model, monkeypatch, seed):
    slow = SlowCompilation(monkeypatch)

    async def main(engine):
        sampler = plait.Sampler(grammar="[a-z]{5}", seed=4)
        constrained = await slow.begin(engine, sampler, seed)
        n = 0
        async for _ in engine.stream("Once", 5):
            n += 1
        slow.allowed.set()
        assert n > 0
        assert len((await constrained).text) == 5

    with plait.Engine(demo_model, n_ctx=64) as engine:
        asyncio.run(main(engine))


SLOW_TEMPLATE = "{% for i in range(500) %}{% for j in range(500) %}{% endfor %}{% endfor %}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("prompt", "template"),
    [([{"role": "user", "content": "hat"}], SLOW_TEMPLATE), ([5] * 300_000, None)],
    ids=["template", "ids"],
)
def test_tasks_advance_while_a_prompt_is_prepared(demo_model, prompt, template):
    async def main(engine):
        slow = asyncio.create_task(engine.complete(prompt, 2, template=template))
        n = 0
        while not slow.done():
            await asyncio.sleep(0.001)
            n += 1
        assert (slow.exception() is None) == (template is not None)  # the ids exceed n_ctx
        return n

    with plait.Engine(demo_model, n_ctx=64) as engine:
        assert asyncio.run(main(engine)) > 5


def test_a_task_may_be_cancelled_or_fail_while_a_grammar_is_compiled(demo_model, monkeypatch):
    slow = SlowCompilation(monkeypatch)

    async def main(engine):
        sampler = plait.Sampler(grammar="[a-z]{5}", seed=4)
        constrained = await slow.begin(engine, sampler)
        constrained.cancel()
        with pytest.raises(asyncio.CancelledError):
            await constrained
        assert not slow.allowed.is_set()
        slow.error = ValueError("grammar: too large")
        slow.allowed.set()
        with pytest.raises(ValueError, match="too large"):
            await engine.complete("the hat", 9, plait.Sampler(grammar="[a-z]{5}"))
        slow.error = None
        assert len((await engine.complete("the hat", 9, sampler)).text) == 5
        assert engine.stats.n_active == engine.stats.n_queued == 0

    with plait.Engine(demo_model, 1, n_ctx=64, max_queued=1) as engine:
        asyncio.run(main(engine))


def test_an_engine_may_be_closed_while_a_grammar_is_compiled(demo_model, monkeypatch):
    slow = SlowCompilation(monkeypatch)

    async def main(engine):
        sampler = plait.Sampler(grammar="[a-z]{5}", seed=4)
        constrained = await slow.begin(engine, sampler)
        engine.close()
        slow.allowed.set()
        with pytest.raises(ValueError, match="closed"):
            await constrained

    with plait.Engine(demo_model, n_ctx=64) as engine:
        asyncio.run(main(engine))


def test_leaving_a_stream_frees_its_cells(tiny):
    async def main(engine):
        stream = engine.stream("the hat", 200, lambda row, seq: 7)
        await stream.__anext__()
        await stream.aclose()

    with plait.Engine(tiny, n_ctx=256, prefixes=False) as engine:
        asyncio.run(main(engine))
        until(lambda: engine.ctx.kv.n_used == 0)
        events = engine.stream_sync("the hat", 200, lambda row, seq: 7)
        next(events)
        del events
        until(lambda: engine.ctx.kv.n_used == 0)
        assert engine.stats.n_cancelled == 2


@pytest.mark.parametrize("leave", [lambda events: events.close(), lambda events: None])
def test_leaving_events_before_the_first_ends_the_requests(tiny, engine, leave):
    for start in (
        lambda: engine.stream_sync("the hat", 200, lambda row, seq: 7),
        lambda: plait.generate(engine, ["the hat"] * 3, 200, lambda row, seq: 7),
    ):
        events = start()
        until(lambda: engine.stats.n_active > 0)
        leave(events)
        del events
        until(lambda: engine.stats.n_active == 0)
    assert engine.stats.n_cancelled == 4
    assert engine.stats.n_finished == 0


def test_closing_generate_before_its_first_event_frees_its_context(tiny, monkeypatch):
    made = []
    create = plait.Context.__init__
    monkeypatch.setattr(
        plait.Context,
        "__init__",
        lambda self, *args, **options: (made.append(self), create(self, *args, **options))[1],
    )
    events = plait.generate(tiny, "the hat")
    assert not made[0].closed
    events.close()
    assert made[0].closed
    assert list(events) == []


def test_a_stream_that_is_collected_during_a_step_ends_alone(tiny, engine):
    """The collector runs the finalizer of an abandoned stream in any thread, here in the one that steps."""

    class Collecting(plait.PromptLookup):
        def propose(self, asks):
            gc.collect()
            return super().propose(asks)

    def abandon():
        events = engine.stream_sync(tokens(9, 1), 200, lambda row, seq: 7)
        next(events)
        cycle = [events]
        cycle.append(cycle)

    gc.disable()
    try:
        events = engine.stream_sync(tokens(9, 2), 12, draft=Collecting())
        found = [next(events)]
        abandon()
        found += events
    finally:
        gc.enable()
    want = plait.complete(tiny, [tokens(9, 2)], 12)[0]
    assert tuple(event.token for event in found) == want.tokens
    until(lambda: engine.stats.n_cancelled == 1)
    assert engine.stats.n_failed == 0


@pytest.mark.parametrize("n", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_cell_is_leaked(tiny, n):
    rng = random.Random(n)

    async def ask(engine, i, gate):
        async with gate:
            try:
                await asyncio.wait_for(
                    engine.complete(tokens(rng.randint(1, 12), i % 50), rng.randint(1, 6)),
                    rng.choice([0.002, 5.0]),
                )
            except asyncio.TimeoutError:
                return 0
        return 1

    async def main(engine):
        gate = asyncio.Semaphore(100)
        return sum(await asyncio.gather(*(ask(engine, i, gate) for i in range(n))))

    with plait.Context(tiny, n_ctx=32, n_seq_max=8, kv_cells=128) as ctx:
        with plait.Engine(ctx) as engine:
            n_done = asyncio.run(main(engine))
            until(lambda: engine.stats.n_active == 0)
            stats = engine.stats
            assert n_done <= stats.n_finished <= n
            assert stats.n_finished > 0
            assert stats.n_failed == 0
            assert ctx.kv.n_used <= 128
        assert ctx.kv.n_used == 0
        assert len([ctx.sequence() for _ in range(8)]) == 8  # no handle is left open


def run(program, **options):
    env = os.environ | {"PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **options,
    )  # fmt: skip


START = """
    import asyncio, os, sys, threading, time, plait
    engine = plait.Engine(plait.Model.demo(), n_ctx=4096)
    forever = lambda row, seq: 700
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("next(engine.stream_sync('a', 4000, forever)); print('end')", 0),
        (
            """
            for _ in range(4):
                threading.Thread(
                    target=engine.complete_sync, args=('a', 4000, forever), daemon=True
                ).start()
            time.sleep(0.1); print('end')
            """,
            0,
        ),
        (
            """
            async def main():
                tasks = [asyncio.create_task(engine.complete('a', 4000, forever)) for _ in range(5)]
                await asyncio.sleep(0.1)
                print('end')
            asyncio.run(main())
            """,
            0,
        ),
        ("s = engine.stream_sync('a', 4000, forever); next(s); print('end'); sys.exit(3)", 3),
        ("s = engine.stream_sync('a', 4000, forever); next(s); print('end'); 1 / 0", 1),
        (
            """
            pid = os.fork()
            if pid == 0:
                try:
                    engine.complete_sync('a')
                except RuntimeError as error:
                    assert 'another process' in str(error)
                    sys.exit(0)
                sys.exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            print('end')
            """,
            0,
        ),
    ],
)
def test_the_interpreter_ends_while_requests_run(program, code):
    process = run(textwrap.dedent(START) + textwrap.dedent(program))
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (code, "end\n"), err


@pytest.mark.parametrize(
    "program",
    [
        "print('start', flush=True)\nengine.complete_sync('a', 4000, forever)",
        "for e in engine.stream_sync('a', 4000, forever): print('start', flush=True)",
        """
        async def main():
            print('start', flush=True)
            await asyncio.gather(*(engine.complete('a', 4000, forever) for _ in range(5)))
        asyncio.run(main())
        """,
    ],
)
def test_ctrl_c_ends_cleanly(program):
    slow = "forever = lambda row, seq: time.sleep(0.005) or 700\n"
    process = run(textwrap.dedent(START) + slow + textwrap.dedent(program))
    try:
        assert process.stdout.readline() == "start\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in err
    assert "Fatal" not in err
    assert process.returncode in (-signal.SIGINT, 130, 1)
