"""The Kullback-Leibler divergence between the predictions of two models."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from plait.context import Context, SharedContext, model_of
from plait.evaluation.scoring import decoded_rows, window_of, windows
from plait.evaluation.texts import Text, token_ids
from plait.model import Model
from plait.numerics import Floats, log_softmax
from plait.progress import Progress, ProgressOption, check_progress


@dataclass(frozen=True, slots=True, eq=False)
class KLDivergence:
    """How far the next-token distributions q of a candidate are from those p of a reference.

    For each token, the divergence is sum(p * log(p / q)) over the vocabulary, in nats. The statistics
    are those of llama-perplexity --kl-divergence.

    Attributes:
        values: float64 (n_tokens,), the divergence at each token.
        top1: Share of the tokens at which both have the same most likely token.

    Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/perplexity/README.md
    """

    values: Floats
    top1: float

    @property
    def mean(self) -> float:
        """Mean divergence."""
        return float(self.values.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the mean: sqrt(variance / (n_tokens - 1)); NaN for one token."""
        n = self.n_tokens
        return math.sqrt(float(self.values.var()) / (n - 1)) if n > 1 else math.nan

    @property
    def median(self) -> float:
        """Median divergence."""
        return float(np.median(self.values))

    @property
    def p99(self) -> float:
        """99th percentile of the divergences."""
        return float(np.percentile(self.values, 99))

    @property
    def max(self) -> float:
        """Largest divergence."""
        return float(self.values.max())

    @property
    def n_tokens(self) -> int:
        """Number of predicted tokens."""
        return len(self.values)

    def __str__(self) -> str:
        return (
            f"KL divergence {self.mean:.6f} +/- {self.stderr:.6f} nats over {self.n_tokens} tokens; median "
            f"{self.median:.6f}, 99th percentile {self.p99:.6f}, maximum {self.max:.6f}; same most likely token "
            f"{self.top1:.2%}"
        )

    def __repr__(self) -> str:
        return f"<plait.KLDivergence of {self.n_tokens} tokens: {self.mean:.6g} nats>"


def kl_divergence(
    reference: Model | Context | SharedContext,
    candidate: Model | Context | SharedContext,
    text: Text,
    *,
    window: SupportsIndex | None = None,
    stride: SupportsIndex | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
) -> KLDivergence:
    """Compute the divergence of a candidate's next-token distributions from those of a reference.

    The text is computed in windows as in token_logprobs(), in sequences of their own. The logits of
    one call at a time are in memory.

    Args:
        reference: A Model or an Engine, for whose model a context is created; or a Context, whose
            other sequences are not touched.
        candidate: Like `reference`, with the same vocabulary.
        text: Text or token ids.
        window: As in token_logprobs(). None: the smaller default of both.
        stride: As in token_logprobs().
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: Called after each window with (done, total), in tokens. True shows a tqdm progress
            bar; None shows it for 16 or more tokens when stderr is a terminal or a notebook.

    Returns:
        The divergence at each token after the first, with its statistics.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The vocabularies differ, or as in token_logprobs(). Also if logits are NaN.
        CacheFull: A context has no room for a window.

    Example:
        plait.kl_divergence(plait.Model("f16.gguf"), plait.Model("q4.gguf"), text).mean
    """
    models = [
        model_of(reference, "kl_divergence", "reference"),
        model_of(candidate, "kl_divergence", "candidate"),
    ]
    ids = common_ids(models[0], models[1], text, add_special, parse_special, "kl_divergence")
    check_progress(progress, "kl_divergence")
    sizes = [
        window_of(given, ids, window, stride, "kl_divergence") for given in (reference, candidate)
    ]
    size, step = min(sizes)
    values = list[float]()
    n_same = 0
    with ExitStack() as resources, Progress(progress, len(ids) - 1, "token") as bar:
        contexts = []
        for given, model in zip((reference, candidate), models, strict=True):
            ctx = given if isinstance(given, Context) else Context(model, n_ctx=min(size, len(ids)))
            contexts.append(ctx if ctx is given else resources.enter_context(closing(ctx)))
        for begin, end, scored in windows(len(ids), size, step):
            with contexts[0].sequence() as a, contexts[1].sequence() as b:
                rows = [
                    decoded_rows(ctx, [(seq, ids[begin : end - 1], scored - 1 - begin)])
                    for ctx, seq in zip(contexts, (a, b), strict=True)
                ]
                for (_, ours), (_, theirs) in zip(*rows, strict=True):
                    values.append(divergence(ours, theirs))
                    n_same += int(ours.argmax() == theirs.argmax())
            bar.update(len(values) - bar.done)
    return KLDivergence(np.array(values), n_same / len(values))


def divergence(reference: npt.ArrayLike, candidate: npt.ArrayLike) -> float:
    """Return the divergence KL(p || q) of one row of logits from another, in nats.

    It is infinite if q is 0 for a token whose probability p is not 0 in float64.

    Args:
        reference: Logits of p, shape (n_vocab,).
        candidate: Logits of q, shape (n_vocab,).

    Raises:
        ValueError: A row holds NaN or +inf, or only -inf.
    """
    p, q = log_softmax(reference), log_softmax(candidate)
    possible = np.exp(p) > 0
    return max(float((np.exp(p[possible]) * (p[possible] - q[possible])).sum()), 0.0)


def common_ids(
    a: Model, b: Model, text: Text, add_special: bool, parse_special: bool, function: str
) -> list[int]:
    """Return the token ids of a text, which two models must encode alike.

    Args:
        a: The first model.
        b: The second model.
        text: Text or token ids.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        function: The name of the calling function, for messages.

    Raises:
        ValueError: The vocabularies have different sizes, or encode the text differently.
    """
    if a.n_vocab != b.n_vocab:
        raise ValueError(
            f"{function}: the models have {a.n_vocab} and {b.n_vocab} tokens; both must have the same vocabulary"
        )
    ids = token_ids(a, text, f"{function}: text", add_special, parse_special)
    if isinstance(text, str) and ids != token_ids(b, text, "text", add_special, parse_special):
        raise ValueError(f"{function}: the tokenizers of the models encode the text differently")
    return ids
