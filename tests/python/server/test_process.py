"""`plait serve` as a process."""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

openai = pytest.importorskip("openai", reason="needs the packages of the extra serve and openai")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")

LONG = {"model": "model", "prompt": "Tom lives in", "max_tokens": 4000, "logit_bias": {"2": -100}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


FAILING = """
import sys
import plait.server.app

def text_job(body, model, **options):
    raise AssertionError("a defect")

plait.server.app.text_job = text_job
from plait.cli import main
sys.exit(main())
"""


def start(port, *options, program=("-m", "plait")):
    command = [sys.executable, *program, "serve", "demo", "--port", str(port), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def served(*options, **how):
    """Run the command, and yield the process and its port once it answers."""
    port = free_port()
    process = start(port, *options, **how)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                    break
            except OSError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
        yield process, port
    finally:
        process.kill()
        process.communicate()


def client_of(port):
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0, timeout=60
    )


def active(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("plait_n_active "))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_running_requests_finish(number):
    with served() as (process, port), client_of(port) as client:
        text = client.completions.create(model="demo", prompt="Tom lives in", max_tokens=5).choices
        assert text[0].text
        stream = client.completions.create(
            model="demo", prompt="Tom lives in", max_tokens=60, stream=True, logit_bias={"2": -100}
        )
        chunks = iter(stream)
        next(chunks)
        process.send_signal(number)
        assert sum(1 for _ in chunks) > 10  # the request goes on to its end
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors
        assert process.returncode in (0, -number, 128 + number)


def test_failed_requests_and_warnings_are_on_standard_error():
    with served(program=("-c", FAILING)) as (process, port), client_of(port) as client:
        with pytest.raises(openai.InternalServerError, match="AssertionError: a defect"):
            client.completions.create(model="demo", prompt="Tom")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert "plait serve: ERROR: server: a request failed\nTraceback" in errors
    assert "AssertionError: a defect" in errors


def test_a_port_in_use_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(taken.getsockname()[1])
        _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Address already in use; choose another" in errors
    assert "Traceback" not in errors


def test_slow_and_vanishing_clients_cost_nobody_else_anything():
    body = json.dumps(LONG | {"stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with served() as (_, port), client_of(port) as client, contextlib.ExitStack() as open_sockets:
        for i in range(8):
            one = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.sendall(
                (head + body).encode()[: 40 if i % 4 == 3 else None]
            )  # some send a part only
            if i % 2 == 0:
                one.recv(10)  # and read no more
        for _ in range(3):
            done = client.completions.create(model="demo", prompt="The kite is", max_tokens=4)
            assert done.usage.completion_tokens >= 1
        open_sockets.close()
        deadline = time.monotonic() + 60
        while active(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert active(port) == 0


def test_a_restarted_server_loads_prefixes(tmp_path):
    prompt = "Tom lives in Oslo. The kite is red. " * 4
    texts, cached = [], []
    for _ in range(2):
        with served("--prefixes", str(tmp_path)) as (_, port), client_of(port) as client:
            done = client.completions.create(
                model="demo", prompt=prompt, max_tokens=8, temperature=0
            )
            texts.append(done.choices[0].text)
            cached.append(done.usage.prompt_tokens_details.cached_tokens)
    assert texts[0] == texts[1]
    assert cached[0] == 0
    assert cached[1] > 20


def test_deep_grammars_do_not_end_the_server():
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    names = [f"d{i}" for i in range(5000)]
    one_level = {
        name: {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{after}"}}}
        for name, after in itertools.pairwise(names)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": one_level | {names[-1]: {"type": "string"}}}
    rules = "".join(f"{name}: {after}\n" for name, after in itertools.pairwise(names))
    form = {"type": "json_schema", "json_schema": {"name": "deep", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with served() as (process, port), client_of(port) as client:
        for body in (
            {"response_format": form},
            {"grammar": f'start: d0\n{rules}{names[-1]}: "a"\n'},
        ):
            with pytest.raises(openai.BadRequestError, match="the limit is 2000"):
                client.completions.create(model="demo", prompt="Tom", max_tokens=4, extra_body=body)
        with pytest.raises(openai.BadRequestError, match="the limit is 2000"):
            client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "Tom"}], tools=[tool],
                tool_choice="required", extra_body={"chat_template": "{{ messages[0].content }}"},
            )  # fmt: skip
        assert client.completions.create(model="demo", prompt="Tom", max_tokens=4).choices
        assert process.poll() is None


LIMITS = (1, 9, 30)


# Clients that vanish leave generators of httpx behind, of which Python says so when it collects them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seconds", [5, pytest.param(600, marks=pytest.mark.slow)])
def test_sixty_four_clients(seconds):
    """Clients that complete, stream and leave get the texts of a client alone, and leave nothing behind."""
    prompts = [f"Tom lives in Oslo. The kite is red. {i}" for i in range(20)]
    n_done = dict.fromkeys(range(64), 0)

    def asked(prompt, limit):
        return {"model": "demo", "prompt": prompt, "max_tokens": limit, "temperature": 0}

    async def one(client, i, wanted, end):
        chance = random.Random(i)
        while time.monotonic() < end:
            prompt, limit = chance.choice(prompts), chance.choice(LIMITS)
            kind = chance.randrange(3)
            if kind == 0:
                done = await client.completions.create(**asked(prompt, limit))
                assert done.choices[0].text == wanted[prompt, limit]
            else:
                text, left = "", False
                stream = await client.completions.create(**asked(prompt, limit), stream=True)
                async with stream:
                    async for chunk in stream:
                        text += chunk.choices[0].text
                        if kind == 2 and chance.random() < 0.2:
                            left = True
                            break
                assert wanted[prompt, limit].startswith(text)
                assert left or text == wanted[prompt, limit]
            n_done[i] += 1

    async def main(port, wanted):
        base = f"http://127.0.0.1:{port}/v1"
        end = time.monotonic() + seconds / 2
        # A time limit that holds on a busy machine, too.
        options = {"base_url": base, "api_key": "-", "max_retries": 0, "timeout": 600}
        async with openai.AsyncOpenAI(**options) as client:
            await asyncio.gather(*(one(client, i, wanted, end) for i in range(64)))

    def memory():
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))  # KiB

    with served() as (process, port), client_of(port) as client:
        wanted = {
            (p, n): client.completions.create(**asked(p, n)).choices[0].text
            for p in prompts
            for n in LIMITS
        }
        asyncio.run(main(port, wanted))
        before = memory()
        asyncio.run(main(port, wanted))
        assert memory() < before + 64 * 1024
        assert min(n_done.values()) > 0
        deadline = time.monotonic() + 60
        while active(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert active(port) == 0
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors
