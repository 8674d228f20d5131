"""Files that plait would compute wrongly are refused: for their architecture, or for a key that nothing reads."""

import numpy as np
import plait
import pytest

from python import gguf_writer


def write(path, arch="llama", **keys):
    """Write the tiny llama as a model of `arch`, with more hyperparameters."""
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata = {
        key.replace("llama.", f"{arch}.", 1) if key.startswith("llama.") else key: value
        for key, value in metadata.items()
    }
    metadata["general.architecture"] = arch
    metadata |= {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    gguf_writer.write(path, metadata, gguf_writer.llama_weights(1))
    return path


def test_a_hyperparameter_that_nothing_reads_is_refused(tmp_path):
    with pytest.raises(
        plait.ModelError, match=r"llama\.attention\.sharpness.*could make the logits wrong"
    ):
        plait.Model(write(tmp_path / "a.gguf", attention__sharpness=2.0))
    with pytest.raises(plait.ModelError, match=r"llama\.residual_scale"):
        plait.Model(write(tmp_path / "b.gguf", residual_scale=0.5))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention__sharpness", 0.0),
        ("is_sharp", False),
        ("residual_scale", 1.0),
        ("expert_group_count", 1),
        ("tensor_data_layout", "Meta AI original pth"),
        ("expert_feed_forward_length", 7),
    ],
)
def test_what_changes_nothing_is_accepted(tmp_path, key, value):
    plait.Model(write(tmp_path / "m.gguf", **{key: value}))


def test_a_decoder_that_would_see_later_tokens_is_refused(tmp_path):
    plait.Model(write(tmp_path / "a.gguf", attention__causal=True))
    with pytest.raises(plait.ModelError, match=r"llama\.attention\.causal: expected true"):
        plait.Model(write(tmp_path / "b.gguf", attention__causal=False))


def test_windows_of_some_layers_are_read_or_refused(tmp_path):
    """llama.cpp reads the key for Llama 4; an architecture without windows does not know it."""
    pattern = np.array([1, 0], np.int32)
    with pytest.raises(plait.ModelError, match=r"llama\.attention\.sliding_window_pattern"):
        plait.Model(write(tmp_path / "a.gguf", attention__sliding_window_pattern=pattern))
    mixture = {
        "expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 96, "interleave_moe_layer_step": 1,
    }  # fmt: skip
    pattern_key = r"llama4\.attention\.sliding_window_pattern: expected chunks"
    with pytest.raises(plait.ModelError, match=pattern_key):
        plait.Model(
            write(
                tmp_path / "b.gguf", "llama4", attention__sliding_window_pattern=pattern, **mixture
            )
        )


def test_an_unknown_architecture_names_the_nearest_and_what_it_misses(tmp_path):
    with pytest.raises(
        plait.UnsupportedError,
        match=r'"llamas" is not supported; .* name is llama \(the file has all',
    ):
        plait.Model(write(tmp_path / "a.gguf", arch="llamas"))
    with pytest.raises(
        plait.UnsupportedError, match=r"name is qwen3 \(.*attn_q_norm\.weight is missing"
    ):
        plait.Model(write(tmp_path / "b.gguf", arch="qwen3s"))
    with pytest.raises(plait.UnsupportedError, match=r"\(.*llamas\.residual_scale"):
        plait.Model(write(tmp_path / "c.gguf", arch="llamas", residual_scale=0.5))
