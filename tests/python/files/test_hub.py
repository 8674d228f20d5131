"""Downloads from a hub: a local server that implements the part of the protocol that downloads use."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import plait
import pytest

pytest.importorskip("huggingface_hub", reason="plait[hub] is not installed")

COMMIT = "c0ffee" * 6 + "c0ff"


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one repository, "me/models". It interrupts one download after `server.most` bytes."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def log_message(self, *_):
        pass

    def answer(self):
        server = self.server
        server.asked.append((self.command, self.path, self.headers.get("Range")))
        if re.fullmatch(r"/api/models/me/models(/revision/[^/]+)?", self.path.split("?")[0]):
            names = [{"rfilename": name} for name in server.files]
            return self.send(
                json.dumps({"id": "me/models", "sha": COMMIT, "siblings": names}).encode()
            )
        if re.match(r"/api/models/me/models/tree/", self.path):
            tree = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in server.files.items()
            ]
            return self.send(json.dumps(tree).encode())
        found = re.fullmatch(r"/me/models/resolve/[^/]+/(.+)", self.path)
        if not self.path.startswith(("/me/models", "/api/models/me/models")):
            return self.send(b"", 404, {"X-Error-Code": "RepoNotFound"})
        if not found or found[1] not in server.files:
            return self.send(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        data = server.files[found[1]]
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        status = 200
        if asked:
            begin, end = int(asked[1]), int(asked[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            data, status = data[begin : end + 1], 206
        most = None
        if self.command == "GET":
            most, server.most = server.most, None
        return self.send(data, status, headers, most)

    def send(self, data, status=200, headers=(), most=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data if most is None else data[:most])
        if most is not None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()


@pytest.fixture
def hub(tiny_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = {"README.md": b"a model", "tiny.gguf": tiny_path.read_bytes()}
    server.asked, server.most = [], None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def python(hub, tmp_path):
    """Run a program in a new interpreter that uses this hub, and return its last line of output."""

    def run(source, *, down=False, **environment):
        port = 9 if down else hub.server_address[1]
        env = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_ETAG_TIMEOUT": "2",
            "NO_PROXY": "*",
        }
        program = f"import plait\ntry:\n    {source}\nexcept Exception as e:\n    print(type(e).__name__, e)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=env | environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


OPEN = "print(plait.Model.from_hub('me/models', {!r}).n_vocab)"


def test_downloaded_once_and_found_offline(hub, python):
    assert python("print(plait.Model.from_hub('me/models').n_vocab)") == "288"
    downloads = [path for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert len(downloads) == 1
    assert python(OPEN.format("tiny.gguf")) == "288"
    downloads = [path for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert len(downloads) == 1
    assert python(OPEN.format("tiny.gguf"), down=True) == "288"
    assert python(OPEN.format("tiny.gguf"), HF_HUB_OFFLINE="1") == "288"


def test_a_hub_that_does_not_list_files(python):
    message = python("plait.Model.from_hub('me/models')", down=True)
    assert message.startswith("ConnectionError from_hub: the hub cannot be reached")
    assert "a file of me/models" in message


@pytest.mark.parametrize(
    "options",
    [
        {"HF_HUB_OFFLINE": "1"},
        {"down": True},
    ],
    ids=["told", "down"],
)
def test_errors_when_offline_explain_what_to_do(python, tmp_path, options):
    message = python(OPEN.format("tiny.gguf"), **options)
    assert message.startswith("ConnectionError from_hub: the hub cannot be reached")
    assert str(tmp_path / "hf") in message
    assert "tiny.gguf of me/models" in message
    assert "plait.Model(path)" in message


def test_a_hub_that_cannot_be_reached_is_not_tried_again_and_again(python):
    began = time.perf_counter()
    assert "the hub cannot be reached" in python(OPEN.format("tiny.gguf"), down=True)
    assert time.perf_counter() - began < 10  # the client would wait for 23 s between six attempts


def test_an_interrupted_download_resumes(hub, python):
    hub.files["tiny.gguf"] = (
        bytes(range(256)) * 100_000
    )  # the client keeps what came in steps of 10 MB
    hub.most = 15_000_000
    size = python("from plait.files import hub; print(len(hub.fetch('me/models').read_bytes()))")
    assert size == str(25_600_000)
    ranges = [found for method, path, found in hub.asked if method == "GET" and "/resolve/" in path]
    assert len(ranges) == 2
    begin = int(ranges[1].removeprefix("bytes=").split("-")[0])
    assert 0 < begin <= 15_000_000


def test_errors_name_what_is_missing(hub, python):
    hub.files["other.gguf"] = b"GGUF"
    several = python("plait.Model.from_hub('me/models')")
    assert (
        several
        == "ValueError from_hub: several models of me/models match; choose one with file=: other.gguf, tiny.gguf"
    )
    assert "tiny.gguf" in python("plait.Model.from_hub('me/models', '*Q4*')")
    assert python("print(plait.Model.from_hub('me/models', 't*').n_vocab)") == "288"
    message = python(OPEN.format("none.gguf"))
    assert message == "FileNotFoundError from_hub: me/models has no file none.gguf"
    assert python("plait.Model.from_hub('me/nothing', 'a.gguf')").startswith("FileNotFoundError")
    assert python("plait.Model.from_hub('a/b/c', 'a.gguf')").startswith(
        "ValueError from_hub: repo is 'a/b/c'; expected"
    )


def test_all_parts_of_split_models_are_downloaded(hub, python, tiny_path):
    whole = hub.files.pop("tiny.gguf")
    names = [f"q/tiny-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files |= dict.fromkeys(names, whole)
    source = (
        "from plait.files import hub; "
        "print([p.name for p in sorted(hub.fetch('me/models', {!r}).parent.iterdir())])"
    )
    expected = str([Path(name).name for name in names])
    assert python(source.format("q/*")) == expected
    assert python(source.format(names[0]), down=True) == expected


def test_parts():
    from plait.files.hub import parts

    assert parts("a/b.gguf") == ["a/b.gguf"]
    assert parts("b-00001-of-00003.gguf") == [f"b-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_errors_without_the_extra_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModuleNotFoundError, match=r"plait\[hub\]"):
        plait.Model.from_hub("me/models")
