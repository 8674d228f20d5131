"""Downloads from a hub; see local_hub.py."""

import subprocess
import sys
import time
from pathlib import Path

import plait
import pytest

from python import local_hub

pytest.importorskip("huggingface_hub", reason="plait[hub] is not installed")


@pytest.fixture
def hub(tiny_path):
    files = {"README.md": b"a model", "tiny.gguf": tiny_path.read_bytes()}
    with local_hub.serving("me/models", files) as server:
        yield server


@pytest.fixture
def python(hub, tmp_path):
    """Run a program in a new interpreter that uses this hub, and return its last line of output."""

    def run(source, *, down=False, **environment):
        env = local_hub.environment(hub, tmp_path / "hf", down=down)
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
    assert python(OPEN.format("t*"), HF_HUB_OFFLINE="1") == "288"
    assert python(OPEN.format("t*"), down=True) == "288"
    assert "does not contain *Q4*" in python(OPEN.format("*Q4*"), down=True)
    local = "print(plait.Model.from_hub('me/models', local_files_only=True).n_vocab)"
    assert python(local) == "288"


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
        == "ValueError from_hub: me/models has several models that match; pass one of these as `file`: "
        "other.gguf, tiny.gguf"
    )
    assert "tiny.gguf" in python("plait.Model.from_hub('me/models', '*Q4*')")
    assert python("print(plait.Model.from_hub('me/models', 't*').n_vocab)") == "288"
    message = python(OPEN.format("none.gguf"))
    assert message == "FileNotFoundError from_hub: me/models has no file none.gguf"
    assert python("plait.Model.from_hub('me/nothing', 'a.gguf')").startswith("FileNotFoundError")
    assert python("plait.Model.from_hub('a/b/c', 'a.gguf')").startswith(
        "ValueError from_hub: repo is 'a/b/c'; expected"
    )


def test_a_name_of_no_parts_is_that_of_a_file():
    from plait.files import hub

    assert hub.parts("a-00001-of-00000.gguf") == ["a-00001-of-00000.gguf"]


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
