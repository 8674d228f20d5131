"""The provider of Inspect: evaluations run offline in one engine, with logprobs, tools, epochs and choices."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import plait
import pytest

pytest.importorskip("inspect_ai")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Inspect and what it imports
]

STORY = "Tom lives in Rome. Where does Tom live?"


@pytest.fixture
def api():
    from inspect_ai.model import GenerateConfig
    from plait.inspect_ai import PlaitAPI

    with plait.Engine(plait.Model.demo()):  # a second engine disturbs nobody
        made = PlaitAPI("demo", config=GenerateConfig(), n_seq_max=8, n_ctx=256)
        yield made
        made.close()


def ask(api, *messages, tools=(), **config):
    from inspect_ai.model import ChatMessageUser, GenerateConfig

    asked = [ChatMessageUser(content=one) if isinstance(one, str) else one for one in messages]
    return asyncio.run(api.generate(asked, list(tools), "auto", GenerateConfig(**config)))


def test_a_reply_is_that_of_the_engine(api):
    out = ask(api, STORY, max_tokens=8, logprobs=True, top_logprobs=3)
    (want,) = plait.complete(plait.Model.demo(), STORY + "\n", 8, add_special=False, top_logprobs=3)
    assert out.completion == want.text
    assert out.stop_reason == {"length": "max_tokens", "stop": "stop"}[want.finish_reason]
    content = out.choices[0].logprobs.content
    assert [one.logprob for one in content] == list(want.logprobs)
    assert [len(one.top_logprobs) for one in content] == [3] * len(want.tokens)
    n_prompt = len(want.prompt_tokens)
    assert out.usage.input_tokens + out.usage.input_tokens_cache_read == n_prompt
    assert out.usage.output_tokens == len(want.tokens)
    again = ask(api, STORY, max_tokens=8)
    assert again.usage.input_tokens_cache_read == n_prompt - 1  # epochs share their prompt


def test_choices_and_epochs_of_a_seed_differ_and_can_be_repeated(api):
    from plait.inspect_ai import PlaitAPI

    def texts(which):
        options = {"temperature": 4.0, "seed": 3, "max_tokens": 12}
        first = ask(which, STORY, num_choices=3, **options)
        second = ask(which, STORY, **options)
        return [one.message.text for one in first.choices] + [second.completion]

    found = texts(api)
    assert len(set(found)) == 4
    other = PlaitAPI("demo", n_ctx=256)
    assert texts(other) == found
    other.close()


def test_the_prompt_of_several_choices_counts_once(api):
    usages = [ask(api, STORY, max_tokens=4, num_choices=n).usage for n in (1, 3)]
    one, three = (each.input_tokens + each.input_tokens_cache_read for each in usages)
    assert one == three == usages[1].total_tokens - usages[1].output_tokens
    assert usages[1].output_tokens == 3 * usages[0].output_tokens


def test_parameters_have_the_limits_of_the_server(api):
    options = {"temperature": 4.0, "max_tokens": 12}
    greedy = ask(api, STORY, max_tokens=12).completion
    assert ask(api, STORY, top_p=0.0, **options).completion == greedy
    sampled = ask(api, STORY, top_k=-1, seed=-1, **options).completion
    assert ask(api, STORY, seed=(1 << 64) - 1, **options).completion == sampled != greedy


def test_biases_and_penalties_apply_without_a_temperature(api):
    model, story = plait.Model.demo(), "The kite is red. The kite"
    (greedy,) = plait.complete(model, story + "\n", 16, add_special=False)
    for option in (
        {"logit_bias": {greedy.tokens[0]: -100.0}},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
    ):
        sampler = plait.Sampler(0, **option)
        (want,) = plait.complete(model, story + "\n", 16, sampler, add_special=False)
        assert want.text != greedy.text
        assert ask(api, story, max_tokens=16, **option).completion == want.text


def test_contents_other_than_text_are_refused(api):
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageUser,
        ContentAudio,
        ContentImage,
        ContentReasoning,
        ContentText,
    )

    text = ContentText(text=STORY)
    for kind, content in [
        ("image", ContentImage(image="data:image/png;base64,iVBORw0KGgo=")),
        ("audio", ContentAudio(audio="data:audio/wav;base64,AAAA", format="wav")),
    ]:
        with pytest.raises(ValueError, match=f"a user message has content of the type '{kind}'"):
            ask(api, ChatMessageUser(content=[text, content]), max_tokens=3)
    answer = ChatMessageAssistant(content=[ContentReasoning(reasoning="Rome?"), text])
    assert ask(api, ChatMessageUser(content=[text]), answer, STORY, max_tokens=3).completion


def test_the_reasoning_of_earlier_replies_reaches_the_template(api, monkeypatch):
    from inspect_ai.model import ChatMessageAssistant, ContentReasoning, ContentText

    monkeypatch.setattr(
        api, "_template",
        "{% for m in messages %}<{{ m.reasoning_content }}>{{ m.content }}\n{% endfor %}",
    )  # fmt: skip
    parts = [ContentReasoning(reasoning="Tom?"), ContentReasoning(reasoning="x", redacted=True)]
    answer = ChatMessageAssistant(content=[*parts, ContentText(text="Rome")])
    prompts = []
    for earlier in (answer, ChatMessageAssistant(content=[ContentText(text="Rome")])):
        output = ask(api, STORY, earlier, max_tokens=1)
        prompts.append(output.usage.input_tokens + output.usage.input_tokens_cache_read)
    tokenizer = plait.Model.demo().tokenizer
    assert prompts == [
        len(tokenizer.encode(f"<>{STORY}\n<{reasoning}>Rome\n", add_special=False))
        for reasoning in ("Tom?", "")
    ]


def test_a_schema_constrains_the_reply(api):
    pytest.importorskip("llguidance")
    from inspect_ai.model import ResponseSchema
    from inspect_ai.util import JSONSchema

    schema = ResponseSchema(name="answer", json_schema=JSONSchema(enum=["yes", "no"]))
    out = ask(api, STORY, max_tokens=20, response_schema=schema)
    assert out.completion.strip() in ('"yes"', '"no"')


def test_tools_and_their_results_reach_the_template():
    from inspect_ai.model import ChatMessageAssistant, ChatMessageTool
    from inspect_ai.tool import ToolCall, ToolInfo, ToolParams
    from inspect_ai.util import JSONSchema
    from plait.inspect_ai import PlaitAPI

    template = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ m.tool_calls | tojson if m.tool_calls }}{{ m.tool_call_id if m.tool_call_id }}{% endfor %}"
    )
    tool = ToolInfo(
        name="add", description="Add numbers.",
        parameters=ToolParams(properties={"x": JSONSchema(type="integer")}, required=["x"]),
    )  # fmt: skip
    call = ToolCall(id="c1", function="add", arguments={"x": 3})
    api = PlaitAPI("demo", chat_template=template, n_ctx=1024)
    seen = []
    complete = api._engine.complete

    async def spy(messages, *args, tools, **options):
        seen.append((messages, tools))
        return await complete(messages, *args, tools=tools, **options)

    api._engine.complete = spy
    out = ask(
        api, STORY, ChatMessageAssistant(content="", tool_calls=[call]),
        ChatMessageTool(content="7", tool_call_id="c1", function="add"), tools=[tool], max_tokens=3,
    )  # fmt: skip
    assert out.usage.output_tokens == 3
    (messages, tools) = seen[0]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"x": 3}}
    assert messages[2]["tool_call_id"] == "c1"
    assert tools[0]["function"]["parameters"]["properties"] == {"x": {"type": "integer"}}
    api.close()


def test_an_evaluation_runs_offline(tmp_path):
    import plait.inspect_ai  # noqa: F401  # registers the provider, as the entry point does
    from inspect_ai import Task, eval  # noqa: A004
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    samples = [Sample(input=STORY, target="Rome"), Sample(input="The hat is red.", target="zzz")]
    (log,) = eval(
        Task(dataset=samples, scorer=includes()), model="plait/demo", epochs=3, max_tokens=12,
        log_dir=str(tmp_path), display="none", model_args={"n_ctx": 256},
    )  # fmt: skip
    assert log.status == "success"
    assert len(log.samples) == 6
    texts = {}
    for sample in log.samples:
        texts.setdefault(sample.id, set()).add(sample.output.completion)
    assert all(len(found) == 1 for found in texts.values())  # greedy
    usage = sum(one.input_tokens_cache_read for one in log.stats.model_usage.values())
    assert usage > 0


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def stories():
    text = "Tom lives in Rome. The kite is red. Q: Where does Tom live? A:"
    samples = [Sample(input=text, target="Rome"), Sample(input=text, target="Oslo")]
    return Task(dataset=samples, solver=generate(), scorer=includes(), epochs=2)
"""


def test_the_command_runs_offline(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    done = subprocess.run(
        [
            sys.executable, "-m", "inspect_ai", "eval", "task.py", "--model", "plait/demo", "-M", "n_ctx=256",
            "--max-tokens", "16", "--log-dir", "logs", "--log-format", "json", "--display", "plain",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "logs").glob("*.json")
    log = json.loads(file.read_text())
    assert log["status"] == "success"
    (score,) = log["results"]["scores"]
    assert score["metrics"]["accuracy"]["value"] == 0.5
    (usage,) = log["stats"]["model_usage"].values()
    assert usage["input_tokens_cache_read"] > 0


def test_a_prompt_that_is_too_long_is_a_result(api):
    out = ask(api, STORY * 100, max_tokens=4)
    assert out.stop_reason == "model_length"
    assert "n_ctx is 256" in out.error


def test_a_tool_can_be_required():
    pytest.importorskip("llguidance")
    from inspect_ai.model import ChatMessageUser, GenerateConfig
    from inspect_ai.tool import ToolFunction, ToolInfo, ToolParams
    from inspect_ai.util import JSONSchema
    from plait.inspect_ai import PlaitAPI

    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    parameters = ToolParams(properties={"x": JSONSchema(enum=[1, 2])}, required=["x"])
    tools = [
        ToolInfo(name=name, description="Add.", parameters=parameters) for name in ("add", "sub")
    ]
    api = PlaitAPI("demo", chat_template=template, n_ctx=1024)
    for choice in ("any", ToolFunction(name="sub")):
        out = asyncio.run(
            api.generate(
                [ChatMessageUser(content=STORY)], tools, choice, GenerateConfig(max_tokens=200)
            )
        )
        (call,) = out.message.tool_calls
        assert out.stop_reason == "tool_calls"
        assert call.function in (("add", "sub") if choice == "any" else ("sub",))
        assert call.arguments["x"] in (1, 2)
    api.close()
