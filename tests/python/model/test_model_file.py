"""Model paths that are not regular files, and files that change while in use. Goals G5, G22; rule R10."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import plait
import pytest


def special(folder: Path, what: str) -> Path:
    """Return a path that is not a regular file."""
    path = folder / what
    match what:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link to itself":
            path.symlink_to(path.name)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(os.fspath(path))
        case "device":
            return Path("/dev/zero")
        case "sparse":
            path.touch()
            os.truncate(path, 64 << 30)
        case "sparse, begins well":
            path.write_bytes(b"GGUF\3\0\0\0" + (2**30).to_bytes(8, "little") * 2)
            os.truncate(path, 64 << 30)
    return path


SPECIAL = ["pipe", "folder", "link to itself", "socket", "device", "sparse", "sparse, begins well", "none"]  # fmt: skip


@pytest.mark.goal("G5")
@pytest.mark.parametrize("what", SPECIAL)
def test_paths_that_are_not_regular_files_are_refused_at_once(
    tmp_path, what, record_property
):  # G5
    path = special(tmp_path, what)
    for mmap in (False, True):
        begin = time.monotonic()
        with pytest.raises(plait.ModelError, match=path.name):
            plait.Model(path, mmap=mmap)
        assert time.monotonic() - begin < 1
    record_property("figure", f"{what}: refused")


CHANGES = {
    "truncate": "os.truncate(path, 100)",
    "empty": "os.truncate(path, 0)",
    "overwrite": "open(path, 'r+b').write(b'\\xff' * os.path.getsize(path))",
    "delete": "os.remove(path)",
    "replace": "open(path + '2', 'wb').write(b'\\xff' * 4096), os.replace(path + '2', path)",
}
CHANGED = textwrap.dedent("""
    import os, sys, plait
    path = sys.argv[1]
    model = plait.Model(path)
    ctx = plait.Context(model, n_ctx=64)
    def step():
        ctx.kv.clear()
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7, 8])
        return ctx.decode(batch).logits.tobytes()
    want = step()
    exec(sys.argv[2])
    assert step() == want
    try:  # either the context needs no more data, or an error reports the change
        ctx = plait.Context(model, n_ctx=32)
    except plait.ModelError:
        pass
    assert step() == want
    model.tokenizer.encode("abc"), model.metadata, model.tensors
    try:
        plait.Model(path)
    except plait.ModelError:
        pass
    else:
        raise SystemExit("another file loaded")
    try:
        model.tensor("token_embd.weight")
    except plait.ModelError:
        pass
""")


@pytest.mark.goal("G22")
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_changes_while_its_model_runs(tiny_path, tmp_path, change, record_property):  # G22
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_path.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", CHANGED, path, CHANGES[change]],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    record_property("figure", f"{change}: logits unchanged")
