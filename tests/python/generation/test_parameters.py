"""Parameters per prompt, their deprecated names, and progress."""

import plait
import pytest
from plait.generation.prompts import tokenizer_of
from python.drive import tokens

PROMPTS = [tokens(6, i) for i in range(3)]


def test_each_prompt_has_its_own_parameters(tiny):
    samplers = [None, plait.Sampler(1.5, seed=1), plait.Sampler(1.5, seed=2)]
    full = [
        plait.complete(tiny, [prompt], 12, sampler)[0]
        for prompt, sampler in zip(PROMPTS, samplers, strict=True)
    ]
    stops = [[], [full[1].tokens[3]], [full[2].tokens[2], "\x00"]]
    found = plait.complete(tiny, PROMPTS, [4, 12, 12], samplers, stop=stops)
    assert found[0].tokens == full[0].tokens[:4]
    for one, whole, stop in zip(found[1:], full[1:], stops[1:], strict=True):
        n = whole.tokens.index(stop[0])
        assert one.tokens == whole.tokens[: n + 1]
        assert one.finish_reason == "stop"


def test_seeds_replace_that_of_the_sampler(tiny):
    sampler = plait.Sampler(1.5, top_k=0, top_p=1, min_p=0, seed=1)
    same = [PROMPTS[0]] * 3
    found = plait.complete(tiny, same, 8, sampler, seed=[5, None, 6])
    want = [
        plait.complete(tiny, same[:1], 8, plait.Sampler(1.5, 0, 1, 0, seed=seed))[0].tokens
        for seed in (5, 1, 6)
    ]
    assert [one.tokens for one in found] == want
    assert len(set(want)) == 3
    assert plait.complete(tiny, same[:1], 8, seed=3) == plait.complete(tiny, same[:1], 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": [1, 2]}, "max_tokens has 2 elements, but there are 3 prompts"),
        ({"sampler": [None] * 4}, "sampler has 4 elements, but there are 3 prompts"),
        ({"stop": [["a"], ["b"]]}, "stop has 2 elements, but there are 3 prompts"),
        ({"seed": [1]}, "seed has 1 elements, but there are 3 prompts"),
        ({"max_tokens": [1, 0, 1]}, "max_tokens is 0; it must be at least 1"),
    ],
)
def test_lists_have_one_element_per_prompt(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        plait.generate(tiny, PROMPTS, **options)


def test_a_flat_list_of_stops_applies_to_all_prompts(tiny):
    ends = sorted(set(range(5, 200)) - tokenizer_of(tiny).eog)
    assert all(len(one.tokens) <= 12 for one in plait.complete(tiny, PROMPTS, 12, stop=ends))
    assert {one.finish_reason for one in plait.complete(tiny, PROMPTS, 1, stop=range(280))} == {
        "stop"
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda m: list(plait.generate(m, PROMPTS, 2, top=2)),
        lambda m: plait.complete(m, PROMPTS, 2, top=2),
        lambda m: plait.best_of(m, PROMPTS, 1, 2, top=2),
        lambda m: plait.score(m, PROMPTS[0], [PROMPTS[1]], top=2),
        lambda m: plait.token_logprobs(m, PROMPTS[0], top=2),
    ],
)
def test_top_is_the_deprecated_name_of_top_logprobs(tiny, call):
    with pytest.warns(DeprecationWarning, match="top is deprecated; use top_logprobs") as caught:
        found = call(tiny)
    assert caught[0].filename == __file__
    one = found[0] if isinstance(found, list) else found
    assert len(one.top_logprobs[0]) == 2


def test_the_deprecated_attribute_of_events(tiny):
    (event,) = plait.generate(tiny, "a", 1, top_logprobs=2)
    with pytest.warns(DeprecationWarning, match=r"use Event\.top_logprobs"):
        assert event.top == event.top_logprobs


def test_progress_may_be_a_function(tiny):
    seen = []
    plait.complete(tiny, PROMPTS, 2, n=2, progress=lambda *numbers: seen.append(numbers))
    assert seen == [(i + 1, 6) for i in range(6)]
    seen.clear()
    plait.token_logprobs(tiny, tokens(40), window=16, progress=lambda *n: seen.append(n))
    assert seen[-1] == (39, 39)


def test_beam_search_ends_at_strings(tiny):
    (best, *_) = plait.beam_search(tiny, "the hat", 3, 12)
    stop = best.text[4:6]
    found = plait.beam_search(tiny, "the hat", 3, 12, stop=[stop])
    assert all(stop not in one.text for one in found)
    ended = [one for one in found if one.finish_reason == "stop"]
    assert ended
    for one in ended:
        whole = tiny.tokenizer.decode(one.tokens)
        assert stop in whole or one.tokens[-1] in tiny.tokenizer.eog
    assert best.prompt_tokens == tuple(tiny.tokenizer.encode("the hat").tolist())
