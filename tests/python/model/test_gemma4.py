"""Gemma 4: which weights a layer may lack."""

import plait
import pytest
from python.hostile.test_hostile import model_of


def without(data: bytes, name: str) -> bytes:
    """Return a model in which a tensor has another name."""
    other = name.replace("attn_v", "attn_x")
    assert data.count(name.encode()) == 1
    return data.replace(name.encode(), other.encode())


def test_only_layers_with_full_attention_may_use_keys_as_values(data_dir, tmp_path):
    data = model_of(data_dir, "2026/gemma4-a").read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(without(data, "blk.0.attn_v.weight"))
    with pytest.raises(plait.ModelError, match=r"blk\.0\.attn_v\.weight"):
        plait.Model(path)
    path.write_bytes(without(data, "blk.1.attn_v.weight"))
    with pytest.raises(plait.ModelError, match=r"blk\.1\.attn_x\.weight"):  # no layer reads it
        plait.Model(path)
