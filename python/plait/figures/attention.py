"""Attention weights of a text, computed from captured queries and keys.

The weights are computed in NumPy and checked against the model's own attention output. A model that
computes attention differently raises UnsupportedError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.arguments import integer
from plait.display.plots import INK, TOKEN_TEXT, expect_axes, new_axes
from plait.errors import UnsupportedError
from plait.figures.reading import TextReading
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.context import Context
    from plait.model import Model

Floats = npt.NDArray[np.float64]

_TOLERANCE = 0.02  # relative to the largest value; quantised activations cause such differences


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention weights between the tokens of a text.

    Attributes:
        weights: float64 (n_layer, n_head, n, n). [layer, head, i, j] is the weight of token j for
            token i; 0 for j > i. Rows sum to 1.
        tokens: The text of each token.
    """

    weights: Floats
    tokens: list[str]

    @property
    def spans(self) -> Floats:
        """float64 (n_layer, n_head): mean distance in tokens to the attended tokens, weighted by attention."""
        n = len(self.tokens)
        back = np.maximum(np.arange(n)[:, None] - np.arange(n)[None, :], 0)
        mean: Floats = (self.weights * back).sum(axis=(2, 3)) / n
        return mean

    def plot(self, layer: SupportsIndex, head: SupportsIndex, ax: Axes | None = None) -> Axes:
        """Plot the weights of one head: a row per attending token, a column per attended token.

        Args:
            layer: The layer.
            head: The head.
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        n = len(self.tokens)
        n_layer, n_head, *_ = self.weights.shape
        layer = integer(layer, "plot: layer", 0, n_layer - 1)
        head = integer(head, "plot: head", 0, n_head - 1)
        if ax is None:
            ax = new_axes(2 + 0.22 * n, 1.6 + 0.2 * n)
        expect_axes(ax)
        ax.imshow(self.weights[layer, head], cmap="Blues", vmin=0, aspect="auto")
        ax.set_xticks(range(n), self.tokens, rotation=90, **TOKEN_TEXT)
        ax.set_yticks(range(n), self.tokens, **TOKEN_TEXT)
        ax.set(
            xlabel="attended token", ylabel="attending token", title=f"layer {layer}, head {head}"
        )
        return ax

    def plot_spans(self, ax: Axes | None = None) -> Axes:
        """Plot the mean attention distance of each head.

        Args:
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        spans = self.spans
        if ax is None:
            ax = new_axes(2 + 0.6 * spans.shape[1], 1.2 + 0.45 * spans.shape[0])
        expect_axes(ax)
        image = ax.imshow(spans, cmap="viridis", vmin=0, aspect="auto")
        for (layer, head), span in np.ndenumerate(spans):
            colour = "white" if span < spans.max() * 0.6 else "black"
            ax.text(
                head, layer, f"{span:.0f}", ha="center", va="center", color=colour, fontsize="small"
            )
        ax.set(xlabel="head", ylabel="layer", title="mean attention distance in tokens")
        ax.set_xticks(range(spans.shape[1]))
        ax.set_yticks(range(spans.shape[0]))
        bar = ax.figure.colorbar(image, ax=ax)
        bar.ax.tick_params(colors=INK)
        return ax


def attention(model: Model | Context, text: str) -> Attention:
    """Compute the attention weights of every head and layer for a text.

    weights = softmax(q k^T / sqrt(head_dim)) over the token itself and those before it, from
    captured q and k.

    Args:
        model: A Model, for which a context is created, or a Context with a free sequence.
        text: The text.

    Returns:
        The weights, float64 (n_layer, n_head, n, n), and the texts of the n tokens.

    Raises:
        ValueError: The text has no tokens.
        UnsupportedError: The model computes attention differently: windows shorter than the text,
            soft caps, ALiBi slopes, latent caches, or no cache.
    """
    with TextReading(model, text, ("q_rope", "q", "k_rope", "k", "v", "attn_heads")) as read:
        layers = [_weights(read, layer) for layer in range(read.model.n_layer)]
    return Attention(np.stack(layers), read.tokens)


def _weights(read: TextReading, layer: int) -> Floats:
    """Compute the weights of a layer, (n_head, n, n), and check them against the model's attention output."""
    q = read.first(layer, "q_rope", "q").astype(np.float64)  # [n, n_head, d]
    k = read.first(layer, "k_rope", "k").astype(np.float64)  # [n, n_head_kv, d]
    v = read.value("v", layer).astype(np.float64)
    attended = read.value("attn_heads", layer)
    unsupported = UnsupportedError(
        f"attention: layer {layer} of this {read.model.arch} model does not compute softmax(q k^T / sqrt(head_dim)) v"
    )
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise unsupported
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part, group, axis=1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2])
    scores = np.where(np.tri(len(q), dtype=np.bool_), scores, -np.inf)
    weights: Floats = np.exp(log_softmax(scores))
    mixed = np.einsum("hij,jhd->ihd", weights, v)
    if mixed.size != attended.size or np.abs(
        mixed.reshape(attended.shape) - attended
    ).max() > _TOLERANCE * max(float(np.abs(attended).max()), 1e-6):
        raise unsupported
    return weights
