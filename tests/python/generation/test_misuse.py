"""Misuse of generation raises errors that name the argument; nothing is silently ignored."""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import pickle
import threading
import time
import warnings

import numpy as np
import plait
import pytest
from plait.generation.stops import StopStrings

from python import gguf_writer


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as ctx:
        yield ctx


@pytest.fixture(scope="module")
def no_vocabulary(tmp_path_factory):
    metadata = gguf_writer.llama_metadata()
    metadata = {k: v for k, v in metadata.items() if not k.startswith("tokenizer.")}
    metadata["tokenizer.ggml.model"] = "no_vocab"
    metadata["llama.vocab_size"] = len(gguf_writer.vocabulary()["tokenizer.ggml.tokens"])
    path = tmp_path_factory.mktemp("models") / "no_vocab.gguf"
    return plait.Model(gguf_writer.write(path, metadata, gguf_writer.llama_weights()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: plait.complete(m, b"abc"), "prompts is bytes; pass a str"),
        (lambda m: plait.complete(m, [b"abc"]), "prompt 0 is bytes; pass a str"),
        (lambda m: plait.complete(m, bytearray(b"abc")), "prompts is bytearray; pass a str"),
        (lambda m: plait.complete(m, "a", stop=b"abc"), "stop is bytes"),
        (lambda m: plait.complete(m, "a", stop=["a", b"b"]), "stop has b'b'"),
        (lambda m: plait.beam_search(m, b"abc"), "is bytes; pass a str"),
        (lambda m: plait.best_of(m, b"abc", 2), "is bytes; pass a str"),
    ],
)
def test_bytes_and_strings_in_place_of_lists_are_type_errors(tiny, call, message):
    with pytest.raises(TypeError, match=message):
        call(tiny)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, token: plait.complete(m, "a", 2, stop=[token]),
        lambda m, token: plait.beam_search(m, "a", 2, 2, stop=[token]),
        lambda m, token: plait.complete(m, "a", 2, plait.Sampler(logit_bias={token: 1.0})),
        lambda m, token: plait.complete(m, "a", 2, plait.Sampler(banned=[token])),
        lambda m, token: plait.complete(m, "a", 2, plait.Sampler(allowed=[1, token])),
        lambda m, token: plait.complete(m, "a", 2, plait.Sampler(forced=[token])),
    ],
)
def test_token_ids_outside_the_vocabulary_are_index_errors(tiny, call):
    with pytest.raises(IndexError, match=rf"token id {tiny.n_vocab}.*outside the vocabulary of"):
        call(tiny, tiny.n_vocab)


@pytest.mark.parametrize("top", [-1, 10**6])
def test_top_outside_the_vocabulary_is_a_value_error(tiny, top):
    with pytest.raises(ValueError, match=f"top_logprobs is {top}; it must be between 0 and"):
        plait.complete(tiny, "a", 2, top_logprobs=top)


@pytest.mark.parametrize("token", [3.7, "a", None])
def test_a_sampler_must_return_an_int(tiny, token):
    with pytest.raises(TypeError, match=r"the sampler returned .*; expected an int"):
        plait.complete(tiny, "a", 2, lambda row, seq: token)


@pytest.mark.parametrize("token", [-1, 288, 1 << 70])
def test_a_sampler_must_stay_in_the_vocabulary(tiny, token):
    with pytest.raises(
        IndexError, match=f"the sampler returned token {token}; the vocabulary has 288"
    ):
        plait.complete(tiny, "a", 2, lambda row, seq: token)


def test_a_closed_scheduler_takes_no_steps(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        scheduler = plait.Scheduler(ctx)
        scheduler.close()
        with pytest.raises(ValueError, match="step: the scheduler is closed"):
            scheduler.step()


def test_a_completion_without_tokens_has_no_mean():
    empty = plait.Completion(0, 0, (), "", (), "timeout")
    assert math.isnan(empty.mean_logprob)
    assert empty.logprob == 0


def test_a_sampler_may_return_a_numpy_integer(tiny):
    (one,) = plait.complete(tiny, "a", 2, lambda row, seq: np.int64(5))
    assert one.tokens == (5, 5)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copied_sampler_shares_no_state(make):
    row = np.linspace(0, 1, 50, dtype=np.float32)
    first = plait.Sampler(5.0, top_k=0, top_p=1, min_p=0, repetition_penalty=1.5, seed=3)
    before = [first(row) for _ in range(5)]
    second = make(first)
    assert second.seed == first.seed
    assert second.repetition_penalty == 1.5
    assert second.tokens(0).tolist() == []
    assert [second(row) for _ in range(5)] == before
    assert first.tokens(0).tolist() == before


def test_ids_generate_on_a_file_without_a_vocabulary(no_vocabulary, tiny):
    ids = [5, 6, 7]
    (want,) = plait.complete(tiny, [ids], 4)
    (got,) = plait.complete(no_vocabulary, [ids], len(want.tokens))
    assert got.tokens == want.tokens
    assert got.text == ""
    assert len(plait.best_of(no_vocabulary, [ids], 2, 3)) == 1
    assert plait.beam_search(no_vocabulary, ids, 2, 3)[0].tokens
    with pytest.raises(plait.UnsupportedError, match="holds no tokenizer"):
        plait.complete(no_vocabulary, "text", 3)
    with pytest.raises(plait.UnsupportedError, match="pass token ids"):
        plait.complete(no_vocabulary, [ids], 3, stop="text")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: plait.complete(m, {"a": 1}), "prompts: expected text or a list, got dict$"),
        (lambda m: plait.complete(m, {"a", "b"}), "prompts: .* got set, which has no order"),
        (lambda m: plait.complete(m, [{5, 6}]), "prompt 0: .* got set, which has no order"),
        (lambda m: plait.complete(m, [{"role": "user"}]), "prompt 0: .* got dict; for messages, use Chat"),
        (lambda m: plait.beam_search(m, {5, 6}), "got set, which has no order"),
        (lambda m: plait.score(m, "a", {"b", "c"}), "continuations: .* got set, which has no order"),
        (lambda m: plait.score(m, {5, 6}, ["b"]), "context: .* got set, which has no order"),
        (lambda m: plait.embed(m, {"a": "b"}), "texts: expected text or a list, got dict"),
        (lambda m: plait.perplexity(m, {5: 6}), "text: expected text or a list, got dict"),
    ],
)  # fmt: skip
def test_dicts_and_sets_in_place_of_lists_are_type_errors(tiny, call, message):
    with pytest.raises(TypeError, match=message):
        call(tiny)


def test_a_scheduler_cancels_only_its_own_requests(tiny):
    def scheduler():
        return plait.Scheduler(plait.Context(tiny, n_ctx=32, n_seq_max=2))

    with scheduler() as one, scheduler() as other:
        request = one.submit([5, 6, 7], 3)
        with pytest.raises(ValueError, match="request belongs to another Scheduler"):
            other.cancel(request)
        list(one.run())
        assert len(request.tokens) == 3


def test_objects_with_a_context_are_not_copied(tiny):
    ctx = plait.Context(tiny, n_ctx=32, n_seq_max=3)
    chat = plait.Chat(ctx, template="{{ messages }}")
    scheduler = plait.Scheduler(ctx)
    for thing in (ctx, chat, scheduler):
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"{type(thing).__name__} objects cannot be copied"):
                make(thing)
    ctx.close()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_token", "did you mean max_tokens"),
        ("systen", "did you mean system"),
        ("temperature", r"pass sampler=Sampler\(temperature=\.\.\.\)"),
        ("tool_choice", r"pass it to say\(\) or stream\(\)"),
        ("response_format", r"pass it to say\(\) or stream\(\)"),
        ("n_ctx", r"pass Context\(model, n_ctx=\.\.\.\) in place of the model"),
        ("n_seq_max", r"pass Context\(model, n_seq_max=\.\.\.\) in place of the model"),
        ("threads", r"pass Context\(model, threads=\.\.\.\) in place of the model"),
        ("type_k", r"pass Context\(model, type_k=\.\.\.\) in place of the model"),
        ("backend", r"pass Context\(model, backend=\.\.\.\) in place of the model"),
        ("prefixes", r"pass Engine\(model, prefixes=\.\.\.\) in place of the model"),
        ("draft", r"it is a parameter of generate\(\)"),
        ("top_logprobs", r"it is a parameter of generate\(\)"),
        ("progress", r"it is a parameter of generate\(\)"),
    ],
)
def test_misspelt_parameters_of_a_chat_are_no_variables(demo_model, name, hint):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'; {hint}"):
        plait.Chat(demo_model, template=template, **{name: 5})
    used = f"{{{{ {name} }}}}" + template
    with plait.Chat(demo_model, template=used, max_tokens=2, **{name: 5}, other=7) as chat:
        assert chat.say("Tom")


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("messages", None, TypeError, "messages: expected a list of dicts, got None"),
        ("max_tokens", -1, ValueError, "max_tokens is -1; it must be at least 1"),
        ("sampler", "greedy", TypeError, "sampler: expected a callable, got str"),
        ("full", "stop", ValueError, "full is 'stop'; it must be one of error, truncate, shift"),
    ],
)
def test_attributes_of_a_chat_are_checked(demo_model, name, value, error, message):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with plait.Chat(demo_model, template=template, max_tokens=2) as chat:
        setattr(chat, name, value)
        with pytest.raises(error, match=f"^Chat: {message}"):
            chat.say("Tom")
    with pytest.raises(ValueError, match=r"^Chat: the chat is closed"):
        chat.say("Tom")


def test_a_cache_that_others_clear_is_noticed(ctx):
    with plait.Scheduler(ctx) as scheduler:
        scheduler.submit([5, 6, 7], 20)
        scheduler.step()
        ctx.kv.clear()
        with pytest.raises(ValueError, match="do not change sequences that a scheduler uses"):
            scheduler.step()


def test_a_cache_that_others_replace_is_noticed(ctx, tiny, tmp_path):
    with plait.Context(tiny, n_ctx=64, n_seq_max=4) as other:
        other.kv.save(tmp_path / "all")
        for replace in (
            lambda: ctx.kv.from_bytes(ctx.kv.to_bytes()),
            lambda: ctx.kv.load(tmp_path / "all"),
            lambda: other.kv.copy_to(ctx),
        ):
            with plait.Scheduler(ctx) as scheduler:
                scheduler.submit([5, 6, 7], 20)
                scheduler.step()
                replace()
                with pytest.raises(ValueError, match="replaced the sequences that the scheduler"):
                    scheduler.step()
            with plait.Scheduler(ctx) as scheduler:
                scheduler.submit([5, 6, 7], 2)
                assert len(list(scheduler.run())) == 2


def test_a_state_that_is_refused_replaces_nothing(ctx, tiny, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no state")
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=4, type_k="q8_0") as other,
        plait.Scheduler(ctx) as scheduler,
    ):
        scheduler.submit([5, 6, 7], 4)
        scheduler.step()
        for replace in (
            lambda: ctx.kv.from_bytes(b"no state"),
            lambda: ctx.kv.load(damaged),
            lambda: other.kv.copy_to(ctx),
        ):
            with pytest.raises(plait.StateError):
                replace()
        assert ctx.kv.n_replaced == 0
        assert [event.finish_reason for event in scheduler.run()][-1] == "length"


def test_a_context_without_a_free_sequence_names_n_seq_max(tiny):
    with (
        plait.Context(tiny, n_ctx=64) as ctx,
        ctx.sequence(),
        pytest.raises(plait.CacheFull, match="n_seq_max is 1"),
    ):
        plait.complete(ctx, "a", 2)


def test_a_second_stream_of_a_chat_raises(demo_model):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with plait.Chat(demo_model, template=template, max_tokens=5) as chat:
        first = chat.stream("Tom lives in Oslo.")
        next(first)
        with pytest.raises(ValueError, match="another answer is being streamed"):
            chat.stream("Q: Where does Tom live? A:")
        assert [m["role"] for m in chat.messages] == ["user"]
        first.close()
        assert [m["role"] for m in chat.messages] == ["user", "assistant"]
        abandoned = chat.stream("Tom lives in Oslo.")
        del abandoned
        assert chat.say("Q: Where does Tom live? A:")


@pytest.mark.timing
def test_many_stop_strings_cost_little(tiny):
    def seconds(n):
        began = time.perf_counter()
        plait.complete(tiny, [[5, 6, 7]] * 4, 20, stop=[f"{i * 7919:09}" for i in range(n)])
        return time.perf_counter() - began

    seconds(1)
    assert min(seconds(100_000) for _ in range(3)) < min(seconds(1) for _ in range(3)) + 0.6


@pytest.mark.timing
def test_stop_strings_are_found_in_time_linear_in_the_text():
    def seconds(n):
        watch = StopStrings(["a" * 2000 + "b", "ab" * 1000 + "c"])
        began = time.perf_counter()
        for _ in range(n):
            watch.push("a" * 100)
        return time.perf_counter() - began

    seconds(50)
    assert min(seconds(800) for _ in range(3)) < 40 * min(seconds(100) for _ in range(3))


def test_stop_strings_do_not_depend_on_how_the_text_is_cut():
    text = "xabcabcabd"
    strings = ["abcabd", "bcb", "cabcabd", "zz"]
    results = set()
    for size in range(1, len(text) + 1):
        watch, out, hit = StopStrings(strings), "", False
        for at in range(0, len(text), size):
            part, hit = watch.push(text[at : at + size])
            out += part
            if hit:
                break
        results.add((out, hit))
    assert results == {("xab", True)}


def test_sampled_text_depends_on_prompt_and_seed_alone(tiny):
    def texts(prompts, **options):
        sampler = plait.Sampler(1.5, seed=7)
        return [one.tokens for one in plait.complete(tiny, prompts, 12, sampler, **options)]

    first, second = [5, 6, 7], [9, 4]
    alone = texts([second])
    assert texts([first, second])[1:] == alone
    assert texts([second, first])[:1] == alone
    assert texts([second, second, second]) == alone * 3
    several = texts([first, second], n=2)
    assert several[2:3] == alone
    assert several[2] != several[3]
    sampler = plait.Sampler(1.5, seed=7)
    again = [plait.complete(tiny, [second], 12, sampler)[0].tokens for _ in range(2)]
    assert again == alone * 2


def test_the_same_prompt_submitted_twice_gives_the_same_text(ctx):
    sampler = plait.Sampler(1.5, seed=7, repetition_penalty=1.2)
    with plait.Scheduler(ctx) as scheduler:
        early = scheduler.submit([5, 6, 7], 12, sampler=sampler)
        scheduler.step()
        scheduler.step()
        late = scheduler.submit([5, 6, 7], 12, sampler=sampler)
        list(scheduler.run())
        after = scheduler.submit([5, 6, 7], 12, sampler=sampler)
        list(scheduler.run())
    assert early.tokens == late.tokens == after.tokens


def test_two_chats_share_a_sampler_and_no_state(demo_model):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    sampler = plait.Sampler(1.5, seed=3)

    def chat():
        return plait.Chat(demo_model, template=template, max_tokens=8, sampler=sampler)

    with chat() as one, chat() as other:
        texts = [[], []]
        streams = [one.stream("Tom lives in Oslo."), other.stream("Tom lives in Oslo.")]
        for _ in range(4):
            for text, stream in zip(texts, streams, strict=True):
                text.append(next(stream).token)
        assert texts[0] == texts[1]


def test_a_prompt_beyond_the_training_length_gives_a_warning(tiny):
    n = tiny.n_ctx_train
    with (
        plait.Context(tiny, n_ctx=n + 8) as ctx,
        pytest.warns(UserWarning, match=rf"a prompt has {n + 1} tokens.*trained on at most {n}"),
    ):
        plait.complete(ctx, [[5] * (n + 1)], 2)


def test_an_error_in_the_template_of_the_user_names_the_argument(demo_model):
    with pytest.raises(plait.ModelError, match=r"^template: line 1"):
        plait.Chat(demo_model, template="{% for %}")
    with (
        plait.Chat(demo_model, template="{{ 2 ** 9 }}") as chat,
        pytest.raises(plait.ModelError, match=r"^template: the template uses"),
    ):
        chat.say("Hello")


def test_a_sampler_of_a_chat_must_return_an_int(demo_model):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with (
        plait.Chat(demo_model, template=template, sampler=lambda row, seq: 3.7) as chat,
        pytest.raises(TypeError, match=r"the sampler returned 3\.7; expected an int"),
    ):
        chat.say("Hello")


def test_generating_beyond_the_training_length_gives_a_warning(tiny):
    n = tiny.n_ctx_train
    with plait.Context(tiny, n_ctx=n + 8) as ctx:
        with pytest.warns(UserWarning, match=rf"a prompt has {n - 2} tokens and max_tokens is 5"):
            plait.complete(ctx, [[5] * (n - 2)], 5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plait.complete(ctx, [[5] * (n - 2)], 2)


def test_the_step_during_which_a_task_is_cancelled_may_raise(tiny, caplog):
    started, proceed = threading.Event(), threading.Event()

    def sampler(row, seq):
        started.set()
        proceed.wait(10)
        raise ArithmeticError("sampler")

    async def main():
        async def read():
            async for _ in plait.agenerate(tiny, [[5, 6]], 5, sampler):
                pass

        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: problems.append(c))
        task = asyncio.ensure_future(read())
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        await asyncio.sleep(0.05)
        proceed.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()
        await asyncio.sleep(0)
        return problems

    assert asyncio.run(main()) == []
    (record,) = caplog.records
    assert "the task was cancelled" in record.message
    assert isinstance(record.exc_info[1], ArithmeticError)


@pytest.mark.parametrize("function", [plait.complete, plait.best_of, plait.agenerate])
def test_a_wrong_keyword_is_named(tiny, function):
    with pytest.raises(TypeError, match="max_token'"):
        function(tiny, "a", 2, max_token=5)
