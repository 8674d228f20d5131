"""The cache of compiled shaders on disk: valid entries are used, damaged ones are ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from python.vulkan_device import needs_vulkan

pytestmark = needs_vulkan

SCRIPT = """
import logging, sys, plait
logging.basicConfig(level=logging.DEBUG)
with plait.Context(plait.Model(sys.argv[1]), n_ctx=16, backend="vulkan") as ctx:
    batch = plait.Batch()
    batch.add_sequence([3, 4, 5], seq=0)
    print(ctx.decode(batch).logits.tobytes().hex())
"""


def logits(model: Path, cache: Path | str) -> tuple[str, str]:
    """Return the results of a separate process and its debug log."""
    environment = {
        **os.environ, "PLAIT_VULKAN_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, model],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = ran.stderr.splitlines()
    return ran.stdout, "\n".join(line for line in lines if line.startswith("DEBUG"))


def test_shaders_are_kept_and_checked_before_they_are_used(tiny_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    wanted, _ = logits(tiny_path, folder)
    (file,) = folder.iterdir()
    kept = file.read_bytes()
    assert logits(tiny_path, folder) == (wanted, "")
    file.write_bytes(kept[:50] + b"?" + kept[51:])
    got, log = logits(tiny_path, folder)
    assert got == wanted
    assert "damaged or from another driver" in log
    assert logits(tiny_path, folder) == (wanted, "")  # the file was written anew
    assert list(folder.iterdir()) == [file]


def test_an_unwritable_folder_is_ignored(tiny_path: Path, tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    got, log = logits(tiny_path, no_folder / "below")
    assert (got, "") == logits(tiny_path, "off")
    assert "cannot be written" in log
