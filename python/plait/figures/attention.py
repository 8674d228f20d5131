"""Where heads look and what layers would say: attention and the logit lens, from captured values.

Both are computed in NumPy from what one call captured, and compared with what the model itself computed: a model whose
formula is another one is refused, not drawn wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait.display.plots import new_axes
from plait.errors import UnsupportedError
from plait.figures.reading import TextReading
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.context import Context
    from plait.model import Model

Floats = npt.NDArray[np.float64]

_NEAR = 0.02  # of the largest value: what products with quantised activations may differ by


@dataclass(frozen=True, eq=False)
class Attention:
    """How much each token of a text looks at each before it.

    `weights` float64 (n_layer, n_head, n, n): [layer, head, i, j] is what token i gives to token j, 0 for j > i; a row
    adds up to 1. `tokens`: their texts.
    """

    weights: Floats
    tokens: list[str]

    @property
    def spans(self) -> Floats:
        """float64 (n_layer, n_head): how many tokens back a head looks, on average over its weights and the text."""
        n = len(self.tokens)
        back = np.maximum(np.arange(n)[:, None] - np.arange(n)[None, :], 0)
        mean: Floats = (self.weights * back).sum(axis=(2, 3)) / n
        return mean

    def plot(self, layer: int, head: int, ax: Axes | None = None) -> Axes:
        """Draw one head: a line for each token that looks, a column for each that is looked at."""
        n = len(self.tokens)
        if ax is None:
            ax = new_axes(2 + 0.22 * n, 1.6 + 0.2 * n)
        ax.imshow(self.weights[layer, head], cmap="Blues", vmin=0, aspect="auto")
        ax.set_xticks(range(n), self.tokens, rotation=90, fontsize="small")
        ax.set_yticks(range(n), self.tokens, fontsize="small")
        ax.set(xlabel="is looked at", ylabel="looks", title=f"layer {layer}, head {head}")
        return ax

    def plot_spans(self, ax: Axes | None = None) -> Axes:
        """Draw how far back each head of each layer looks, in tokens."""
        spans = self.spans
        if ax is None:
            ax = new_axes(2 + 0.6 * spans.shape[1], 1.2 + 0.45 * spans.shape[0])
        image = ax.imshow(spans, cmap="viridis", vmin=0, aspect="auto")
        for (layer, head), span in np.ndenumerate(spans):
            colour = "white" if span < spans.max() * 0.6 else "black"
            ax.text(
                head, layer, f"{span:.0f}", ha="center", va="center", color=colour, fontsize="small"
            )
        ax.set(xlabel="head", ylabel="layer", title="tokens that a head looks back, on average")
        ax.set_xticks(range(spans.shape[1]))
        ax.set_yticks(range(spans.shape[0]))
        ax.figure.colorbar(image, ax=ax)
        return ax


def attention(model: Model | Context, text: str) -> Attention:
    """Where every head of every layer looks while the model reads a text.

    weights = softmax(q k^T / sqrt(head_dim)) over the tokens before, from captured q and k. Raises UnsupportedError for
    a model that attends in another way (windows that the text is longer than, caps, slopes, latent caches, no cache).
    """
    with TextReading(model, text, ("q_rope", "q", "k_rope", "k", "v", "attn")) as read:
        layers = [_weights(read, layer) for layer in range(read.model.n_layer)]
    return Attention(np.stack(layers), read.tokens)


def _weights(read: TextReading, layer: int) -> Floats:
    """softmax(q k^T / sqrt(d)) of a layer, (n_head, n, n); it must give what the model's own attention gave."""
    q = read.first(layer, "q_rope", "q").astype(np.float64)  # [n, n_head, d]
    k = read.first(layer, "k_rope", "k").astype(np.float64)  # [n, n_head_kv, d]
    v = read.value("v", layer).astype(np.float64)
    told = read.value("attn", layer)
    unlike = UnsupportedError(
        f"attention: layer {layer} of this {read.model.arch} model attends in another way"
    )
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise unlike
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part, group, axis=1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2])
    scores = np.where(np.tri(len(q), dtype=np.bool_), scores, -np.inf)
    weights: Floats = np.exp(log_softmax(scores))
    mixed = np.einsum("hij,jhd->ihd", weights, v)
    if mixed.size != told.size or np.abs(mixed.reshape(told.shape) - told).max() > _NEAR * max(
        float(np.abs(told).max()), 1e-6
    ):
        raise unlike
    return weights
