"""The command `plait quantize`."""

import numpy as np
import plait
import pytest
from plait.cli import main

from python import gguf_writer


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat. ")
    return path


@pytest.mark.parametrize(
    ("output", "message"),
    [("model.gguf", "the model's own file"), ("nowhere/out.gguf", "nowhere does not exist")],
)
def test_the_output_is_checked_before_anything_is_measured(
    tmp_path, text, capsys, monkeypatch, output, message
):
    def choose_types(*args, **options):
        raise AssertionError

    monkeypatch.setattr(plait.quant, "choose_types", choose_types)
    model = gguf_writer.tiny_llama(tmp_path / "model.gguf")
    command = ["quantize", model, tmp_path / output, "--budget", "9", "--text", text, "--overwrite"]
    assert main([str(arg) for arg in command]) == 1
    assert message in capsys.readouterr().err


def test_threads_apply_to_measurements(tiny_path, tmp_path, text, capsys, monkeypatch):
    def choose_types(*args, threads, **options):
        raise ValueError(f"measured by {threads} threads")

    monkeypatch.setattr(plait.quant, "choose_types", choose_types)
    command = ["quantize", tiny_path, tmp_path / "out.gguf", "--budget", "9", "--text", text]
    assert main([str(arg) for arg in [*command, "--threads", 3]]) == 1
    assert "measured by 3 threads" in capsys.readouterr().err


def test_a_matrix_that_becomes_zero_is_reported(tmp_path, capsys):
    weights = gguf_writer.llama_weights()
    weights["blk.0.attn_q.weight"] *= np.float32(1e-30)
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    model = gguf_writer.write(tmp_path / "model.gguf", metadata, weights)
    assert main(["quantize", str(model), str(tmp_path / "out.gguf"), "Q8_0"]) == 0
    assert capsys.readouterr().err == (
        "plait quantize: warning: quantize_file: blk.0.attn_q.weight: all values become zero as Q8_0; choose another "
        "type for it\n"
    )
