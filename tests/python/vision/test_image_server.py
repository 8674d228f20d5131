"""Images in requests to the server, as the openai package sends them."""

import base64
import concurrent.futures
import io
import struct
import subprocess
import sys
import time
import zlib

import plait
import pytest
from python.server.test_process import free_port
from python.server.test_server import serving
from python.vision import image_models, towers
from python.vision.image_models import ANSWERS, N_CTX

openai = pytest.importorskip("openai", reason="needs the packages of the extra serve and openai")
pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")

OPTIONS = {"n_ctx": N_CTX, "type_k": "f32", "type_v": "f32"}
PICTURES = [towers.image(*size) for size in ANSWERS][:3]


def url_of(picture, kind="PNG"):
    data = io.BytesIO()
    pillow.fromarray(picture).save(data, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(data.getvalue()).decode()


def asked(*urls, text="the"):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = towers.write(tmp_path_factory.mktemp("encoder"), "qwen2vl")
    with plait.Vision(path, max_image_pixels=10_000) as vision:
        yield vision


@pytest.fixture(scope="module")
def client(model, encoder):
    from plait.server import create_app

    with plait.Engine(model, 8, vision=encoder, **OPTIONS) as engine:
        with serving(create_app(model, engine, name="tiny")) as port:
            yield client_of(port)
        assert engine.stats.n_active == 0


def client_of(port):
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0, timeout=60
    )


@pytest.fixture(scope="module")
def wanted(model):
    """The texts of 8 tokens to each picture, by transformers."""
    return [text_of(model.tokenizer, ids) for ids in list(ANSWERS.values())[:3]]


def text_of(tokenizer, ids):
    stream, pieces = tokenizer.stream(continuing=True), []
    for token in ids:
        if token in tokenizer.eog:
            break
        pieces.append(stream.push(token))
    return "".join(pieces) + stream.flush()


def reply(client, messages):
    found = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0
    )
    return found.choices[0].message.content


def test_replies_equal_those_of_transformers(client, wanted):
    assert len(set(wanted)) == len(wanted)
    for picture, want in zip(PICTURES, wanted, strict=True):
        assert reply(client, asked(url_of(picture))) == want


def test_streams_and_concurrent_clients_get_their_own_image(client, wanted):
    def stream(i):
        chunks = client.chat.completions.create(
            model="tiny", messages=asked(url_of(PICTURES[i % 3])), max_tokens=8, temperature=0,
            stream=True,
        )  # fmt: skip
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(stream, range(24))) == [wanted[i % 3] for i in range(24)]


def test_usage_counts_the_embeddings_of_images(client, encoder):
    message = asked(url_of(PICTURES[0]), text="the hat")
    first = client.chat.completions.create(model="tiny", messages=message, max_tokens=2)
    again = client.chat.completions.create(model="tiny", messages=message, max_tokens=2)
    n_image = len(encoder.encode(PICTURES[0]))
    assert first.usage.prompt_tokens > n_image
    assert again.usage.prompt_tokens_details.cached_tokens > n_image


def png_header(width, height):
    """Return a PNG file that claims a size and has no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
    return "data:image/png;base64," + data


def part(**content):
    return [{"role": "user", "content": [content]}]


BAD = {
    "an address": (asked("https://example.org/a.png"), "addresses are not fetched"),
    "a file": (asked("file:///etc/passwd"), "addresses are not fetched"),
    "a path": (asked("/etc/passwd"), "addresses are not fetched"),
    "a path as an image": (part(type="image", image="/etc/passwd"), "expected \"text\" or \"image_url\""),
    "a file id": (part(type="file", file={"file_id": "x"}), "the type is 'file'"),
    "sound": (part(type="input_audio", input_audio={"data": "", "format": "wav"}), "the type is 'input_audio'"),
    "no url": (part(type="image_url", image_url={}), "got NoneType"),
    "text instead of base64": (asked("data:image/png,abc"), "expected data:image"),
    "damaged base64": (asked("data:image/png;base64,***"), "not base64"),
    "an empty image": (asked("data:image/png;base64,"), "damaged or of an unknown format"),
    "half an image": (asked(url_of(PICTURES[0])[: 22 + 600]), "damaged"),
    "a vector image": (asked("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()), "unknown format"),
    "too many pixels": (asked(png_header(200, 51)), "200 x 51 pixels, expected at most 10000"),
    "a bomb": (asked(png_header(60000, 60000)), "60000 x 60000 pixels, expected at most 10000|3600000000 pixels"),
    "no pixels": (asked(png_header(0, 8)), "damaged|at least one pixel"),
    "a strip": (asked(png_header(8000, 1)), "at most 200 times"),
    "too many for the context": (asked(*map(url_of, PICTURES), *map(url_of, PICTURES)), "n_ctx is 128"),
    "too many": (asked(*["data:image/png;base64,AA=="] * 65), "65 images; the limit is 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_images_are_refused_and_others_continue(client, wanted, case):
    messages, expected = BAD[case]
    with pytest.raises(openai.BadRequestError, match=expected) as caught:
        reply(client, messages)
    assert caught.value.body["type"] == "invalid_request_error"
    assert reply(client, asked(url_of(PICTURES[0]))) == wanted[0]


def test_a_body_over_the_limit_is_refused(client):
    url = "data:image/png;base64," + "A" * (17 << 20)
    with pytest.raises(openai.APIStatusError, match="the body has more than") as caught:
        reply(client, asked(url))
    assert caught.value.status_code == 413


def test_text_of_placeholders_is_text(client, wanted):
    assert reply(client, asked(url_of(PICTURES[0]), text="<|image_pad|>"))
    assert reply(client, [{"role": "user", "content": "<|image_pad|>"}])


def test_the_command_serves_images(tmp_path, model, wanted):
    text = image_models.text_model(tmp_path / "text.gguf")
    tower = towers.write(tmp_path, "qwen2vl")
    port = free_port()
    command = [sys.executable, "-m", "plait", "serve", str(text), "--mmproj", str(tower), "--port", str(port),
               "--n-ctx", str(N_CTX), "--type-k", "f32", "--type-v", "f32", "--max-image-pixels", "3000"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        client = client_of(port)
        for _ in range(600):
            try:
                client.models.list()
                break
            except openai.APIConnectionError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
        assert reply(client, asked(url_of(PICTURES[0]))) == wanted[0]
        with pytest.raises(openai.BadRequestError, match="expected at most 3000 in all"):
            reply(client, asked(url_of(towers.image(60, 60))))
    finally:
        process.kill()
        process.communicate()
