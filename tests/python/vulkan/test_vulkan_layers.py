"""Layers on several devices: the results are those of the CPU, wherever a layer runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens
from python.vulkan_device import near, needs_vulkan

from python import gguf_writer, lora_models

pytestmark = needs_vulkan

TWICE = "vulkan:0,vulkan:0"  # treated as two devices
EXACT = {"type_k": "f32", "type_v": "f32"}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> plait.Model:
    """A random llama with four layers."""
    weights = gguf_writer.llama_weights()
    for i in (2, 3):
        for name, weight in list(weights.items()):
            if name.startswith(f"blk.{i - 2}."):
                weights[name.replace(f"blk.{i - 2}.", f"blk.{i}.")] = weight[..., ::-1].copy()
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary() | {"llama.block_count": 4}
    return plait.Model(
        gguf_writer.write(tmp_path_factory.mktemp("models") / "four.gguf", metadata, weights)
    )


def context(model: plait.Model, n_gpu_layers: int | None, **options: Any) -> plait.Context:
    """Return a context with so many layers on a device; None: all on the CPU."""
    if n_gpu_layers is not None:
        options = {"backend": "vulkan", "n_gpu_layers": n_gpu_layers, **options}
    return plait.Context(model, **{"n_ctx": 64, "n_seq_max": 4, **EXACT, **options})


def story(ctx: plait.Context) -> list[np.ndarray]:
    """Return logits of prompts, steps, a fork and a shift, captured values, and a restored state."""
    question = tokens(9, seed=4)
    if ctx.kv.kind == "cross":
        ctx.encode(batch((question, 0), (question[:4], 2)))
    rows = [feed(ctx, tokens(21)), feed(ctx, tokens(7, seed=1), 2)]
    if ctx.kv.kind != "cross":
        ctx.kv.seq_cp(0, 1)
        rows.append(ctx.decode(batch(([5], 1), ([6, 7, 8], 2), ([9], 0))).logits)
    if ctx.kv.can_shift and ctx.kv.can_partial_remove:
        ctx.kv.seq_rm(2, 2, 4)
        ctx.kv.seq_add(2, 4, None, -2)
        ctx.kv.defrag()
    rows.append(feed(ctx, [11], 2))
    state = ctx.kv.to_bytes()
    rows.append(feed(ctx, [12], 0))
    ctx.kv.clear()
    ctx.kv.from_bytes(state)
    last = [name for name in ctx.value_names() if name.endswith(".l_out")]
    with ctx.capture(*last) as seen:
        again = feed(ctx, [12], 0)
    assert near(again, rows[-1])
    rows.append(feed(ctx, [13], 0))  # by an existing plan
    return [*rows, *(seen[name] for name in last if seen[name] is not None and seen[name].size)]


MODELS = ["llama-gqa", "gemma3", "mamba", "jamba", "mixtral", "t5", "rwkv7", "phi3-longrope"]


# Requirements of the Vulkan backend: layers on two devices, the cache with its layer.
@pytest.mark.parametrize("name", MODELS)
def test_any_split_gives_the_results_of_the_cpu(data_dir: Path, name: str) -> None:
    model = plait.Model(data_dir / "conformance" / name / "model.gguf")
    with context(model, None) as ctx:
        wanted = story(ctx)
    n = model.n_layer
    for n_layers in sorted({1, n // 2 + 1}):
        with context(model, n_layers) as ctx:
            assert ctx.devices == ["vulkan:0", "cpu"]
            for got, want in zip(story(ctx), wanted, strict=True):
                assert near(got, want)


@pytest.mark.parametrize(
    ("n_layers", "devices"),
    [
        (0, ["cpu"]), (1, ["vulkan:0", "cpu"]), (2, ["vulkan:0", "cpu"]), (4, ["vulkan:0", "cpu"]),
        (5, ["vulkan:0"]), (99, ["vulkan:0"]), (-1, ["vulkan:0"]),
    ],
)  # fmt: skip
def test_so_many_layers_are_on_the_device(
    four: plait.Model, n_layers: int, devices: list[str]
) -> None:
    with context(four, None) as cpu, context(four, n_layers) as ctx:
        assert ctx.devices == devices
        assert near(feed(ctx, tokens(19)), feed(cpu, tokens(19)))
        assert near(feed(ctx, [5]), feed(cpu, [5]))
        assert list(ctx.stats.nodes) == devices
        where = {node.name: node.device for node in ctx.graph() if node.name}
        gpu = {f"blk.{i}.l_out" for i in range(4)} | {"result_output"}
        there = {name for name in gpu if where[name] == "vulkan:0"}
        n_there = 5 if n_layers < 0 else min(n_layers, 5)
        assert there == set([*(f"blk.{i}.l_out" for i in range(4)), "result_output"][5 - n_there :])
        assert where["tokens"] == ("vulkan:0" if n_there == 5 else "cpu")


def test_two_devices_share_the_layers(four: plait.Model) -> None:
    with (
        context(four, None) as cpu,
        context(four, -1, backend=TWICE, split=[1, 1]) as both,
        context(four, 3, backend=TWICE, split=[1, 2]) as three,
    ):
        wanted = story(cpu)
        for ctx in (both, three):
            for got, want in zip(story(ctx), wanted, strict=True):
                assert near(got, want)
        assert both.devices == ["vulkan:0", "vulkan:0/2"]
        assert three.devices == ["vulkan:0", "vulkan:0/2", "cpu"]
        where = {node.name: node.device for node in both.graph()}
        assert [where[f"blk.{i}.l_out"] for i in range(4)] == ["vulkan:0"] * 3 + ["vulkan:0/2"]
        where = {node.name: node.device for node in three.graph()}
        assert [where[f"blk.{i}.l_out"] for i in range(4)] == [
            "cpu",
            "cpu",
            "vulkan:0",
            "vulkan:0/2",
        ]
        head, *rows = str(ctx.graph()).splitlines()
        at = head.index("device")
        assert {row[at:].split()[0] for row in rows} >= {"cpu", "vulkan:0", "vulkan:0/2"}


# S0-19: each part of a plan is recorded once.
def test_steps_record_nothing_again(four: plait.Model) -> None:
    with context(four, 3, backend=TWICE, split=[1, 2], n_ctx=128) as ctx:
        feed(ctx, tokens(20))
        for token in tokens(100, seed=1):
            feed(ctx, [token])
        assert ctx.stats.commands_recorded == 2 * 2
        assert ctx.stats.commands_submitted == 101 * 2
        assert ctx.stats.plans_built == 2


# S0-21: what a device has no kernel for runs on the CPU, inside the same plan; a cache that it cannot work on is there.
@pytest.mark.parametrize(
    ("lacks", "there"),
    [
        ("rms_norm", {"rms_norm"}), ("rope,gate", {"rope", "gate"}), ("embed", {"embed"}), ("linear", {"linear"}),
        ("attend", {"attend", "store_rows"}), ("store_rows", {"attend", "store_rows"}),
        ("rotate_rows", {"attend", "store_rows"}), ("copy_rows", {"attend", "store_rows"}),
    ],
)  # fmt: skip
def test_an_operation_without_a_kernel_runs_on_the_cpu(
    four: plait.Model, lacks: str, there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with context(four, None) as ctx:
        wanted = story(ctx)
    monkeypatch.setenv("PLAIT_VULKAN_WITHOUT", lacks)
    with context(four, -1) as ctx:
        for got, want in zip(story(ctx), wanted, strict=True):
            assert near(got, want)
    with context(four, -1, fuse=False) as ctx:
        operations = ctx.graph().operations
        assert {node.op for node in operations if node.device == "cpu"} == there
        assert there.isdisjoint(node.op for node in operations if node.device != "cpu")


def test_errors_name_an_unsupported_operation(
    tiny: plait.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_VULKAN_WITHOUT", "attend,norms")
    with pytest.raises(plait.BackendError, match=r'expected names of .*, got "norms"'):
        context(tiny, -1)


# A model larger than the device.
def test_layers_that_do_not_fit_run_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: plait.Model
) -> None:
    metadata, weights = gguf_writer.llama_metadata(), gguf_writer.llama_weights()
    rng = np.random.default_rng(1)
    for i in range(2):  # 6 MiB each
        for part, shape in (("gate", (8192, 64)), ("up", (8192, 64)), ("down", (64, 8192))):
            noise = 0.05 * rng.standard_normal(shape)
            weights[f"blk.{i}.ffn_{part}.weight"] = noise.astype(np.float32)
    metadata |= gguf_writer.vocabulary() | {"llama.feed_forward_length": 8192}
    model = plait.Model(gguf_writer.write(tmp_path / "large.gguf", metadata, weights))
    wide = {"n_ubatch": 8}
    with context(model, None, **wide) as cpu:
        wanted = feed(cpu, tokens(20))
    for mib, devices in ((0, ["cpu"]), (10, ["vulkan:0", "cpu"]), (64, ["vulkan:0"])):
        monkeypatch.setenv("PLAIT_VULKAN_MEMORY", str(mib))
        with plait.Context(model, n_ctx=64, backend="vulkan", **EXACT, **wide) as ctx:
            assert ctx.devices == devices
            assert near(feed(ctx, tokens(20)), wanted)
    monkeypatch.setenv("PLAIT_VULKAN_MEMORY", "much")
    with pytest.raises(plait.BackendError, match=r'PLAIT_VULKAN_MEMORY: expected .* got "much"'):
        plait.Context(four, backend="vulkan")


def test_the_log_lists_the_layers_of_each_device(
    four: plait.Model, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="plait"):
        for options in (
            {"n_gpu_layers": 3},
            {"n_gpu_layers": 0},
            {"backend": TWICE, "n_gpu_layers": -1},
        ):
            context(four, **{"split": [1, 1] if "backend" in options else None, **options}).close()
    assert caplog.messages == [
        "layers: 2 on cpu, 2 and the output on vulkan:0",
        "layers: 4 and the output on cpu",
        "layers: 1 and the output on vulkan:0, 3 on vulkan:0",
    ]


# The software driver is no GPU, so there may be none; layers are where there is room then.
def test_auto_uses_the_available_devices(four: plait.Model) -> None:
    with plait.Context(four, n_ctx=32, backend="auto", n_gpu_layers=3, split=[1]) as ctx:
        assert ctx.devices[-1] == "cpu"
        feed(ctx, tokens(5))


def test_adapters_control_vectors_and_edits_reach_every_layer(
    four: plait.Model, tmp_path: Path
) -> None:
    weights = {name: info for name, info in four.tensors.items() if len(info.shape) == 2}
    rng = np.random.default_rng(3)
    tensors = {}
    for name, info in weights.items():
        if "token_embd" in name:
            continue
        n_out, n_in = info.shape
        tensors[f"{name}.lora_a"] = rng.standard_normal((4, n_in)).astype(np.float32) * 0.3
        tensors[f"{name}.lora_b"] = rng.standard_normal((n_out, 4)).astype(np.float32) * 0.05
    adapter = four.load_lora(lora_models.write_adapter(tmp_path / "a.gguf", "llama", tensors))
    direction = rng.standard_normal((4, four.n_embd)).astype(np.float32)
    seen: list[list[np.ndarray]] = []

    def doubled(rows: np.ndarray) -> np.ndarray:
        seen[-1].append(rows.copy())
        return rows * 2

    results = []
    for n_layers in (None, 2, 5):
        seen.append([])
        with context(four, n_layers) as ctx:
            rows = [feed(ctx, tokens(12))]
            ctx.set_lora({adapter: 0.7})
            rows.append(feed(ctx, tokens(5, seed=1)))
            ctx.set_control_vector(direction)
            rows.append(feed(ctx, tokens(5, seed=2)))
            with ctx.edit("l_out.1", doubled), ctx.edit("l_out.3", doubled):
                rows.append(feed(ctx, tokens(5, seed=3)))
            with ctx.edit("l_out.0", direction[0]), ctx.edit("ffn_out.0", doubled):
                rows.append(feed(ctx, [9]))
            rows.append(feed(ctx, [10]))
        results.append(rows)
    assert not near(results[0][1], results[0][0][:5])
    for rows, looked in zip(results[1:], seen[1:], strict=True):
        for got, want in zip([*rows, *looked], [*results[0], *seen[0]], strict=True):
            assert near(got, want)


# Adapters of experts, on the device and with half of the layers there.
def test_adapters_of_experts(tmp_path: Path) -> None:
    metadata, weights = lora_models.model("mixtral")
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, weights))
    targets = [name for name in lora_models.matrices(weights) if "_exps" in name]
    path = lora_models.write_adapter(
        tmp_path / "a.gguf", "llama", lora_models.deltas(weights, targets, 4, 1)
    )
    results = []
    for n_layers in (None, 2, -1):
        with context(model, n_layers) as ctx:
            ctx.set_lora({model.load_lora(path): 1.0})
            results.append([feed(ctx, tokens(12)), feed(ctx, [7])])
    for rows in results[1:]:
        for got, want in zip(rows, results[0], strict=True):
            assert near(got, want)


def test_a_state_goes_from_one_split_to_another(four: plait.Model) -> None:
    with context(four, None) as cpu, context(four, 2) as two, context(four, 4) as more:
        feed(two, tokens(20))
        for target in (cpu, more):
            target.kv.from_bytes(two.kv.to_bytes())
            assert near(feed(target, [7]), feed(two, [7]))
            two.kv.seq_rm(0, 20, None)


def test_a_trace_shows_both(four: plait.Model) -> None:
    with context(four, 2, threads=1) as ctx, ctx.trace() as trace:
        feed(ctx, tokens(3))
    assert sum(event.op == "attend" for event in trace.events) == 4


# Nothing of a call stays when it is interrupted between devices.
def test_a_raising_edit_changes_nothing(four: plait.Model) -> None:
    def fail(rows: np.ndarray) -> np.ndarray:
        raise KeyError("no")

    with context(four, 2) as ctx:
        feed(ctx, tokens(9))
        state = ctx.kv.to_bytes()
        with ctx.edit("l_out.2", fail), pytest.raises(KeyError):
            feed(ctx, tokens(4))
        assert ctx.kv.to_bytes() == state
        feed(ctx, tokens(4))


def test_embeddings_and_pooling(four: plait.Model) -> None:
    results = []
    for n_layers in (None, 1, 3):
        with context(four, n_layers, embeddings=True) as ctx:
            out = ctx.decode(batch((tokens(9), 0)))
            results.append([out.logits.copy(), out.embeddings.copy()])
        with context(four, n_layers, embeddings=True, pooling="mean") as ctx:
            results[-1].append(ctx.encode(batch((tokens(9), 0), (tokens(4), 1))).embeddings.copy())
    for rows in results[1:]:
        for got, want in zip(rows, results[0], strict=True):
            assert near(got, want)


def test_the_same_steps_give_the_same_bits(four: plait.Model) -> None:
    def run() -> np.ndarray:
        with context(four, 3) as ctx:
            return np.concatenate([feed(ctx, tokens(9)), *(feed(ctx, [t]) for t in tokens(5))])

    assert same_bits(run(), run())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_gpu_layers": 3}, 'n_gpu_layers: expected 0 with backend "cpu", got 3'),
        ({"n_gpu_layers": -2, "backend": "vulkan"}, "n_gpu_layers: expected 0 or more, or -1 for all, got -2"),
        ({"split": [1]}, "split: expected a share for each of the 0 devices"),
        ({"split": [1, 1], "backend": "vulkan"}, "split: expected a share for each of the 1 devices .* got 2"),
        ({"split": [], "backend": "vulkan"}, "split: expected a share for each device, got none"),
        ({"split": [1, -1], "backend": TWICE}, "split: expected finite numbers of at least 0, got -1"),
        ({"split": [0, 0], "backend": TWICE}, "split: expected a share above 0"),
        ({"split": [1, float("nan")], "backend": TWICE}, "split: expected finite numbers"),
        ({"backend": "vulkan:0,"}, 'several of these as in "vulkan:0,vulkan:1", or "auto", got "vulkan:0,"'),
        ({"backend": "vulkan,cpu"}, 'backend: expected .*, got "vulkan,cpu"'),
        ({"backend": ",".join(["vulkan"] * 16)}, "backend: expected at most 15 devices besides the CPU, got 16"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(
    tiny: plait.Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plait.Context(tiny, n_ctx=8, **options)


def test_invalid_shares_are_refused(tiny: plait.Model) -> None:
    with pytest.raises(TypeError, match="split"):
        plait.Context(tiny, n_ctx=8, backend="vulkan", split="1")
    with pytest.raises(TypeError, match="split"):
        plait.Context(tiny, n_ctx=8, backend="vulkan", split=["one"])
    with pytest.raises(TypeError, match="n_gpu_layers"):
        plait.Context(tiny, n_ctx=8, backend="vulkan", n_gpu_layers=1.5)  # type: ignore[arg-type]
