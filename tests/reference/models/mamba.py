"""Mamba over one sequence in float64. Gu & Dao 2023, arXiv:2312.00752; weights by their names in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..rms_norm import rms_norm
from ..selective_scan import selective_scan
from ..short_conv import short_conv


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def mixer(w: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """x [n, width] -> [n, width], starting from an empty state."""
    inner, n_state = w["ssm_a"].shape
    rank = w["ssm_dt.weight"].shape[1]
    u, z = np.split(x @ w["ssm_in.weight"].T, 2, axis=-1)
    taps = w["ssm_conv1d.weight"].shape[1]
    u, _ = short_conv(u, w["ssm_conv1d.weight"], w["ssm_conv1d.bias"], np.zeros((taps - 1, inner)))
    u = silu(u)
    r, b, c = np.split(u @ w["ssm_x.weight"].T, [rank, rank + n_state], axis=-1)
    dt = np.logaddexp(0, r @ w["ssm_dt.weight"].T + w["ssm_dt.bias"])
    y, _ = selective_scan(u, dt, w["ssm_a"], b, c, w["ssm_d"], np.zeros((inner, n_state)))
    return (silu(z) * y) @ w["ssm_out.weight"].T


def logits(w: Mapping[str, np.ndarray], ids: Sequence[int], epsilon: float) -> np.ndarray:
    x = w["token_embd.weight"][np.asarray(ids)].astype(np.float64)
    for layer in layers(w):
        x = x + mixer(layer, rms_norm(x, layer["attn_norm.weight"], epsilon))
    return rms_norm(x, w["output_norm.weight"], epsilon) @ w["output.weight"].T


def layers(w: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The weights of each layer, without "blk.{i}."."""
    n = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blk."))
    return [
        {name.split(".", 2)[2]: x for name, x in w.items() if name.startswith(f"blk.{i}.")}
        for i in range(n)
    ]
