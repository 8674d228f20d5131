"""The logit lens: next-token probabilities computed from the output of each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.arguments import integer
from plait.display.plots import TOKEN_TEXT, expect_axes, new_axes
from plait.errors import UnsupportedError
from plait.figures.reading import TextReading
from plait.numerics import log_softmax
from plait.output_norm import OutputNorm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plait.context import Context
    from plait.model import Model


@dataclass(frozen=True, eq=False)
class LogitLens:
    """Next-token probabilities after each layer, as if it were the last.

    Attributes:
        logprobs: float32 (n_layer, n, n_vocab), log-probabilities.
        tokens: The text of each token.
        best: Text of the most likely next token, by layer and token.
    """

    logprobs: npt.NDArray[np.float32]
    tokens: list[str]
    best: list[list[str]]

    def plot(self, last: SupportsIndex = 12, ax: Axes | None = None) -> Axes:
        """Plot the most likely next token after each layer; darker cells have a higher probability.

        Args:
            last: Number of tokens to show, from the end of the text.
            ax: Axes to draw on. None creates a new figure.

        Returns:
            The axes.
        """
        shown = min(integer(last, "plot: last", 1), len(self.tokens))
        probability = np.exp(self.logprobs.max(axis=2))[:, -shown:]
        if ax is None:
            ax = new_axes(1.2 + 0.62 * shown, 1.4 + 0.35 * len(probability))
        expect_axes(ax)
        ax.imshow(probability, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
        for (layer, place), p in np.ndenumerate(probability):
            text = self.best[layer][len(self.tokens) - shown + place]
            colour = "white" if p > 0.6 else "black"
            ax.text(place, layer, text, ha="center", va="center", color=colour, **TOKEN_TEXT)
        ax.set_xticks(range(shown), self.tokens[-shown:], rotation=45, ha="right", **TOKEN_TEXT)
        ax.set_yticks(range(len(probability)))
        ax.set(
            xlabel="after the token",
            ylabel="layer",
            title="most likely next token after each layer",
        )
        return ax


def logit_lens(model: Model | Context, text: str) -> LogitLens:
    """Apply the output norm and the output matrix to the output of each layer.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".

    Args:
        model: A Model, for which a context is created, or a Context with a free sequence.
        text: The text.

    Returns:
        The predictions of each layer at each token.

    Raises:
        ValueError: The text has no tokens.
        UnsupportedError: Applied to the last layer, this does not give the model's logits.
    """
    with TextReading(model, text, ("l_out",)) as read:
        hidden = [read.value("l_out", layer) for layer in range(read.model.n_layer)]
        final = read.logits
    source = read.model
    unsupported = UnsupportedError(
        f"logit_lens: a {source.arch} model computes its logits differently"
    )
    one_stream = all(values[0].size == source.n_embd for values in hidden if len(values))
    if final is None or not one_stream or "output_norm.weight" not in source.tensors:
        raise unsupported
    output = "output.weight" if "output.weight" in source.tensors else "token_embd.weight"
    matrix = source.tensor(output)
    norm = OutputNorm(source)
    logprobs = []
    for values in hidden:
        rows = norm(values.reshape(len(values), -1)) @ matrix.T
        logprobs.append(log_softmax(rows).astype(np.float32))
    expected = log_softmax(final)
    likely = expected > expected.max(axis=1, keepdims=True) - 5
    if np.abs(logprobs[-1] - expected)[likely].max() > 0.5:
        raise unsupported
    token_bytes = source.tokenizer.token_bytes
    best = [
        [token_bytes(int(token)).decode(errors="replace") for token in rows.argmax(axis=1)]
        for rows in logprobs
    ]
    return LogitLens(np.stack(logprobs), read.tokens, best)
