"""Every architecture of the reference data on a Vulkan device: all named values agree with the CPU."""

from __future__ import annotations

import numpy as np
import plait
import pytest
from python.drive import batch, feed, tokens
from python.vulkan_device import needs_vulkan

pytestmark = [needs_vulkan, pytest.mark.slow]


# S2-21, S2-22: a prompt in pieces beside another sequence, a fork, a step of each.
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_every_named_value_equals_that_of_the_cpu(any_model: plait.Model, kv: str) -> None:
    n_vocab = min(any_model.n_vocab, 288)
    prompts = [tokens(13, 1, n_vocab), tokens(6, 2, n_vocab)]
    results: list[list[np.ndarray]] = []
    for backend in ("cpu", "vulkan"):
        with plait.Context(
            any_model, n_ctx=64, n_seq_max=3, n_ubatch=8, kv=kv, backend=backend,
            type_k="f32", type_v="f32",
        ) as ctx:  # fmt: skip
            run = ctx.encode if ctx.kv.kind == "none" else ctx.decode
            if any_model.arch == "t5":
                ctx.encode(batch(*((prompt, seq) for seq, prompt in enumerate(prompts))))
            with ctx.capture("*") as seen:
                run(batch(*((prompt, seq) for seq, prompt in enumerate(prompts))))
            values = [seen[name] for name in sorted(seen)]
            if ctx.kv.kind != "none":
                if ctx.kv.kind != "cross":
                    ctx.kv.seq_cp(0, 2)
                    values.append(feed(ctx, [5], 2).copy())
                values.append(ctx.decode(batch(([5], 1), ([6], 0))).logits.copy())
            assert set(ctx.stats.nodes) == set(ctx.devices)
            results.append(values)
    for wanted, got in zip(*results, strict=True):
        assert got.shape == wanted.shape  # none where only an encoder has them
        assert wanted.size == 0 or np.abs(got - wanted).max() <= 5e-2 * np.abs(wanted).max()
