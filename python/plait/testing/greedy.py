"""Assertions about greedy continuations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from plait.arguments import string
from plait.context import Context, model_of
from plait.evaluation.scoring import score
from plait.generation.generate import generate

if TYPE_CHECKING:
    from plait.model import Model


def continuations(
    model: Model | Context, prompts: Iterable[str], max_tokens: int, add_special: bool = True
) -> list[list[int]]:
    """Return the tokens of each prompt's greedy continuation, without the end token.

    Args:
        model: A Model or a Context.
        prompts: The prompts.
        max_tokens: Max tokens per continuation.
        add_special: As in Tokenizer.encode().
    """
    texts = list(prompts)
    generated: list[list[int]] = [[] for _ in texts]
    for event in generate(model, texts, max_tokens, add_special=add_special):
        if event.finish_reason != "stop":
            generated[event.index].append(event.token)
    return generated


def assert_greedy(
    model: Model | Context, prompt: str, expected: str, *, add_special: bool = True, top: int = 5
) -> None:
    """Assert that the greedy continuation of a prompt starts with an expected text.

    The texts are compared as tokens. The failure message names the first token that differs and the
    most likely tokens there, with their probabilities. A model that ends early differs at its end
    token.

    Args:
        model: A Model or a Context.
        prompt: The prompt.
        expected: The start of the continuation.
        add_special: As in Tokenizer.encode().
        top: Number of most likely tokens in the message.

    Raises:
        AssertionError: The continuation differs.
        ValueError: `expected` adds no token to the prompt.
    """
    __tracebackhide__ = True
    source = model_of(model, "assert_greedy")
    string(prompt, "assert_greedy: prompt")
    string(expected, "assert_greedy: expected")
    (found,) = score(model, prompt, [expected], top_logprobs=top, add_special=add_special)
    if found.is_greedy:
        return
    at = int(np.flatnonzero(~found.greedy)[0])
    wanted = int(found.tokens[at])
    lines = [
        f"after {prompt + text_of(source, *found.tokens[:at].tolist())!r}",
        f"expected {text_of(source, wanted)!r} (p = {np.exp(found.logprobs[at]):.4f}), token {at + 1} of {len(found)}"
        + ("; the most likely are" if top else ""),
    ]
    lines += [
        f"  {np.exp(logprob):.4f}  {token} {text_of(source, token)!r}"
        for token, logprob in zip(
            found.top_tokens[at].tolist(), found.top_logprobs[at].tolist(), strict=True
        )
    ]
    raise AssertionError("\n".join(lines))


def text_of(model: Model, *tokens: int) -> str:
    """Return the text of tokens, including leading spaces; invalid UTF-8 is escaped."""
    data = b"".join(model.tokenizer.token_bytes(token) for token in tokens)
    return data.decode(errors="backslashreplace")
