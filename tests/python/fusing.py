"""Comparison of every value of plans with and without fusion."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import plait
from python.drive import batch, same_bits, tokens


def assert_fusing_changes_nothing(
    model: plait.Model, isa: str | None = None, cache: str = "f16"
) -> None:
    """Assert that outputs and intermediate values have the same bits with and without fusion, captured or not.

    `cache` is the type of keys and values; block types are transformed before they are stored.
    """
    ids = tokens(40, 1, min(model.n_vocab, 288))
    results = []
    for fuse, captures in ((True, False), (False, False), (True, True), (False, True)):
        with plait.Context(
            model, n_ctx=128, n_seq_max=2, isa=isa, fuse=fuse, embeddings=True, pooling="none",
            type_k=cache, type_v=cache,
        ) as ctx:  # fmt: skip
            assert ctx.fuse is fuse
            with ctx.capture("*") if captures else nullcontext({}) as seen:
                found = outputs(ctx, ids)
            results.append((found, {name: seen[name] for name in seen}))
    plain, _ = results[0]
    assert len(plain) == 4
    for found, _ in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(plain, found, strict=True))
    fused, unfused = results[2][1], results[3][1]
    assert fused.keys() == unfused.keys()
    assert [name for name in fused if not same_bits(fused[name], unfused[name])] == []


def outputs(ctx: plait.Context, ids: list[int]) -> list[np.ndarray]:
    """Return the values of a prompt of two sequences and, for models with a cache, of one more token each."""
    parts = [(ids[:30], 0), (ids[30:], 1)]
    if ctx.model.arch == "t5":
        ctx.encode(batch(*parts))
    encodes = ctx.kv.kind == "none"
    calls = [batch(*parts), batch(([ids[3]], 0), ([ids[4]], 1))]
    found = []
    for call in calls:
        out = ctx.encode(call) if encodes else ctx.decode(call)
        found += [out.embeddings.copy()] * (2 if out.logits is None else 1)
        found += [] if out.logits is None else [out.logits.copy()]
    return found
