"""Tiny image encoders with random weights, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from python import gguf_writer

WIDTH, N_HEADS, N_FFN, N_EMBD, PATCH = 32, 2, 48, 24, 4
Tensors = dict[str, np.ndarray]


class _Weights:
    """Collects random tensors. The numbers of a tensor depend on its name alone."""

    def __init__(self) -> None:
        self.all: Tensors = {}

    def matrix(self, name: str, *shape: int, bias: bool = True) -> None:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        self.all[f"{name}.weight"] = self._draw(name, shape) * np.float32(scale)
        if bias:
            self.all[f"{name}.bias"] = self._draw(name + "b", shape[:1]) * np.float32(0.1)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        self.all[f"{name}.weight"] = 1 + np.float32(0.1) * self._draw(name, (width,))
        if bias:
            self.all[f"{name}.bias"] = np.float32(0.1) * self._draw(name + "b", (width,))

    def vector(self, name: str, *shape: int) -> None:
        self.all[name] = self._draw(name, shape)

    @staticmethod
    def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(list(name.encode())).standard_normal(shape).astype(np.float32)


def _layers(
    w: _Weights,
    n: int,
    *,
    n_ffn: int = N_FFN,
    rms: bool = False,
    gated: bool = False,
    qkv: bool = False,
    bias: bool = True,
) -> None:
    for i in range(n):
        p = f"v.blk.{i}."
        w.norm(p + "ln1", WIDTH, bias=not rms)
        w.norm(p + "ln2", WIDTH, bias=not rms)
        if qkv:
            w.matrix(p + "attn_qkv", 3 * WIDTH, WIDTH)
        for name in () if qkv else ("attn_q", "attn_k", "attn_v"):
            w.matrix(p + name, WIDTH, WIDTH, bias=bias)
        w.matrix(p + "attn_out", WIDTH, WIDTH, bias=bias)
        if gated:
            w.matrix(p + "ffn_gate", n_ffn, WIDTH, bias=bias)
        w.matrix(p + "ffn_up", n_ffn, WIDTH, bias=bias)
        w.matrix(p + "ffn_down", WIDTH, n_ffn, bias=bias)


def _metadata(projector: str, n_layers: int, image_size: int, **more: Any) -> dict[str, Any]:
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        "clip.vision.image_size": image_size,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": N_FFN,
        "clip.vision.block_count": n_layers,
        "clip.vision.attention.head_count": N_HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": N_EMBD,
        "clip.vision.image_mean": np.array([0.48, 0.45, 0.40], np.float32),
        "clip.vision.image_std": np.array([0.26, 0.27, 0.28], np.float32),
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def gemma3() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    w.matrix("v.patch_embd", WIDTH, 3, PATCH, PATCH)
    w.vector("v.position_embd.weight", 64, WIDTH)
    _layers(w, 2)
    w.norm("v.post_ln", WIDTH)
    w.norm("mm.soft_emb_norm", WIDTH, bias=False)
    w.matrix("mm.input_projection", WIDTH, N_EMBD, bias=False)
    return _metadata("gemma3", 2, 32, clip__use_gelu=True), w.all


def gemma4() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    w.matrix("v.patch_embd", WIDTH, 3, PATCH, PATCH, bias=False)
    w.vector("v.position_embd.weight", 2, 64, WIDTH)
    _layers(w, 2, rms=True, gated=True, bias=False)
    limits = 0
    for i in range(2):
        p = f"v.blk.{i}."
        for name in ("attn_post_norm", "ffn_post_norm"):
            w.norm(p + name, WIDTH, bias=False)
        for name in ("attn_q_norm", "attn_k_norm"):
            w.norm(p + name, WIDTH // N_HEADS, bias=False)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"):
            for end in ("input", "output"):
                limits += 1
                if limits % 7 == 0:  # some files limit only some layers
                    continue
                bound = 0.4 + 0.05 * (limits % 9)
                w.all[f"{p}{name}.{end}_min"] = np.array([-bound - 0.1 * (limits % 3)], np.float32)
                w.all[f"{p}{name}.{end}_max"] = np.array([bound], np.float32)
    w.vector("v.std_bias", WIDTH)
    w.norm("v.std_scale", WIDTH, bias=False)
    w.all["v.std_scale"] = w.all.pop("v.std_scale.weight")
    w.matrix("mm.input_projection", N_EMBD, WIDTH, bias=False)
    return _metadata("gemma4v", 2, 224) | {
        "clip.vision.image_mean": np.zeros(3, np.float32),
        "clip.vision.image_std": np.ones(3, np.float32),
        "clip.vision.image_max_pixels": 70 * (3 * PATCH) ** 2,
    }, w.all


def llava() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    w.matrix("v.patch_embd", WIDTH, 3, PATCH, PATCH, bias=False)
    w.vector("v.class_embd", WIDTH)
    w.vector("v.position_embd.weight", 37, WIDTH)
    w.norm("v.pre_ln", WIDTH)
    _layers(w, 2)
    w.norm("v.post_ln", WIDTH)
    w.matrix("mm.0", N_EMBD, WIDTH)
    w.matrix("mm.2", N_EMBD, N_EMBD)
    return _metadata("mlp", 2, 24, clip__use_gelu=False), w.all


def llava16() -> tuple[dict[str, Any], Tensors]:
    metadata, tensors = llava()
    w = _Weights()
    w.vector("model.image_newline", N_EMBD)
    sizes = np.array([24, 48, 48, 24, 48, 48, 72, 24, 24, 72], np.int32)
    return metadata | {
        "clip.vision.image_grid_pinpoints": sizes,
        "clip.vision.mm_patch_merge_type": "spatial_unpad",
        "clip.vision.image_aspect_ratio": "anyres",
    }, tensors | w.all


def pixtral() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    w.matrix("v.patch_embd", WIDTH, 3, PATCH, PATCH, bias=False)
    w.norm("v.pre_ln", WIDTH, bias=False)
    _layers(w, 2, rms=True, gated=True, bias=False)
    w.matrix("mm.1", N_EMBD, WIDTH)
    w.matrix("mm.2", N_EMBD, N_EMBD)
    w.vector("v.token_embd.img_break", N_EMBD)
    metadata = _metadata("pixtral", 2, 40, clip__use_silu=True)
    return metadata | {"clip.vision.attention.layer_norm_epsilon": 1e-5}, w.all


def mistral3() -> tuple[dict[str, Any], Tensors]:
    metadata, tensors = pixtral()
    w = _Weights()
    w.norm("mm.input_norm", WIDTH, bias=False)
    w.matrix("mm.patch_merger", WIDTH, 4 * WIDTH, bias=False)
    return metadata | {"clip.vision.spatial_merge_size": 2}, tensors | w.all


def _qwen(w: _Weights, *, bias: bool = False) -> None:
    w.matrix("v.patch_embd", WIDTH, 3, PATCH, PATCH, bias=bias)
    second = _Weights()
    second.matrix("second", WIDTH, 3, PATCH, PATCH, bias=False)
    w.all["v.patch_embd.weight.1"] = second.all["second.weight"]
    w.matrix("mm.0", 4 * WIDTH, 4 * WIDTH)
    w.matrix("mm.2", N_EMBD, 4 * WIDTH)


def qwen2vl() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    _qwen(w)
    _layers(w, 2, n_ffn=2 * WIDTH)
    w.norm("v.post_ln", WIDTH)
    return _metadata("qwen2vl_merger", 2, 560), w.all


def qwen25vl() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    _qwen(w)
    _layers(w, 4, rms=True, gated=True)
    w.norm("v.post_ln", WIDTH, bias=False)
    metadata = _metadata("qwen2.5vl_merger", 4, 560, clip__use_silu=True)
    return metadata | {"clip.vision.n_wa_pattern": 2, "clip.vision.window_size": 16}, w.all


def qwen3vl() -> tuple[dict[str, Any], Tensors]:
    w = _Weights()
    _qwen(w, bias=True)
    w.vector("v.position_embd.weight", 36, WIDTH)
    _layers(w, 3, qkv=True)
    w.norm("v.post_ln", WIDTH)
    for i in (0, 1):
        w.norm(f"v.deepstack.{i}.norm", 4 * WIDTH)
        w.matrix(f"v.deepstack.{i}.fc1", 4 * WIDTH, 4 * WIDTH)
        w.matrix(f"v.deepstack.{i}.fc2", N_EMBD, 4 * WIDTH)
    metadata = _metadata("qwen3vl_merger", 3, 24, clip__use_gelu=True)
    flags = np.array([True, True, False])
    return metadata | {
        "clip.vision.spatial_merge_size": 2,
        "clip.vision.is_deepstack_layers": flags,
    }, w.all


FAMILIES: dict[str, Callable[[], tuple[dict[str, Any], Tensors]]] = {
    "gemma3": gemma3,
    "gemma4": gemma4,
    "llava": llava,
    "llava16": llava16,
    "mistral3": mistral3,
    "pixtral": pixtral,
    "qwen2vl": qwen2vl,
    "qwen25vl": qwen25vl,
    "qwen3vl": qwen3vl,
}


def write(folder: Path, family: str) -> Path:
    """Write the file of a family and return its path."""
    return gguf_writer.write(folder / f"{family}.gguf", *FAMILIES[family]())


# Sizes that are resized and cut in all directions: a square, a wide, a tall, and a tiny image.
SIZES = [(40, 40), (37, 75), (90, 51), (9, 13)]


def image(height: int, width: int) -> np.ndarray:
    """Return an image with smooth areas, edges and noise; uint8 of shape (height, width, 3)."""
    rng = np.random.default_rng(height * 1000 + width)
    row, column = np.indices((height, width)) / max(height, width)
    waves = [np.sin(9 * row + 5 * column + i) + (row > column) for i in range(3)]
    pixels = 90 + 60 * np.stack(waves, axis=2) + rng.normal(0, 12, (height, width, 3))
    return pixels.clip(0, 255).astype(np.uint8)
