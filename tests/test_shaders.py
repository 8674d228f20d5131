"""Every shader compiles for Vulkan 1.2, where the machine has a compiler for them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SHADERS = Path(__file__).parents[1] / "shaders"


def knows(compiler: str, extension: str) -> bool:
    source = f"#version 450\n#extension {extension} : require\nvoid main() {{}}\n"
    ran = subprocess.run(
        [compiler, "-fshader-stage=compute", "-o", "-", "-"],
        input=source.encode(), capture_output=True,
    )  # fmt: skip
    return ran.returncode == 0


@pytest.mark.parametrize("shader", sorted(SHADERS.glob("*.comp")), ids=lambda p: p.stem)
def test_shader_compiles(shader, tmp_path):
    compiler = shutil.which("glslc")
    if compiler is None:
        pytest.skip("glslc is not installed")
    for extension in re.findall(r"GL_\w+_cooperative_matrix", shader.read_text()):
        if not knows(compiler, extension):
            pytest.skip(f"glslc does not know {extension}")
    target = tmp_path / "shader.spv"
    subprocess.run(
        [compiler, "--target-env=vulkan1.2", "-Werror", "-I", SHADERS, "-o", target, shader],
        check=True,
    )
    assert target.stat().st_size > 0
