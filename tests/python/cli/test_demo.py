"""The demo model: its answers, its file and its corpus."""

import importlib
import io
import itertools
import random
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from plait import demo
from plait.demo import ask, corpus, show

UNSEEN_SEED = 20_000
N_STORIES = 120
ACCURACY = 0.98  # the README reports more
Q8_0_BLOCK = 32


@pytest.fixture
def model(demo_model):
    return demo_model


@pytest.fixture(scope="module")
def told():
    return list(corpus.stories(UNSEEN_SEED, N_STORIES, "unseen"))


def accuracy(ctx, tokenizer, stories):
    right = total = 0
    for story in stories:
        with ask.read(ctx, tokenizer, story.text) as prefix:
            given = ask.answer(ctx, tokenizer, prefix, [q for q, _ in story.questions])
        right += sum(a == b for a, (_, b) in zip(given, story.questions, strict=True))
        total += len(story.questions)
    return right / total


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_unseen_stories_are_understood(model, told, kv):
    with ask.context(model, kv=kv) as ctx:
        assert accuracy(ctx, model.tokenizer, told) >= ACCURACY
        assert ctx.kv.n_used == 0  # every story and fork has released its rows


def test_the_answers_come_from_the_story(model, told):
    """Questions about another story are answered wrongly, so answers do not come from the question alone."""
    with ask.context(model) as ctx:
        right = total = 0
        for story, other in itertools.pairwise(told):
            with ask.read(ctx, model.tokenizer, other.text) as prefix:
                given = ask.answer(ctx, model.tokenizer, prefix, [q for q, _ in story.questions])
            right += sum(a == b for a, (_, b) in zip(given, story.questions, strict=True))
            total += len(story.questions)
        assert right / total < 0.35


def test_a_fork_shares_the_story_and_takes_rows_for_its_question_only(model, told):
    story = told[0]
    questions = [q for q, _ in story.questions]
    with (
        ask.context(model, kv="unified") as ctx,
        ask.read(ctx, model.tokenizer, story.text) as prefix,
    ):
        n_story = ctx.kv.n_used
        assert n_story == len(model.tokenizer.encode(story.text)) == len(prefix)
        forks = [prefix.fork() for _ in questions]
        assert ctx.kv.n_used == n_story
        for _ in ask.steps(ctx, model.tokenizer, forks, questions):
            pass
        own = [len(f) - n_story for f in forks]
        assert min(own) > 0
        assert ctx.kv.n_used == n_story + sum(own)
        seqs = ctx.kv.cells()["seqs"]
        assert np.count_nonzero(seqs.sum(axis=1) == 1 + len(questions)) == n_story
        for f in forks:
            f.close()
        assert ctx.kv.n_used == n_story


def test_forked_answers_equal_those_of_separate_stories(model, told):
    with ask.context(model) as ctx:
        for story in told[:10]:
            with ask.read(ctx, model.tokenizer, story.text) as prefix:
                together = ask.answer(ctx, model.tokenizer, prefix, [q for q, _ in story.questions])
            alone = []
            for question, _ in story.questions:
                with ask.read(ctx, model.tokenizer, story.text) as prefix:
                    alone += ask.answer(ctx, model.tokenizer, prefix, [question])
            assert together == alone


def test_the_file_is_small_and_every_row_fits_every_weight_type(model):
    assert demo.MODEL.stat().st_size <= 3_000_000
    assert model.arch == "llama"
    heads, heads_kv = (model.metadata[f"llama.attention.head_count{s}"] for s in ("", "_kv"))
    assert heads > heads_kv > 1
    matrices = [t for t in model.tensors.values() if len(t.shape) == 2]
    assert len(matrices) == 7 * model.n_layer + 1
    for t in matrices:
        n_rows, n = t.shape
        assert n % 256 == 0, t.name  # the block of the k- and i-quants
        assert t.dtype.lower() == "q8_0", t.name
        assert t.nbytes == n_rows * n // Q8_0_BLOCK * (Q8_0_BLOCK + 2), t.name


def test_a_question_continues_the_text_of_the_story(model, told):
    encode = model.tokenizer.encode
    for story in told[:20]:
        for question, answer in story.questions:
            prompt = corpus.prompt(question)
            parts = [encode(story.text), *(encode(t, add_special=False) for t in (prompt, answer))]
            whole = encode(f"{story.text} {prompt} {answer}")
            assert np.concatenate(parts).tolist() == whole.tolist()
            assert model.tokenizer.decode(parts[2]).strip() == answer


def test_every_word_of_the_corpus_is_one_token_and_foreign_text_survives(model, told):
    tokenizer = model.tokenizer
    for story in told:
        n_marks = sum(story.text.count(c) for c in ".?")
        assert (
            len(tokenizer.encode(story.text, add_special=False))
            == len(story.text.split()) + n_marks
        )
    for text in ["Zürich", "a \U0001f40d in the box", "\u0000\u007f", "xylophone, quartz!"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)).lstrip(" ") == text


@pytest.mark.parametrize("split", ["train", "unseen"])
def test_the_corpus_follows_from_its_seed(split):
    first = list(corpus.stories(5, 50, split))
    assert first == list(corpus.stories(5, 50, split))
    assert first != list(corpus.stories(6, 50, split))
    assert first[0] == corpus.story(random.Random(5), split)


def test_the_corpus_is_the_one_the_model_was_trained_on():
    """If this fails, the generator has changed: train the model again and update the sums."""
    sums = {}
    for split in ("train", "unseen"):
        text = "\n".join(repr((s.text, s.questions)) for s in corpus.stories(1, 200, split))
        sums[split] = zlib.crc32(text.encode())
    assert sums == {"train": 3407554406, "unseen": 646382518}


def test_stories_hold_enough_facts_and_questions():
    for split in ("train", "unseen"):
        for story in corpus.stories(9, 300, split):
            least, most = corpus.FACTS
            assert least <= story.text.count(".") <= most
            assert 4 <= len(story.questions) <= 8
            questions = [q for q, _ in story.questions]
            assert len(set(questions)) == len(questions)


def test_no_fact_of_an_unseen_story_is_told_in_training():
    def facts(split):
        found = set()
        for story in corpus.stories(3, 1500, split):
            for question, answer in story.questions:
                asked = [w.strip("?.") for w in question.split()]
                said = [w.strip("?.") for w in answer.split()]
                if asked[:2] == ["What", "colour"]:
                    found.add(("colour", asked[-1], said[-1]))
                elif asked[:2] == ["Where", "does"]:
                    found.add(("home", asked[2], " ".join(said[3:])))
                elif asked[:2] == ["Who", "has"]:
                    found.add(("has", asked[-1], said[-1]))
                elif asked[0] == "When":
                    found.add(("day", asked[-1], said[-1]))
                elif asked[:2] == ["Where", "is"]:
                    found.add(("place", asked[-1], said[-1]))
        return found

    train, unseen = facts("train"), facts("unseen")
    assert min(len(train), len(unseen)) > 200
    assert not train & unseen


def test_show_works_with_and_without_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = {}
    for out in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stdout", out)
        assert (
            show.main(["--seed", "3", "--more", "2", "--pace", "0", "--ask", "Who has the moon?"])
            == 0
        )
        text[out.isatty()] = out.getvalue()
    story = next(corpus.stories(3, 1, "unseen"))
    assert "\x1b" not in text[False]
    assert "\x1b[31m" in text[True]
    assert "\x1b[2K" in text[True]
    for question, answer in story.questions:
        line = next(line for line in text[False].splitlines() if question in line)
        assert answer in line
    assert "Who has the moon?" in text[False]
    assert "2 more unseen stories" in text[False]
    assert "plans: " in text[False]


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "plait.demo", "--seed", "1", "--more", "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "rows of the story" in done.stdout


def test_wrong_arguments_are_reported(capsys):
    for arguments, message in (
        (["--backend", "nope"], 'expected "cpu", "vulkan"'),
        (["--ask", "Where? " * 3000], "more than n_batch"),
    ):
        with pytest.raises(SystemExit, match="2"):
            show.main(arguments)
        assert message in capsys.readouterr().err


def test_the_vocabulary_is_the_one_that_training_builds(model, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench" / "demo_training"))
    words = importlib.import_module("vocab").build()
    assert list(words.pieces) == list(model.metadata["tokenizer.ggml.tokens"])
