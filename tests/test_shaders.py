"""Every shader compiles for Vulkan 1.2, where the machine has a compiler for them."""

import shutil
import subprocess
from pathlib import Path

import pytest

SHADERS = Path(__file__).parents[1] / "shaders"


@pytest.mark.parametrize("shader", sorted(SHADERS.glob("*.comp")), ids=lambda p: p.stem)
def test_shader_compiles(shader, tmp_path):
    compiler = shutil.which("glslc")
    if compiler is None:
        pytest.skip("glslc is not installed")
    target = tmp_path / "shader.spv"
    subprocess.run(
        [compiler, "--target-env=vulkan1.2", "-Werror", "-I", SHADERS, "-o", target, shader],
        check=True,
    )
    assert target.stat().st_size > 0
