"""The Vulkan backend, compared with the CPU, on any device including Mesa's lavapipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import batch, feed, tokens
from python.recurrent_models import MODELS, Tiny
from python.vulkan_device import near, needs_vulkan

from python import validation

pytestmark = needs_vulkan


@pytest.fixture
def pair(tiny: plait.Model) -> Iterator[tuple[plait.Context, plait.Context]]:
    """Return equal contexts on the CPU and on the device."""
    options = {"n_ctx": 128, "n_seq_max": 4, "type_k": "f32", "type_v": "f32"}
    with (
        plait.Context(tiny, **options) as cpu,
        plait.Context(tiny, **options, backend="vulkan") as vulkan,
    ):
        yield cpu, vulkan


# S2-21
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_prompt_and_steps_match_the_cpu(tiny: plait.Model, kv: str, flash: bool) -> None:
    options = {"n_ctx": 128, "n_seq_max": 4, "kv": kv, "flash_attention": flash}
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
def test_steps_submit_recorded_commands(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=256, backend="vulkan") as ctx:
        results = [feed(ctx, tokens(30)).copy()]
        results += [feed(ctx, [token]).copy() for token in tokens(100, seed=1)]
        assert ctx.stats.commands_recorded == 2
        assert ctx.stats.commands_submitted == 101
        assert set(ctx.stats.nodes) == {"vulkan:0"}
    with plait.Context(tiny, n_ctx=256, backend="vulkan", graph_reuse=False) as ctx:
        anew = [feed(ctx, tokens(30)).copy()]
        anew += [feed(ctx, [token]).copy() for token in tokens(100, seed=1)]
        assert ctx.stats.commands_recorded == 101
    for replayed, recorded in zip(results, anew, strict=True):
        np.testing.assert_array_equal(replayed, recorded)


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


def test_transactions_and_written_rows_match_the_cpu(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    results = []
    for ctx in pair:
        feed(ctx, tokens(20))
        ctx.kv.seq_cp(0, 1)
        ctx.kv.seq_add(1, 4, None, 3)
        cells = ctx.kv.cells().tolist()
        with ctx.transaction() as tx:
            feed(ctx, [7, 8], 1)
            ctx.kv.seq_add(1, 8, None, 2)
            ctx.kv.write(0, 1, [3, 5], values=1 + ctx.kv.values(1, 0)[[3, 5]])
            feed(ctx, [9], 0)
            tx.rollback()
        assert str(ctx.kv.cells().tolist()) == str(cells)
        before = ctx.kv.to_bytes()
        with ctx.transaction() as tx:
            ctx.kv.seq_add(0, 0, None, 9)
            feed(ctx, [7], 0)
            tx.rollback()
        assert ctx.kv.to_bytes() == before
        with ctx.transaction():
            values = 2 * ctx.kv.values(0, 1)[2:4]
            ctx.kv.write(1, 0, [2, 3], values=values)
        np.testing.assert_allclose(ctx.kv.values(0, 1)[2:4], values, rtol=1e-3)
        results.append([feed(ctx, [7], seq) for seq in (0, 1)])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert near(got, wanted)


# S1-06: several sequences a step, which are a plan for each number of them.
def test_steps_of_many_sequences_submit_recorded_commands(tiny: plait.Model) -> None:
    options = {"n_ctx": 64, "n_seq_max": 32}
    with (
        plait.Context(tiny, **options, backend="vulkan") as ctx,
        plait.Context(tiny, **options) as cpu,
    ):
        for n in (1, 2, 4, 8, 16, 32):
            ctx.kv.clear()
            cpu.kv.clear()
            for i in range(3):
                before = ctx.stats.commands_recorded
                step = batch(*(([5 + i + seq], seq) for seq in range(n)))
                assert near(ctx.decode(step).logits, cpu.decode(step).logits)
                assert ctx.stats.commands_recorded == before + (i == 0)


# S2-46: a fork is a reference, and reading one needs no copy.
def test_a_fork_copies_no_rows(pair: tuple[plait.Context, plait.Context]) -> None:
    ctx = pair[1]
    feed(ctx, tokens(20))
    feed(ctx, [5])
    submitted = ctx.stats.commands_submitted
    ctx.kv.seq_cp(0, 1)
    assert ctx.stats.commands_submitted == submitted
    feed(ctx, [5], 1)
    assert (ctx.stats.rows_copied, ctx.stats.commands_submitted) == (0, submitted + 1)


# S4-10: what is saved on one device goes on on the other.
def test_a_state_goes_from_one_backend_to_the_other(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    for source, target in (pair, pair[::-1]):
        source.kv.clear()
        feed(source, tokens(20))
        target.kv.from_bytes(source.kv.to_bytes())
        assert near(feed(target, [7]), feed(source, [7]))


def test_errors_name_an_unknown_device(tiny: plait.Model) -> None:
    with pytest.raises(plait.BackendError, match=r"vulkan:99 does not exist: expected vulkan:0"):
        plait.Context(tiny, n_ctx=8, backend="vulkan:99")
    with pytest.raises(ValueError, match="vulkan:x"):
        plait.Context(tiny, n_ctx=8, backend="vulkan:x")


def test_too_large_a_cache_is_refused_and_harms_nothing(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    ctx = pair[1]
    before = feed(ctx, tokens(9))
    (memory,) = [device.memory for device in plait.devices() if device.name == "vulkan:0"]
    # Drivers on the CPU have more than they say.
    n_ctx = max(1 << 26, 16 * memory // ctx.kv.nbytes * ctx.n_ctx)
    with pytest.raises(plait.BackendError, match=r"vulkan:0: cannot allocate \d+ bytes"):
        plait.Context(ctx.model, n_ctx=n_ctx, backend="vulkan", n_gpu_layers=-1)
    ctx.kv.clear()
    np.testing.assert_array_equal(feed(ctx, tokens(9)), before)


def test_devices_are_described() -> None:
    (device, *_) = [d for d in plait.devices() if d.name.startswith("vulkan")]
    assert device.name == "vulkan:0"
    assert "bufferDeviceAddress" in device.features
    assert device.limits["max_shared_bytes"] >= 16384
    assert device.memory > 0


@pytest.mark.parametrize("type_", ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_every_cache_type_has_the_bits_of_the_cpu(tiny: plait.Model, type_: str) -> None:
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


# S2-22, S4-30: layers that remember a state, in pieces of a prompt and token by token.
@pytest.mark.parametrize("recurrent", MODELS, ids=lambda model: model.arch)
def test_recurrent_layers_match_the_cpu(recurrent: Tiny, tmp_path: Path) -> None:
    model = plait.Model(recurrent.write(tmp_path / "model.gguf"))
    results = []
    for backend in ("cpu", "vulkan"):
        with plait.Context(model, n_ctx=64, n_seq_max=3, n_ubatch=16, backend=backend) as ctx:
            outputs = [feed(ctx, tokens(21)), feed(ctx, tokens(7, seed=1), seq=2)]
            ctx.kv.seq_cp(0, 1)
            both = batch(([5], 1), ([6, 7, 8], 2), ([9], 0))
            results.append([*outputs, ctx.decode(both).logits])
            assert set(ctx.stats.nodes) == {ctx.devices[0]}
    for wanted, got in zip(*results, strict=True):
        assert np.abs(got - wanted).max() <= 1e-3 * np.abs(wanted).max()


# S0-19. All else under the layers: ./dev validate.
def test_the_validation_layers_find_nothing(tiny_path: Path, tmp_path: Path) -> None:
    if not validation.are_there():
        pytest.skip("no validation layers (Debian: vulkan-validationlayers)")
    (tmp_path / "vk_layer_settings.txt").write_text(validation.settings("stdout"))
    script = (
        "import sys, plait\n"
        "ctx = plait.Context(plait.Model(sys.argv[1]), n_ctx=64, n_seq_max=2, backend='vulkan')\n"
        "for n in (9, 1, 1):\n"
        "    batch = plait.Batch()\n"
        "    batch.add_sequence(list(range(3, 3 + n)), seq=0, logits='all')\n"
        "    ctx.decode(batch)\n"
        "ctx.kv.seq_cp(0, 1)\n"
        "ctx.kv.seq_add(1, 4, None, 2)\n"
        "state = ctx.kv.to_bytes()\n"
        "ctx.kv.clear()\n"
        "ctx.kv.from_bytes(state)\n"
        "ctx.close()\n"
    )
    environment = {
        **os.environ,
        "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "VK_LAYER_SETTINGS_PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def said(code: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", code, tiny_path],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return ran.stdout

    assert "usage-requiredbitmask" in said("from python import validation; validation.wrong_call()")
    assert said(script) == ""


def test_a_trace_names_the_nodes_of_a_step(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=32, backend="vulkan") as ctx:
        with ctx.trace() as trace:
            feed(ctx, tokens(3))
        assert {"embed", "attend", "linear"} <= {event.op for event in trace.events}


def test_values_within_one_run_are_captured(
    pair: tuple[plait.Context, plait.Context],
) -> None:
    captured = []
    for ctx in pair:
        with ctx.capture("blk.1.attn_out") as capture:
            feed(ctx, tokens(5))
        captured.append(capture["blk.1.attn_out"])
    assert near(captured[1], captured[0])


# Few rows share their keys out among workgroups: one with keys for all of them, one with a single key.
def test_long_contexts_match_the_cpu(tiny: plait.Model) -> None:
    with (
        plait.Context(tiny, n_ctx=1024, n_seq_max=2) as cpu,
        plait.Context(tiny, n_ctx=1024, n_seq_max=2, backend="vulkan") as vulkan,
    ):
        for ctx in (cpu, vulkan):
            feed(ctx, tokens(600), logits="last")
            feed(ctx, tokens(1, seed=2), seq=1, logits="last")
        for token in tokens(3, seed=1):
            both = batch(([token], 0), ([token], 1))
            assert near(vulkan.decode(both).logits, cpu.decode(both).logits)


# Contexts share the device, its pipelines and the weights; each has its own plans and memory.
def test_contexts_run_at_the_same_time(tiny: plait.Model) -> None:
    def generate(seed: int) -> np.ndarray:
        with plait.Context(tiny, n_ctx=64, backend="vulkan") as ctx:
            rows = [feed(ctx, tokens(9, seed))]
            rows += [feed(ctx, [token]) for token in tokens(10, seed + 1)]
            return np.concatenate(rows)

    alone = [generate(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(generate, range(4)))
    for got, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(got, wanted)


# Few rows, some and many, by each of the shaders of products.
@pytest.mark.parametrize("n", [1, 3, 9, 70])
def test_additions_are_fused_into_products(tiny: plait.Model, n: int) -> None:
    logits, ops = [], []
    for fuse in (False, True):
        with plait.Context(tiny, n_ctx=128, backend="vulkan", fuse=fuse) as ctx:
            with ctx.trace() as trace:
                logits.append(feed(ctx, tokens(n)))
            ops.append([event.op for event in trace.events])
    np.testing.assert_array_equal(*logits)
    assert ops[0].count("add") == ops[1].count("linear_add") == 2 * tiny.n_layer
    assert "add" not in ops[1]


# S3-32, S3-25: rows move on the device, and nothing of them passes the host.
def test_after_a_defrag_rows_lie_together(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=128, n_seq_max=4, backend="vulkan") as ctx:
        for seq in range(4):
            feed(ctx, tokens(20, seed=seq), seq)
        ctx.kv.seq_rm(1)
        ctx.kv.seq_rm(2, 3, 9)
        ctx.kv.seq_rm(2, 9)
        held = [ctx.kv.keys(layer, seq) for layer in range(tiny.n_layer) for seq in (0, 2, 3)]
        ctx.stats.reset()
        ctx.kv.defrag()
        assert ctx.stats.rows_copied > 0
        assert ctx.stats.commands_submitted <= 2  # the moves, and no copy to the host or from it
        assert sorted(ctx.kv.cells()["row"]) == list(range(ctx.kv.n_used))
        now = [ctx.kv.keys(layer, seq) for layer in range(tiny.n_layer) for seq in (0, 2, 3)]
        for before, after in zip(held, now, strict=True):
            np.testing.assert_array_equal(before, after)
