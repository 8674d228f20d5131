"""Weights that are kept in a file for other processes: where, when, and that they are the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import plait
import pytest

from python import gguf_writer

PROGRAM = """
    import json, sys
    import numpy as np
    import plait

    path, folder, isa = sys.argv[1:]
    model = plait.Model(path, packed_cache=folder)
    with plait.Context(model, n_ctx=64, isa=isa) as ctx:
        batch = plait.Batch()
        batch.add_sequence(range(1, 9), logits="all")
        print(json.dumps(ctx.decode(batch).logits.view(np.uint32).tolist()))
"""


def start(path: Path, folder: Path | str, isa: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), str(folder), isa]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def logits(model: plait.Model, isa: str | None = None) -> np.ndarray:
    with plait.Context(model, n_ctx=64, isa=isa) as ctx:
        batch = plait.Batch()
        batch.add_sequence(range(1, 9), logits="all")
        return ctx.decode(batch).logits.copy()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.packed"))


def used(folder: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in files(folder))


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copy(plait.Model.demo().path, tmp_path / "model.gguf"))


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices take just over 64 MB."""
    n_vocab = (32 << 20) // 4 // gguf_writer.WIDTH
    metadata = gguf_writer.llama_metadata() | {"llama.vocab_size": n_vocab}
    embeddings = np.zeros((n_vocab, gguf_writer.WIDTH), np.float32)
    weights = gguf_writer.llama_weights() | {
        "token_embd.weight": embeddings,
        "output.weight": embeddings,
    }
    path = tmp_path_factory.mktemp("large") / "model.gguf"
    return gguf_writer.write(path, metadata | {"tokenizer.ggml.model": "no_vocab"}, weights)


def test_processes_share_one_file(demo: Path, tmp_path: Path, isa: str) -> None:
    expected = logits(plait.Model(demo, packed_cache=False), isa)
    folder = tmp_path / "packed"
    running = [start(demo, folder, isa) for _ in range(3)]
    for process in [*running, start(demo, folder, isa)]:
        shown, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert np.array_equal(np.array(json.loads(shown), np.uint32), expected.view(np.uint32))
    assert len(files(folder)) == 1
    assert 0.9 * demo.stat().st_size < used(folder) < 2 * demo.stat().st_size + (1 << 20)


def test_a_killed_process_leaves_a_usable_file(demo: Path, tmp_path: Path) -> None:
    expected = logits(plait.Model(demo, packed_cache=False))
    folder = tmp_path / "packed"
    isa = plait.build_info()["isas"][-1]
    for _ in range(6):
        process = start(demo, folder, isa)
        while process.poll() is None and not files(folder):
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        model = plait.Model(demo, packed_cache=folder)
        assert np.array_equal(logits(model).view(np.uint32), expected.view(np.uint32))
        del model
        for path in files(folder):
            path.unlink()


def test_a_model_that_changes_gets_another_file(demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    before = logits(plait.Model(demo, packed_cache=folder))
    content = bytearray(demo.read_bytes())
    tensors = plait.Model(demo, packed_cache=False).tensors
    content[-tensors["blk.0.attn_q.weight"].nbytes // 2] ^= 1
    times = demo.stat()
    demo.write_bytes(content)
    os.utime(demo, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time are as before
    after = logits(plait.Model(demo, packed_cache=folder))
    assert len(files(folder)) == 2
    assert not np.array_equal(before, after)
    assert np.array_equal(after, logits(plait.Model(demo, packed_cache=False)))


def test_without_a_folder_that_can_be_written(demo: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    expected = logits(plait.Model(demo, packed_cache=False))
    for folder in (in_the_way, "/proc/none", "/dev/full/x"):
        assert np.array_equal(logits(plait.Model(demo, packed_cache=folder)), expected)


def test_contexts_of_a_closed_model_keep_their_weights(demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    model = plait.Model(demo, packed_cache=folder)
    expected = logits(model)
    with plait.Context(model, n_ctx=64) as ctx:
        del model
        shutil.rmtree(folder)
        batch = plait.Batch()
        batch.add_sequence(range(1, 9), logits="all")
        assert np.array_equal(ctx.decode(batch).logits, expected)


@pytest.mark.parametrize("option", [None, True, False])
@pytest.mark.parametrize("value", ["", "off", "named"])
def test_the_choice_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_model: Path, option: object, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PLAIT_PACKED_CACHE", str(tmp_path / "named") if value == "named" else value)
    with plait.Context(plait.Model(large_model, packed_cache=option), n_ctx=64) as ctx:
        batch = plait.Batch()
        batch.add(1, pos=0, logits=False)
        ctx.decode(batch)
    expected = (
        {"": ["cache/plait"], "off": [], "named": ["named"]}[value] if option is not False else []
    )
    assert (
        sorted({str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.packed")})
        == expected
    )


def test_small_models_are_not_kept_by_default(
    demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLAIT_PACKED_CACHE", str(tmp_path / "packed"))
    logits(plait.Model(demo))
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("wrong", [3, 1.5, b"folder", ["folder"]])
def test_a_wrong_option(demo: Path, wrong: object) -> None:
    with pytest.raises(TypeError, match="packed_cache: expected a folder, a bool or None"):
        plait.Model(demo, packed_cache=wrong)
