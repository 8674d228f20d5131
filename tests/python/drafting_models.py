"""Models with a layer for multi-token prediction, made from the tiny models of the reference data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait
from python.reference_data import model_path

from python import gguf_writer

# The models whose architectures have such layers.
MODELS = [
    "deepseek2",
    "qwen3next",
    "glm4moe-a",
    "qwen35-a",
    "qwen35moe-a",
]


def source(data_dir: Path, name: str) -> plait.Model:
    return plait.Model(model_path(data_dir, name))


def contents(model: plait.Model) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return dict(model.metadata), {name: model.tensor(name) for name in model.tensors}


def attending_layer(model: plait.Model) -> int:
    """The last layer with attention."""
    names = ("attn_k.weight", "attn_kv_a_mqa.weight")
    return max(
        i for i in range(model.n_layer) if any(f"blk.{i}.{name}" in model.tensors for name in names)
    )


def add_layer(model: plait.Model, path: Path, seed: int = 1, **changed: np.ndarray) -> plait.Model:
    """Return the model with one more layer: that of the last layer with attention, with noise.

    Args:
        model: The model.
        path: Where to write it.
        seed: Of the random weights.
        changed: Weights of the layer to replace, with "__" instead of "." in their names.
    """
    rng = np.random.default_rng(seed)
    metadata, tensors = contents(model)
    n, last, width = model.n_layer, attending_layer(model), model.n_embd
    metadata[f"{model.arch}.block_count"] = n + 1
    metadata[f"{model.arch}.nextn_predict_layers"] = 1
    recurrent = f"{model.arch}.attention.recurrent_layers"
    if recurrent in metadata:
        metadata[recurrent] = np.append(metadata[recurrent], False)
    layer = {
        name.split(".", 2)[2]: values * rng.normal(1, 0.3, values.shape)
        for name, values in tensors.items()
        if name.startswith(f"blk.{last}.")
    }
    layer |= {
        "nextn.eh_proj.weight": rng.normal(0, (2 * width) ** -0.5, (width, 2 * width)),
        "nextn.enorm.weight": rng.normal(1, 0.2, width),
        "nextn.hnorm.weight": rng.normal(1, 0.2, width),
        "nextn.shared_head_norm.weight": rng.normal(1, 0.2, width),
    }
    layer |= {name.replace("__", "."): values for name, values in changed.items()}
    tensors |= {f"blk.{n}.{name}": np.asarray(values, np.float32) for name, values in layer.items()}
    return plait.Model(gguf_writer.write(path, metadata, tensors))


def silent_layer(
    model: plait.Model, path: Path, projection: np.ndarray, output_norm: np.ndarray
) -> plait.Model:
    """Return the model with a layer that adds nothing to the projection of its inputs.

    Args:
        model: The model.
        path: Where to write it.
        projection: [n_embd, 2 n_embd], of the token's embedding and the hidden state.
        output_norm: The weights of the last norm; those of the others are ones.
    """
    prefix = f"blk.{attending_layer(model)}."
    silent = {
        name.removeprefix(prefix).replace(".", "__"): np.zeros(model.tensors[name].shape)
        for name in model.tensors
        if name.startswith(prefix) and ("attn_output" in name or "ffn_down" in name)
    }
    ones = np.ones(model.n_embd)
    return add_layer(
        model,
        path,
        nextn__eh_proj__weight=projection,
        nextn__enorm__weight=ones,
        nextn__hnorm__weight=ones,
        nextn__shared_head_norm__weight=output_norm,
        **silent,
    )


def alone(model: plait.Model, path: Path) -> plait.Model:
    """Return an ordinary model that does what the layer for multi-token prediction does with its projection.

    Its first layer is that of the model without its outputs, since a model of some architectures must have a recurrent
    layer.
    """
    metadata, tensors = contents(model)
    arch, prefix = model.arch, f"blk.{model.n_layer}."
    metadata |= {f"{arch}.block_count": 2, f"{arch}.nextn_predict_layers": 0}
    if f"{arch}.leading_dense_block_count" in metadata:
        metadata[f"{arch}.leading_dense_block_count"] = 1
    if f"{arch}.full_attention_interval" in metadata:
        metadata[f"{arch}.full_attention_interval"] = 2
    if f"{arch}.attention.recurrent_layers" in metadata:
        metadata[f"{arch}.attention.recurrent_layers"] = np.array([True, False])
    only = {name: values for name, values in tensors.items() if not name.startswith("blk.")}
    only["output_norm.weight"] = tensors[prefix + "nextn.shared_head_norm.weight"]
    for name, values in tensors.items():
        if name.startswith("blk.0."):
            outputs = ("attn_output", "ssm_out", "ffn_down")
            only[name] = np.zeros_like(values) if any(o in name for o in outputs) else values
        elif name.startswith(prefix) and ".nextn." not in name:
            only["blk.1." + name.removeprefix(prefix)] = values
    return plait.Model(gguf_writer.write(path, metadata, only))
