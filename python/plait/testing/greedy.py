"""What a model says when it always takes the likeliest token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from plait.context import Context, model_of
from plait.evaluation.scoring import score
from plait.generation.generate import generate

if TYPE_CHECKING:
    from plait.model import Model


def continuations(
    model: Model | Context, prompts: Iterable[str], max_tokens: int, add_special: bool = True
) -> list[list[int]]:
    """The tokens of each prompt's greedy continuation; one that ends it is left out."""
    asked = list(prompts)
    said: list[list[int]] = [[] for _ in asked]
    for event in generate(model, asked, max_tokens, add_special=add_special):
        if event.finish_reason != "stop":
            said[event.index].append(event.token)
    return said


def assert_greedy(
    model: Model | Context, prompt: str, expected: str, *, add_special: bool = True, top: int = 5
) -> None:
    """Raise AssertionError unless the greedy continuation of `prompt` begins with `expected`.

    `expected` is compared as tokens, so that a failure can say at which of them the model departs, what it would have
    said there and how likely it found either. A model that stops early departs at its stop. `model`: a Model or a
    Context. Raises ValueError for an `expected` that adds no token to the prompt.
    """
    __tracebackhide__ = True
    source = model_of(model, "assert_greedy")
    (found,) = score(model, prompt, [expected], top=top, add_special=add_special)
    if found.is_greedy:
        return
    at = int(np.flatnonzero(~found.greedy)[0])
    wanted = int(found.tokens[at])
    lines = [
        f"after {prompt + spelt(source, *found.tokens[:at].tolist())!r}",
        f"expected {spelt(source, wanted)!r} (p = {np.exp(found.logprobs[at]):.4f}), token {at + 1} of {len(found)}; "
        "the likeliest are",
    ]
    lines += [
        f"  {np.exp(logprob):.4f}  {token} {spelt(source, token)!r}"
        for token, logprob in zip(
            found.top_tokens[at].tolist(), found.top_logprobs[at].tolist(), strict=True
        )
    ]
    raise AssertionError("\n".join(lines))


def spelt(model: Model, *tokens: int) -> str:
    """The bytes of tokens as text, blanks at the beginning included; what is no UTF-8 is escaped."""
    data = b"".join(model.tokenizer.token_bytes(token) for token in tokens)
    return data.decode(errors="backslashreplace")
