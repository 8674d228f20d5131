"""Tiny models of several architectures, adapters for them, and the same models with merged adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from python import gguf_writer as gw

Tensors = dict[str, np.ndarray]
N_EXPERTS, N_USED = 4, 2


def rename(metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    renamed = {
        key.replace("llama.", f"{arch}.", 1) if key.startswith("llama.") else key: value
        for key, value in metadata.items()
    }
    return renamed | {"general.architecture": arch}


def model(name: str, seed: int = 1) -> tuple[dict[str, Any], Tensors]:
    """Return metadata and weights of a random "llama", "qwen2" or "mixtral" with two layers."""
    rng = np.random.default_rng(seed)
    metadata, weights = gw.llama_metadata(), gw.llama_weights(seed)
    if name == "qwen2":
        metadata = rename(metadata, "qwen2")
        for i in range(gw.N_LAYERS):
            for part, n_heads in (("q", gw.N_HEADS), ("k", gw.N_HEADS_KV), ("v", gw.N_HEADS_KV)):
                bias = 0.3 * rng.standard_normal(n_heads * gw.HEAD)
                weights[f"blk.{i}.attn_{part}.bias"] = bias.astype(np.float32)
    if name == "mixtral":
        metadata |= {"llama.expert_count": N_EXPERTS, "llama.expert_used_count": N_USED}
        for i in range(gw.N_LAYERS):
            router = rng.standard_normal((N_EXPERTS, gw.WIDTH))
            weights[f"blk.{i}.ffn_gate_inp.weight"] = router.astype(np.float32)
            for part in ("gate", "up", "down"):
                dense = weights.pop(f"blk.{i}.ffn_{part}.weight")
                noise = rng.standard_normal((N_EXPERTS, *dense.shape)) / np.sqrt(dense.shape[1])
                weights[f"blk.{i}.ffn_{part}_exps.weight"] = noise.astype(np.float32)
    return metadata | gw.vocabulary(), weights


def matrices(weights: Tensors) -> list[str]:
    return [name for name, weight in weights.items() if weight.ndim > 1]


def deltas(
    weights: Tensors, targets: list[str], rank: int, seed: int, gain: float = 0.5
) -> Tensors:
    """Return A and B of each target as the converter writes them; for the token embeddings, A is transposed."""
    rng = np.random.default_rng(seed)
    made = {}
    for name in targets:
        *stack, n_out, n_in = weights[name].shape
        a_shape, b_shape = (*stack, rank, n_in), (*stack, n_out, rank)
        if name == "token_embd.weight":
            a_shape, b_shape = (n_out, rank), (n_in, rank)
        made[f"{name}.lora_a"] = rng.standard_normal(a_shape) * gain
        made[f"{name}.lora_b"] = rng.standard_normal(b_shape) * gain / np.sqrt(n_in)
    return {name: value.astype(np.float32) for name, value in made.items()}


def adapter_metadata(arch: str, alpha: float | None = 8.0) -> dict[str, Any]:
    said = {"general.type": "adapter", "general.architecture": arch, "adapter.type": "lora"}
    return said if alpha is None else said | {"adapter.lora.alpha": alpha}


def write_adapter(
    path: Path, arch: str, tensors: Mapping[str, Any], alpha: float | None = 8.0, **more: Any
) -> Path:
    return gw.write(path, adapter_metadata(arch, alpha) | more, tensors)


def merged(weights: Tensors, tensors: Tensors, scale: float) -> Tensors:
    """Return W + scale B A, computed in double precision."""
    result = dict(weights)
    for name in {key.rsplit(".", 1)[0] for key in tensors}:
        a = tensors[f"{name}.lora_a"].astype(np.float64)
        b = tensors[f"{name}.lora_b"].astype(np.float64)
        delta = a @ b.T if name == "token_embd.weight" else b @ a
        result[name] = (weights[name] + scale * delta).astype(np.float32)
    return result
