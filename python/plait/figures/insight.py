"""Where heads look and what layers would say: attention and the logit lens, from captured values.

Both are computed in NumPy from what one call captured, and compared with what the model itself computed: a model whose
formula is another one is refused, not drawn wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.context import Context, model_of
from plait.errors import UnsupportedError
from plait.figures.plots import new_axes
from plait.sampling import log_softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.capture import Capture
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


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What the model would say after each layer, if it were the last.

    `logprobs` float32 (n_layer, n, n_vocab). `tokens`: the text's. `best`: for each layer and place the likeliest
    token's text.
    """

    logprobs: npt.NDArray[np.float32]
    tokens: list[str]
    best: list[list[str]]

    def plot(self, last: int = 12, ax: Axes | None = None) -> Axes:
        """Draw the likeliest token after each layer, for the `last` places, darker where it is surer."""
        shown = min(last, len(self.tokens))
        sure = np.exp(self.logprobs.max(axis=2))[:, -shown:]
        if ax is None:
            ax = new_axes(1.5 + 0.85 * shown, 1.4 + 0.4 * len(sure))
        ax.imshow(sure, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
        for (layer, place), p in np.ndenumerate(sure):
            text = self.best[layer][len(self.tokens) - shown + place]
            colour = "white" if p > 0.6 else "black"
            ax.text(place, layer, text, ha="center", va="center", color=colour, fontsize="small")
        ax.set_xticks(range(shown), self.tokens[-shown:], rotation=45, ha="right", fontsize="small")
        ax.set_yticks(range(len(sure)))
        ax.set(
            xlabel="after the token",
            ylabel="layer",
            title="the likeliest next token, layer by layer",
        )
        return ax


def attention(model: Model | Context, text: str) -> Attention:
    """Where every head of every layer looks while the model reads a text.

    weights = softmax(q k^T / sqrt(head_dim)) over the tokens before, from captured q and k. Raises UnsupportedError for
    a model that attends in another way (windows that the text is longer than, caps, slopes, latent caches, no cache).
    """
    with _Read(model, text, ("q_rope", "q", "k_rope", "k", "v", "attn")) as read:
        layers = [_weights(read, layer) for layer in range(read.model.n_layer)]
    return Attention(np.stack(layers), read.tokens)


def logit_lens(model: Model | Context, text: str) -> LogitLens:
    """What each layer's output would become, were it the last's: its norm, then the output matrix.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens". Raises UnsupportedError for a model whose last
    layer's logits do not come out that way.
    """
    with _Read(model, text, ("l_out",)) as read:
        hidden = [read.value("l_out", layer) for layer in range(read.model.n_layer)]
        final = read.logits
    source = read.model
    unlike = UnsupportedError(f"logit_lens: a {source.arch} model makes its logits in another way")
    if final is None or "output_norm.weight" not in source.tensors:
        raise unlike
    output = "output.weight" if "output.weight" in source.tensors else "token_embd.weight"
    matrix = source.tensor(output)
    logprobs = []
    for values in hidden:
        rows = _normalised(source, values.reshape(len(values), -1)) @ matrix.T
        logprobs.append(log_softmax(rows).astype(np.float32))
    expected = log_softmax(final)
    likely = expected > expected.max(axis=1, keepdims=True) - 5
    if np.abs(logprobs[-1] - expected)[likely].max() > 0.5:
        raise unlike
    spell = source.tokenizer.token_bytes
    best = [
        [spell(int(token)).decode(errors="replace") for token in rows.argmax(axis=1)]
        for rows in logprobs
    ]
    return LogitLens(np.stack(logprobs), read.tokens, best)


def _normalised(model: Model, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The output norm: of roots of mean squares, or of layers where there is a bias."""
    weight = model.tensor("output_norm.weight")
    if "output_norm.bias" in model.tensors:
        centred = rows - rows.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + _epsilon(model, ""))
        normal: npt.NDArray[np.float32] = centred / scale * weight + model.tensor(
            "output_norm.bias"
        )
        return normal
    scale = np.sqrt((rows**2).mean(axis=1, keepdims=True) + _epsilon(model, "_rms"))
    scaled: npt.NDArray[np.float32] = rows / scale * weight
    return scaled


def _epsilon(model: Model, kind: str) -> float:
    return float(model.metadata.get(f"{model.arch}.attention.layer_norm{kind}_epsilon", 1e-5))


class _Read:
    """A text read once in an empty sequence, with captured values."""

    def __init__(self, model: Model | Context, text: str, roles: tuple[str, ...]) -> None:
        self.model = model_of(model, "text")
        self._ids = self.model.tokenizer.encode(text)
        if len(self._ids) == 0:
            raise ValueError("expected a text with at least one token")
        self._own = not isinstance(model, Context)
        self._ctx = (
            model if isinstance(model, Context) else Context(self.model, n_ctx=len(self._ids))
        )
        spell = self.model.tokenizer.token_bytes
        self.tokens = [spell(int(token)).decode(errors="replace") for token in self._ids]
        self._roles = roles
        self._seen: Capture | None = None
        self.logits: Any = None

    def __enter__(self) -> _Read:
        ctx = self._ctx
        names = [
            name for name in ctx.value_names() if name.startswith("blk.") and name.split(".")[2] in self._roles
        ]  # fmt: skip
        if not names or ctx.kv.kind == "cross":
            raise UnsupportedError(f"a {self.model.arch} model has no {' or '.join(self._roles)}")
        self._names = set(names)
        with ctx.sequence() as seq, ctx.capture(*names) as seen:
            batch = Batch()
            batch.add_sequence(self._ids, seq=seq, logits="all")
            self.logits = ctx.decode(batch).logits
        self._seen = seen
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._ctx.close()

    def value(self, role: str, layer: int) -> npt.NDArray[np.float32]:
        """A captured value, float32 (n_tokens, ...). UnsupportedError where the layer has none."""
        name = f"blk.{layer}.{role}"
        if name not in self._names or self._seen is None:
            raise UnsupportedError(f"layer {layer} of this {self.model.arch} model has no {role}")
        return self._seen[name]

    def first(self, layer: int, *roles: str) -> npt.NDArray[np.float32]:
        """The first of these that the layer has."""
        for role in roles:
            if f"blk.{layer}.{role}" in self._names:
                return self.value(role, layer)
        return self.value(roles[-1], layer)


def _weights(read: _Read, layer: int) -> Floats:
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
