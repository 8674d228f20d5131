"""Adapters, control vectors, edits and captures on a Vulkan device, compared with the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed, tokens
from python.vulkan_device import near, needs_vulkan

from python import gguf_writer, lora_models

pytestmark = needs_vulkan

IDS = tokens(21, seed=5)


def contexts(model: plait.Model, **options: Any) -> list[plait.Context]:
    """Return the logits on both, for several microbatches with many rows and few."""
    options = {
        "n_ctx": 64,
        "n_seq_max": 2,
        "n_ubatch": 9,
        "type_k": "f32",
        "type_v": "f32",
    } | options
    return [plait.Context(model, **options, backend=name) for name in ("cpu", "vulkan")]


def close(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Weights are floats, so only the order of sums differs."""
    return bool(np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max())


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def adapted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[plait.Model, list[plait.Adapter]]:
    """A model with adapters of all its matrices, including token embeddings, and of some."""
    folder = tmp_path_factory.mktemp(request.param)
    metadata, weights = lora_models.model(request.param)
    model = plait.Model(gguf_writer.write(folder / "base.gguf", metadata, weights))
    every = lora_models.matrices(weights)
    adapters = []
    for i, targets in enumerate((every, [name for name in every if ".ffn_" in name])):
        tensors = lora_models.deltas(weights, targets, rank=4, seed=i)
        path = folder / f"{i}.lora.gguf"
        lora_models.write_adapter(path, metadata["general.architecture"], tensors)
        adapters.append(model.load_lora(path))
    return model, adapters


def test_adapters(adapted: tuple[plait.Model, list[plait.Adapter]]) -> None:
    model, (every, some) = adapted
    cpu, vulkan = contexts(model)
    plain = feed(vulkan, IDS).copy()
    with cpu, vulkan:
        for scales in ({every: 1.0}, {every: -0.5, some: 2.0}, {some: 0.25}):
            results = []
            for ctx in (cpu, vulkan):
                ctx.kv.clear()
                ctx.set_lora(scales)
                results.append([feed(ctx, IDS).copy(), feed(ctx, [7]).copy()])
            for wanted, got in zip(*results, strict=True):
                assert close(got, wanted)
            assert not near(got, plain[-1:])
        built = vulkan.stats.plans_built
        vulkan.set_lora({some: 0.5})  # another scale, and nothing to record
        recorded = vulkan.stats.commands_recorded
        feed(vulkan, [8])
        assert (vulkan.stats.plans_built, vulkan.stats.commands_recorded) == (built, recorded)
        vulkan.set_lora(None)
        vulkan.kv.clear()
        np.testing.assert_array_equal(feed(vulkan, IDS), plain)


def test_control_vectors(tiny: plait.Model) -> None:
    random = np.random.default_rng(1)
    direction = random.standard_normal((tiny.n_layer, tiny.n_embd)).astype(np.float32)
    cpu, vulkan = contexts(tiny)
    with cpu, vulkan:
        plain = feed(vulkan, IDS).copy()
        for layers in ({"first_layer": 0}, {"first_layer": 1}, {"first_layer": 0, "last_layer": 0}):
            results = []
            for ctx in (cpu, vulkan):
                ctx.kv.clear()
                ctx.set_control_vector(0.7 * direction, **layers)
                results.append(feed(ctx, IDS).copy())
            assert close(results[1], results[0])
            assert not near(results[1], plain)
        vulkan.set_control_vector(None)
        vulkan.kv.clear()
        np.testing.assert_array_equal(feed(vulkan, IDS), plain)


# An edit cuts a plan into parts that run one after the other, with the host's turn between.
def test_edits_of_every_value(tiny: plait.Model) -> None:
    random = np.random.default_rng(2)
    cpu, vulkan = contexts(tiny)
    with cpu, vulkan:
        assert vulkan.value_names() == cpu.value_names()
        names = [name for name in cpu.value_names() if ".attn_pattern" not in name]
        for name in names:
            row = random.standard_normal(cpu.value_shape(name)).astype(np.float32)
            results = []
            for ctx in (cpu, vulkan):
                ctx.kv.clear()
                with ctx.edit(name, lambda rows, row=row: 0.5 * rows + row):
                    results.append(feed(ctx, IDS).copy())
            assert close(results[1], results[0]), name


def test_a_raising_edit_ends_the_call_and_changes_nothing(tiny: plait.Model) -> None:
    def fail(rows: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    cpu, vulkan = contexts(tiny)
    with cpu, vulkan:
        feed(vulkan, IDS)
        state = vulkan.kv.to_bytes()
        with vulkan.edit("l_out.1", fail), pytest.raises(ZeroDivisionError):
            feed(vulkan, IDS)
        assert vulkan.kv.to_bytes() == state


def test_captures_of_every_value(tiny: plait.Model) -> None:
    mixed = batch((IDS, 0), (tokens(9, seed=1), 1))
    cpu, vulkan = contexts(tiny)
    results = []
    for ctx in (cpu, vulkan):
        with ctx, ctx.capture("*") as seen:
            logits = ctx.decode(mixed).logits
            results.append(dict(seen))
    assert results[1].keys() == results[0].keys()
    for name, wanted in results[0].items():
        assert close(results[1][name], wanted), name
    np.testing.assert_array_equal(results[1]["result_output"], logits)
