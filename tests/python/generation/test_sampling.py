"""The sampler, compared with plain probabilities, and its guarantees about seeds and sequences."""

import contextlib
import copy
import inspect
import itertools
import math
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import plait
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait import Sampler
from plait.numerics import log_softmax
from python.generation import reference_sampling as twin

PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LOGITS = np.array([1.0, 3.0, 0.5, 2.5, -1.0, 2.0, 0.0, -np.inf, 1.5, -3.0], np.float32)


Twin = Callable[[np.ndarray], np.ndarray]
SEEN = [1, 3, 5, 1, 3, 8, 1, 3]

# Settings, and the definitions that they stand for, in order.
METHODS: dict[str, tuple[dict[str, Any], list[Twin]]] = {
    "plain": ({}, []),
    "cool": ({"temperature": 0.5}, [lambda x: twin.temperature(x, 0.5)]),
    "hot": ({"temperature": 2.0}, [lambda x: twin.temperature(x, 2.0)]),
    "dynamic": (
        {"temperature": 1.0, "dynamic_range": 0.8, "dynamic_exponent": 2.0},
        [lambda x: twin.temperature(x, 1.0, 0.8, 2.0)],
    ),
    "top_k": ({"top_k": 3}, [lambda x: twin.top_k(x, 3)]),
    "top_k of all": ({"top_k": 100}, []),
    "top_p": ({"top_p": 0.7}, [lambda x: twin.top_p(x, 0.7)]),
    "min_p": ({"min_p": 0.2}, [lambda x: twin.min_p(x, 0.2)]),
    "typical": ({"typical_p": 0.6}, [lambda x: twin.typical(x, 0.6)]),
    "top_n_sigma": ({"top_n_sigma": 0.8}, [lambda x: twin.top_n_sigma(x, 0.8)]),
    "bias": (
        {"logit_bias": {0: 2.0, 1: -1.0, 3: -math.inf}, "banned": [5]},
        [lambda x: twin.bias(x, {0: 2.0, 1: -1.0}, [3, 5])],
    ),
    "allowed": ({"allowed": [0, 2, 4, 7]}, [lambda x: twin.bias(x, allowed=[0, 2, 4, 7])]),
    "repetition": (
        {"repetition_penalty": 1.5},
        [lambda x: twin.penalties(x, SEEN, repetition=1.5)],
    ),
    "presence and frequency": (
        {"presence_penalty": 0.5, "frequency_penalty": 0.25, "penalty_last_n": 4},
        [lambda x: twin.penalties(x, SEEN[-4:], presence=0.5, frequency=0.25)],
    ),
    "dry": (
        {"dry_multiplier": 0.8, "dry_base": 1.5, "dry_breakers": ()},
        [lambda x: twin.dry(x, SEEN, 0.8, 1.5)],
    ),
    "dry with a breaker": (
        {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_breakers": [1]},
        [lambda x: twin.dry(x, SEEN, 2.0, allowed_length=1, breakers=[1])],
    ),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.1},
        [lambda x: twin.xtc(x, 0.1)],
    ),
    "mirostat": ({"mirostat_tau": 1.2}, [lambda x: twin.mirostat(x, 2.4)]),
    "usual": (
        {"temperature": 0.8, "top_k": 6, "top_p": 0.95, "min_p": 0.05},
        [
            lambda x: twin.top_k(x, 6),
            lambda x: twin.top_p(x, 0.95),
            lambda x: twin.min_p(x, 0.05),
            lambda x: twin.temperature(x, 0.8),
        ],
    ),
    "another order": (
        {"temperature": 2.0, "top_p": 0.7, "order": ["temperature", "top_p"]},
        [lambda x: twin.temperature(x, 2.0), lambda x: twin.top_p(x, 0.7)],
    ),
    "a function in between": (
        {"top_k": 6, "top_p": 0.8, "order": ["top_k", None, "top_p"]},
        [
            lambda x: twin.top_k(x, 6),
            lambda x: np.where(x > -math.inf, -x, -math.inf),
            lambda x: twin.top_p(x, 0.8),
        ],
    ),
}


def expected(name: str) -> np.ndarray:
    x = LOGITS.astype(np.float64)
    for method in METHODS[name][1]:
        x = method(x)
    return twin.softmax(x)


def negated(row, tokens):
    """A user's function that negates the row; removed tokens stay removed."""
    row[np.isfinite(row)] *= -1


METHODS["a function in between"][0]["order"][1] = negated


def chi_squared(counts: np.ndarray, wanted: np.ndarray) -> None:
    """Pearson's statistic, at most 6 standard deviations above its mean, the degrees of freedom."""
    n, possible = counts.sum(), wanted > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - n * wanted)[possible] ** 2 / (n * wanted[possible])).sum()
    freedom = possible.sum() - 1
    assert statistic < freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("name", METHODS)
def test_draws_follow_the_definitions(name):
    """Draws of 20,000 equal sequences, compared with the NumPy definitions."""
    wanted, n = expected(name), 20_000
    sampler = Sampler(**{**PLAIN, **METHODS[name][0]}, seed=7)
    np.testing.assert_allclose(
        start(sampler, 0).probabilities(LOGITS), wanted, rtol=1e-6, atol=1e-12
    )
    for seq in range(n):
        sampler.start(seq, SEEN)
    rows = np.repeat(LOGITS[np.newaxis], n, axis=0)
    chi_squared(np.bincount(sampler.sample(rows, range(n)), minlength=len(LOGITS)), wanted)


def start(sampler: Sampler, seq: int) -> Sampler:
    sampler.start(seq, SEEN)
    return sampler


def test_draws_of_one_sequence_follow_the_definitions_too():
    sampler = Sampler(**PLAIN, seed=7)
    counts = np.bincount([sampler(LOGITS) for _ in range(20_000)], minlength=len(LOGITS))
    chi_squared(counts, expected("plain"))


def test_xtc_removes_tokens_with_its_probability():
    wanted = 0.7 * expected("plain") + 0.3 * expected("xtc")
    sampler = Sampler(**PLAIN, xtc_probability=0.3, seed=3)
    rows = np.repeat(LOGITS[np.newaxis], 20_000, axis=0)
    chi_squared(np.bincount(sampler.sample(rows, range(20_000)), minlength=len(LOGITS)), wanted)


@given(
    values=st.lists(st.integers(-6, 6), min_size=2, max_size=20),
    tokens=st.lists(st.integers(0, 3), max_size=30),
    allowed=st.integers(1, 3),
    breaker=st.integers(0, 3),
)
@settings(deadline=None, max_examples=200)
def test_dry_finds_every_repetition(values, tokens, allowed, breaker):
    x = np.array(values, np.float64)
    tokens = [token % len(values) for token in tokens]
    sampler = Sampler(
        **PLAIN, dry_multiplier=1, dry_base=2, dry_allowed_length=allowed, dry_breakers=[breaker]
    )
    sampler.start(0, tokens)
    wanted = twin.softmax(twin.dry(x, tokens, 1, 2, allowed, [breaker]))
    got = sampler.probabilities(x.astype(np.float32))
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    allowed=st.integers(1, 3),
    breakers=st.sets(st.integers(0, 3), max_size=2),
)
@settings(deadline=None, max_examples=200)
def test_dry_follows_the_implementation_of_its_author(tokens, allowed, breakers):
    """As modules/sampler_hijack.py of text-generation-webui: backwards from each earlier place of the last token."""
    wanted = np.zeros(4)
    lengths: dict[int, int] = {}
    for i, token in enumerate(tokens[:-1]):
        if token != tokens[-1] or token in breakers or tokens[i + 1] in breakers:
            continue
        length = 1
        while length <= i and tokens[i - length] == tokens[-1 - length] not in breakers:
            length += 1
        lengths[tokens[i + 1]] = max(lengths.get(tokens[i + 1], 0), length)
    for token, length in lengths.items():
        wanted[token] -= 2.0 ** (length - allowed) if length >= allowed else 0
    sampler = Sampler(
        **PLAIN, dry_multiplier=1, dry_base=2, dry_allowed_length=allowed, dry_breakers=breakers
    )
    sampler.start(0, tokens)
    got = sampler.probabilities(np.zeros(4, np.float32))
    np.testing.assert_allclose(got, twin.softmax(wanted), rtol=1e-9, atol=1e-12)


@given(
    values=st.lists(st.integers(-6, 6), min_size=1, max_size=20),
    top_k=st.integers(0, 8),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
)
@settings(deadline=None, max_examples=200)
def test_only_candidates_are_drawn(values, top_k, top_p, min_p):
    logits = np.array(values, np.float32)
    # Slightly more and less, so that rounding at a threshold does not matter.
    loose = logits.astype(np.float64)
    loose = twin.top_k(loose, top_k) if top_k else loose
    loose = twin.top_p(loose, min(1.0, top_p + 1e-9))
    loose = twin.min_p(loose, max(0.0, min_p - 1e-9)) > -np.inf
    sampler = Sampler(1.0, top_k, top_p, min_p, seed=1)
    assert all(loose[sampler(logits)] for _ in range(20))


def test_greedy():
    sampler = Sampler(temperature=0)
    assert sampler(LOGITS) == 1
    assert sampler(np.array([-np.inf, 2, 5, 5, 5], np.float32)) == 2  # of equal ones, the lowest id
    assert Sampler(top_k=1, seed=0)(np.array([4, 5, 5], np.float32)) == 1


def test_greedy_takes_the_best_token_of_the_whole_chain():
    """Methods before one that changes logits restrict the choice, in every order."""

    def raised(row, tokens):
        row[np.isfinite(row)] *= -1

    x = LOGITS.astype(np.float64)
    x[7] = -8
    methods = {
        "top_k": lambda x: twin.top_k(x, 3),
        "top_p": lambda x: twin.top_p(x, 0.7),
        "min_p": lambda x: twin.min_p(x, 0.5),
        "top_n_sigma": lambda x: twin.top_n_sigma(x, 0.5),
        "bias": lambda x: twin.bias(x, {1: -9.0, 3: -2.0}),
        "penalties": lambda x: twin.penalties(x, SEEN, presence=2.5),
        raised: lambda x: np.where(x > -math.inf, -x, -math.inf),
        "temperature": lambda x: twin.temperature(x, 0),
    }
    options: dict[str, Any] = {
        "top_k": 3,
        "top_p": 0.7,
        "min_p": 0.5,
        "top_n_sigma": 0.5,
        "presence_penalty": 2.5,
    }
    for order in itertools.permutations(methods, 4):
        if "temperature" not in order:
            continue
        sampler = Sampler(0, **options, logit_bias={1: -9.0, 3: -2.0}, order=order)
        want = x
        for name in order:
            want = methods[name](want)
        got = start(sampler, 0).probabilities(x.astype(np.float32))
        np.testing.assert_allclose(got, twin.softmax(want), err_msg=str(order))


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


def test_threads_may_do_anything_at_once():
    rows = np.random.default_rng(1).normal(size=(4, 2000)).astype(np.float32)
    sampler = Sampler(repetition_penalty=1.1, seed=1)

    def busy(worker):
        for i in range(150):
            assert len(sampler.sample(rows, range(4))) == 4
            sampler.accept(worker, [i])
            if i % 10 == worker:
                sampler.reset()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(busy, range(4)))


def test_engines_that_share_a_sampler_get_sequences_of_their_own():
    class Slow(set):
        def __contains__(self, key):
            found = super().__contains__(key)
            time.sleep(0.02)
            return found

    sampler = Sampler(seed=1)
    sampler._in_use = Slow()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: sampler.acquire([1, 2, 3]), range(4)))
    assert len({id(one) for one, _ in found}) == 4
    assert len({key for _, key in found}) == 1
    for one, key in found:
        one.release(key)


def test_reset_starts_again():
    sampler = Sampler(**PLAIN, seed=5)
    first = [[sampler(LOGITS, seq) for _ in range(20)] for seq in (0, 1)]
    sampler.reset(1)
    assert [sampler(LOGITS, 1) for _ in range(20)] == first[1]
    assert [sampler(LOGITS, 0) for _ in range(20)] != first[0]
    sampler.reset()
    assert [[sampler(LOGITS, seq) for _ in range(20)] for seq in (0, 1)] == first


def test_a_random_seed_is_drawn():
    one, other = Sampler(**PLAIN), Sampler(**PLAIN)
    assert one.seed != other.seed
    again = Sampler(**PLAIN, seed=one.seed)
    assert [one(LOGITS) for _ in range(30)] == [again(LOGITS) for _ in range(30)]


def test_rows_at_once_are_rows_one_by_one():
    rows = np.random.default_rng(1).normal(size=(5, 300)).astype(np.float32) * 3
    seqs = [3, 0, 9, 1, 1 << 40]
    settings_ = {"repetition_penalty": 1.2, "xtc_probability": 0.5, "seed": 2}
    together, single = Sampler(**settings_), Sampler(**settings_)
    for _ in range(20):
        got = together.sample(rows, seqs)
        assert got.dtype == np.int32
        assert got.tolist() == [single(row, seq) for row, seq in zip(rows, seqs, strict=True)]
    assert together.tokens(9).tolist() == single.tokens(9).tolist()


def test_a_wrong_row_changes_no_sequence():
    sampler, untouched = Sampler(seed=1), Sampler(seed=1)
    rows = np.stack([LOGITS, np.full_like(LOGITS, np.nan)])
    with pytest.raises(ValueError, match="NaN"):
        sampler.sample(rows, [0, 1])
    assert len(sampler.tokens(0)) == 0
    assert sampler(LOGITS) == untouched(LOGITS)
    with pytest.raises(ValueError, match="sequence 4 has more than one row"):
        sampler.sample(np.stack([LOGITS, LOGITS]), [4, 4])


def test_mirostat_moves_with_every_draw():
    sampler = Sampler(**PLAIN, mirostat_tau=1.2, mirostat_eta=0.3, seed=1)
    mu = 2.4
    for _ in range(50):
        left = twin.softmax(twin.mirostat(LOGITS.astype(np.float64), mu))
        np.testing.assert_allclose(sampler.probabilities(LOGITS), left, rtol=1e-9, atol=1e-15)
        mu -= 0.3 * (-math.log2(left[sampler(LOGITS)]) - 1.2)


def test_penalties_consider_prompts_draws_and_accepted_tokens():
    sampler = Sampler(temperature=0, presence_penalty=10, penalty_last_n=None)
    sampler.start(0, [1])
    assert sampler(LOGITS) == 3
    sampler.accept(0, [5])
    assert sampler(LOGITS) == 8
    assert sampler.tokens(0).tolist() == [1, 3, 5, 8]
    assert sampler(LOGITS, seq=1) == 1
    sampler.start(0)
    assert sampler(LOGITS) == 1


def test_forced_tokens_begin_every_sequence():
    sampler = Sampler(temperature=0, forced=[4, 0])
    assert [sampler(LOGITS) for _ in range(3)] == [4, 0, 1]
    assert sampler(LOGITS, seq=2) == 4
    with pytest.raises(ValueError, match="token 7 is forced"):
        Sampler(forced=[7])(LOGITS)


def test_functions_get_a_row_of_their_own_and_the_tokens():
    seen = []

    def only_four(row, tokens):
        seen.append((row.copy(), tokens.tolist()))
        return np.where(np.arange(len(row)) == 4, row, -np.inf).astype(np.float32)

    logits = LOGITS.copy()
    sampler = Sampler(top_k=0, order=["bias", only_four, "temperature"], banned=[1])
    assert [sampler(logits), sampler(logits)] == [4, 4]
    np.testing.assert_array_equal(logits, LOGITS)
    assert seen[0][0][1] == -np.inf
    assert [tokens for _, tokens in seen] == [[], [4]]

    def broken(row, tokens):
        row[:] = np.nan

    with pytest.raises(ValueError, match="NaN"):
        Sampler(order=[broken])(LOGITS)


def test_where_no_token_is_left():
    with pytest.raises(ValueError, match="no token is left"):
        Sampler(banned=[1])(np.array([-np.inf, 1], np.float32))
    with pytest.raises(ValueError, match="every allowed token is banned"):
        Sampler(banned=[1], allowed=[1])


def test_texts_in_dry_breakers_need_a_tokenizer(tiny):
    with pytest.raises(ValueError, match="dry_breakers need a tokenizer"):
        Sampler(dry_multiplier=1)(LOGITS)
    sampler = Sampler(dry_multiplier=1, tokenizer=tiny.tokenizer)
    sampler(np.zeros(tiny.n_vocab, np.float32))
    with pytest.raises(ValueError, match="another model"):
        sampler.bind(plait.Tokenizer(tiny.metadata, tiny.n_vocab))


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
        (np.full(3, -np.inf, np.float32), ValueError, "every logit is -inf"),
        (np.zeros((2, 2), np.float32), ValueError, r"\(2, 2\)"),
        (np.zeros(0, np.float32), ValueError, r"\(0,\)"),
        (np.zeros(3, np.float64), TypeError, "float64"),
        (np.zeros(3, np.int32), TypeError, "int32"),
        ([0.0, 1.0], TypeError, "float32"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_invalid_rows_are_refused(logits, error, message, temperature):
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
        ({"seed": 1 << 64}, ValueError),
        ({"typical_p": 0}, ValueError),
        ({"top_n_sigma": -1}, ValueError),
        ({"dynamic_range": -1}, ValueError),
        ({"xtc_probability": 2}, ValueError),
        ({"xtc_threshold": 0}, ValueError),
        ({"mirostat_tau": -1}, ValueError),
        ({"repetition_penalty": 0}, ValueError),
        ({"presence_penalty": math.inf}, ValueError),
        ({"penalty_last_n": -1}, ValueError),
        ({"dry_base": 0.5}, ValueError),
        ({"dry_allowed_length": 0}, ValueError),
        ({"logit_bias": {0: math.inf}}, ValueError),
        ({"banned": [-1]}, ValueError),
        ({"order": ["top_q"]}, ValueError),
        ({"order": ["top_k", "top_k"]}, ValueError),
    ],
)
def test_invalid_parameters_are_refused(change, error):
    with pytest.raises(error, match=next(iter(change)) if error is ValueError else None):
        Sampler(**change)


ODD = [
    None, True, 0, 1, -1, 1.5, 1e308, -1e308, 1e-308, math.nan, math.inf, 10**30, -(2**63), 2**31, "", "x", b"x", [],
    [0], [-1], [2**40], [None], ["top_k"], {}, {0: 1e308}, {0: "a"}, {"a": 1}, object(), int, np.zeros(3), np.int32(3),
]  # fmt: skip


@pytest.mark.parametrize("name", set(inspect.signature(Sampler).parameters) - {"grammar"})
def test_odd_parameters_are_refused_or_work(name):
    """Any arguments give a Python exception or a token of the row."""
    strong = {"presence_penalty": -1e308, "dry_multiplier": 1e308, "dry_breakers": ()}
    for value in ODD:
        for others in ({}, {"repetition_penalty": 1e-300, "frequency_penalty": 1e308}, strong):
            with contextlib.suppress(TypeError, ValueError, OverflowError, IndexError):
                sampler = Sampler(**{**others, name: value})
                for _ in range(4):
                    assert 0 <= sampler(LOGITS) < len(LOGITS)
                    assert sampler.probabilities(LOGITS).sum() == pytest.approx(1)
                repr(sampler)


def test_invalid_sequences_are_refused():
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


def test_replacing_another_parameter_keeps_a_given_order():
    for options in (
        {"order": Sampler.ORDER_OF_MIROSTAT},
        {"order": Sampler.ORDER, "mirostat_tau": 5},
    ):
        sampler = Sampler(1.5, top_k=1, seed=1, **options)
        for same in (sampler, copy.copy(sampler), pickle.loads(pickle.dumps(sampler))):
            assert same.replace(seed=2).order == options["order"]
    assert Sampler(order=Sampler.ORDER).replace(mirostat_tau=5).order == Sampler.ORDER


def test_without_a_given_order_mirostat_decides():
    sampler = Sampler()
    for same in (sampler, copy.copy(sampler), pickle.loads(pickle.dumps(sampler))):
        changed = same.replace(mirostat_tau=5)
        assert changed.order == Sampler.ORDER_OF_MIROSTAT
        assert changed.replace(mirostat_tau=0).order == Sampler.ORDER
    assert sampler.replace(order=["top_k"]).replace(seed=1).order == ("top_k",)


def test_a_sampler_can_be_pickled():
    sampler = Sampler(
        1.3, 0, 1.0, 0.0, logit_bias={3: -math.inf}, banned=[5], dry_multiplier=0.5, dry_breakers=[2],
        mirostat_tau=3.0, forced=[1],
    )  # fmt: skip
    tokens = [sampler(LOGITS) for _ in range(20)]
    copied = pickle.loads(pickle.dumps(sampler))
    assert repr(copied) == repr(sampler)
    assert copied.order == sampler.order
    assert [copied(LOGITS) for _ in range(20)] == tokens
