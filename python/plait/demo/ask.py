"""Questions about a story: the story is decoded once, each question is a fork, and all forks decode in one batch.

with ask.context(model) as ctx, ask.read(ctx, model.tokenizer, text) as story:
print(ask.answer(ctx, model.tokenizer, story, ["Where is the kite?", "Who has the drum?"]))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import plait

from . import corpus

MAX_TOKENS = 12
"""Max tokens per answer. Answers of the corpus have at most seven."""


def context(model: plait.Model, questions: int = 8, **options: Any) -> plait.Context:
    """Create a context with room for one story and several questions at a time.

    Args:
        model: The model.
        questions: Number of questions.
        options: More arguments of plait.Context.

    Returns:
        The context.
    """
    options = {"n_ctx": 256, "n_seq_max": questions + 1} | options
    return plait.Context(model, **options)


def read(ctx: plait.Context, tokenizer: plait.Tokenizer, text: str) -> plait.Sequence:
    """Decode a story into a sequence of its own, without logits.

    Args:
        ctx: The context.
        tokenizer: The model's tokenizer.
        text: The story.

    Returns:
        The sequence; the caller closes it.
    """
    story = ctx.sequence()
    batch = plait.Batch()
    batch.add_sequence(tokenizer.encode(text), seq=story, logits="none")
    ctx.decode(batch)
    return story


def steps(
    ctx: plait.Context,
    tokenizer: plait.Tokenizer,
    forks: Sequence[plait.Sequence],
    questions: Sequence[str],
) -> Iterator[list[int | None]]:
    """Answer question i in fork i, greedily, with one token per answer and step.

    Args:
        ctx: The context.
        tokenizer: The model's tokenizer.
        forks: Forks of the story's sequence; they keep what they decode.
        questions: The questions.

    Yields:
        The new token of each answer, None for those that have ended.
    """
    batch = plait.Batch()
    for fork, question in zip(forks, questions, strict=True):
        # The tokenizer adds a space before a text, which separates the story and the question.
        batch.add_sequence(
            tokenizer.encode(corpus.prompt(question), add_special=False), seq=fork, logits="last"
        )
    running = list(range(len(forks)))
    for _ in range(MAX_TOKENS):
        best = ctx.decode(batch).logits.argmax(axis=1)
        new_tokens = {
            i: token
            for i, token in zip(running, best.tolist(), strict=True)
            if token != tokenizer.eos
        }
        if not new_tokens:
            return
        yield [new_tokens.get(i) for i in range(len(forks))]
        batch.clear()
        for i, token in new_tokens.items():
            batch.add(token, seq=forks[i], logits=True)
        running = list(new_tokens)


def answer(
    ctx: plait.Context, tokenizer: plait.Tokenizer, story: plait.Sequence, questions: Sequence[str]
) -> list[str]:
    """Return the answers in the order of the questions.

    The story stays in the cache, the questions do not.

    Args:
        ctx: The context.
        tokenizer: The model's tokenizer.
        story: The sequence that holds the story.
        questions: The questions.
    """
    tokens: list[list[int]] = [[] for _ in questions]
    with ExitStack() as stack:
        forks = [stack.enter_context(story.fork()) for _ in questions]
        for new in steps(ctx, tokenizer, forks, questions):
            for new_tokens, token in zip(tokens, new, strict=True):
                if token is not None:
                    new_tokens.append(token)
    return [tokenizer.decode(new_tokens).strip() for new_tokens in tokens]
