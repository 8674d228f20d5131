"""RWKV-6, arXiv:2404.05892, and RWKV-7, arXiv:2503.14456, over one sequence in float64; weights by their names in
the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..l2_norm import l2_norm
from ..layer_norm import layer_norm
from ..rms_norm import rms_norm
from ..token_shift import token_shift
from ..wkv6 import wkv6
from ..wkv7 import wkv7
from .mamba import layers, silu

Weights = Mapping[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, w: Weights, name: str, epsilon: float) -> np.ndarray:
    return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)


def difference(x: np.ndarray) -> np.ndarray:
    """The difference of the previous token and each token, starting from an empty state."""
    return token_shift(x, np.zeros(x.shape[1]))[0] - x


def normalize_heads(y: np.ndarray, w: Weights) -> np.ndarray:
    flat = layer_norm(y, None, None, 64e-5).reshape(len(y), -1)
    return flat * w["time_mix_ln.weight"] + w["time_mix_ln.bias"]


def mix_tokens_6(w: Weights, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The decay, r, k, v and g of a time mix."""
    n, width = x.shape
    s = difference(x)
    low = np.tanh((x + s * w["time_mix_lerp_x.weight"]) @ w["time_mix_w1.weight"].T)
    mix = np.einsum("nmr,mwr->mnw", low.reshape(n, 5, -1), w["time_mix_w2.weight"])
    mix = mix + w["time_mix_lerp_fused.weight"].reshape(5, 1, width)
    x_w, x_k, x_v, x_r, x_g = x + s * mix
    bent = np.tanh(x_w @ w["time_mix_decay_w1.weight"].T)
    decay = np.exp(-np.exp(w["time_mix_decay.weight"] + bent @ w["time_mix_decay_w2.weight"].T))
    named = [(x_r, "receptance"), (x_k, "key"), (x_v, "value"), (x_g, "gate")]
    return decay, *(
        x_i @ w[f"time_mix_{name}.weight"].T + w.get(f"time_mix_{name}.bias", 0)
        for x_i, name in named
    )


def time_mix_6(w: Weights, x: np.ndarray, head: int) -> np.ndarray:
    decay, r, k, v, g = mix_tokens_6(w, x)
    r, k, v, decay = (y.reshape(len(x), -1, head) for y in (r, k, v, decay))
    first = w["time_mix_first.weight"]
    y, _ = wkv6(r, k, v, decay, first, np.zeros((len(first), head, head)))
    y = normalize_heads(y, w) * silu(g)
    return y @ w["time_mix_output.weight"].T


def linear_attention(w: Weights, x: np.ndarray, head: int) -> np.ndarray:
    """The time mix of QRWKV6: gated linear attention, arXiv:2312.06635, by its definition."""
    n = len(x)
    decay, r, k, v, g = mix_tokens_6(w, x)
    r, decay = r.reshape(n, -1, head), decay.reshape(n, -1, head)
    shared = r.shape[1] * head // k.shape[1]
    k, v = (np.repeat(y.reshape(n, -1, head), shared, axis=1) for y in (k, v))
    state, y = np.zeros((r.shape[1], head, head)), np.zeros(r.shape)
    for t in range(n):
        key = k[t] * (1 - decay[t])
        state = decay[t, :, :, None] * state + key[:, :, None] * v[t, :, None, :]
        y[t] = np.einsum("hi,hij->hj", r[t], state) / np.sqrt(head)
    return (y.reshape(n, -1) * sigmoid(g)) @ w["time_mix_output.weight"].T


def channel_mix_6(w: Weights, x: np.ndarray) -> np.ndarray:
    s = difference(x)
    x_k = x + s * w["channel_mix_lerp_k.weight"]
    x_r = x + s * w["channel_mix_lerp_r.weight"]
    k = np.maximum(x_k @ w["channel_mix_key.weight"].T, 0) ** 2
    return sigmoid(x_r @ w["channel_mix_receptance.weight"].T) * (
        k @ w["channel_mix_value.weight"].T
    )


def logits_6(
    w: Weights, ids: Sequence[int], head: int, epsilon: float, halve_every: int
) -> np.ndarray:
    x = norm(w["token_embd.weight"][np.asarray(ids)], w, "token_embd_norm", epsilon)
    for i, layer in enumerate(layers(w)):
        x = x + time_mix_6(layer, norm(x, layer, "attn_norm", epsilon), head)
        x = x + channel_mix_6(layer, norm(x, layer, "attn_norm_2", epsilon))
        if (i + 1) % halve_every == 0:
            x = x / 2
    return norm(x, w, "output_norm", epsilon) @ w["output.weight"].T


def logits_6_qwen2(w: Weights, ids: Sequence[int], head: int, epsilon: float) -> np.ndarray:
    x = w["token_embd.weight"][np.asarray(ids)]
    for layer in layers(w):
        x = x + linear_attention(layer, rms_norm(x, layer["attn_norm.weight"], epsilon), head)
        h = rms_norm(x, layer["ffn_norm.weight"], epsilon)
        up = silu(h @ layer["ffn_gate.weight"].T) * (h @ layer["ffn_up.weight"].T)
        x = x + up @ layer["ffn_down.weight"].T
    return rms_norm(x, w["output_norm.weight"], epsilon) @ w["output.weight"].T


def low_rank(w: Weights, name: str, x: np.ndarray, between=lambda y: y) -> np.ndarray:
    low = between(x @ w[f"time_mix_{name}1.weight"].T)
    return low @ w[f"time_mix_{name}2.weight"].T + w.get(f"time_mix_{name}0.weight", 0)


def time_mix_7(
    w: Weights, x: np.ndarray, head: int, v_first: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    n, width = x.shape
    mix = w["time_mix_lerp_fused.weight"].reshape(6, 1, width)
    x_r, x_w, x_k, x_v, x_a, x_g = x + difference(x) * mix
    r, k, v = (
        x_i @ w[f"time_mix_{name}.weight"].T
        for x_i, name in [(x_r, "receptance"), (x_k, "key"), (x_v, "value")]
    )
    decay = np.exp(-0.606531 * sigmoid(low_rank(w, "w", x_w, np.tanh)))
    rate = sigmoid(low_rank(w, "a", x_a))
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * sigmoid(low_rank(w, "v", x_v))
    c = l2_norm((k * w["time_mix_k_k.weight"]).reshape(n, -1, head), 1e-12)
    k = k * (1 + (rate - 1) * w["time_mix_k_a.weight"])
    seen = (r * k * w["time_mix_r_k.weight"]).reshape(n, -1, head).sum(axis=-1, keepdims=True)
    r, k, v, decay, rate = (y.reshape(n, -1, head) for y in (r, k, v, decay, rate))
    y, _ = wkv7(r, decay, k, v, -c, c * rate, np.zeros((r.shape[1], head, head)))
    y = normalize_heads(y, w) + (v * seen).reshape(n, width)
    y = y * low_rank(w, "g", x_g, sigmoid)
    return y @ w["time_mix_output.weight"].T, v_first


def channel_mix_7(w: Weights, x: np.ndarray) -> np.ndarray:
    x_k = x + difference(x) * w["channel_mix_lerp_k.weight"]
    return np.maximum(x_k @ w["channel_mix_key.weight"].T, 0) ** 2 @ w["channel_mix_value.weight"].T


def logits_7(w: Weights, ids: Sequence[int], head: int, epsilon: float) -> np.ndarray:
    x = norm(w["token_embd.weight"][np.asarray(ids)], w, "token_embd_norm", epsilon)
    v_first = None
    for layer in layers(w):
        y, v_first = time_mix_7(layer, norm(x, layer, "attn_norm", epsilon), head, v_first)
        x = x + y
        x = x + channel_mix_7(layer, norm(x, layer, "attn_norm_2", epsilon))
    return norm(x, w, "output_norm", epsilon) @ w["output.weight"].T
