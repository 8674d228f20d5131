"""Tiny random models of transformers, written as GGUF files, as an independent reference.

An architecture is a line of ARCHITECTURES in test_oracle.py: the model's class and sizes, where its tensors go, and
the metadata that says what its sizes are. Names and conventions of files are those of llama.cpp's converter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from python import gguf_writer

N_VOCAB = gguf_writer.N_VOCAB
SIZES = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

# Module of transformers -> stem of tensors in the file; {i} is the layer. Those of a module with {j}, several in a
# layer, are stacked. A module that is neither listed here
# nor in `tensors` of the architecture is an error, so that no module is ignored.
DECODER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "model.layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
    "model.layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    "model.layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
    "model.layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
    "model.layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
    "model.layers.{i}.self_attn.q_norm": "blk.{i}.attn_q_norm",
    "model.layers.{i}.self_attn.k_norm": "blk.{i}.attn_k_norm",
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
    "model.layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
}

# Norms after attention, and before and after the feed-forward block.
SANDWICH = {
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.pre_feedforward_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.post_feedforward_layernorm": "blk.{i}.post_ffw_norm",
}

# The converted tensor; or the tensors that it is split into, by the part of the name that replaces its own: "attn_k_b".
Parts = Mapping[str, np.ndarray]
Change = Callable[[np.ndarray, Any], np.ndarray | Parts]


@dataclass(frozen=True)
class Architecture:
    """A model of transformers and its file.

    `model` is the class, e.g. "LlamaForCausalLM"; its config is made of SIZES and `sizes`. `changes` alter tensors by
    a pattern of their name in the file, e.g. rotary pairs as neighbours; `extra` are tensors and `keys` metadata
    (without the architecture's prefix) that follow from the config. `weights` may set random weights apart.
    """

    name: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    keys: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    extra: Callable[[Any], Mapping[str, np.ndarray]] = lambda config: {}
    weights: Callable[[Any], None] = lambda model: None
    label: str = ""  # distinguishes models of one architecture
    tokens: int = 40
    n_ctx: int = 64
    # Factor applied to input embeddings in the model of the file, but not in transformers.
    embeddings_scale: Callable[[Any], float] = lambda config: 1.0


def decoder_keys(config: Any) -> dict[str, Any]:
    """Return the metadata of every decoder."""
    named = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "vocab_size": "vocab_size",
    }
    keys = {key: getattr(config, name) for key, name in named.items() if hasattr(config, name)}
    if getattr(config, "rms_norm_eps", None) is not None:
        keys["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    if getattr(config, "head_dim", None):
        keys["attention.key_length"] = keys["attention.value_length"] = config.head_dim
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" in rope:
        keys["rope.freq_base"] = float(rope["rope_theta"])
    return keys


def layer_norm(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Return the metadata of models with LayerNorm and rotation. `names` maps further keys to config names."""

    def keys(config: Any) -> dict[str, Any]:
        epsilon = next(
            getattr(config, name)
            for name in ("layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon")
            if hasattr(config, name)
        )
        rope = getattr(config, "rope_parameters", None) or {}
        head_dim = config.hidden_size // config.num_attention_heads
        rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        found = {"attention.layer_norm_epsilon": epsilon, "rope.dimension_count": rotated}
        return found | {name: getattr(config, name) for name in names}

    return keys


def windows(config: Any) -> dict[str, Any]:
    """Return the metadata of models in which some layers have a window."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": np.array(slides),
    }


def neighbours(x: np.ndarray, n_heads: int, n_rot: int | None = None) -> np.ndarray:
    """Make rotary pairs that are half a head apart adjacent, as llama.cpp's converter does for q and k."""
    heads = x.reshape(n_heads, -1, *x.shape[1:])
    n_rot = n_rot or heads.shape[1]
    turned = heads[:, :n_rot].reshape(n_heads, 2, n_rot // 2, *x.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(n_heads, n_rot, *x.shape[1:])
    return np.concatenate([turned, heads[:, n_rot:]], axis=1).reshape(x.shape)


# For `changes`: q and k of models with adjacent pairs; projections stored per head; norms whose stored weight is one
# less than the factor.
PAIRS: dict[str, Change] = {
    r"attn_q\.": lambda x, config: neighbours(x, config.num_attention_heads),
    r"attn_k\.": lambda x, config: neighbours(x, config.num_key_value_heads),
}
QKV_BY_HEAD: dict[str, Change] = {
    r"attn_qkv": lambda x, config: (
        x.reshape(config.num_attention_heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    )
}
ONE_ADDED: dict[str, Change] = {r"norm\.weight": lambda x, config: x + 1}


class Oracle:
    """A random model of transformers and the equivalent file."""

    def __init__(self, arch: Architecture, path: Path, seed: int = 1):
        import torch
        import transformers

        self.arch = arch
        make = getattr(transformers, arch.model)
        self.config = make.config_class(**{**SIZES, **arch.sizes})
        self.config._attn_implementation = "eager"
        torch.manual_seed(seed)
        self.model = make(self.config).float().eval()
        with torch.no_grad():
            randomise(self.model, torch.Generator().manual_seed(seed))
            arch.weights(self.model)
        self.path = gguf_writer.write(path, self.metadata(), self.tensors())

    def metadata(self) -> dict[str, Any]:
        keys = {**decoder_keys(self.config), **self.arch.keys(self.config)}
        named = {
            key if key.startswith("tokenizer.") else f"{self.arch.name}.{key}": value
            for key, value in keys.items()
        }
        return {"general.architecture": self.arch.name, **named, **gguf_writer.vocabulary()}

    def tensors(self) -> dict[str, np.ndarray]:
        tied = self.config.tie_word_embeddings
        written: dict[str, np.ndarray] = {}
        stacks: dict[str, list[np.ndarray]] = {}
        for name, tensor in self.model.state_dict().items():
            if tied and name.startswith("lm_head."):
                continue
            there, stacked = self.stem(name)
            for part, value in self.changed(there, tensor.float().numpy()).items():
                if stacked:
                    stacks.setdefault(part, []).append(value)
                    continue
                assert part not in written, f"{part} is written twice"
                written[part] = np.ascontiguousarray(value, np.float32)
        written |= {there: np.stack(values) for there, values in stacks.items()}
        return {**written, **self.arch.extra(self.config)}

    def changed(self, there: str, value: np.ndarray) -> dict[str, np.ndarray]:
        for pattern, change in self.arch.changes.items():
            if not re.search(pattern, there):
                continue
            value = change(value, self.config)
            if isinstance(value, Mapping):
                *before, _, kind = there.split(".")
                return {".".join([*before, name, kind]): part for name, part in value.items()}
        return {there: value}

    def stem(self, name: str) -> tuple[str, bool]:
        """Return the target of a tensor, by its module or full name, and whether it is stacked with others."""
        number = r"(?<=\.)\d+(?=\.)"
        numbers = re.findall(number, name)
        general = re.sub(number, "{i}", name, count=1)
        names = {**DECODER, **self.arch.tensors}
        i = numbers[0] if numbers else ""
        if general in names:
            return names[general].format(i=i), False
        module, kind = general.rsplit(".", 1)
        if module not in names:
            module = re.sub(number, "{j}", general, count=1).rsplit(".", 1)[0]
        if module not in names:
            raise KeyError(f"{name}: no place in the file")
        return f"{names[module]}.{kind}".format(i=i), "{j}" in module

    def logits(
        self, ids: list[int] | None = None, embeddings: np.ndarray | None = None
    ) -> np.ndarray:
        import torch

        given = (
            {"input_ids": torch.tensor([ids])}
            if embeddings is None
            else {"inputs_embeds": torch.from_numpy(embeddings)[None]}
        )
        with torch.no_grad():
            return self.model(**given, use_cache=False).logits[0].float().numpy()

    def hidden(self, ids: list[int]) -> np.ndarray:
        """Return the output of an encoder for its tokens."""
        import torch

        with torch.no_grad():
            return self.model.base_model(torch.tensor([ids])).last_hidden_state[0].float().numpy()

    def scores(self, ids: list[int]) -> np.ndarray:
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].float().numpy()


def randomise(model: Any, generator: Any) -> None:
    """Set random weights such that logits have a standard deviation of about 2 and attention is not uniform."""
    import torch

    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:  # norms and biases, close to their initial values
            weight.add_(0.2 * noise)
            continue
        gain = 1.5 if re.search(r"q_proj|k_proj|qkv|query_key_value|lm_head|embed", name) else 1.0
        weight.copy_(gain * noise / (1.0 if "embed" in name else weight.shape[-1] ** 0.5))
