"""Abilities of the demo model, tested as users would evaluate their own models."""

import plait
import pytest
from plait.demo import ask, corpus

STORIES = 12


@pytest.fixture(scope="module")
def stories():
    return list(corpus.stories(2024, STORIES, "unseen"))


def accuracy(ctx, stories):
    """Return the fraction of questions that are answered exactly."""
    right = total = 0
    for story in stories:
        questions = [question for question, _ in story.questions]
        with ask.read(ctx, ctx.model.tokenizer, story.text) as prefix:
            given = ask.answer(ctx, ctx.model.tokenizer, prefix, questions)
        right += sum(a == b for a, (_, b) in zip(given, story.questions, strict=True))
        total += len(story.questions)
    return right / total


@pytest.mark.plait(n_ctx=256, n_seq_max=16)
@pytest.mark.plait_memory("unified", "streams", "unified/q8_0", "unified/q4_0")
def test_answers_about_unseen_stories(plait_context, stories):
    least = 0.85 if plait_context.type_k == "q4_0" else 0.95
    assert accuracy(plait_context, stories) >= least


def test_a_right_answer_is_likelier_than_another(plait_model, stories):
    """Multiple choice by log-likelihood: the right answer scores higher than those of other questions."""
    right = total = 0
    for story in stories:
        answers = [" " + answer for _, answer in story.questions]
        for question, answer in story.questions:
            context = f"{story.text} {corpus.prompt(question)}"
            best = max(
                zip(plait.score(plait_model, context, answers), answers, strict=True),
                key=lambda pair: pair[0].logprob / len(pair[0]),
            )
            right += best[1] == " " + answer
            total += 1
    assert right / total >= 0.95


@pytest.mark.plait(n_ctx=256)
def test_perplexity_of_unseen_stories(plait_context, stories):
    text = " ".join(story.text for story in stories[:2])
    within, shuffled = (
        plait.perplexity(plait_context, t)
        for t in (stories[0].text, " ".join(sorted(text.split())))
    )
    assert within < 12
    assert shuffled > 20 * within
