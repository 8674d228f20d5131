"""Questions about a story: the story is read once, each question is a fork of it, and all forks decode in one batch.

with ask.context(model) as ctx, ask.read(ctx, model.tokenizer, text) as story:
    print(ask.answer(ctx, model.tokenizer, story, ["Where is the kite?", "Who has the drum?"]))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import plait

from . import corpus

LONGEST = 12
"""An answer of the corpus is at most seven tokens; one that has not ended by now is not going to."""


def context(model: plait.Model, questions: int = 8, **options: Any) -> plait.Context:
    """A context with room for one story and this many questions at once; options as for `plait.Context`."""
    options = {"n_ctx": 256, "n_seq_max": questions + 1} | options
    return plait.Context(model, **options)


def read(ctx: plait.Context, tokenizer: plait.Tokenizer, text: str) -> plait.Sequence:
    """Puts a story into the cache, as a sequence of its own. Nothing is asked yet, so no logits are computed."""
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
    """Answers question i in fork i, greedily, one token of every answer a step.

    Yields the new token of each, and None for those that have ended. The forks go on holding what they decoded.
    """
    batch = plait.Batch()
    for fork, question in zip(forks, questions, strict=True):
        # The tokenizer starts a text with a blank, which is just what stands between the story and its question.
        batch.add_sequence(
            tokenizer.encode(corpus.prompt(question), add_special=False), seq=fork, logits="last"
        )
    running = list(range(len(forks)))
    for _ in range(LONGEST):
        best = ctx.decode(batch).logits.argmax(axis=1)
        said = {
            i: token
            for i, token in zip(running, best.tolist(), strict=True)
            if token != tokenizer.eos
        }
        if not said:
            return
        yield [said.get(i) for i in range(len(forks))]
        batch.clear()
        for i, token in said.items():
            batch.add(token, seq=forks[i], logits=True)
        running = list(said)


def answer(
    ctx: plait.Context, tokenizer: plait.Tokenizer, story: plait.Sequence, questions: Sequence[str]
) -> list[str]:
    """The answers in the order of the questions. The story stays in the cache, the questions do not."""
    tokens: list[list[int]] = [[] for _ in questions]
    with ExitStack() as stack:
        forks = [stack.enter_context(story.fork()) for _ in questions]
        for new in steps(ctx, tokenizer, forks, questions):
            for said, token in zip(tokens, new, strict=True):
                if token is not None:
                    said.append(token)
    return [tokenizer.decode(said).strip() for said in tokens]
