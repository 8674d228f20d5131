"""The logit lens."""

from __future__ import annotations

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


def logit_lens(model: Model | Context, text: str) -> LogitLens:
    """What each layer's output would become, were it the last's: its norm, then the output matrix.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens". Raises UnsupportedError for a model whose last
    layer's logits do not come out that way.
    """
    with TextReading(model, text, ("l_out",)) as read:
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
