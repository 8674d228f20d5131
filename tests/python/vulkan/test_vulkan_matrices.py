"""Products with cooperative matrices, where the device supports them: prompts with quantised weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.vulkan_device import near, needs_vulkan

from python import gguf_writer


def shapes() -> list[str]:
    """Return the matrix shapes that the first Vulkan device supports: ["16x16x16"], or none."""
    features = [f for d in plait.devices()[1:2] for f in d.features]
    return [f.split()[1] for f in features if f.startswith("cooperative_matrix ")]


needs_matrices = pytest.mark.skipif(
    not shapes(), reason="no cooperative matrices on the device that this build has shaders for"
)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> plait.Model:
    """The tiny llama with float16 matrices, whose products use floats."""
    weights = {
        name: w.astype(np.float16) if w.ndim == 2 else w
        for name, w in gguf_writer.llama_weights().items()
    }
    path: Path = tmp_path_factory.mktemp("models") / "halves.gguf"
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    return plait.Model(gguf_writer.write(path, metadata, weights))


@needs_vulkan
def test_the_build_and_the_device_agree_on_features() -> None:
    built = plait.build_info()["cooperative_matrices"]
    device = plait.devices()[1]
    offered = [name for name in ("KHR", "NV") if f"VK_{name}_cooperative_matrix" in device.features]
    assert not shapes() or set(built) & set(offered)
    for shape in shapes():
        assert all(int(side) in (8, 16, 32) for side in shape.split("x"))


@needs_matrices
def test_prompts_are_close_to_those_of_floats_and_steps_are_equal(
    halves: plait.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = []
    for without in ("", "cooperative_matrix"):
        monkeypatch.setenv("PLAIT_VULKAN_WITHOUT", without)
        with plait.Context(halves, n_ctx=128, type_k="f32", type_v="f32", backend="vulkan") as ctx:
            logits.append([feed(ctx, tokens(70))])
            ctx.kv.clear()
            logits[-1].append(feed(ctx, [3]))
    assert near(logits[0][0], logits[1][0])
    assert (logits[0][0] != logits[1][0]).any()  # both were used
    np.testing.assert_array_equal(logits[0][1], logits[1][1])


@needs_matrices
@pytest.mark.parametrize("n", [9, 70])
def test_additions_are_fused_into_products(halves: plait.Model, n: int) -> None:
    logits = []
    for fuse in (False, True):
        with plait.Context(halves, n_ctx=128, backend="vulkan", fuse=fuse) as ctx:
            logits.append(feed(ctx, tokens(n)))
    np.testing.assert_array_equal(*logits)
