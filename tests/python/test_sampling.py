"""The sampler against plain probabilities, and its promises about seeds and sequences."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait import Sampler
from plait.sampling import log_softmax

PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LOGITS = np.array([1.0, 3.0, 0.5, 2.5, -1.0, 2.0, 0.0, -np.inf, 1.5, -3.0], np.float32)


def expected(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """The documented filters one by one, as sets of tokens."""
    values = [float(x) for x in logits]
    tokens = sorted(
        (i for i, x in enumerate(values) if x > -math.inf), key=lambda i: (-values[i], i)
    )
    tokens = tokens[:top_k] if top_k else tokens

    def probability(i: int) -> float:
        return math.exp(values[i]) / sum(math.exp(values[j]) for j in tokens)

    if top_p < 1:
        kept, total = [], 0.0
        for i in tokens:
            kept.append(i)
            total += probability(i)
            if total >= top_p:
                break
        tokens = kept
    tokens = [i for i in tokens if probability(i) >= min_p * probability(tokens[0])]
    weights = np.zeros(len(values))
    for i in tokens:
        weights[i] = math.exp(values[i] / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.8, "top_k": 6, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 100},
    ],
)
def test_draws_follow_the_probabilities(change):
    """Pearson's chi-squared; its mean is the degrees of freedom, 6 standard deviations are never reached."""
    settings_ = {**PLAIN, **change}
    wanted, n = expected(LOGITS, **settings_), 20_000
    sampler = Sampler(**settings_, seed=7)
    counts = np.bincount([sampler(LOGITS) for _ in range(n)], minlength=len(LOGITS))
    possible = wanted > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - n * wanted)[possible] ** 2 / (n * wanted[possible])).sum()
    freedom = possible.sum() - 1
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)


@given(
    values=st.lists(st.integers(-6, 6), min_size=1, max_size=20),
    top_k=st.integers(0, 8),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
)
@settings(deadline=None, max_examples=200)
def test_only_candidates_are_drawn(values, top_k, top_p, min_p):
    logits = np.array(values, np.float32)
    # A hair's breadth more and less, so that rounding at a threshold decides nothing.
    loose = expected(logits, 1.0, top_k, min(1.0, top_p + 1e-9), max(0.0, min_p - 1e-9)) > 0
    sampler = Sampler(1.0, top_k, top_p, min_p, seed=1)
    assert all(loose[sampler(logits)] for _ in range(20))


def test_greedy():
    sampler = Sampler(temperature=0)
    assert sampler(LOGITS) == 1
    assert sampler(np.array([-np.inf, 2, 5, 5, 5], np.float32)) == 2  # the lowest id of equals
    assert Sampler(top_k=1, seed=0)(np.array([4, 5, 5], np.float32)) == 1


def test_a_seed_gives_the_same_tokens_whatever_else_runs():
    alone = Sampler(**PLAIN, seed=3)
    want = {seq: [alone(LOGITS, seq=seq) for _ in range(50)] for seq in (0, 1, 7)}
    mixed = Sampler(**PLAIN, seed=3)
    got: dict[int, list[int]] = {7: [], 0: [], 1: []}
    for step in range(50):
        for seq in sorted(got, reverse=bool(step % 2)):
            got[seq].append(mixed(LOGITS, seq))
    assert got == want
    assert want[0] != want[1]
    with ThreadPoolExecutor(3) as pool:
        threaded = Sampler(**PLAIN, seed=3)
        draws = pool.map(lambda seq: [threaded(LOGITS, seq) for _ in range(50)], (0, 1, 7))
        assert dict(zip((0, 1, 7), draws, strict=True)) == want


def test_reset_starts_again():
    sampler = Sampler(**PLAIN, seed=5)
    first = [[sampler(LOGITS, seq) for _ in range(20)] for seq in (0, 1)]
    sampler.reset(1)
    assert [sampler(LOGITS, 1) for _ in range(20)] == first[1]
    assert [sampler(LOGITS, 0) for _ in range(20)] != first[0]
    sampler.reset()
    assert [[sampler(LOGITS, seq) for _ in range(20)] for seq in (0, 1)] == first


def test_a_seed_of_its_own():
    one, other = Sampler(**PLAIN), Sampler(**PLAIN)
    assert one.seed != other.seed
    again = Sampler(**PLAIN, seed=one.seed)
    assert [one(LOGITS) for _ in range(30)] == [again(LOGITS) for _ in range(30)]


def test_logits_are_left_alone():
    logits = LOGITS.copy()
    logits.flags.writeable = False
    Sampler(seed=0)(logits)
    np.testing.assert_array_equal(logits, LOGITS)


def test_extreme_logits():
    sampler = Sampler(**PLAIN, seed=0)
    far = np.array([-1e38, 3e38, -3e38], np.float32)
    assert {sampler(far) for _ in range(50)} == {1}
    assert Sampler(**{**PLAIN, "temperature": 1e-300}, seed=0)(LOGITS) == 1
    only = np.full(5, -np.inf, np.float32)
    only[3] = -7
    assert {sampler(only) for _ in range(20)} == {3}


@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        (np.array([0, np.nan], np.float32), ValueError, "NaN"),
        (np.array([0, np.inf], np.float32), ValueError, r"\+inf"),
        (np.array([np.nan, np.inf], np.float32), ValueError, "NaN"),
        (np.full(3, -np.inf, np.float32), ValueError, "nothing but -inf"),
        (np.zeros((2, 2), np.float32), ValueError, r"\(2, 2\)"),
        (np.zeros(0, np.float32), ValueError, r"\(0,\)"),
        (np.zeros(3, np.float64), TypeError, "float64"),
        (np.zeros(3, np.int32), TypeError, "int32"),
        ([0.0, 1.0], TypeError, "float32"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_refused(logits, error, message, temperature):
    with pytest.raises(error, match=message):
        Sampler(temperature=temperature)(logits)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"temperature": -0.1}, ValueError),
        ({"temperature": math.nan}, ValueError),
        ({"temperature": math.inf}, ValueError),
        ({"top_k": -1}, ValueError),
        ({"top_k": 1.5}, TypeError),
        ({"top_p": 0.0}, ValueError),
        ({"top_p": 1.1}, ValueError),
        ({"min_p": -0.1}, ValueError),
        ({"min_p": 1.1}, ValueError),
        ({"seed": -1}, ValueError),
        ({"seed": "a"}, TypeError),
    ],
)
def test_parameters_that_are_refused(change, error):
    with pytest.raises(error, match=next(iter(change)) if error is ValueError else None):
        Sampler(**change)


def test_sequences_that_are_refused():
    with pytest.raises(ValueError, match="seq"):
        Sampler(seed=0)(LOGITS, seq=-1)


def test_repr_shows_the_seed():
    assert "seed=9" in repr(Sampler(seed=9))


def test_log_softmax():
    rows = np.stack([LOGITS, LOGITS[::-1] * 100])
    result = log_softmax(rows)
    assert result.dtype == np.float64
    assert result.shape == rows.shape
    total = math.log(sum(math.exp(x) for x in LOGITS.astype(float)))
    np.testing.assert_allclose(result[0], LOGITS.astype(float) - total, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(np.exp(result).sum(axis=-1), 1, rtol=1e-12)
    assert result[0, 7] == -np.inf


@pytest.mark.parametrize(
    "logits", [[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf], [], np.float32(1), np.zeros((2, 0))]
)
def test_log_softmax_refuses(logits):
    with pytest.raises(ValueError, match="log_softmax"):
        log_softmax(logits)
