"""Many clients for a long time: all requests complete, nothing leaks, and clients do not affect each other."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import UNDER_ASAN, feed, same_bits, tokens

from python import lora_models


@pytest.fixture(scope="module")
def stories(data_dir):
    return plait.Model(data_dir / "models" / "stories260K-f32.gguf")


def prompts(n: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [[1, *random.integers(3, 512, random.integers(1, 24)).tolist()] for _ in range(n)]


def texts(source, asked, **how) -> dict[int, list[int]]:
    said: dict[int, list[int]] = {i: [] for i in range(len(asked))}
    for event in plait.generate(source, asked, **how):
        said[event.index].append(event.token)
    return said


def test_eight_clients_share_4096_cells_for_128_requests(stories):  # S0 soak
    asked = prompts(128, seed=1)
    with plait.Context(stories, n_ctx=512, n_seq_max=8, kv_cells=4096) as ctx:
        together = texts(ctx, asked, max_tokens=128)
        assert ctx.kv.n_used == 0
    with plait.Context(stories, n_ctx=512) as ctx:  # one after the other
        for i in range(0, 128, 16):
            assert texts(ctx, [asked[i]], max_tokens=128)[0] == together[i]


def test_streams_of_4096_cells_each(stories):  # S0 soak
    asked = prompts(32, seed=1)
    with plait.Context(stories, n_ctx=4096, n_seq_max=32, kv="streams") as ctx:
        together = texts(ctx, asked, max_tokens=64)
        assert ctx.kv.n_used == 0
        assert ctx.kv.n_cells == 32 * 4096
    with plait.Context(stories, n_ctx=512) as ctx:
        assert texts(ctx, [asked[7]], max_tokens=64)[0] == together[7]


def come_and_go(model, kv, n_steps, n_seq=64, n_ctx=48) -> None:
    random = np.random.default_rng(5)
    said: list[list[int]] = [[] for _ in range(n_seq)]
    with (
        plait.Context(model, n_ctx=n_ctx, n_seq_max=n_seq, kv=kv, threads=1) as ctx,
        plait.Context(model, n_ctx=n_ctx, threads=1) as alone,
    ):
        most = 0
        for step in range(n_steps):
            batch = plait.Batch()
            wanted = []
            for seq in random.permutation(n_seq)[:6].tolist():
                if len(said[seq]) > n_ctx - 8 or random.random() < 0.1:
                    ctx.kv.seq_rm(seq)
                    said[seq] = []
                new = tokens(int(random.integers(1, 7)), int(random.integers(1 << 30)))
                batch.add_sequence(new, seq=seq)
                said[seq] = said[seq] + new
                wanted.append(seq)
            logits = ctx.decode(batch).logits
            assert ctx.kv.n_used == sum(map(len, said))
            if step % 97 == 0:
                alone.kv.clear()
                assert same_bits(logits[0], feed(alone, said[wanted[0]], logits="last")[0])
            if step == n_steps // 4:
                gc.collect()
                most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seq in range(n_seq):
            ctx.kv.seq_rm(seq)
        assert ctx.kv.n_used == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    assert grown < 4096, f"{grown} KiB more than after a quarter of the steps"


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_64_sequences_come_and_go(tiny, kv):  # S4-14
    come_and_go(tiny, kv, 600)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.goal("G17")
def test_64_sequences_come_and_go_for_ten_thousand_steps(tiny, kv):  # S4-14
    come_and_go(tiny, kv, 10_000)


def adapter_of(path: Path, folder: Path) -> Path:
    """Return a small adapter of the last matrix of each layer."""
    model = plait.Model(path)
    last = ("attn_output", "ssm_out", "ffn_down", "time_mix_output", "channel_mix_value")
    weights = {
        name: model.tensor(name)
        for name, tensor in model.tensors.items()
        if len(tensor.shape) == 2 and name.split(".")[-2] in last
    }
    assert weights
    tensors = lora_models.deltas(weights, list(weights), rank=2, seed=3, gain=0.1)
    return lora_models.write_adapter(folder / "soak.lora.gguf", model.arch, tensors)


def mixed_work(path: Path, folder: Path, seconds: float, seed: int, *device: str) -> str:
    """hostile/soak.py: two threads, interrupts, forks, states, captures, adapters, generations that are cancelled."""
    program = Path(__file__).parent / "soak.py"
    adapter = adapter_of(path, folder)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", program, path, adapter, str(seconds), str(seed), *device],
        capture_output=True, text=True, timeout=2 * seconds + 300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
    return done.stdout.splitlines()[-1]


def test_mixed_work_for_a_while(tiny_path, tmp_path):
    mixed_work(tiny_path, tmp_path, 3, 1)


# PLAIT_SOAK_SECONDS=1200 ./dev asan -m "" -k hours: under sanitizers
@pytest.mark.slow
@pytest.mark.goal("soak")
@pytest.mark.parametrize("kind", ["llama-gqa", "gemma3", "jamba", "rwkv7"])
def test_mixed_work_for_hours(data_dir, tmp_path, kind, record_property):
    seconds = float(os.environ.get("PLAIT_SOAK_SECONDS", 120)) / 4
    path = data_dir / "conformance" / kind / "model.gguf"
    device = [d.name for d in plait.devices() if d.name.startswith("vulkan")][:1]
    done = mixed_work(path, tmp_path, seconds, 7, *device)
    where = " beside ".join(["the CPU", *(["Vulkan"] if device else [])])
    under = " under ASan" if UNDER_ASAN else ""
    record_property("figure", f"{seconds:.0f} s on {where}{under}: {done}")
