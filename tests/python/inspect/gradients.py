"""What tests of gradients share."""

from __future__ import annotations

import numpy as np
import plait
from python.drive import feed, tokens

IDS = tokens(7, seed=3)
EXACT = {"n_ctx": 64, "type_k": "f32", "type_v": "f32"}
LOSSES = [plait.Logit(5), plait.LogitDifference(5, 9), plait.LogProbability(5)]


def close(found, want, tolerance=1e-4):
    """Compare arrays; `tolerance` is relative to the largest value."""
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max()


def gradients(ctx, ids, loss, *names, logits="last", seq=0):
    with ctx.gradients(*names, of=loss) as grads:
        feed(ctx, ids, seq=seq, logits=logits)
    return grads
