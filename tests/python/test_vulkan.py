"""The Vulkan backend against the CPU, on whatever device is there; Mesa's lavapipe will do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plait
import pytest
from python.drive import batch, feed, tokens

pytestmark = pytest.mark.skipif(
    not any(device.name.startswith("vulkan") for device in plait.devices()),
    reason="no Vulkan device, or a build without Vulkan",
)


@pytest.fixture
def pair(tiny: plait.Model) -> Iterator[tuple[plait.Context, plait.Context]]:
    """The same context on the CPU and on the device."""
    options = {"n_ctx": 128, "n_seq_max": 4, "type_k": "f32", "type_v": "f32"}
    with (
        plait.Context(tiny, **options) as cpu,
        plait.Context(tiny, **options, backend="vulkan") as vulkan,
    ):
        yield cpu, vulkan


def near(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Sums in another order, and weights multiplied by floats that the CPU rounds to int8."""
    return bool(np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max())


# S2-21
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_prompt_and_steps_match_the_cpu(tiny: plait.Model, kv: str) -> None:
    options = {"n_ctx": 128, "n_seq_max": 4, "kv": kv}
    with (
        plait.Context(tiny, **options) as cpu,
        plait.Context(tiny, **options, backend="vulkan") as vulkan,
    ):
        for seq in (0, 2):
            prompt = tokens(23, seed=seq)
            assert near(feed(vulkan, prompt, seq), feed(cpu, prompt, seq))
        for token in tokens(5, seed=9):
            both = batch(([token], 0), ([token], 2))
            assert near(vulkan.decode(both).logits, cpu.decode(both).logits)


# S0-19, S1-06, S1-38: nothing is recorded again, whatever a sequence grows to.
def test_steps_submit_what_was_recorded_once(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=256, backend="vulkan") as ctx:
        feed(ctx, tokens(30))
        for token in tokens(100, seed=1):
            feed(ctx, [token])
        assert ctx.stats.commands_recorded == 2
        assert ctx.stats.commands_submitted == 101
        assert set(ctx.stats.nodes) == {"vulkan:0"}


def test_the_cpu_records_nothing(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=16) as ctx:
        feed(ctx, tokens(3))
        assert ctx.stats.commands_recorded == ctx.stats.commands_submitted == 0


# S3-25: rows move and keys turn where they are.
def test_shifts_and_copies_match_the_cpu(pair: tuple[plait.Context, plait.Context]) -> None:
    results = []
    for ctx in pair:
        feed(ctx, tokens(20))
        ctx.kv.seq_cp(0, 1)
        ctx.kv.seq_rm(1, 4, 8)
        ctx.kv.seq_add(1, 8, None, -4)
        ctx.kv.defrag()
        results.append([feed(ctx, [7], seq) for seq in (0, 1)])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert near(got, wanted)


def test_a_fork_copies_no_rows(pair: tuple[plait.Context, plait.Context]) -> None:
    ctx = pair[1]
    feed(ctx, tokens(20))
    ctx.kv.seq_cp(0, 1)
    feed(ctx, [5], 1)
    assert ctx.stats.rows_copied == 0


def test_a_state_goes_from_one_backend_to_the_other(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    for source, target in (pair, pair[::-1]):
        source.kv.clear()
        feed(source, tokens(20))
        target.kv.from_bytes(source.kv.to_bytes())
        assert near(feed(target, [7]), feed(source, [7]))


def test_a_device_that_does_not_exist_is_named(tiny: plait.Model) -> None:
    with pytest.raises(plait.BackendError, match=r"vulkan:99 does not exist: expected vulkan:0"):
        plait.Context(tiny, n_ctx=8, backend="vulkan:99")
    with pytest.raises(ValueError, match="vulkan:x"):
        plait.Context(tiny, n_ctx=8, backend="vulkan:x")


def test_too_large_a_cache_is_refused_and_harms_nothing(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    ctx = pair[1]
    before = feed(ctx, tokens(9))
    with pytest.raises(plait.BackendError, match=r"vulkan:0: cannot allocate \d+ bytes"):
        plait.Context(ctx.model, n_ctx=1 << 26, backend="vulkan")
    ctx.kv.clear()
    np.testing.assert_array_equal(feed(ctx, tokens(9)), before)


def test_devices_say_what_they_are() -> None:
    (device, *_) = [d for d in plait.devices() if d.name.startswith("vulkan")]
    assert device.name == "vulkan:0"
    assert "bufferDeviceAddress" in device.features
    assert device.limits["max_shared_bytes"] >= 16384
    assert device.memory > 0


@pytest.mark.parametrize("type_", ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_every_cache_type_holds_the_bits_that_the_cpu_makes(tiny: plait.Model, type_: str) -> None:
    options = {"n_ctx": 64, "type_k": type_, "type_v": type_}
    with (
        plait.Context(tiny, **options) as cpu,
        plait.Context(tiny, **options, backend="vulkan") as vulkan,
    ):
        ids = tokens(17)
        wanted, got = feed(cpu, ids), feed(vulkan, ids)
        assert np.abs(got - wanted).max() <= 5e-2 * np.abs(wanted).max()
        keys = cpu.kv.keys(0, 0), vulkan.kv.keys(0, 0)
        assert (np.abs(keys[1] - keys[0]) > 1e-2 * np.abs(keys[0]).max()).mean() < 0.02
