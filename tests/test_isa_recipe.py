"""Adding an instruction set edits the table, the build list and one folder; simd/isa_table.h has the recipe."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CPP = Path(__file__).parents[1] / "cpp"
CPU = Path("backend/cpu")
NAME = re.compile(r'\{\.name = "(\w+)"')


def names():
    return NAME.findall((CPP / CPU / "simd/isa_table.h").read_text())


def code(path):
    """The file without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def test_only_the_table_and_their_own_folders_name_instruction_sets():
    assert names()[-1] == "scalar"
    own = {CPP / CPU / "CMakeLists.txt"}
    word = re.compile(rf"\b({'|'.join(names())})\b|PLAIT_(ISA|HAS)_(AVX|AMX|SCALAR)")
    found = {
        path.relative_to(CPP).as_posix()
        for path in [*CPP.rglob("*.h"), *CPP.rglob("*.cpp"), *CPP.rglob("CMakeLists.txt")]
        if path not in own
        and not path.is_relative_to(CPP / CPU / "simd")
        and not path.is_relative_to(CPP / CPU / "amx")
        and not path.is_relative_to(CPP / CPU / "blas")
        and word.search(code(path).replace("std::is_scalar", ""))
    }
    # isa.cpp detects processor features, some of which have an instruction set's name.
    assert found == {(CPU / "isa.cpp").as_posix()}


@pytest.fixture
def tree(tmp_path):
    """A copy of what kernels are made of, to which the recipe added the set `pretend`."""
    for part in ["base", "tensor", "graph", "backend/shared", CPU]:
        shutil.copytree(CPP / part, tmp_path / part)
    table = tmp_path / CPU / "simd/isa_table.h"
    text = table.read_text()
    row = re.search(r'    \{\.name = "scalar".*?\},\n', text, re.DOTALL)[0]
    table.write_text(text.replace(row, row.replace('"scalar"', '"pretend"') + row))
    simd = tmp_path / CPU / "simd"
    shutil.copytree(simd / "scalar", simd / "pretend")
    return tmp_path


def compile_errors(tree, source, isa):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", f"-I{tree}", f"-DPLAIT_ISA={isa}",
         f"-DPLAIT_SIMD={isa}", str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


@pytest.mark.slow
def test_every_kernel_compiles_for_a_new_instruction_set(tree):
    kernels = sorted((tree / CPU / "kernels").rglob("*.cpp"))
    assert len(kernels) > 15
    template = (tree / CPU / "kernels/products/block_product.cpp.in").read_text()
    block = tree / "block.cpp"
    block.write_text(template.replace("@block@", "BlockQ4_K"))
    for source in [*kernels, block]:
        assert not compile_errors(tree, source, "pretend"), source


def test_a_row_that_disagrees_with_its_folder_does_not_compile(tree):
    table = tree / CPU / "simd/isa_table.h"
    source = tree / CPU / "kernels/rows/rows.cpp"
    assert not compile_errors(tree, source, "pretend")
    wrong = re.sub(r'("pretend", .required = 0,\s+.panel_lanes = )1', r"\g<1>4", table.read_text())
    assert wrong != table.read_text()
    table.write_text(wrong)
    assert "panel_lanes" in compile_errors(tree, source, "pretend")
    shutil.rmtree(tree / CPU / "simd/pretend")
    assert "simd/pretend" in compile_errors(tree, source, "pretend")
