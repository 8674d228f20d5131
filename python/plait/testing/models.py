"""Assertions about two models."""

from __future__ import annotations

from typing import Final

import numpy as np

from plait.arguments import number
from plait.context import Context, SharedContext, model_of
from plait.evaluation.divergence import KLDivergence, kl_divergence
from plait.evaluation.texts import Text
from plait.model import Model

_TEXT: Final = (
    "The museum opened in the spring of 1921 and was free on Sundays. Visitors crossed the bridge, paid at a small "
    "window and walked through seven rooms, each warmer than the last. In the fourth room stood a clock that nobody "
    "had repaired: it showed ten past three, and the guides told a different story about it every year."
)
_N_RANDOM: Final = 96  # tokens for a model without a vocabulary


def assert_close_models(
    a: Model | Context | SharedContext,
    b: Model | Context | SharedContext,
    kl: float = 0.01,
    top1: float = 0.98,
    *,
    text: Text | None = None,
) -> KLDivergence:
    """Assert that two models predict nearly the same, for example before and after quantisation.

    Args:
        a: The reference: a Model, a Context or an Engine.
        b: The other one, with the same vocabulary.
        kl: Largest mean divergence of b's next-token distributions from a's, in nats.
        top1: Smallest share of tokens at which both have the same most likely token.
        text: Text or token ids. None: a short English text; random tokens if the file has no
            vocabulary.

    Returns:
        The divergences, as from plait.kl_divergence().

    Raises:
        AssertionError: The models differ more; the message has all statistics.
        ValueError: As in plait.kl_divergence().
    """
    __tracebackhide__ = True
    limit = number(kl, "assert_close_models: kl", 0)
    share = number(top1, "assert_close_models: top1", 0, 1)
    model = model_of(a, "assert_close_models", "a")
    model_of(b, "assert_close_models", "b")
    if text is None:
        text = _TEXT if "tokenizer.ggml.tokens" in model.metadata else _random_ids(model)
    found = kl_divergence(a, b, text)
    wrong = []
    if not found.mean <= limit:  # NaN is not close either
        wrong.append(f"the mean divergence is {found.mean:.6f} nats, more than kl = {limit:g}")
    if found.top1 < share:
        wrong.append(
            f"the most likely tokens agree at {found.top1:.2%} of the places, less than top1 = {share:.2%}"
        )
    if wrong:
        worst = np.argsort(-found.values, kind="stable")[:3]
        places = ", ".join(f"{place + 1} ({found.values[place]:.4g})" for place in worst)
        raise AssertionError(
            f"{'; '.join(wrong)}\n{found}\nlargest divergences after tokens {places}"
        )
    return found


def _random_ids(model: Model) -> list[int]:
    n = min(_N_RANDOM, model.n_ctx_train or _N_RANDOM)
    ids: list[int] = np.random.default_rng(0).integers(0, model.n_vocab, n).tolist()
    return ids
