"""What the architecture promises about who may see what, read off the sources.

The rooms of cpp/ form a ladder: a file may include its own room and the rooms listed for it.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPP = ROOT / "cpp"

MAY_INCLUDE = {
    "base": set(),
    "tensor": {"base"},
    "batch": {"base"},
    "gguf": {"base", "tensor"},
    "graph": {"base", "tensor"},
    "memory": {"base", "tensor", "batch"},
    "backend": {"base", "tensor", "graph"},
    "model": {"base", "tensor", "graph", "gguf", "memory"},
    "plan": {"base", "tensor", "graph", "backend"},
    "runtime": {
        "base", "tensor", "batch", "graph", "gguf", "memory", "backend", "model", "plan",
    },
}  # fmt: skip

# A template or inline function of the standard library that is instantiated in a kernel could be
# the copy that the linker keeps for everyone, with instructions this machine lacks.
KERNELS_MAY_INCLUDE = re.compile(
    r"backend/cpu/(kernels|simd)/\w+\.h|tensor/half\.h|tensor/blocks/\w+\.h|base/inline\.h"
)
KERNELS_MAY_INCLUDE_SYSTEM = {
    "cstdint", "cstddef", "cstring", "cfloat", "climits", "math.h",
    "stdint.h", "stddef.h", "string.h", "float.h", "limits.h", "immintrin.h",
}  # fmt: skip


def files(room, pattern="*.[hc]*"):
    return sorted(p for p in (CPP / room).rglob(pattern) if p.suffix in {".h", ".cpp"})


def code(path):
    """The file without comments and string contents."""
    text = path.read_text()
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r'(?<!include )"(\\.|[^"\\\n])*"', '""', text)


def quoted(path):
    return re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.MULTILINE)


# (file, what it includes), both written from cpp/
INCLUDES = [
    (path.relative_to(CPP).as_posix(), target)
    for path in sorted(CPP.rglob("*.[hc]*"))
    for target in quoted(path)
]


def test_every_room_is_on_the_ladder():
    assert {p.name for p in CPP.iterdir() if p.is_dir()} == set(MAY_INCLUDE)


def test_there_is_something_to_check():
    sources = {source.split("/")[0] for source, _ in INCLUDES}
    assert sources >= set(MAY_INCLUDE) - {"base"}


@pytest.mark.parametrize(("source", "target"), INCLUDES)
def test_include_follows_the_ladder(source, target):
    room, other = source.split("/")[0], target.split("/")[0]
    assert other == room or other in MAY_INCLUDE[room]
    assert (CPP / target).is_file(), "includes are written from cpp/"


@pytest.mark.parametrize(
    "source", sorted((ROOT / "bindings").glob("*.[hc]*")), ids=lambda p: p.name
)
def test_bindings_stand_on_top(source):
    for target in quoted(source):
        local = (source.parent / target.removeprefix("bindings/")).is_file()
        assert local or target.split("/")[0] in MAY_INCLUDE, target
    assert "bindings/" not in "".join(target for _, target in INCLUDES)


def test_cmake_links_what_the_ladder_allows():
    for room, allowed in MAY_INCLUDE.items():
        text = (CPP / room / "CMakeLists.txt").read_text()
        linked = set(re.findall(r"\bplait_([a-z_]+)", text.split("LINK", 1)[1])) - {"backend_cpu"}
        assert linked == allowed - ({"batch"} if room == "model" else set()), room


# S4-04: no model file knows of a cache, S4-05: nor of a context or of a batch; of the memory it
# sees what a layer wants remembered (layout.h) and no more.
@pytest.mark.parametrize(("source", "target"), [i for i in INCLUDES if i[0].startswith("model/")])
def test_models_see_memory_layout_but_never_step_data(source, target):
    assert not target.startswith(("batch/", "runtime/", "memory/")) or target == "memory/layout.h"


@pytest.mark.parametrize(("source", "target"), INCLUDES)
def test_backends_do_not_know_each_other(source, target):
    assert not (source.startswith("backend/cpu") and target.startswith("backend/vulkan"))
    assert not (source.startswith("backend/vulkan") and target.startswith("backend/cpu"))


def headers_of(source, seen=None):
    """Every header of ours that a file sees, through other headers too."""
    seen = set() if seen is None else seen
    for target in quoted(CPP / source):
        if target not in seen:
            seen.add(target)
            headers_of(target, seen)
    return seen


# S4-19: an architecture sees the builder, the specs and its configuration; nothing that runs, not
# even through another header.
@pytest.mark.parametrize(
    "source", sorted((CPP / "model" / "arch").glob("*.cpp")), ids=lambda p: p.name
)
def test_architectures_build_through_the_builder_alone(source):
    seen = headers_of(source.relative_to(CPP).as_posix())
    rooms = {target.split("/")[0] for target in seen}
    assert rooms <= {"model", "graph", "tensor", "base", "memory", "gguf"}
    assert {t for t in seen if t.startswith("memory/")} <= {"memory/layout.h"}


# S0-17: builders get one builder object; no function of the model takes a graph by pointer.
def test_no_graph_pointer_is_passed_around():
    for path in files("model"):
        assert not re.search(r"\bGraph\s*\*", code(path)), path


KERNEL_FILES = files("backend/cpu/kernels") + files("backend/cpu/simd")


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda p: p.relative_to(CPP).as_posix())
def test_kernels_include_nothing_that_could_be_shared(path):
    for target in quoted(path):
        assert KERNELS_MAY_INCLUDE.fullmatch(target), target
    for target in re.findall(r"^\s*#\s*include <([^>]+)>", path.read_text(), re.MULTILINE):
        assert target in KERNELS_MAY_INCLUDE_SYSTEM, target


def kernel_objects():
    build = Path(os.environ.get("PLAIT_BUILD_DIR", ROOT / "build" / "release"))
    return sorted(build.glob("cpp/backend/cpu/CMakeFiles/plait_kernels_*.dir/**/*.o"))


def test_kernel_objects_share_no_function():
    """The same rule, seen in the object files: what a kernel defines for everyone is its own.

    A weak symbol outside plait::cpu::<isa> is an inline function or a template that exists once
    per instruction set and that the linker merges to any one of them.
    """
    objects = kernel_objects()
    if not objects:
        pytest.skip("no object files of the kernels (build/release, or PLAIT_BUILD_DIR)")
    command = ["nm", "--demangle", "--defined-only", "--print-file-name", *map(str, objects)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shared = []
    for line in output.splitlines():
        fields = re.match(r"(.*\.o):\s*[0-9a-f]+ (\w) (.*)", line)
        if not fields or fields[2] not in "Ww":  # constants are the same for everyone
            continue
        isa = re.search(r"plait_kernels_(\w+)\.dir", fields[1])[1]
        if f"plait::cpu::{isa}::" not in fields[3]:
            shared.append(f"{Path(fields[1]).name} ({isa}): {fields[3]}")
    assert not shared, "\n".join(sorted(set(shared)))


def classes(text):
    """(name, body) of every `class` definition, nested braces included."""
    for match in re.finditer(r"\bclass (\w+)[^;{()]*\{", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield match[1], text[match.end() : end - 1]


def public_part(body):
    """The public declarations of a class body, with nested braces and their contents removed."""
    while re.search(r"\{[^{}]*\}", body):
        body = re.sub(r"\{[^{}]*\}", ";", body)
    parts = re.split(r"\b(public|protected|private)\s*:(?!:)", body)
    return "".join(
        text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == "public"
    )


def public_data(body):
    for statement in public_part(body).split(";"):
        statement = " ".join(statement.split())
        if not statement or "(" in statement or "operator" in statement:
            continue
        if re.match(r"(using|friend|struct|class|enum|static constexpr|typedef)\b", statement):
            continue
        yield statement


# S4-11: what a runtime class is made of is its own affair.
@pytest.mark.parametrize("path", files("runtime", "*.h"), ids=lambda p: p.name)
def test_runtime_classes_have_no_public_data(path):
    for name, body in classes(code(path)):
        assert list(public_data(body)) == [], name


def test_the_check_for_public_data_can_fail():
    text = "class A final : public B { public: A() : x_{1} {} int size() const; int x = 0; private: int y_; };"
    ((name, body),) = classes(text)
    assert name == "A"
    assert list(public_data(body)) == ["int x = 0"]


def test_top_level_is_what_the_contributing_guide_says():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= {
        "CMakeLists.txt", "pyproject.toml", "README.md", "cpp", "bindings", "python", "shaders",
        "tests", "bench", "notebooks", "CMakePresets.json", "CONTRIBUTING.md", "CHANGELOG.md",
        "SECURITY.md", "LICENSE", "docs", "dev",
    }  # fmt: skip
