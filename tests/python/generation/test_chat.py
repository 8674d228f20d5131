"""plait.Chat: which tokens are recomputed, and conversations that exceed the context."""

import gc
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import plait
import pytest
from plait.tokenizer.chat_template import ChatTemplate
from python.file_size_limit import file_size_limit
from python.reference_data import model_path

from python import gguf_writer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
)


def model_with(path, template):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata["tokenizer.chat_template"] = template
    return plait.Model(gguf_writer.write(path, metadata, gguf_writer.llama_weights()))


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return model_with(tmp_path_factory.mktemp("chat") / "m.gguf", TEMPLATE)


def words(row, seq):
    """Choose greedily among letters that no piece joins, so that the text encodes to the same tokens."""
    return 260 + int(row[260:265].argmax())


def alone(model, messages, n, n_ctx=400, **options):
    """Return the answer computed without a cache."""
    ids = model.tokenizer.encode(model.chat_template.render(messages, **options), add_special=False)
    with plait.Context(model, n_ctx=n_ctx) as ctx:
        (one,) = plait.complete(ctx, [ids.tolist()], n, words)
    return one.text


def test_turns_compute_only_new_tokens(talker):
    with plait.Context(talker, n_ctx=400) as ctx:
        chat = plait.Chat(ctx, "be kind", sampler=words, max_tokens=8)
        for turn, text in enumerate(["the hat", "in the end", "so"]):
            before = ctx.stats.tokens
            history = [dict(message) for message in chat.messages]
            answer = chat.say(text)
            asked = [*history, {"role": "user", "content": text}]
            assert answer == alone(talker, asked, 8)
            assert chat.messages == [*asked, {"role": "assistant", "content": answer}]
            assert chat.finish_reason == "length"
            n_prompt = len(
                talker.tokenizer.encode(talker.chat_template.render(asked), add_special=False)
            )
            assert ctx.stats.tokens - before == n_prompt - chat.n_reused + 7
            assert turn == 0 or chat.n_reused > 0.5 * n_prompt
        assert len(chat) == 7
        chat.close()
        assert ctx.kv.n_used == 0


def test_an_edited_history_is_read_from_the_edit_on(talker):
    with plait.Chat(talker, sampler=words, max_tokens=6) as chat:
        for text in ["the hat", "in the end", "so"]:
            chat.say(text)
        chat.messages[2]["content"] = "in the other end"
        del chat.messages[4:]
        chat.messages.append({"role": "user", "content": "then"})
        history = [dict(message) for message in chat.messages]
        assert chat.say() == alone(talker, history, 6)
        assert chat.n_reused > 10
        chat.messages[:] = [{"role": "user", "content": "new"}]
        assert chat.say() == alone(talker, [{"role": "user", "content": "new"}], 6)


def test_a_conversation_longer_than_the_context_is_an_error(talker):
    with (
        plait.Context(talker, n_ctx=90) as ctx,
        plait.Chat(ctx, sampler=words, max_tokens=20) as chat,
    ):
        chat.say("the hat")
        held, messages = ctx.kv.n_used, [dict(message) for message in chat.messages]
        with pytest.raises(plait.CacheFull, match="the conversation has"):
            chat.say("in the end " * 10)
        assert chat.messages == messages
        assert ctx.kv.n_used == held
        assert chat.say("so") != ""


def test_an_answer_that_fills_the_context_is_cut(talker):
    with plait.Context(talker, n_ctx=60) as ctx, plait.Chat(ctx, sampler=words) as chat:
        chat.say("the hat")
        assert chat.finish_reason == "length"
        assert ctx.kv.n_used == 60


def test_the_oldest_turns_are_left_out(talker, caplog):
    with (
        plait.Context(talker, n_ctx=150) as ctx,
        plait.Chat(ctx, "kind", full="truncate", sampler=words, max_tokens=10) as chat,
    ):
        left_out = []
        for i in range(8):
            before = [dict(message) for message in chat.messages]
            answer = chat.say(f"the hat {i}")
            seen = [
                *before[:1],
                *before[1 + chat.n_left_out :],
                {"role": "user", "content": f"the hat {i}"},
            ]
            assert seen[1]["role"] == "user"
            assert answer == alone(talker, seen, 10)
            left_out.append(chat.n_left_out)
        assert left_out[0] == 0
        assert sorted(left_out) == left_out
        assert 1 < len(set(left_out)) < 7  # not again at every turn
        assert len(chat.messages) == 17
        assert "left out" in caplog.text
        with pytest.raises(plait.CacheFull, match="the last message has"):
            chat.say("x" * 200)
        assert len(chat.messages) == 17


def test_a_first_message_without_room_for_a_long_answer_is_not_left_out(talker):
    text = "x" * 34
    with plait.Context(talker, n_ctx=64) as ctx:
        for system in (None, "k"):
            with plait.Chat(ctx, system, full="truncate", sampler=words, max_tokens=16) as chat:
                answer = chat.say(text)
                assert 0 < len(answer) < 16
                assert chat.n_left_out == 0
                assert answer == alone(talker, chat.messages[:-1], len(answer))


def test_old_tokens_are_forgotten(talker, caplog):
    with (
        plait.Context(talker, n_ctx=100) as ctx,
        plait.Chat(ctx, "kind", full="shift", sampler=words, max_tokens=30) as chat,
    ):
        computed = []
        for i in range(6):
            before = ctx.stats.tokens
            assert chat.say(f"the hat {i}")
            assert chat.finish_reason == "length"  # because of max_tokens: there is always room
            computed.append(ctx.stats.tokens - before)
            assert ctx.kv.n_used <= 100
            assert ctx.kv.seq_pos_max(0) + 1 == ctx.kv.n_used
        assert chat.n_forgotten > 0
        assert max(computed[1:]) < 70  # never the whole conversation
        assert "were removed from the cache" in caplog.text
        chat.messages[1]["content"] = (
            "in the end"  # behind the gap: all is read again, with a gap of its own
        )
        assert chat.say("so")
        assert chat.say("x" * 300)
        assert ctx.kv.n_used <= 100


def test_an_edit_after_a_shift_in_a_window_reads_the_system_message_again(data_dir):
    model = plait.Model(model_path(data_dir, "gpt-oss"))

    def chat_of(ctx):
        return plait.Chat(ctx, "be kind", full="shift", template=TEMPLATE, max_tokens=20)

    with plait.Context(model, n_ctx=100) as ctx, chat_of(ctx) as chat:
        for i in range(6):
            chat.say(f"the hat {i}")
        assert chat.n_forgotten > 0
        chat.messages[-1]["content"] = "so"
        messages = [dict(message) for message in chat.messages]
        answer = chat.say("then")
        assert chat.n_reused == 0
    with plait.Context(model, n_ctx=100) as ctx, chat_of(ctx) as fresh:
        fresh.messages[:] = messages
        assert fresh.say("then") == answer


@pytest.mark.parametrize("change", ["clear", "rollback", "rollback to the same length"])
def test_a_chat_that_shifts_computes_again_what_others_changed(talker, change):
    with (
        plait.Context(talker, n_ctx=400) as ctx,
        plait.Chat(ctx, "kind", full="shift", sampler=words, max_tokens=6) as chat,
    ):
        chat.say("the hat")
        if change == "clear":
            ctx.kv.clear()
        else:
            with ctx.transaction() as undone:
                if change == "rollback":
                    chat.say("in the end")
                else:
                    del chat.messages[1:]
                    chat.say("the cat")
                undone.rollback()
        answer = chat.say("so")
        assert chat.n_reused == 0
        assert answer == alone(talker, chat.messages[:-1], 6)


@pytest.mark.parametrize("change", ["clear", "rollback", "rollback to the same length"])
def test_a_change_by_others_during_an_answer_that_shifts_ends_it_with_an_error(talker, change):
    with (
        plait.Context(talker, n_ctx=400) as ctx,
        plait.Chat(ctx, "kind", full="shift", sampler=words, max_tokens=6) as chat,
    ):
        answer = chat.stream("the hat")
        next(answer)
        if change == "clear":
            ctx.kv.clear()
        else:
            with ctx.transaction() as undone:
                if change == "rollback":
                    next(answer)
                undone.rollback()
        with pytest.raises(ValueError, match="was changed during an answer"):
            list(answer)
        assert chat.say("so") == alone(talker, chat.messages[:-1], 6)


def test_an_unknown_policy_is_refused(talker):
    with pytest.raises(ValueError, match="full is 'drop'"):
        plait.Chat(talker, full="drop")


@pytest.mark.parametrize("name", ["mamba", "falcon-h1", "qwen2vl"])
def test_a_memory_that_cannot_shift_is_refused(data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    with pytest.raises(plait.UnsupportedError, match="full is 'shift', but"):
        plait.Chat(model, full="shift", template=TEMPLATE)


def test_a_shift_leaves_enough_tokens_for_a_window(data_dir):
    """With a window of 16, half of 32 tokens would be too many."""
    model = plait.Model(model_path(data_dir, "gemma2"))
    with (
        plait.Context(model, n_ctx=32) as ctx,
        plait.Chat(ctx, full="shift", template=TEMPLATE, max_tokens=90) as chat,
    ):
        chat.say("hi")
        assert chat.n_forgotten >= 60


@pytest.mark.parametrize("full", ["truncate", "shift"])
def test_a_conversation_longer_than_the_cells_of_the_context(talker, full):
    with (
        plait.Context(talker, n_ctx=400, kv_cells=90) as ctx,
        plait.Chat(ctx, "kind", full=full, sampler=words, max_tokens=10) as chat,
    ):
        for i in range(5):
            assert len(chat.say(f"the hat {i}")) == 10
        assert chat.n_forgotten > 0 if full == "shift" else chat.n_left_out > 0
        if full == "truncate":
            with pytest.raises(plait.CacheFull, match="but kv_cells is 90"):
                chat.say("the hat " * 50)


def test_a_template_without_a_system_role(tmp_path):
    model = model_with(tmp_path / "m.gguf", NO_SYSTEM)
    with plait.Chat(model, "be kind", sampler=words, max_tokens=5) as chat:
        answer = chat.say("the hat")
        assert answer == alone(model, [{"role": "user", "content": "be kind\n\nthe hat"}], 5)
        assert chat.messages[0] == {"role": "system", "content": "be kind"}
        chat.messages[:] = [{"role": "system", "content": "alone"}]
        with pytest.raises(ValueError, match="no system"):
            chat.say()


def test_tools_and_variables_reach_the_template(talker):
    tools = [{"name": "look", "parameters": {}}]
    with plait.Chat(talker, tools=tools, sampler=words, max_tokens=4) as chat:
        answer = chat.say("the hat")
        chat.messages.append({"role": "tool", "content": "a hat"})
        history = [dict(message) for message in chat.messages]
        assert answer == alone(talker, history[:1], 4, tools=tools)
        assert chat.say() == alone(talker, history, 4, tools=tools)


def test_an_interrupted_answer_is_kept(talker):
    with plait.Chat(talker, sampler=words, max_tokens=30) as chat:
        events = chat.stream("the hat")
        told = "".join(next(events).text for _ in range(5))
        events.close()
        assert chat.messages[-1] == {"role": "assistant", "content": told}
        assert chat.finish_reason is None
        assert chat.say("so")


def test_an_answer_without_events_is_kept(talker):
    with plait.Chat(talker, sampler=words, max_tokens=30) as chat:
        for _ in range(2):
            chat.stream("the hat").close()
            events = chat.stream("so")
            del events
            gc.collect()
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 4
        assert chat.say("so")


def test_stop_strings_and_samplers(talker):
    sampler = plait.Sampler(temperature=1.5, seed=3, allowed=range(260, 272))
    with plait.Chat(talker, sampler=sampler, max_tokens=30) as chat:
        full = chat.say("the hat")
    sampler.reset()
    with plait.Chat(talker, sampler=sampler, max_tokens=30, stop=full[6:9]) as chat:
        assert chat.say("the hat") == full[: full.index(full[6:9])]
        assert chat.finish_reason == "stop"


def test_a_file_without_a_template(tiny):
    with pytest.raises(plait.UnsupportedError, match="template"):
        plait.Chat(tiny)


def test_a_custom_template(talker):
    own = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ mood }}"
    with plait.Chat(talker, template=own, mood="kind:", sampler=words, max_tokens=5) as chat:
        answer = chat.say("the hat")
    ids = talker.tokenizer.encode("the hat\nkind:", add_special=False)
    (one,) = plait.complete(talker, [ids.tolist()], 5, words)
    assert answer == one.text
    with pytest.raises(plait.ModelError, match="line 1"):
        plait.Chat(talker, template="{% for %}")


@pytest.mark.parametrize("name", ["mamba", "gemma3", "falcon-h1"])
@pytest.mark.parametrize("full", ["error", "truncate"])
def test_memories_without_partial_removal(data_dir, name, full):
    """A turn costs only its new tokens; after an edit everything is recomputed with the same answer."""
    model = plait.Model(model_path(data_dir, name))
    template = ChatTemplate({"tokenizer.chat_template": TEMPLATE}, model.tokenizer)
    vars(model)["chat_template"] = template  # where the cached property is stored
    with plait.Context(model, n_ctx=200) as ctx, plait.Chat(ctx, full=full, max_tokens=5) as chat:
        for text in ["one", "two", "three"]:
            history = [*chat.messages, {"role": "user", "content": text}]
            answer = chat.say(text)
            assert answer == plain(model, history, 5)
        chat.messages[0]["content"] = "four"
        history = [
            dict(message) for message in [*chat.messages, {"role": "user", "content": "five"}]
        ]
        assert chat.say("five") == plain(model, history, 5)


def plain(model, messages, n):
    ids = model.tokenizer.encode(model.chat_template.render(messages), add_special=False)
    (one,) = plait.complete(model, [ids.tolist()], n)
    return one.text


def scripted(model, *answers):
    """Return a sampler that writes these answers, one after another."""
    ids = [
        token
        for answer in answers
        for token in [
            *model.tokenizer.encode(answer, add_special=False).tolist(),
            model.tokenizer.eos,
        ]
    ]
    rest = iter(ids)
    return lambda row, seq: next(rest)


def test_run_executes_tools(talker):
    def look(at: str) -> dict:
        if at == "cat":
            raise KeyError("no cat")
        return {"seen": at}

    answers = [
        '{"name": "look", "arguments": {"at": "hat"}}',
        '{"name": "look", "arguments": {"at": "cat"}}',
    ]
    with (
        plait.Context(talker, n_ctx=2000) as ctx,
        plait.Chat(ctx, tools=[look], sampler=scripted(talker, *answers, "the end")) as chat,
    ):
        message = chat.run("the hat")
        assert message == chat.message
        assert message.content.strip() == "the end"
        roles = [one["role"] for one in chat.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert chat.messages[2]["content"] == '{"seen": "hat"}'
        assert "KeyError" in chat.messages[4]["content"]
        assert chat.messages[2]["tool_call_id"] == chat.messages[1]["tool_calls"][0]["id"]
    with (
        plait.Context(talker, n_ctx=2000) as ctx,
        plait.Chat(ctx, tools=[look], sampler=scripted(talker, *answers)) as chat,
    ):
        assert chat.run("the hat", max_rounds=1).tool_calls[0].arguments == {"at": "cat"}


def test_a_saved_conversation_continues(talker, tmp_path):
    with plait.Chat(talker, "kind", sampler=words, max_tokens=6, stop=["zz"]) as chat:
        chat.say("the hat")
        chat.save(tmp_path / "chat.json")
        messages = [dict(message) for message in chat.messages]
        expected = chat.say("so")
    with plait.Chat.load(tmp_path / "chat.json", talker, sampler=words) as chat:
        assert chat.messages == messages
        assert chat.max_tokens == 6
        assert chat.say("so") == expected
    (tmp_path / "chat.json").write_text("{}")
    with pytest.raises(ValueError, match="not a conversation of version"):
        plait.Chat.load(tmp_path / "chat.json", talker)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("messages", value) for value in (5, "abc", {"a": 1}, [1])],
        *[("tools", value) for value in (5, [1])],
        *[("stop", value) for value in (None, [None])],
        *[("variables", value) for value in (5, [1], {"model": 1}, {"self": 1})],
        *[("full", 3), ("max_tokens", "x"), ("n_left_out", "x"), ("template", 5)],
    ],
)
def test_a_file_with_values_of_other_types_is_no_conversation(talker, tmp_path, key, value):
    path = tmp_path / "chat.json"
    with plait.Chat(talker, "kind") as chat:
        chat.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=rf"chat\.json is not a saved conversation: {key} "):
        plait.Chat.load(path, talker)


@pytest.mark.parametrize(
    ("stop", "saved"),
    [
        ("zz", ["zz"]),
        (np.int64(5), [5]),
        (["zz", np.int64(5)], ["zz", 5]),
        (range(3), [0, 1, 2]),
        (np.arange(2), [0, 1]),
        ({"zz": 1}.keys(), ["zz"]),
        (iter(["zz", 5]), ["zz", 5]),
    ],
)
def test_every_kind_of_stop_can_be_saved(talker, tmp_path, stop, saved):
    path = tmp_path / "chat.json"
    with plait.Chat(talker, stop=stop) as chat:
        chat.save(path)
    assert json.loads(path.read_text())["stop"] == saved
    plait.Chat.load(path, talker).close()


def test_a_conversation_that_cannot_be_saved_leaves_the_old_file(talker, tmp_path):
    path = tmp_path / "chat.json"
    path.write_text("old")
    with plait.Chat(talker, "kind " * 20) as chat:
        chat.messages.append({"role": "user", "content": "\ud800"})
        with pytest.raises(ValueError, match=r"lone surrogate U\+D800"):
            chat.save(path)
        chat.messages.pop()
        with pytest.raises(OSError, match=r"chat\.json"), file_size_limit(50):
            chat.save(path)
        with pytest.raises(OSError, match="nowhere"):
            chat.save(tmp_path / "nowhere" / "chat.json")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_required_calls(talker):
    pytest.importorskip("llguidance")
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["hat"]}},
                                           "required": ["at"], "additionalProperties": False}}  # fmt: skip
    with plait.Chat(talker, tools=[tool], max_tokens=200) as chat:
        chat.say("the hat", tool_choice="required")
        assert [call.arguments for call in chat.message.tool_calls] == [{"at": "hat"}]
        with pytest.raises(ValueError, match="tool_choice names the tool 'other'"):
            chat.say("so", tool_choice="other")


SYSTEM = "in the end the hat is on the cat and the cat is in the hat"


def test_chats_of_a_context_share_their_system_prompt(talker):
    """Twenty conversations compute the system message once, and their tokens in shared steps."""
    n = 20
    with plait.Context(talker, n_ctx=200, kv_cells=4000, n_seq_max=n + 2) as ctx:
        chats = [plait.Chat(ctx, SYSTEM, sampler=words, max_tokens=8) for _ in range(n)]
        n_system = len(talker.tokenizer.encode(f"<s><system>{SYSTEM}", add_special=False))
        chats[0].say("so")
        before = ctx.stats.tokens, ctx.stats.microbatches
        with ThreadPoolExecutor(n) as pool:
            answers = list(pool.map(lambda i: chats[i].say(f"the hat {i}"), range(1, n)))
        for i, answer in enumerate(answers, 1):
            asked = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"the hat {i}"},
            ]
            assert answer == alone(talker, asked, 8)
            assert chats[i].n_reused >= n_system - 1
        tokens, calls = ctx.stats.tokens - before[0], ctx.stats.microbatches - before[1]
        assert tokens < (n - 1) * (n_system + 8)
        assert calls < (n - 1) * 8 / 2
        assert ctx.kv.n_used < n_system + n * 50
        for chat in chats:
            chat.close()
        assert ctx.kv.n_used == 0


def test_a_chat_in_an_engine(talker):
    with plait.Engine(talker, n_ctx=300) as engine:
        with plait.Chat(engine, SYSTEM, sampler=words, max_tokens=6) as chat:
            answer = chat.say("the hat")
            asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "the hat"}]
            assert answer == alone(talker, asked, 6)
        assert not engine.closed
        with plait.Chat(engine, SYSTEM, sampler=words, max_tokens=6) as chat:
            assert chat.say("so")
            assert chat.n_reused > 20
            engine.close()
            with pytest.raises(ValueError, match="the engine is closed"):
                chat.say("then")
            assert len(chat.messages) == 3


def test_threads_that_talk_and_close_leave_no_cells(talker):
    with plait.Context(talker, n_ctx=200, n_seq_max=9) as ctx:

        def talk(i):
            with plait.Chat(ctx, SYSTEM, sampler=words, max_tokens=1 + i % 5) as chat:
                for turn in range(1 + i % 3):
                    answer = chat.stream(f"the hat {i} {turn}")
                    if i % 4 == 0:
                        next(answer)
                        answer.close()
                    else:
                        assert (
                            "".join(event.text for event in answer) == chat.messages[-1]["content"]
                        )

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(talk, range(40)))
        assert ctx.kv.n_used == 0
        assert ctx.sequence().pos == 0


def test_a_chat_that_nobody_refers_to_frees_its_cells(talker):
    with plait.Context(talker, n_ctx=200) as ctx:
        chat = plait.Chat(ctx, sampler=words, max_tokens=4)
        chat.say("the hat")
        assert ctx.kv.n_used > 0
        del chat
        gc.collect()
        assert ctx.kv.n_used == 0


def test_a_first_token_that_fails_changes_nothing(talker):
    def fails(row, seq):
        raise RuntimeError("no token")

    with plait.Chat(talker, sampler=words, max_tokens=4) as chat:
        chat.say("the hat")
        messages = [dict(message) for message in chat.messages]
        chat.sampler = fails
        with pytest.raises(RuntimeError, match="no token"):
            chat.say("so")
        assert chat.messages == messages
        chat.sampler = words
        assert chat.say("so")


def test_full_cannot_change_to_shift(talker):
    with plait.Chat(talker, sampler=words, max_tokens=4) as chat:
        chat.full = "truncate"
        assert chat.say("the hat")
        chat.full = "shift"
        with pytest.raises(ValueError, match="create another Chat"):
            chat.say("so")
