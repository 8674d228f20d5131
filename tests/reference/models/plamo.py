"""PLaMo 2 over one sequence in float64, after modeling_plamo.py of https://huggingface.co/pfnet/plamo-2-1b.

Weights by their names in the file. Layers without attn_qkv.weight have Mamba-2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..rms_norm import rms_norm
from ..rope import rope
from ..short_conv import short_conv
from ..ssd_scan import ssd_scan
from .llama import attend
from .mamba import layers, silu

BASE = 10000.0


def mamba(w: Mapping[str, np.ndarray], x: np.ndarray, epsilon: float) -> np.ndarray:
    """x [n, width] -> [n, width], starting from an empty state."""
    n, heads, n_state = len(x), len(w["ssm_a"]), len(w["ssm_b_norm"])
    inner, taps = w["ssm_conv1d.weight"].shape
    z, u = np.split((x @ w["ssm_in.weight"].T).reshape(n, heads, -1), 2, axis=-1)
    u, _ = short_conv(
        u.reshape(n, inner), w["ssm_conv1d.weight"], None, np.zeros((taps - 1, inner))
    )
    u = silu(u)
    b, c, r = np.split(u @ w["ssm_x.weight"].T, [n_state, 2 * n_state], axis=-1)
    b, c = (rms_norm(v, w[f"ssm_{name}_norm"], epsilon) for v, name in ((b, "b"), (c, "c")))
    r = rms_norm(r, w["ssm_dt_norm"], epsilon)
    dt = np.logaddexp(0, r @ w["ssm_dt.weight"].T + w["ssm_dt.bias"])
    y, _ = ssd_scan(
        u.reshape(n, heads, -1), dt, w["ssm_a"].ravel(), b[:, None], c[:, None], w["ssm_d"],
        np.zeros((heads, inner // heads, n_state)),
    )  # fmt: skip
    return (silu(z) * y).reshape(n, inner) @ w["ssm_out.weight"].T


def attention(w: Mapping[str, np.ndarray], x: np.ndarray, epsilon: float) -> np.ndarray:
    n = len(x)
    heads, dim = w["attn_q_norm.weight"].shape
    kv_heads = len(w["attn_k_norm.weight"])
    cuts = np.cumsum([heads * dim, kv_heads * dim])
    q, k, v = (
        part.reshape(n, -1, dim) for part in np.split(x @ w["attn_qkv.weight"].T, cuts, axis=-1)
    )
    angles = np.arange(n)[:, None] * BASE ** (-np.arange(0, dim, 2) / dim)
    table = np.stack([np.cos(angles), np.sin(angles)], -1)
    q, k = (
        rope(rms_norm(u, w[f"attn_{name}_norm.weight"], epsilon), table, interleaved=False)
        for u, name in ((q, "q"), (k, "k"))
    )
    return attend(q, k, v) @ w["attn_output.weight"].T


def logits(w: Mapping[str, np.ndarray], ids: Sequence[int], epsilon: float) -> np.ndarray:
    x = w["token_embd.weight"][np.asarray(ids)].astype(np.float64)
    for layer in layers(w):
        mixer = attention if "attn_qkv.weight" in layer else mamba
        h = mixer(layer, rms_norm(x, layer["attn_norm.weight"], epsilon), epsilon)
        x = x + rms_norm(h, layer["post_attention_norm"], epsilon)
        h = rms_norm(x, layer["ffn_norm.weight"], epsilon)
        gate, up = np.split(h @ layer["ffn_up.weight"].T, 2, axis=-1)
        x = x + rms_norm(
            (silu(gate) * up) @ layer["ffn_down.weight"].T, layer["post_ffw_norm"], epsilon
        )
    return rms_norm(x, w["output_norm.weight"], epsilon) @ w["output.weight"].T
