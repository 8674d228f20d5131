"""Ops that read and write caches, against the formulas in tests/reference, on every device of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plait.quant
import pytest
from python.ops.single_op import DEVICES, INFINITE, ROPES, Case, check, device, native
from reference.attend import alibi, attend, bucket
from reference.copy_rows import copy_rows
from reference.delta_rule import delta_rule
from reference.hadamard import hadamard
from reference.rotate_rows import rotate_rows
from reference.select_rows import select_rows
from reference.selective_scan import selective_scan
from reference.short_conv import short_conv
from reference.ssd_scan import ssd_scan
from reference.store_rows import closest, store_rows
from reference.token_shift import token_shift
from reference.wkv6 import wkv6
from reference.wkv7 import wkv7

CACHE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")
every_device = pytest.mark.parametrize("on", DEVICES)


@every_device
def test_rows_are_selected(on):
    device(on)
    for seed in range(8):
        random = np.random.default_rng(seed)
        case = Case(
            random, (np.nan, *INFINITE), lengths=[n := int(random.integers(1, 12))], outputs=2 * n
        )
        x = case.rows(case.size())
        rows = case.ints(random.integers(0, n, 2 * n), "outputs")
        got = case.run(on, case.ops.select_rows(x.value, rows.value))
        check(got, select_rows(x.array, rows.array), 0, f"seed {seed}")


@every_device
@pytest.mark.parametrize("dtype", CACHE_TYPES)
def test_rows_are_stored_as_the_type_rounds_them(on, dtype):
    device(on)
    block = 1 if dtype in ("F32", "F16", "BF16") else 32

    def rounded(x):
        if block > 1 and dtype != "Q8_0":
            return closest(x, dtype)
        return plait.quant.dequantize(plait.quant.quantize(x, dtype), dtype).reshape(x.shape)

    for seed in range(6):
        case = Case(np.random.default_rng(seed))
        heads, d = case.size(of=(1, 3)), case.size(of=(5, 20, 32, 48))
        padded = -(-d // block) * block
        cache = case.cache(case.normal(31, heads * padded), dtype)
        x = case.rows(heads, d)
        rows = case.ints(case.random.permutation(31)[: case.n])
        case.ops.store_rows(cache.value, x.value, rows.value)
        case.run(on, None)
        before = cache.array.reshape(31, heads, padded)
        want = store_rows(before, x.array, rows.array, rounded).reshape(31, heads * padded)
        off = np.abs(case.cached() - want)
        if (
            on == "vulkan" and block > 1
        ):  # the device divides less exactly: some codes are neighbours
            assert (off > 0).mean() <= 0.02
            assert off.max() <= 0.2 * np.abs(want).max()
        else:
            assert off.max() == 0, f"seed {seed}"


@every_device
@pytest.mark.parametrize("dtype", ["F16", "Q4_0", "Q5_1"])
def test_rows_are_copied_in_order(on, dtype):
    device(on)
    for seed in range(6):
        random = np.random.default_rng(seed)
        case = Case(random, moves=9)
        cache = case.cache(case.normal(12, 32 * case.size(of=(1, 5))), dtype)
        # A row is the source of a later copy after it was the target of an earlier one.
        source, target = (case.ints(random.integers(0, 12, 9), "moves") for _ in range(2))
        case.ops.copy_rows(cache.value, source.value, target.value)
        case.run(on, None)
        want = copy_rows(cache.array, source.array, target.array)
        assert np.array_equal(case.cached(), want), f"seed {seed}"


@every_device
@pytest.mark.parametrize(("dtype", "tolerance"), [("F32", 1e-5), ("F16", 2e-3), ("Q8_0", 2e-2)])
def test_stored_keys_are_rotated(on, dtype, tolerance):
    device(on)
    for seed in range(8):
        random = np.random.default_rng(seed)
        case = Case(random, moves=4)
        how = ROPES[seed % 3]  # keys of several axes are not shifted
        heads, begin = case.size(of=(1, 3)), case.size(of=(0, 4))
        cache = case.cache(case.normal(9, heads * 32), dtype)
        rows = case.ints(random.permutation(9)[:4], "moves")
        deltas = case.ints(random.integers(-900, 900, 4), "moves")
        factors = case.weight(1 + random.random(how.n_rot // 2).astype(np.float32))
        block = case.size(of=(0, 16, 32))  # of the transform that the rows store; 0: none
        case.ops.rotate_rows(
            cache.value,
            rows.value,
            deltas.value,
            native(case, how),
            heads,
            32,
            begin,
            block,
            factors.value,
        )
        case.run(on, None)
        before = cache.array.reshape(9, heads, 32)
        plain = hadamard(before, block) if block else before
        want = rotate_rows(plain, rows.array, deltas.array, how, factors.array, begin)
        if block:
            want = hadamard(want, block)
        check(case.cached(), want.reshape(9, -1), tolerance, f"seed {seed}")


# -- attention --------------------------------------------------------------------------------


@dataclass
class Attention:
    """A variant of attention."""

    key_dim: int = 32
    value_dim: int = 32
    key_type: str = "F16"
    value_type: str = "F16"
    softcap: float = 0.0
    sinks: bool = False
    bias: str = "none"  # an enumerator of plait::PositionBias
    both_directions: bool = False
    values_in_keys: bool = False

    heads = 4
    kv_heads = 2
    buckets = 32
    max_distance = 128


VARIANTS = {
    "plain": Attention(),
    "float": Attention(key_type="F32", value_type="F32", key_dim=20, value_dim=12),
    "bf16": Attention(key_type="BF16", value_type="BF16", key_dim=64, value_dim=64),
    "q8_0": Attention(key_type="Q8_0", value_type="Q8_0", key_dim=64),
    "q4_0 and q5_1": Attention(key_type="Q4_0", value_type="Q5_1", value_dim=64),
    "softcap": Attention(softcap=2.0),
    "sinks": Attention(sinks=True),
    "alibi": Attention(bias="alibi"),
    "buckets": Attention(bias="buckets"),
    "buckets of both sides": Attention(bias="buckets", both_directions=True),
    "latent": Attention(key_dim=48, value_dim=40, key_type="F32", values_in_keys=True),
}
BIASES = ("none", "alibi", "buckets")
# Queries, and products with blocks, are rounded by some instruction sets.
ATTEND_TOLERANCE = {"F32": 1e-5, "F16": 2e-3, "BF16": 8e-3, "Q8_0": 1.5e-2, "Q4_0": 1.5e-2}


class Keys:
    """The keys and values of several sequences in rows of a cache, and who sees which of them."""

    def __init__(self, case: Case, how: Attention, counts: list[int]) -> None:
        random = case.random
        total = sum(counts)
        self.rows = random.permutation(total + 5)[:total].astype(np.int32)
        if random.random() < 0.5:  # neighbouring keys in neighbouring rows
            self.rows = np.arange(2, total + 2, dtype=np.int32)
        self.begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.positions = np.concatenate([np.arange(n) + random.integers(90) for n in counts])
        runs, self.run_begin = [], [0]
        for s, n in enumerate(counts):
            first_ordinal, key = int(random.integers(100)), 0
            while key < n:
                row, count = int(self.rows[self.begin[s] + key]), 1
                while key + count < n and self.rows[self.begin[s] + key + count] == row + count:
                    count += 1
                runs.append((row, count, key, first_ordinal + key))
                key += count
            self.run_begin.append(len(runs))
        self.runs = np.array(runs, np.int32)
        self.first, self.last, self.query_positions = [], [], []
        for s, n in enumerate(case.lengths):
            for t in range(n):
                last = max(0, counts[s] - n + t + 1)
                self.last.append(last)
                self.first.append(int(random.integers(0, last + 1)) if random.random() < 0.3 else 0)
                self.query_positions.append(int(self.positions[self.begin[s] + max(last, 1) - 1]))


def bias_of(how: Attention, relative: np.ndarray, table: np.ndarray | None) -> np.ndarray | None:
    """The bias of each query, head and key: [n, h, k]."""
    if how.bias == "none":
        return None
    if how.bias == "alibi":
        return np.stack([alibi(row, how.heads, 8.0) for row in relative])
    assert table is not None
    number = bucket(relative, how.buckets, how.max_distance, how.both_directions)
    return table[number].transpose(0, 2, 1)


def attended(case: Case, how: Attention, flash: bool):
    counts = [n + int(case.random.integers(0, 70)) for n in case.lengths]
    at = Keys(case, how, counts)
    n_rows = int(at.rows.max()) + 2
    q = case.rows(how.heads, how.key_dim)
    keys = case.cache(case.normal(n_rows, how.kv_heads * how.key_dim), how.key_type)
    values = None
    if not how.values_in_keys:
        values = case.cache(case.normal(n_rows, how.kv_heads * how.value_dim), how.value_type)
    token_begin = np.concatenate([[0], np.cumsum(case.lengths)])
    step = [
        case.ints(token_begin, "fixed"),
        case.ints(at.runs, "fixed"),
        case.ints(at.run_begin, "fixed"),
        case.ints(at.first),
        case.ints(at.last),
    ]
    sinks = case.vector(how.heads) if how.sinks else None
    table = case.vector(how.buckets, how.heads) if how.bias == "buckets" else None
    places = []
    if how.bias != "none":
        places = [
            case.ints(at.query_positions),
            case.ints(at.positions, "fixed"),
            case.ints(at.begin, "fixed"),
        ]
    made = case.ops.attend(
        q.value,
        keys.value,
        values and values.value,
        [each.value for each in step],
        sinks and sinks.value,
        [each.value for each in places],
        table and table.value,
        n_heads=how.heads,
        n_kv_heads=how.kv_heads,
        key_dim=how.key_dim,
        value_dim=how.value_dim,
        scale=how.key_dim**-0.5,
        softcap=how.softcap,
        flash=flash,
        position_bias=BIASES.index(how.bias),
        max_bias=8.0,
        max_distance=how.max_distance,
        both_directions=how.both_directions,
    )
    want = []
    for s, n in enumerate(case.lengths):
        tokens = slice(token_begin[s], token_begin[s] + n)
        rows = at.rows[at.begin[s] : at.begin[s + 1]]
        k = keys.array[rows].reshape(len(rows), how.kv_heads, -1)
        v = how.value_dim if values is None else values.array[rows].reshape(*k.shape[:2], -1)
        key_positions = at.positions[at.begin[s] : at.begin[s + 1]]
        relative = key_positions[None] - np.array(at.query_positions[tokens])[:, None]
        bias = bias_of(how, relative, table and table.array)
        want.append(
            attend(
                q.array[tokens],
                k,
                v,
                at.first[tokens],
                at.last[tokens],
                how.key_dim**-0.5,
                how.softcap,
                sinks and sinks.array,
                bias,
            )
        )
    return made, np.concatenate(want)


@every_device
@pytest.mark.parametrize("flash", [False, True], ids=["scores first", "flash"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_attention(on, variant, flash):
    device(on)
    how = VARIANTS[variant]
    tolerance = max(ATTEND_TOLERANCE[how.key_type], ATTEND_TOLERANCE.get(how.value_type, 0.0))
    for seed, lengths in enumerate([[1], [7], [1, 1, 1], [5, 1, 20], [70]]):
        case = Case(np.random.default_rng(seed), lengths=lengths)
        value, want = attended(case, how, flash)
        check(case.run(on, value), want, tolerance, f"sequences of {lengths}")


# -- recurrences ------------------------------------------------------------------------------


@dataclass
class Recurrence:
    """Inputs and weights of a recurrent op, by name; `apply(ops, inputs, weights, states)` appends it."""

    inputs: dict[str, np.ndarray]  # of all tokens
    weights: dict[str, np.ndarray | None]
    state: np.ndarray  # the formula's state before the first token, zeros
    formula: object


def recurrence(name: str, random: np.random.Generator, n: int) -> Recurrence:
    """Random operands of the named op for `n` tokens."""

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32)

    def between(*shape):
        return random.uniform(0.1, 0.99, size=shape).astype(np.float32)

    c, k = int(random.choice([3, 16, 33])), int(random.choice([2, 5, 16]))
    h, d = int(random.choice([2, 4])), int(random.choice([4, 16, 20]))
    heads = {name: normal(n, h, d) / np.float32(d**0.5) for name in "rkvab"}
    match name:
        case "short_conv":
            taps = int(random.choice([3, 4]))
            bias = normal(c) if random.random() < 0.5 else None
            weights = {"weight": normal(c, taps), "bias": bias}
            return Recurrence({"x": normal(n, c)}, weights, np.zeros((taps - 1, c)), short_conv)
        case "token_shift":
            return Recurrence({"x": normal(n, c)}, {}, np.zeros(c), token_shift)
        case "selective_scan":
            inputs = {"x": normal(n, c), "dt": between(n, c), "b": normal(n, k), "c": normal(n, k)}
            weights = {"a": -between(c, k), "d": normal(c)}
            return Recurrence(inputs, weights, np.zeros((c, k)), selective_scan)
        case "ssd_scan":
            inputs = {"x": normal(n, h, d), "dt": between(n, h)}
            inputs |= {"b": normal(n, h // 2, k), "c": normal(n, h // 2, k)}
            weights = {"a": -between(h), "d": normal(h)}
            return Recurrence(inputs, weights, np.zeros((h, d, k)), ssd_scan)
        case "wkv6":
            inputs = {i: heads[i] for i in "rkv"} | {"w": between(n, h, d)}
            return Recurrence(inputs, {"u": normal(h, d)}, np.zeros((h, d, d)), wkv6)
        case "wkv7":
            inputs = {i: heads[i] for i in "rkvab"} | {"w": between(n, h, d)}
            return Recurrence(inputs, {}, np.zeros((h, d, d)), wkv7)
    keys = normal(2, n, h // 2, d) / np.float32(d**0.5)
    inputs = {"q": keys[0], "k": keys[1], "v": normal(n, h, 2 * d)}
    inputs |= {"g": -between(n, h), "beta": between(n, h)}
    return Recurrence(inputs, {}, np.zeros((h, d, 2 * d)), delta_rule)


ORDER = {  # the operands of each op in the order of its function
    "short_conv": ("x", "weight", "bias"),
    "token_shift": ("x",),
    "selective_scan": ("x", "dt", "a", "b", "c", "d"),
    "ssd_scan": ("x", "dt", "a", "b", "c", "d"),
    "wkv6": ("r", "k", "v", "w", "u"),
    "wkv7": ("r", "w", "k", "v", "a", "b"),
    "delta_rule": ("q", "k", "v", "g", "beta"),
}


def run_tokens(on, name, sequences, spans, reads, writes, storage, seed):
    """Run tokens `spans[s]` of each sequence from state row `reads[s]`; return the results and the storage."""
    case = Case(np.random.default_rng(seed), lengths=[end - begin for begin, end in spans])
    states = case.ops.States(
        case.cache(storage).value,
        case.ints(reads, "fixed").value,
        case.ints(writes, "fixed").value,
        case.ints(np.concatenate([[0], np.cumsum(case.lengths)]), "fixed").value,
    )
    operands = {}
    for each in sequences[0].inputs:
        cut = [s.inputs[each][begin:end] for s, (begin, end) in zip(sequences, spans, strict=True)]
        operands[each] = case.given(np.concatenate(cut)).value
    for each, array in sequences[0].weights.items():
        operands[each] = None if array is None else case.weight(array).value
    last = (False,) if name == "delta_rule" else ()
    ordered = [operands[each] for each in ORDER[name]]
    got = case.run(on, getattr(case.ops, name)(*ordered, states, *last))
    return np.split(got, np.cumsum(case.lengths)[:-1]), case.cached()


@every_device
@pytest.mark.parametrize("special", [False, True], ids=["numbers", "with NaN"])
@pytest.mark.parametrize("name", ORDER)
def test_recurrences(on, name, special):
    """Two sequences in two steps; the second starts from what the first stored, in another row."""
    device(on)
    for seed in range(5):
        cuts = ((3, 8), (6, 7))  # tokens of the first step, and all
        one = recurrence(name, np.random.default_rng(seed), 8)
        two = recurrence(name, np.random.default_rng(seed), 8)
        random = np.random.default_rng(99 + seed)
        for each, array in two.inputs.items():  # other inputs, the same shapes and weights
            two.inputs[each] = random.permutation(array)
        if special:  # stays in its sequence
            one.inputs[ORDER[name][0]][1].flat[0] = np.nan
        storage = np.zeros((6, one.state.size), np.float32)
        storage[1:] = 7  # what other sequences left there
        spans = [(0, begin) for begin, _ in cuts]
        first, storage = run_tokens(on, name, [one, two], spans, [0, 0], [4, 2], storage, seed)
        second, after = run_tokens(on, name, [one, two], list(cuts), [4, 2], [4, 5], storage, seed)
        assert np.array_equal(after[2], storage[2])  # read, not written
        assert (after[[1, 3]] == 7).all()
        for s, (each, (_, end)) in enumerate(zip((one, two), cuts, strict=True)):
            cut = {key: array[:end] for key, array in each.inputs.items()}
            with np.errstate(all="ignore"):
                want, _ = each.formula(**cut, **each.weights, state=each.state)
            got = np.concatenate([first[s], second[s]])
            check(got, want, 3e-5, f"seed {seed}, sequence {s}")
