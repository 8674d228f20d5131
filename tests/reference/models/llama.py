"""LLaMA over one sequence in float64, as in the paper. Touvron et al. 2023, arXiv:2302.13971."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def rms_norm(x: Floats, weight: npt.NDArray[np.float32], epsilon: float) -> Floats:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weight


def rope(x: Floats, positions: npt.NDArray[np.integer], base: float) -> Floats:
    """x: (n, heads, dim); adjacent elements (2i, 2i + 1) are rotated together. Su et al. 2021, arXiv:2104.09864."""
    dim = x.shape[-1]
    angle = positions[:, None, None] * base ** (-np.arange(0, dim, 2) / dim)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def attend(q: Floats, k: Floats, v: Floats) -> Floats:
    """q: (n, heads, dim), k and v: (n, kv heads, dim) -> (n, heads * dim); causal."""
    n, heads, dim = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)


def hidden(
    w: Mapping[str, npt.NDArray[np.float32]],
    x: Floats,
    n_layers: int,
    head: int,
    epsilon: float,
    base: float,
    norms_heads: bool = False,
) -> Floats:
    """Embeddings (n, width) -> the input of the output projection (n, width).

    With `norms_heads`, the heads of queries and keys are normalised after rotation, as in Llama 4.
    """
    n = len(x)
    positions = np.arange(n)
    for i in range(n_layers):
        layer = {
            key.split(".", 2)[2]: value for key, value in w.items() if key.startswith(f"blk.{i}.")
        }
        h = rms_norm(x, layer["attn_norm.weight"], epsilon)
        q, k, v = ((h @ layer[f"attn_{c}.weight"].T).reshape(n, -1, head) for c in "qkv")
        q, k = rope(q, positions, base), rope(k, positions, base)
        if norms_heads:
            one = np.ones(head, np.float32)
            q, k = rms_norm(q, one, epsilon), rms_norm(k, one, epsilon)
        x = x + attend(q, k, v) @ layer["attn_output.weight"].T
        h = rms_norm(x, layer["ffn_norm.weight"], epsilon)
        gate, up = h @ layer["ffn_gate.weight"].T, h @ layer["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["ffn_down.weight"].T
    return rms_norm(x, w["output_norm.weight"], epsilon)
