"""The server, as the openai package sees it."""

import asyncio
import base64
import concurrent.futures
import contextlib
import functools
import http.client
import json
import random
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import plait
import pytest
from python.model.test_encoders import tiny_bert

from python import gguf_writer

openai = pytest.importorskip("openai", reason="needs the packages of the extra serve and openai")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["hat", "cat"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
HELLO = [{"role": "user", "content": "the hat"}]


@contextlib.contextmanager
def serving(app):
    """Run an application in a thread, and yield its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata["tokenizer.chat_template"] = TEMPLATE
    path = tmp_path_factory.mktemp("server") / "m.gguf"
    return plait.Model(gguf_writer.write(path, metadata, gguf_writer.llama_weights()))


@pytest.fixture(scope="module")
def engine(model):
    with plait.Engine(model, 16, n_ctx=512) as engine:
        yield engine


@pytest.fixture(scope="module")
def port(model, engine):
    from plait.server import create_app

    with serving(create_app(model, engine, name="tiny", api_key="secret")) as port:
        yield port


@pytest.fixture(scope="module")
def client(port):
    base = f"http://127.0.0.1:{port}/v1"
    with openai.OpenAI(base_url=base, api_key="secret", max_retries=0) as client:
        yield client


def test_completions_are_those_of_the_engine(client, engine):
    done = client.completions.create(
        model="tiny", prompt=["the hat", "in"], max_tokens=8, temperature=0, n=2, logprobs=2
    )
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    for i, choice in enumerate(done.choices):
        alone = engine.complete_sync(["the hat", "in"][i // 2], 8, top_logprobs=2)
        assert choice.text == alone.text
        assert choice.finish_reason == "length"
        assert np.allclose(choice.logprobs.token_logprobs, alone.logprobs)
    assert done.usage.completion_tokens == 32
    prompts = [len(engine.complete_sync(text, 1).prompt_tokens) for text in ("the hat", "in")]
    assert done.usage.prompt_tokens == sum(prompts)


def test_a_stream_adds_up_to_the_reply(client):
    asked = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 12,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert len(whole.choices[0].logprobs.content) == 12
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 3


def test_required_tools_and_formats(client):
    done = client.chat.completions.create(
        model="tiny", messages=HELLO, tools=[TOOL], tool_choice="required", max_tokens=200
    )
    (choice,) = done.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "look"
    assert json.loads(call.function.arguments)["at"] in ("hat", "cat")
    chunks = client.chat.completions.create(
        model="tiny", messages=HELLO, tools=[TOOL], max_tokens=200, stream=True,
        tool_choice={"type": "function", "function": {"name": "look"}},
    )  # fmt: skip
    calls = [
        one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or []
    ]
    done = client.chat.completions.create(
        model="tiny", messages=HELLO, tools=[TOOL], tool_choice="required", max_tokens=200,
        response_format={"type": "text"},
    )  # fmt: skip
    assert done.choices[0].finish_reason == "tool_calls"
    assert [(one.index, one.function.name) for one in calls] == [(0, "look")]
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    done = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )  # fmt: skip
    assert json.loads(done.choices[0].message.content)["a"] in (1, 2)


def test_a_template_in_the_body_and_stop(client, engine):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    done = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=20,
        temperature=0,
        extra_body={"chat_template": template},
    )
    full = engine.complete_sync(HELLO, 20, template=template).text
    assert done.choices[0].message.content == full
    cut = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, temperature=0, stop=[full[5:8]],
        extra_body={"chat_template": template},
    )  # fmt: skip
    assert cut.choices[0].message.content == full[: full.index(full[5:8])]
    assert cut.choices[0].finish_reason == "stop"


def test_embeddings(client, model):
    for form in ("float", "base64"):
        found = client.embeddings.create(
            model="tiny", input=["the hat", "in"], encoding_format=form
        )
        rows = np.array([
            np.frombuffer(base64.b64decode(one.embedding), "<f4")
            if isinstance(one.embedding, str)
            else one.embedding
            for one in found.data
        ])  # fmt: skip
        assert np.allclose(rows, plait.Embedder(model).embed(["the hat", "in"]), atol=1e-5)


@pytest.mark.parametrize(("n_ctx", "limit"), [(None, 64), (9, 9), (99, 64)])
def test_the_length_of_texts_for_an_encoder(tmp_path, n_ctx, limit):
    """A model has no positions beyond its training length if they are a table."""
    from plait.server import create_app

    weights = {"position_embd.weight": np.zeros((64, 32), np.float32)}
    path = tiny_bert(tmp_path / "bert.gguf", {"bert.context_length": 64}, weights)
    encoder = plait.Model(path)
    with serving(create_app(encoder, None, name="bert", n_ctx=n_ctx)) as port:
        fits, _ = _status(port, "/v1/embeddings", {"input": [[5], [5] * limit]})
        status, text = _status(port, "/v1/embeddings", {"input": [[5], [5] * (limit + 1)]})
    assert (fits, status) == (200, 400)
    assert json.loads(text)["error"]["code"] == "context_length_exceeded"


def test_texts_are_limited_like_prompts(client, engine):
    encode = engine.model.tokenizer.encode
    text = "the hat " * 500
    n = len(encode(text))
    assert n > engine.ctx.n_ctx
    with pytest.raises(openai.BadRequestError, match=f"text 1 has {n} tokens") as embedded:
        client.embeddings.create(model="tiny", input=["in", text])
    asked = {"query": "in", "documents": ["the hat", text]}
    with pytest.raises(openai.BadRequestError, match="document 1 with the query") as scored:
        client.post("/rerank", body=asked, cast_to=object)
    for caught in (embedded, scored):
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"messages": []}, "messages: expected a non-empty list"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 0, "extra_body": {"echo": True}}, "max_tokens is 0; expected at least 1"),
        ({"max_tokens": -2}, "max_tokens is -2"),
        ({"extra_body": {"best_of": 3}}, "best_of is 3 but n is 1; .* use n and choose by logprobs"),
        ({"extra_body": {"functions": [{"name": "f"}]}}, "use tools"),
        ({"extra_body": {"grammar": "root ::= ("}}, "grammar"),
        ({"extra_body": {"chat_template_kwargs": 3}}, "chat_template_kwargs: expected object"),
        ({"extra_body": {"reasoning_effort": 3}}, "reasoning_effort: expected str"),
        ({"n": 1000}, "n is 1000"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"temperature": -1}, "temperature"),
        ({"stop": 5}, "stop: expected"),
        ({"messages": [{"content": "x"}]}, "has no \"role\""),
        ({"messages": [{"role": "user", "content": "the hat " * 500}]}, "n_ctx"),
        ({"response_format": {"type": "xml"}}, "xml"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"extra_body": {"chat_template": "{% for %}"}}, "template"),
        ({"tool_choice": {"type": "function", "function": "f"}}, "tool_choice: expected"),
        ({"tool_choice": {"type": "function"}}, "tool_choice: expected"),
        ({"tool_choice": 5}, "tool_choice: expected"),
        ({"logit_bias": {"5": 10**400}}, "logit_bias is 1000.*; it must be finite"),
        ({"messages": [{"role": "user", "content": [5]}]}, 'expected a str or an object with "type", got int'),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 'a part of the content has no "text"'),
        *(
            ({"extra_body": {"chat_template_kwargs": {name: 5}}}, f"chat_template_kwargs has {name}, which the server")
            for name in ("messages", "model", "tools", "template", "placeholder", "self")
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}}, "grammar"),
    ],
)  # fmt: skip
def test_wrong_requests(client, body, match):
    with pytest.raises(openai.BadRequestError, match=match):
        client.chat.completions.create(**({"model": "tiny", "messages": HELLO} | body))
    with pytest.raises(openai.BadRequestError, match="prompt: expected"):
        client.completions.create(model="tiny", prompt=[])


def test_null_is_a_missing_value_and_top_k_may_be_negative(client):
    keys = ("tool_choice", "tools", "stop", "n", "stream", "logprobs", "response_format")
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "seed": 3}
    plain = client.chat.completions.create(**asked)
    nulls = client.chat.completions.create(**asked, extra_body=dict.fromkeys(keys))
    assert nulls.choices[0].message.content == plain.choices[0].message.content
    texts = {
        client.completions.create(
            model="tiny", prompt="the hat", max_tokens=8, seed=3, temperature=2, extra_body={"top_k": top_k},
        ).choices[0].text
        for top_k in (0, -1)
    }  # fmt: skip
    assert len(texts) == 1


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_a_top_p_of_0_keeps_the_most_likely_token(model, zero):
    """Of several, it keeps that with the smallest id, as a temperature of 0 does."""
    from plait.server.bodies import text_job

    job = text_job({"prompt": "x", "top_p": zero, "temperature": 2, "seed": 5}, model)
    logits = np.zeros(model.n_vocab, np.float32)
    logits[[7, 9]] = 1
    assert {job.parameters["sampler"](logits, seq) for seq in range(50)} == {7}


def test_errors_may_quote_what_is_not_text(client, port):
    """The client and its JSON may have unpaired surrogates, which UTF-8 has not."""
    body = {"messages": HELLO, "chat_template": "{{ raise_exception('\ud800') }}"}
    for changes in ({}, {"stream": True}):
        status, text = _status(port, "/v1/chat/completions", body | changes)
        assert status == 400
        assert "chat template: ?" in json.loads(text)["error"]["message"]


def test_bodies_that_are_nested_too_deeply_are_wrong_requests(port):
    nested = functools.reduce(lambda inner, _: {"items": inner}, range(900), {})
    tool = {"type": "function", "function": {"name": "f", "parameters": nested}}
    for body in (
        {"messages": [{"role": "user", "content": "x", "z": nested}]},
        {"messages": HELLO, "tools": [tool]},
        {"messages": HELLO, "tools": [tool], "tool_choice": "required"},
    ):
        status, text = _status(port, "/v1/chat/completions", body | {"max_tokens": 2})
        assert status == 400
        assert "nested too deeply" in text or "recursion limit" in text


def test_tokens_of_messages_have_the_template_variables(port, model):
    body = {"messages": HELLO, "chat_template_kwargs": {"add_generation_prompt": False}}
    short = _post(port, "/tokenize", body)["count"]
    assert short < _post(port, "/tokenize", {"messages": HELLO})["count"]


def test_grammars_are_compiled_outside_of_the_event_loop(port, monkeypatch):
    """The server answers other requests while it compiles a grammar."""
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    from plait.generation import grammar

    begun, health = threading.Event(), []
    compiled = grammar._compile

    def slow(*args):
        begun.set()
        health.append(_get(port, "/health")[0])
        return compiled(*args)

    monkeypatch.setattr(grammar, "_compile", slow)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
    for path, body in (
        ("/v1/completions", {"prompt": "the hat", "grammar": "(a|b)"}),
        ("/v1/completions", {"prompt": ["the hat"] * 3, "grammar": "(a|b)", "n": 2}),
        ("/v1/completions", {"prompt": "the hat", "response_format": form}),
        ("/v1/chat/completions", {"messages": HELLO, "grammar": "(a|b)"}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": form}),
        ("/v1/chat/completions", {"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}),
    ):
        begun.clear()
        _post(port, path, body | {"max_tokens": 2})
        assert begun.is_set()
    assert health == [200] * 6


def test_a_client_may_disconnect_while_its_grammar_is_compiled(port, engine, monkeypatch):
    """The server ends the request at once; an error of the grammar is the reply to another one."""
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    from plait.generation import grammar

    begun, allowed = threading.Event(), threading.Event()

    def slow(*args):
        begun.set()
        allowed.wait(20)
        raise ValueError("grammar: too large")

    def n_disconnected():
        found = re.search(
            r'plait_requests_total{.*completions",status="499"} (\S+)', _get(port, "/metrics")[1]
        )
        return float(found[1]) if found else 0

    monkeypatch.setattr(grammar, "_compile", slow)
    asked = {"prompt": "the hat", "grammar": "(a|b)"}
    data = json.dumps(asked).encode()
    before, end = n_disconnected(), time.monotonic() + 20
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: secret\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        assert begun.wait(20)
    while n_disconnected() == before:
        assert time.monotonic() < end, "the request has not ended"
        time.sleep(0.01)
    assert not allowed.is_set()
    allowed.set()
    assert _status(port, "/v1/completions", asked)[0] == 400
    assert engine.stats.n_active == engine.stats.n_queued == 0


IMAGE_URLS = {
    "data": "data:image/png;base64,iVBORw0KGgo=",
    "damaged": "data:image/png;base64,***",
    "address": "https://example.invalid/cat.png",
    "large": "data:image/png;base64," + "A" * (1 << 20),
}


@pytest.mark.parametrize("url", IMAGE_URLS.values(), ids=IMAGE_URLS.keys())
def test_images_are_refused_and_other_requests_continue(client, url):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 60, "seed": 3}
    alone = client.chat.completions.create(**asked).choices[0].message.content
    parts = [{"type": "text", "text": "cat"}, {"type": "image_url", "image_url": {"url": url}}]
    stream = client.chat.completions.create(**asked, stream=True)
    deltas = [next(stream).choices[0].delta.content]
    with pytest.raises(openai.BadRequestError, match="no image encoder"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    deltas += [choice.delta.content for chunk in stream for choice in chunk.choices]
    assert "".join(delta or "" for delta in deltas) == alone


def test_keys_paths_and_sizes(client, port):
    wrong = client.with_options(api_key="other")
    with pytest.raises(openai.AuthenticationError, match="API key"):
        wrong.models.list()
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    assert [one.id for one in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError, match="there is no POST"):
        client.post("/nothing", body={}, cast_to=object)
    with pytest.raises(openai.APIStatusError, match="16777216 bytes"):
        client.completions.create(model="tiny", prompt="x" * (17 << 20))
    status, _ = _get(port, "/health")
    assert status == 200
    _, text = _get(port, "/metrics")
    assert 'plait_requests_total{endpoint="/v1/models",status="401"} 1.0' in text
    assert "plait_tokens_total" in text


def test_a_closed_engine_is_an_error_of_the_server(model):
    from plait.server import create_app

    engine = plait.Engine(model, n_ctx=64)
    with serving(create_app(model, engine, name="tiny")) as port:
        engine.close()
        for path, body in (
            ("/v1/completions", {"prompt": "the hat"}),
            ("/v1/completions", {"prompt": "the hat", "max_tokens": 0, "echo": True}),
            ("/v1/chat/completions", {"messages": HELLO, "stream": True}),
        ):
            status, text = _status(port, path, body)
            assert status == 503
            assert json.loads(text)["error"]["type"] == "server_error"
        assert _status(port, "/v1/embeddings", {"input": "the hat"})[0] == 200


def test_keys_of_any_characters_and_the_case_of_the_scheme(model):
    """Some clients send UTF-8, others Latin-1."""
    from plait.server import create_app

    with serving(create_app(model, None, name="tiny", api_key="schlüssel")) as port:

        def status(**headers):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
                connection.request("GET", "/v1/models", headers=headers)
                return connection.getresponse().status

        for key in ("schlüssel".encode(), "schlüssel".encode("latin-1")):
            assert status(**{"X-Api-Key": key}) == 200
            for scheme in (b"Bearer", b"bearer", b"BEARER "):
                assert status(Authorization=scheme + b" " + key) == 200
            assert status(Authorization=b"Basic " + key) == 401
        for wrong in ("schlussel", "schlÃ¼ssel".encode(), "Bearer", ""):
            assert status(Authorization=wrong) == 401


def test_an_empty_key_is_none(model):
    from plait.server import create_app

    with serving(create_app(model, None, name="tiny", api_key="")) as port:
        assert _post(port, "/tokenize", {"prompt": "the hat"})["count"]
        assert _get(port, "/v1/models")[0] == 200


def test_clients_that_vanish_free_their_cells(client, engine, port):
    """A client that stops reading, and one that closes its connection, cost nobody else anything."""
    body = json.dumps(
        {"messages": HELLO, "max_tokens": 400, "stream": True, "logit_bias": {"2": -100}}
    )
    fields = f"Host: x\r\nAuthorization: Bearer secret\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    head = "POST /v1/chat/completions HTTP/1.1\r\n" + fields
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.sendall((head + body + " ").encode())
        slow.recv(10)
        done = client.completions.create(model="tiny", prompt="the", max_tokens=4)
        assert done.usage.completion_tokens >= 1
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall((head + body.replace("true", "false")).encode())
    deadline = time.monotonic() + 60
    while engine.stats.n_active and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.stats.n_active == 0


def test_chats_without_a_limit_end_with_the_context(client, engine):
    asked = {"model": "tiny", "messages": HELLO, "logit_bias": {"2": -100}}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.total_tokens == engine.ctx.n_ctx + 1  # the last token needs no cell
    for limit in (
        {"max_completion_tokens": 3},
        {"max_tokens": 3},
        {"extra_body": {"n_predict": 3}},
    ):
        done = client.chat.completions.create(**asked, **limit)
        assert done.usage.completion_tokens == 3
    assert client.chat.completions.create(**asked, max_tokens=-1).usage == whole.usage


def test_a_prompt_that_is_too_long_has_the_code_that_clients_expect(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="the hat " * 500)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"max_tokens": 0, "echo": True}])
def test_errors_of_several_prompts_name_the_wrong_one(client, options):
    for prompts, message in (
        (["the hat", "the hat " * 500], "prompt 1 has .* tokens, but n_ctx is 512"),
        ([[5], [6], [288]], "prompt 2: token id 288 is outside"),
        ([[5], []], "prompt 1 has no tokens"),
        (["the hat " * 500], "the prompt has .* tokens, but n_ctx is 512"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            client.completions.create(model="tiny", prompt=prompts, **options)


def test_developers_and_reasoning_effort_reach_the_template(client, engine):
    template = (
        "{{ reasoning_effort }}{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}"
    )
    messages = [{"role": "developer", "content": "cat"}, *HELLO]
    done = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=9, temperature=0, reasoning_effort="low",
        extra_body={"chat_template": template},
    )  # fmt: skip
    wanted = engine.complete_sync("lowsystem catuser the hat", 9, add_special=False)
    assert done.choices[0].message.content == wanted.text
    assert done.usage.prompt_tokens == len(wanted.prompt_tokens)


def test_an_echo_is_part_of_the_text_and_offsets_count_characters(client):
    asked = {"model": "tiny", "prompt": "the hat", "max_tokens": 6, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked, echo=True).choices[0]
    plain = client.completions.create(**asked).choices[0]
    assert whole.text == "the hat" + plain.text
    assert "<s>" in plain.logprobs.tokens  # which is not in the text
    lengths = [len(token.replace("<s>", "")) for token in plain.logprobs.tokens]
    assert plain.logprobs.text_offset == [sum(lengths[:i]) for i in range(6)]
    assert whole.logprobs.text_offset[-6:] == [7 + at for at in plain.logprobs.text_offset]
    stream = client.completions.create(**asked, stream=True)
    found = [chunk.choices[0].logprobs for chunk in stream]
    assert [at for one in found for at in one.text_offset] == plain.logprobs.text_offset
    chunks = list(client.completions.create(**(asked | {"logprobs": None}), echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text


@pytest.mark.parametrize(
    ("prompt", "offsets"),
    [
        ("Lea put a hat", [0, 0, 3, 7, 9]),
        ("hé ☃ hat", [0, 0, 1, 1, 2, 3, 3, 3, 4]),
        ([5, 1, 2, 90, 5, 300], [0, 1, 1, 1, 2, 3]),
    ],
)
def test_offsets_of_tokens_are_indices_of_the_text(demo_model, prompt, offsets):
    """The text lacks BOS, the space before it and stop strings, and has characters of several tokens."""
    from plait.server.bodies import text_job
    from plait.server.replies import Replies

    asked = {"prompt": prompt, "max_tokens": 6, "echo": True, "logprobs": 0}
    with plait.Engine(demo_model, 1, n_ctx=64) as engine:
        whole = engine.complete_sync(prompt, 6)
        cut = engine.complete_sync(prompt, 6, stop=whole.text[-6:])
    score = plait.token_logprobs(demo_model, whole.prompt_tokens, top_logprobs=0)
    for done in (whole, cut):
        replies = Replies(False, text_job(asked, demo_model), "demo", demo_model.tokenizer)
        (choice,) = replies.whole([done], [score])["choices"]
        end, expected = len(choice["text"]) - len(done.text), [*offsets]
        for token in done.tokens:
            expected.append(min(end, len(choice["text"])))
            end += len(demo_model.tokenizer.token_bytes(token))
        assert choice["logprobs"]["text_offset"] == expected
    assert end > len(choice["text"])  # the tokens of the stop string


def test_offsets_after_text_without_tokens(demo_model):
    from plait.server.bodies import text_job
    from plait.server.replies import Replies

    tokenizer = demo_model.tokenizer
    ids = [tokenizer.token_id("\u2581a"), tokenizer.unk, tokenizer.token_id("\u2581hat")]
    job = text_job({"prompt": "x"}, demo_model)
    assert Replies(False, job, "demo", tokenizer)._offsets_in("a ☃ hat", ids) == [0, 1, 3]


@pytest.mark.parametrize("limit", [0, 1])
def test_log_probabilities_of_prompts(client, model, limit):
    prompts = ["the hat in the hat", model.tokenizer.encode("in").tolist()]
    done = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=limit, temperature=0, echo=True, logprobs=2
    )
    for prompt, choice in zip(prompts, done.choices, strict=True):
        found = choice.logprobs
        wanted = plait.token_logprobs(model, prompt, top_logprobs=2)
        n = len(wanted) + 1
        assert len(found.tokens) == len(found.top_logprobs) == n + limit
        assert found.token_logprobs[0] is None
        assert np.allclose(found.token_logprobs[1:n], wanted.logprobs, atol=1e-5)
        for top, row in zip(found.top_logprobs[1:n], wanted.top_logprobs, strict=True):
            assert max(top.values()) == pytest.approx(row[0], abs=1e-5)
    assert done.usage.completion_tokens == 2 * limit
    with pytest.raises(openai.BadRequestError, match="stream excludes echo"):
        client.completions.create(model="tiny", prompt="in", echo=True, logprobs=1, stream=True)


def test_tokens_that_cannot_occur_have_finite_log_probabilities(client, engine):
    def only_ten(rows):
        return np.where(np.arange(rows.shape[1]) < 10, rows, -np.inf).astype(np.float32)

    asked = {"model": "tiny", "prompt": "the hat", "max_tokens": 1, "logprobs": 20}
    with engine.ctx.edit("result_output", only_ten):
        whole = client.completions.create(**asked).choices[0].logprobs
        chunks = list(client.completions.create(**asked, stream=True))
    for found in (whole, chunks[0].choices[0].logprobs):
        assert min(found.top_logprobs[0].values()) == -9999
        assert found.token_logprobs[0] > -9999


def test_messages_need_a_chat_template(tmp_path):
    from plait.server.bodies import BadRequest, chat_job

    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    model = plait.Model(
        gguf_writer.write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights())
    )
    with pytest.raises(BadRequest, match=r"send one in chat_template, or .* --chat-template FILE"):
        chat_job({"messages": HELLO}, model, None)
    assert chat_job({"messages": HELLO}, model, TEMPLATE).parameters["template"] == TEMPLATE


def test_prompts_are_scored_one_at_a_time(client, monkeypatch):
    from plait.server import app

    running, most, compute = [], [], app.token_logprobs

    def counted(*args, **options):
        running.append(None)
        most.append(len(running))
        time.sleep(0.02)
        try:
            return compute(*args, **options)
        finally:
            running.pop()

    monkeypatch.setattr(app, "token_logprobs", counted)
    asked = {"model": "tiny", "prompt": "the hat", "max_tokens": 0, "echo": True, "logprobs": 1}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.completions.create(**asked), range(8)))
    assert len({one.choices[0].text for one in found}) == 1
    assert most == [1] * 8


def test_no_progress_is_shown(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)  # as in a notebook
    shown = []
    monkeypatch.setattr("plait.progress._bar", lambda *given: shown.append(given))
    client.embeddings.create(model="tiny", input=["the hat"] * 20)
    client.post("/rerank", body={"query": "in", "documents": ["hat"] * 20}, cast_to=object)
    asked = {"model": "tiny", "prompt": [5] * 20, "max_tokens": 0, "logprobs": 1}
    client.completions.create(**asked, echo=True)
    assert shown == []


def test_a_gbnf_grammar_constrains_the_text(client):
    done = client.completions.create(
        model="tiny", prompt="the", max_tokens=20, extra_body={"grammar": 'root ::= "cat" | "hat"'}
    )
    assert done.choices[0].text in ("cat", "hat")


def test_tokens_of_texts_and_messages(port, model, client):
    encode = model.tokenizer.encode
    ask = lambda path, body: _post(port, path, body)  # noqa: E731
    of_prompt = ask("/tokenize", {"prompt": "the hat"})
    assert of_prompt == {
        "tokens": encode("the hat").tolist(), "count": len(encode("the hat")), "max_model_len": 512
    }  # fmt: skip
    of_content = ask("/tokenize", {"content": "the hat"})
    assert of_content["tokens"] == encode("the hat", add_special=False).tolist()
    assert ask("/detokenize", {"tokens": of_content["tokens"]})["content"] == "the hat"
    done = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    assert ask("/tokenize", {"messages": HELLO})["count"] == done.usage.prompt_tokens


def test_pages_of_allowed_origins_may_use_the_server(model, engine):
    from plait.server import create_app

    def allowed(*origins):
        with serving(create_app(model, engine, name="tiny", origins=origins)) as port:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/health", headers={"Origin": "https://a.example"}
            )
            with urllib.request.urlopen(request) as reply:
                return reply.headers["access-control-allow-origin"]

    assert allowed() is None
    assert allowed("https://a.example") == "https://a.example"
    assert allowed("https://b.example") is None
    assert allowed("*") == "*"


LIMITS = (1, 9, 30)


# Clients that vanish leave generators of httpx behind, of which Python says so when it collects them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seconds", [8, pytest.param(600, marks=pytest.mark.slow)])
def test_sixty_four_clients(port, engine, seconds):
    """Clients that complete, stream, and leave in the middle get the texts of the engine, and leave nothing behind."""
    prompts = [f"the hat {i}" for i in range(40)]
    wanted = {(p, n): engine.complete_sync(p, n).text for p in prompts for n in LIMITS}
    end = time.monotonic() + seconds
    n_done = dict.fromkeys(range(64), 0)

    async def one(client, i):
        random_ = random.Random(i)
        while time.monotonic() < end:
            prompt, limit = random_.choice(prompts), random_.choice(LIMITS)
            asked = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0}
            kind = random_.randrange(3)
            if kind == 0:
                done = await client.completions.create(**asked)
                assert done.choices[0].text == wanted[prompt, limit]
            else:
                text = ""
                async with await client.completions.create(**asked, stream=True) as stream:
                    async for chunk in stream:
                        text += chunk.choices[0].text
                        if kind == 2 and random_.random() < 0.2:
                            break
                assert wanted[prompt, limit].startswith(text)
                assert kind == 2 or text == wanted[prompt, limit]
            n_done[i] += 1

    async def main():
        base = f"http://127.0.0.1:{port}/v1"
        # A time limit that holds on a busy machine, too.
        options = {"base_url": base, "api_key": "secret", "max_retries": 0, "timeout": 600}
        async with openai.AsyncOpenAI(**options) as client:
            await asyncio.gather(*(one(client, i) for i in range(64)))

    asyncio.run(main())
    assert min(n_done.values()) > 0
    deadline = time.monotonic() + 60
    while engine.stats.n_active + engine.stats.n_queued and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.stats.n_active == engine.stats.n_queued == 0


def _post(port, path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"X-Api-Key": "secret"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def _status(port, path, body):
    try:
        return 200, _post(port, path, body)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
        return reply.status, reply.read().decode()
