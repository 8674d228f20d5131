"""patch_sweep() has the bits of a loop of edits, for every architecture whose layers can run apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import same_bits

N = 9


def prompts(model: plait.Model, n_common: int = 0) -> tuple[list[int], list[int]]:
    """Two prompts that have their first tokens in common."""
    rng = np.random.default_rng(model.n_vocab + n_common)
    clean, corrupted = rng.integers(3, min(model.n_vocab, 200), (2, N)).tolist()
    return clean, clean[:n_common] + corrupted[n_common:]


def loop(
    model: plait.Model, clean: list[int], corrupted: list[int], values: str, **options: Any
) -> np.ndarray:
    """The definition: each run alone, with an edit."""
    found = []
    with plait.Context(model, n_ctx=N, **options) as ctx:

        def logits(ids: list[int]) -> np.ndarray:
            ctx.kv.clear()
            batch = plait.Batch()
            batch.add_sequence(ids, logits="all")
            return ctx.decode(batch).logits[-1].copy()

        with ctx.capture(f"{values}.*") as seen:
            logits(clean)
        for layer in range(model.n_layer):
            name = f"{values}.{layer}"
            for position in range(N):
                with ctx.edit(name, seen[name][position], "replace", positions=position):
                    found.append(logits(corrupted))
    return np.array(found).reshape(model.n_layer, N, -1)


def test_every_architecture_equals_the_loop(any_model: plait.Model) -> None:
    clean, corrupted = prompts(any_model)
    with plait.Context(any_model, n_ctx=N) as ctx:
        is_refused = ctx.kv.kind in ("none", "cross") or not ctx.causal
    if is_refused or any_model.arch in ("gemma3n", "gemma4"):
        with pytest.raises(plait.UnsupportedError, match=any_model.arch):
            plait.patch_sweep(any_model, clean, corrupted)
        return
    sweep = plait.patch_sweep(any_model, clean, corrupted)
    assert same_bits(sweep.values, loop(any_model, clean, corrupted, "l_out"))
    assert sweep.layers == tuple(range(any_model.n_layer))
    assert sweep.positions == tuple(range(N))


@pytest.mark.parametrize(
    "options",
    [{"n_ubatch": 4, "type_k": "q8_0", "type_v": "q4_0"}, {"isa": "scalar"}, {"threads": 2}],
    ids=["quantised", "scalar", "threads"],
)
@pytest.mark.parametrize("values", ["l_out", "attn_out", "ffn_out", "attn_heads", "k", "ffn_act"])
def test_every_value_equals_the_loop(
    tiny: plait.Model, values: str, options: dict[str, Any]
) -> None:
    clean, corrupted = prompts(tiny)
    sweep = plait.patch_sweep(tiny, clean, corrupted, values=values, **options)
    assert same_bits(sweep.values, loop(tiny, clean, corrupted, values, **options))


def test_calls_are_limited(tiny: plait.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.evaluation import patching

    clean, corrupted = prompts(tiny)
    expected = plait.patch_sweep(tiny, clean, corrupted)
    monkeypatch.setattr(patching, "_MAX_ROWS", 7)
    for values in ("l_out", "ffn_out"):
        sweep = plait.patch_sweep(tiny, clean, corrupted, values=values)
        assert same_bits(sweep.values, loop(tiny, clean, corrupted, values))
    assert sweep.computed > expected.computed  # the patched layer itself runs as well


def test_common_values_are_not_computed(tiny: plait.Model) -> None:
    clean, corrupted = prompts(tiny, n_common=6)
    sweep = plait.patch_sweep(tiny, clean, corrupted)
    assert same_bits(sweep.values, loop(tiny, clean, corrupted, "l_out"))
    assert same_bits(sweep.values[:, :6], np.stack([[sweep.corrupted] * 6] * tiny.n_layer))
    late = plait.patch_sweep(tiny, clean, corrupted, positions=range(6, N))
    assert same_bits(late.values, sweep.values[:, 6:].copy())
    same = plait.patch_sweep(tiny, clean, clean)
    assert same_bits(same.values[0, 0], same.clean)


def test_metrics_and_selections(tiny: plait.Model) -> None:
    clean, corrupted = prompts(tiny)
    whole = plait.patch_sweep(tiny, clean, corrupted)
    calls: list[tuple[int, int]] = []
    sweep = plait.patch_sweep(
        tiny,
        clean,
        corrupted,
        layers=[1, 0],
        positions=[7, 2, 3],
        metric=lambda rows: rows[:, 5] - rows[:, 6],
        progress=lambda done, total: calls.append((done, total)),
    )
    wanted = whole.values[[1, 0]][:, [7, 2, 3]]
    assert np.array_equal(sweep.values, wanted[..., 5] - wanted[..., 6])
    assert (sweep.layers, sweep.positions) == ((1, 0), (7, 2, 3))
    assert calls == [(3, 6), (6, 6)]
    assert sweep.clean == whole.clean[5] - whole.clean[6]
    assert np.allclose(
        sweep.restored, (sweep.values - sweep.corrupted) / (sweep.clean - sweep.corrupted)
    )
    assert "2 layers and 3 positions" in repr(sweep)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_metrics_of_other_types_have_shares(tiny: plait.Model, dtype: type) -> None:
    clean, corrupted = prompts(tiny)
    flags = iter([[1], [0], [0, 1, 0]])  # of the two runs without a patch, and of the patched ones
    sweep = plait.patch_sweep(
        tiny, clean, corrupted, layers=[0], positions=[2, 3, 4],
        metric=lambda rows: np.array(next(flags), dtype),
    )  # fmt: skip
    assert sweep.restored.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("values", ["l_out", "attn_out"])
def test_positions_in_any_order_need_no_more_cells(
    tiny: plait.Model, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of few sequences does not keep the cells of a larger one before it."""
    from plait.evaluation import patching

    monkeypatch.setattr(patching, "_MAX_ROWS", 40)
    clean, corrupted = [([5 + (i * k) % 90 for i in range(30)]) for k in (3, 7)]
    ascending = plait.patch_sweep(tiny, clean, corrupted, values=values)
    descending = plait.patch_sweep(
        tiny, clean, corrupted, values=values, positions=range(29, -1, -1)
    )
    assert same_bits(descending.values, ascending.values[:, ::-1].copy())


def test_texts_may_be_longer_than_the_usual_batch(tiny: plait.Model) -> None:
    ids = [5 + i % 90 for i in range(2049)]
    sweep = plait.patch_sweep(tiny, ids, [*ids[:-1], 7], layers=[0], positions=[len(ids) - 1])
    assert sweep.values.shape == (1, 1, tiny.n_vocab)


def test_metrics_may_return_another_type_for_patched_runs(tiny: plait.Model) -> None:
    clean, corrupted = prompts(tiny)
    unpatched = plait.patch_sweep(tiny, clean, corrupted).corrupted

    def metric(rows: np.ndarray, before: Any, after: Any) -> list[Any]:
        return [before if np.array_equal(row, unpatched) else after for row in rows]

    for before, after in ((1, 0.5), ("same", "different")):
        sweep = plait.patch_sweep(
            tiny, clean, corrupted, layers=[0], metric=partial(metric, before=before, after=after)
        )
        assert (sweep.values == after).all()


def test_restoring_the_last_row_restores_the_run(tiny: plait.Model) -> None:
    clean, corrupted = prompts(tiny)
    sweep = plait.patch_sweep(tiny, clean, corrupted)
    assert same_bits(sweep.values[-1, -1], sweep.clean)


def test_misuse(tiny: plait.Model) -> None:
    clean, corrupted = prompts(tiny)
    for arguments, message in (
        ({"corrupted": corrupted[:-1]}, "clean has 9 tokens and corrupted 8"),
        ({"clean": [], "corrupted": []}, "clean has 0 tokens"),
        ({"values": "nothing"}, 'no value named "nothing.0"'),
        ({"values": "attn_pattern"}, "attn_pattern cannot be edited"),
        ({"layers": [tiny.n_layer]}, "layers is 2; it must be between 0 and 1"),
        ({"layers": []}, "layers: expected distinct integers, at least one"),
        ({"positions": [1, 1]}, "positions: expected distinct integers"),
        ({"metric": lambda rows: rows[0]}, "metric: expected 1 results for 1 runs"),
        ({"n_ctx": 64}, "n_ctx is not an option; the sweep sets it itself"),
    ):
        with pytest.raises(ValueError, match=message):
            plait.patch_sweep(
                **({"model": tiny, "clean": clean, "corrupted": corrupted} | arguments)
            )
    for arguments in ({"metric": 3}, {"values": 3}, {"layers": 3}, {"model": "demo"}):
        with pytest.raises(TypeError):
            plait.patch_sweep(
                **({"model": tiny, "clean": clean, "corrupted": corrupted} | arguments)
            )


def test_a_metric_that_raises_ends_the_sweep(tiny: plait.Model) -> None:
    def fail(rows: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plait.patch_sweep(tiny, *prompts(tiny), metric=fail)
