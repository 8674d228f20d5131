"""Cosines and sines of position * frequency. arXiv:2104.09864; YaRN: arXiv:2309.00071."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Rope:
    n_rot: int
    base: float = 10000.0
    scale: float = 1.0
    interleaved: bool = False
    extrapolation: float = 0.0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_original: int = 0
    sections: tuple[int, ...] = (0, 0, 0, 0)


def frequencies(rope: Rope, factors: np.ndarray | None = None) -> np.ndarray:
    """Rotation of each pair per position in radians: [n_rot / 2]."""
    pair = np.arange(rope.n_rot // 2)
    whole = rope.base ** (-2 * pair / rope.n_rot)
    if factors is not None:
        whole = whole / factors
    if rope.extrapolation == 0:
        return whole * rope.scale

    def turning(turns: float) -> float:
        """The pair that completes so many rotations over the original context."""
        per_turn = np.log(rope.n_ctx_original / (turns * 2 * np.pi))
        return rope.n_rot * per_turn / (2 * np.log(rope.base))

    low = max(0.0, np.floor(turning(rope.beta_fast)))
    high = min(rope.n_rot - 1.0, np.ceil(turning(rope.beta_slow)))
    kept = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
    mix = kept * rope.extrapolation
    return whole * (rope.scale * (1 - mix) + mix)


def rope_table(positions: np.ndarray, rope: Rope, factors: np.ndarray | None = None) -> np.ndarray:
    """positions [n] or [n, axes] -> [n, n_rot / 2, 2]."""
    positions = np.asarray(positions).reshape(len(positions), -1)
    axis = np.zeros(rope.n_rot // 2, int)
    if any(rope.sections):
        axis = np.resize(np.repeat(range(4), rope.sections), rope.n_rot // 2)
    angle = positions[:, np.minimum(axis, positions.shape[1] - 1)] * frequencies(rope, factors)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1) * rope.magnitude
