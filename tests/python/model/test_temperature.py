"""Queries that grow with their position: `attention.temperature_scale` of mistral3.

In a model of one layer, a query that is multiplied by t gives the logits of a model whose query weights are multiplied
by t, so `llama` is the reference.
"""

from pathlib import Path

import numpy as np
import plait
import pytest
from python.model.test_related_architectures import (
    ATTENTION,
    GATED,
    TOKENS,
    logits,
    model,
    tensors,
)

SCALE = 0.7
LENGTH = 8
ONE_LAYER = {"block_count": 1}


def weights() -> dict[str, np.ndarray]:
    """Return the random weights of a model of one layer."""
    made = tensors(ATTENTION | GATED)
    return {name: w for name, w in made.items() if not name.startswith(("blk.1.", "blk.2."))}


def expected(folder: Path, length: int) -> np.ndarray:
    """Return the logits of llama, each row with the query weights times the factor of its position."""
    rows = []
    for part, position in enumerate(range(0, len(TOKENS), length)):
        scaled = weights()
        scaled["blk.0.attn_q.weight"] = (
            scaled["blk.0.attn_q.weight"] * (1 + SCALE * np.log(1 + part))
        ).astype(np.float32)
        rows.append(logits(folder, "llama", ONE_LAYER, scaled)[position : position + length])
    return np.concatenate(rows)


@pytest.mark.parametrize(
    "keys",
    [
        {"attention.temperature_length": LENGTH},
        {"rope.scaling.original_context_length": LENGTH},
        {
            "attention.temperature_length": LENGTH,
            "rope.scaling.original_context_length": 2 * LENGTH,
        },
        {"context_length": LENGTH},
    ],
    ids=["temperature_length", "original_context_length", "both", "context_length"],
)
def test_queries_are_multiplied_by_the_factor_of_their_position(tmp_path, keys):
    own = ONE_LAYER | {"attention.temperature_scale": SCALE} | keys
    got = logits(tmp_path, "mistral3", own, weights())
    np.testing.assert_allclose(got, expected(tmp_path, LENGTH), atol=2e-4)


def test_positions_below_the_length_are_those_of_llama_and_later_ones_differ(tmp_path):
    own = ONE_LAYER | {"attention.temperature_scale": SCALE, "attention.temperature_length": LENGTH}
    got = logits(tmp_path, "mistral3", own, weights())
    plain = logits(tmp_path, "llama", ONE_LAYER, weights())
    np.testing.assert_allclose(got[:LENGTH], plain[:LENGTH], atol=2e-4)
    assert np.abs(got[LENGTH:] - plain[LENGTH:]).max(axis=1).min() > 1e-2


def test_a_scale_of_zero_leaves_the_queries_unchanged(tmp_path):
    own = ONE_LAYER | {
        "attention.temperature_scale": 0.0,
        "rope.scaling.original_context_length": LENGTH,
    }
    got = logits(tmp_path, "mistral3", own, weights())
    np.testing.assert_allclose(got, logits(tmp_path, "llama", ONE_LAYER, weights()), atol=2e-4)


def test_a_length_without_a_scale_is_refused(tmp_path):
    with pytest.raises(plait.ModelError, match="temperature_length: not supported"):
        model(tmp_path, "mistral3", ONE_LAYER | {"attention.temperature_length": LENGTH}, weights())
