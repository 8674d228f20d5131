"""Stories and questions for the tasks in this folder. They are generated, so nothing is downloaded."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from plait.demo import corpus

SEED, STORIES = 2024, 8


def load(**_: Any) -> dict[str, Dataset]:
    """Return one document per question. Its choices are the answers to all questions about the same story."""
    documents = []
    for story in corpus.stories(SEED, STORIES, "unseen"):
        choices = [" " + answer for _, answer in story.questions]
        for right, (question, answer) in enumerate(story.questions):
            documents.append(
                {
                    "story": story.text, "prompt": corpus.prompt(question), "answer": answer,
                    "choices": choices, "right": right,
                }
            )  # fmt: skip
    return {"test": Dataset.from_list(documents)}


def load_texts(**_: Any) -> dict[str, Dataset]:
    """Return one document per story."""
    stories = corpus.stories(SEED, STORIES, "unseen")
    return {"test": Dataset.from_list([{"story": story.text} for story in stories])}
