"""Helpers of the tests of the Vulkan backend, which run on GPUs and on Mesa's lavapipe."""

from __future__ import annotations

import numpy as np
import plait
import pytest

needs_vulkan = pytest.mark.skipif(
    not any(device.name.startswith("vulkan") for device in plait.devices()),
    reason="no Vulkan device, or a build without Vulkan",
)


def near(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Tolerances: sums have another order, and activations stay floats that the CPU rounds to int8."""
    return bool(np.abs(got - wanted).max() <= 2e-2 * np.abs(wanted).max())
