"""Ctrl-C ends a call with a KeyboardInterrupt that holds what is done."""

from __future__ import annotations

import itertools
import math
import signal

import numpy as np
import plait
import pytest


@pytest.fixture
def pressed(monkeypatch):
    """Returns a function: Ctrl-C is pressed during the n-th call of Context.decode from now."""

    def press(n):
        calls, decode = itertools.count(1), plait.Context.decode

        def counted(self, batch):
            if next(calls) == n:
                signal.raise_signal(signal.SIGINT)
            return decode(self, batch)

        monkeypatch.setattr(plait.Context, "decode", counted)

    return press


IDS = [5 + i % 40 for i in range(80)]


def test_perplexity_keeps_the_windows_that_are_done(tiny, pressed):
    whole = plait.token_logprobs(tiny, IDS, window=20, stride=10)
    pressed(3)
    with pytest.raises(KeyboardInterrupt) as raised:
        plait.perplexity(tiny, IDS, window=20, stride=10)
    done = whole.logprobs[:29]  # two windows: of tokens 1 to 19, and 20 to 29
    assert raised.value.partial == pytest.approx(math.exp(-done.mean()))


def test_token_logprobs_keep_the_windows_that_are_done(tiny, pressed):
    whole = plait.token_logprobs(tiny, IDS, window=20, stride=10)
    pressed(3)
    with pytest.raises(KeyboardInterrupt) as raised:
        plait.token_logprobs(tiny, IDS, window=20, stride=10)
    np.testing.assert_array_equal(raised.value.partial.logprobs, whole.logprobs[:29])


@pytest.mark.parametrize("function", [plait.perplexity, plait.token_logprobs])
def test_there_is_nothing_before_the_first_window_is_done(tiny, pressed, function):
    pressed(1)
    with pytest.raises(KeyboardInterrupt) as raised:
        function(tiny, IDS)
    assert raised.value.partial is None


def test_score_keeps_the_continuations_that_are_done(tiny, pressed):
    continuations = [[6 + i, 7, 8] for i in range(20)]
    whole = plait.score(tiny, [5], continuations)
    pressed(3)  # the context, 16 continuations, and the rest
    with pytest.raises(KeyboardInterrupt) as raised:
        plait.score(tiny, [5], continuations)
    assert [one.logprob for one in raised.value.partial] == [one.logprob for one in whole[:16]]


def test_complete_keeps_the_generations_that_are_done(tiny):
    prompts = [[5, 6], [7, 8, 9]]
    whole = plait.complete(tiny, prompts, 8)
    calls = itertools.count(1)

    def greedy(row, seq):
        if next(calls) == 9:
            raise KeyboardInterrupt
        return int(row.argmax())

    with pytest.raises(KeyboardInterrupt) as raised:
        plait.complete(tiny, prompts, 8, greedy)
    found = raised.value.partial
    assert [one.index for one in found] == [0, 1]
    assert [one.tokens for one in found] == [want.tokens[:4] for want in whole]
    assert {one.finish_reason for one in found} == {"cancelled"}
