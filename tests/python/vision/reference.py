"""The image encoders of transformers, with the weights of towers.py.

`PYTHONPATH=tests python tests/python/vision/reference.py` writes expected.npz. Needs torch, transformers and Pillow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from python.vision import towers
from python.vision.towers import N_EMBD, N_FFN, N_HEADS, PATCH, WIDTH

MEAN, STD = [0.48, 0.45, 0.40], [0.26, 0.27, 0.28]
_COMMON = {"image_mean": MEAN, "image_std": STD}
STORED = 6  # every so many columns are stored
Encode = Callable[[Any], np.ndarray]

_LAYER = {
    "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
_PIXTRAL = {
    "ln1": "attention_norm", "ln2": "ffn_norm", "attn_q": "attention.q_proj", "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj", "attn_out": "attention.o_proj", "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj",
}  # fmt: skip
_QWEN = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj"}


def _load(module: torch.nn.Module, tensors: dict[str, np.ndarray]) -> torch.nn.Module:
    """Load tensors by their names in transformers. All parameters must be given."""
    state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    parameters = {name for name, _ in module.named_parameters()}
    assert not unexpected
    assert not parameters & set(missing)
    return module.eval().float()


def _rename(
    tensors: dict[str, np.ndarray], names: dict[str, str], layer: str, layers: dict[str, str]
) -> dict[str, np.ndarray]:
    """Return the tensors of the tower with names of transformers."""
    renamed = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if name.startswith("v.blk."):
            _, _, i, part = stem.split(".")
            if layers:
                renamed[f"{layer}.{i}.{layers[part]}.{kind}"] = tensor
        elif stem in names:
            renamed[f"{names[stem]}.{kind}"] = tensor
        elif name in names:
            renamed[names[name]] = tensor
    return renamed


def gemma3() -> Encode:
    from transformers import Gemma3Config, SiglipVisionConfig, SiglipVisionModel
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

    _, tensors = towers.gemma3()
    vision = SiglipVisionConfig(
        hidden_size=WIDTH, intermediate_size=N_FFN, num_hidden_layers=2, num_attention_heads=N_HEADS,
        image_size=32, patch_size=PATCH, vision_use_head=False,
    )  # fmt: skip
    tower = SiglipVisionModel(vision)
    names = {
        "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
        "v.post_ln": "post_layernorm",
    }  # fmt: skip
    prefix = (
        "vision_model."
        if any(n.startswith("vision_model.") for n, _ in tower.named_parameters())
        else ""
    )
    _load(
        tower, {prefix + n: t for n, t in _rename(tensors, names, "encoder.layers", _LAYER).items()}
    )
    config = Gemma3Config(
        vision_config=vision.to_dict(), text_config={"hidden_size": N_EMBD}, mm_tokens_per_image=4
    )
    projector = _load(Gemma3MultiModalProjector(config), {
        "mm_input_projection_weight": tensors["mm.input_projection.weight"],
        "mm_soft_emb_norm.weight": tensors["mm.soft_emb_norm.weight"] - 1,
    })  # fmt: skip
    processor = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, **_COMMON)
    return lambda image: projector(
        tower(processor(image, return_tensors="pt")["pixel_values"]).last_hidden_state
    )[0].numpy()


_GEMMA4 = {
    "ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def gemma4() -> Encode:
    from transformers import Gemma4VisionConfig
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.gemma4.modeling_gemma4 import (
        Gemma4MultimodalEmbedder,
        Gemma4VisionModel,
    )

    _, tensors = towers.gemma4()
    config = Gemma4VisionConfig(
        hidden_size=WIDTH, intermediate_size=N_FFN, num_hidden_layers=2, num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS, head_dim=WIDTH // N_HEADS, patch_size=PATCH, position_embedding_size=64,
        pooling_kernel_size=3, use_clipped_linears=True, standardize=True, rms_norm_eps=1e-6,
    )  # fmt: skip
    tower = Gemma4VisionModel(config)
    own = _rename(tensors, {}, "encoder.layers", _GEMMA4)
    own = {
        (n.replace("_proj.", "_proj.linear.") if n.endswith(".weight") else n): t.reshape(())
        if n.endswith(("_min", "_max"))
        else t
        for n, t in own.items()
    }
    own |= {
        "patch_embedder.input_proj.weight": tensors["v.patch_embd.weight"]
        .transpose(0, 2, 3, 1)
        .reshape(WIDTH, -1),
        "patch_embedder.position_embedding_table": tensors["v.position_embd.weight"],
        "std_bias": tensors["v.std_bias"],
        "std_scale": tensors["v.std_scale"],
    }
    _load(tower, own)
    embedder = Gemma4MultimodalEmbedder(
        config, Gemma4TextConfig(hidden_size=N_EMBD, num_hidden_layers=2)
    )
    _load(embedder, {"embedding_projection.weight": tensors["mm.input_projection.weight"]})
    processor = Gemma4ImageProcessorPil(patch_size=PATCH, max_soft_tokens=70, pooling_kernel_size=3)

    def encode(image: Any) -> np.ndarray:
        inputs = processor(image, return_tensors="pt")
        found = tower(inputs["pixel_values"], inputs["image_position_ids"]).last_hidden_state
        return embedder(found).numpy()

    return encode


def _clip(tensors: dict[str, np.ndarray]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from pixels to projected patches."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=N_FFN, num_hidden_layers=3, num_attention_heads=N_HEADS,
        image_size=24, patch_size=PATCH, layer_norm_eps=1e-6, hidden_act="quick_gelu",
    )  # fmt: skip
    tower = CLIPVisionModel(config)
    names = {
        "v.patch_embd": "embeddings.patch_embedding", "v.position_embd": "embeddings.position_embedding",
        "v.class_embd": "embeddings.class_embedding", "v.pre_ln": "pre_layrnorm", "v.post_ln": "post_layernorm",
    }  # fmt: skip
    prefix = (
        "vision_model."
        if any(n.startswith("vision_model.") for n, _ in tower.named_parameters())
        else ""
    )
    own = {prefix + n: t for n, t in _rename(tensors, names, "encoder.layers", _LAYER).items()}
    # The last layer, whose output LLaVA does not use, is not in the file.
    last = {n.replace("layers.1.", "layers.2."): t for n, t in own.items() if "layers.1." in n}
    _load(tower, own | last)
    weights = {n: torch.from_numpy(t) for n, t in tensors.items() if n.startswith("mm.")}

    def project(pixels: torch.Tensor) -> torch.Tensor:
        x = tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
        x = torch.nn.functional.linear(x, weights["mm.0.weight"], weights["mm.0.bias"])
        x = torch.nn.functional.gelu(x)
        return torch.nn.functional.linear(x, weights["mm.2.weight"], weights["mm.2.bias"])

    return project


def llava() -> Encode:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    project = _clip(towers.llava()[1])
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, **_COMMON
    )
    return lambda image: project(processor(image, return_tensors="pt")["pixel_values"])[0].numpy()


def llava16() -> Encode:
    from types import SimpleNamespace

    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )
    from transformers.models.llava_next.modeling_llava_next import LlavaNextModel

    metadata, tensors = towers.llava16()
    project = _clip(tensors)
    sizes = metadata["clip.vision.image_grid_pinpoints"].reshape(-1, 2).tolist()
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, image_grid_pinpoints=sizes, **_COMMON
    )  # fmt: skip
    vision = SimpleNamespace(image_size=24, patch_size=PATCH)
    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=sizes)
    )
    newline = torch.from_numpy(tensors["model.image_newline"])

    def encode(image: Any) -> np.ndarray:
        inputs = processor(image, return_tensors="pt")
        tiles = [project(inputs["pixel_values"][0])]
        found, _ = LlavaNextModel.pack_image_features(
            model, tiles, inputs["image_sizes"], "default", image_newline=newline
        )
        return found[0].numpy()

    return encode


def _pixtral(tensors: dict[str, np.ndarray], merge: int) -> Encode:
    from transformers import Mistral3Config, PixtralVisionConfig, PixtralVisionModel
    from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    vision = PixtralVisionConfig(
        hidden_size=WIDTH, intermediate_size=N_FFN, num_hidden_layers=2, num_attention_heads=N_HEADS,
        image_size=40, patch_size=PATCH, hidden_act="silu",
    )  # fmt: skip
    own = _rename(
        tensors,
        {"v.patch_embd": "patch_conv", "v.pre_ln": "ln_pre"},
        "transformer.layers",
        _PIXTRAL,
    )
    for (
        name,
        tensor,
    ) in own.items():  # the converter moves the elements of a pair next to each other
        if ".q_proj." in name or ".k_proj." in name:
            heads = tensor.reshape(N_HEADS, -1, 2, WIDTH)
            own[name] = heads.transpose(0, 2, 1, 3).reshape(WIDTH, WIDTH)
    tower = _load(PixtralVisionModel(vision), own)
    names = {"mm.input_norm": "norm", "mm.patch_merger": "patch_merger.merging_layer",
             "mm.1": "linear_1", "mm.2": "linear_2"}  # fmt: skip
    text = {"model_type": "mistral", "hidden_size": N_EMBD, "rms_norm_eps": 1e-5}
    config = Mistral3Config(vision_config=vision.to_dict(), text_config=text, spatial_merge_size=merge,
                            multimodal_projector_bias=True)  # fmt: skip
    projector = Mistral3MultiModalProjector(config)
    if merge == 1:
        projector.norm = projector.patch_merger = None
    _load(projector, _rename(tensors, names, "", {}))
    side = PATCH * merge
    processor = PixtralImageProcessorPil(
        size={"longest_edge": 40}, patch_size={"height": side, "width": side}, **_COMMON
    )

    def encode(image: Any) -> np.ndarray:
        inputs = processor(image, return_tensors="pt")
        pixels = inputs["pixel_values"]
        size = pixels.shape[-2:]
        x = tower(pixels, image_sizes=[size]).last_hidden_state[0]
        if merge > 1:
            x = projector.patch_merger(projector.norm(x), [size])
        x = projector.linear_2(projector.act(projector.linear_1(x)))
        rows = x.reshape(size[0] // side, size[1] // side, -1)
        stop = torch.from_numpy(tensors["v.token_embd.img_break"]).expand(len(rows), 1, -1)
        return torch.cat([rows, stop], dim=1).flatten(0, 1)[:-1].numpy()

    return encode


def pixtral() -> Encode:
    return _pixtral(towers.pixtral()[1], 1)


def mistral3() -> Encode:
    return _pixtral(towers.mistral3()[1], 2)


def _join_qkv(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    joined = dict(tensors)
    for name in tensors:
        if ".attn_q." in name:
            parts = [joined.pop(name.replace("attn_q", f"attn_{c}")) for c in "qkv"]
            joined[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return joined


def _qwen(
    tower: torch.nn.Module,
    tensors: dict[str, np.ndarray],
    names: dict[str, str],
    layers: dict[str, str],
) -> Encode:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own = _rename(_join_qkv(tensors), names, "blocks", _QWEN | layers)
    frames = [tensors["v.patch_embd.weight"], tensors["v.patch_embd.weight.1"]]
    own["patch_embed.proj.weight"] = np.stack(frames, axis=2)
    own.pop("patch_embed.proj.1", None)
    _load(tower, own)
    unit = (2 * PATCH) ** 2
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": 4 * unit, "longest_edge": 1280 * unit}, **_COMMON
    )

    def encode(image: Any) -> np.ndarray:
        inputs = processor(image, return_tensors="pt")
        found = tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
        return torch.cat(parts, dim=1).numpy()

    return encode


def qwen2vl() -> Encode:
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    config = Qwen2VLVisionConfig(
        depth=2,
        embed_dim=WIDTH,
        hidden_size=N_EMBD,
        num_heads=N_HEADS,
        patch_size=PATCH,
        mlp_ratio=2,
    )
    names = {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
    layers = {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
    return _qwen(Qwen2VisionTransformerPretrainedModel(config), towers.qwen2vl()[1], names, layers)


def qwen25vl() -> Encode:
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel,
    )

    config = Qwen2_5_VLVisionConfig(
        depth=4, hidden_size=WIDTH, intermediate_size=N_FFN, num_heads=N_HEADS, patch_size=PATCH, window_size=16,
        out_hidden_size=N_EMBD, fullatt_block_indexes=[1, 3],
    )  # fmt: skip
    names = {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
    layers = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    return _qwen(
        Qwen2_5_VisionTransformerPretrainedModel(config), towers.qwen25vl()[1], names, layers
    )


def qwen3vl() -> Encode:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    config = Qwen3VLVisionConfig(
        depth=3, hidden_size=WIDTH, intermediate_size=N_FFN, num_heads=N_HEADS, patch_size=PATCH,
        out_hidden_size=N_EMBD, num_position_embeddings=36, deepstack_visual_indexes=[0, 1],
    )  # fmt: skip
    names = {"v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2",
             "v.position_embd": "pos_embed", "v.patch_embd": "patch_embed.proj"}  # fmt: skip
    for i in (0, 1):
        names |= {f"v.deepstack.{i}.{a}": f"deepstack_merger_list.{i}.{b}"
                  for a, b in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2"))}  # fmt: skip
    layers = {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
    return _qwen(Qwen3VLVisionModel(config), towers.qwen3vl()[1], names, layers)


def generate(before: list[int], after: list[int], size: tuple[int, int], n: int) -> list[int]:
    """Return the greedy tokens of Qwen2-VL after a prompt with towers.image(*size).

    Args:
        before: Token ids before the image.
        after: Token ids after it.
        size: Height and width of the image.
        n: Number of tokens.
    """
    from PIL import Image
    from python.vision import image_models
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    weights = image_models.text_weights()
    n_vocab = len(weights["token_embd.weight"])
    pad = n_vocab - 1
    text = {
        "hidden_size": N_EMBD, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 32, "vocab_size": n_vocab, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]},
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": WIDTH, "hidden_size": N_EMBD, "num_heads": N_HEADS, "patch_size": PATCH,
        "mlp_ratio": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=pad, vision_start_token_id=before[-1],
        video_token_id=pad - 9, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2VLForConditionalGeneration(config).eval().float()
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    own = {
        f"layers.0.{names[name.split('.')[2]]}.{name.split('.')[3]}": tensor
        for name, tensor in weights.items()
        if name.startswith("blk.0.")
    }
    own["embed_tokens.weight"] = weights["token_embd.weight"]
    own["norm.weight"] = weights["output_norm.weight"]
    _load(model.model.language_model, own)
    model.tie_weights()
    tower = {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
    _qwen(
        model.model.visual, towers.qwen2vl()[1], tower, {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
    )
    unit = (2 * PATCH) ** 2
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": 4 * unit, "longest_edge": 1280 * unit}, **_COMMON
    )
    inputs = processor(Image.fromarray(towers.image(*size)), return_tensors="pt")
    grid = inputs["image_grid_thw"]
    ids = torch.tensor([[*before, *[pad] * (int(grid.prod()) // 4), *after]])
    with torch.no_grad():
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=inputs["pixel_values"],
            image_grid_thw=grid, mm_token_type_ids=(ids == pad).int(), max_new_tokens=n, min_new_tokens=n,
            do_sample=False,
        )  # fmt: skip
    return found[0, ids.shape[1] :].tolist()


def encode(family: str, height: int, width: int) -> np.ndarray:
    """Return the embeddings that transformers computes for towers.image(height, width)."""
    from PIL import Image

    with torch.no_grad():
        return np.array(
            globals()[family]()(Image.fromarray(towers.image(height, width))), np.float32
        )


def main() -> None:
    rows = {
        f"{family}-{height}x{width}": encode(family, height, width)[:, ::STORED]
        for family in towers.FAMILIES
        for height, width in towers.SIZES
    }
    np.savez_compressed(Path(__file__).with_name("expected.npz"), **rows)


if __name__ == "__main__":
    main()
