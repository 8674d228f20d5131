"""What the architecture promises about who may see what, read off the sources.

The rooms of cpp/ form a ladder: a file may include its own room and the rooms listed for it.
"""

import ast
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPP = ROOT / "cpp"

MAY_INCLUDE = {
    "base": set(),
    "platform": {"base"},
    "sampling": {"base"},
    "tensor": {"base"},
    "batch": {"base"},
    "gguf": {"base", "platform", "tensor"},
    "graph": {"base", "tensor"},
    "gradient": {"base", "tensor", "graph"},
    "memory": {"base", "tensor", "batch"},
    "backend": {"base", "platform", "tensor", "graph"},
    "model": {"base", "tensor", "graph", "gguf", "memory"},
    "plan": {"base", "tensor", "graph", "backend"},
    "runtime": {
        "base", "platform", "tensor", "batch", "graph", "gradient", "gguf", "memory", "backend", "model", "plan",
    },
}  # fmt: skip

# A template or inline function of the standard library that is instantiated in a kernel could be
# the copy that the linker keeps for everyone, with instructions this machine lacks.
KERNELS_MAY_INCLUDE = re.compile(
    r"backend/cpu/(kernels|simd|amx|blas)/(\w+/)?\w+\.h|backend/shared/(cache_layout|positions)\.h"
    r"|graph/op_enums\.h|tensor/half\.h|tensor/dtype_enum\.h|tensor/blocks/\w+\.h|base/(inline|x86_intrinsics)\.h"
)
KERNELS_MAY_INCLUDE_SYSTEM = {
    "cstdint", "cstddef", "cstring", "cfloat", "climits", "math.h", "arm_neon.h",
    "stdint.h", "stddef.h", "string.h", "float.h", "limits.h",
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


# The floors of the two largest rooms, the lowest first. Each entry is a folder, a file without its ending,
# or "*" for the rest of the room. A file includes files of its own floor and of lower ones.
FLOORS = {
    "runtime": [
        ["devices", "facts", "calls", "locked"],
        ["loaded_model", "state", "context_options"],
        ["steering"],
        ["step"],
        ["session"],
        ["*"],
    ],
    "backend/cpu": [
        ["simd", "kernels/common"],
        ["kernels", "amx", "blas"],
        ["isa", "memory", "threads", "graph", "lower"],
        ["weights"],
        ["ops"],
        ["*"],
    ],
}
MAX_FLOORS = 6
# The longest chain of headers of the room, each of which includes the next.
MAX_CHAIN = {"backend/cpu": 6, "runtime": 6}
# Pairs of units of the room of which one includes the other. A header and its source file are one unit.
MAX_EDGES = {"backend/cpu": 133, "runtime": 57}


def floor_of(room, name):
    """The number of the floor of a file, which is written from cpp/ like `backend/cpu/ops/bind.h`."""
    inner = name.removeprefix(f"{room}/").rsplit(".", 1)[0]
    for number, entries in enumerate(FLOORS[room]):
        if any(inner == entry or inner.startswith(f"{entry}/") for entry in entries):
            return number
    return len(FLOORS[room]) - 1


def upward_includes(room, includes):
    return [
        f"{source} includes {target}, which is on a higher floor"
        for source, target in includes
        if source.startswith(f"{room}/") and target.startswith(f"{room}/")
        if floor_of(room, target) > floor_of(room, source)
    ]


def longest_chain(room, includes):
    """The longest chain of headers of the room, each of which includes the next."""
    graph = {}
    for source, target in includes:
        if (
            source.endswith(".h")
            and source.startswith(f"{room}/")
            and target.startswith(f"{room}/")
        ):
            graph.setdefault(source, set()).add(target)
    chains = {}

    def chain(name):
        if name not in chains:
            chains[name] = [
                name,
                *max((chain(t) for t in graph.get(name, ())), key=len, default=[]),
            ]
        return chains[name]

    return max((chain(name) for name in graph), key=len, default=[])


@pytest.mark.parametrize("room", sorted(FLOORS))
def test_includes_lead_down_the_floors_of_a_room(room):
    assert len(FLOORS[room]) <= MAX_FLOORS, "merge two floors"
    for entry in {e for floor in FLOORS[room] for e in floor} - {"*"}:
        assert (CPP / room / entry).is_dir() or list((CPP / room).glob(f"{entry}.*")), entry
    assert upward_includes(room, INCLUDES) == [], "move the shared part to the lower floor"


@pytest.mark.parametrize("room", sorted(MAX_CHAIN))
def test_chains_of_headers_are_short(room):
    found = longest_chain(room, INCLUDES)
    assert len(found) <= MAX_CHAIN[room], "a header that needs only a declaration includes too much"


def edges(room, includes):
    pairs = {
        (source.split(".")[0], target.split(".")[0])
        for source, target in includes
        if source.startswith(f"{room}/") and target.startswith(f"{room}/")
    }
    return {(source, target) for source, target in pairs if source != target}


@pytest.mark.parametrize("room", sorted(MAX_EDGES))
def test_units_include_few_others(room):
    assert len(edges(room, INCLUDES)) <= MAX_EDGES[room], "declare what only needs a declaration"


def test_the_checks_of_floors_can_fail():
    includes = [
        ("backend/cpu/isa.h", "backend/cpu/ops/bind.h"),
        ("backend/cpu/ops/bind.h", "backend/cpu/graph.h"),
        ("backend/cpu/ops/bind.cpp", "backend/cpu/ops/bind.h"),
    ]
    assert upward_includes("backend/cpu", includes) == [
        "backend/cpu/isa.h includes backend/cpu/ops/bind.h, which is on a higher floor"
    ]
    assert longest_chain("backend/cpu", includes) == [
        "backend/cpu/isa.h", "backend/cpu/ops/bind.h", "backend/cpu/graph.h"
    ]  # fmt: skip
    assert edges("backend/cpu", includes) == {
        ("backend/cpu/isa", "backend/cpu/ops/bind"),
        ("backend/cpu/ops/bind", "backend/cpu/graph"),
    }


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
        linked = set(re.findall(r"\bplait_([a-z_]+)", text.split("LINK", 1)[1]))
        linked -= {"backend_cpu", "backend_vulkan"}
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


KERNEL_FILES = [
    *files("backend/cpu/kernels"), *files("backend/cpu/simd"), *files("backend/cpu/amx"),
    CPP / "backend/cpu/blas/product.cpp", CPP / "backend/cpu/blas/library.h",
]  # fmt: skip


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
    body = re.sub(r"=\s*\{\s*\}(?=\s*[,)])", "", body)  # default arguments
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
    text = "class A final : public B { public: A() : x_{1} {} int size(B b = {}) const; int x = 0; private: int y_; };"
    ((name, body),) = classes(text)
    assert name == "A"
    assert list(public_data(body)) == ["int x = 0"]


def test_top_level_is_what_the_contributing_guide_says():
    top = {path.relative_to(ROOT).parts[0] for path in tracked_files()}
    assert {name for name in top if not name.startswith(".")} <= {
        "CMakeLists.txt", "pyproject.toml", "README.md", "cpp", "bindings", "python", "shaders",
        "tests", "bench", "notebooks", "CMakePresets.json", "CONTRIBUTING.md", "CHANGELOG.md",
        "SECURITY.md", "LICENSE", "docs", "dev",
    }  # fmt: skip


# -- requirements that are a question of where things stand ------------------------------------------------


def body_of(text, opening):
    """From a line that starts with `opening` to the brace that closes it, at the same depth."""
    match = re.search(rf"^(\s*){re.escape(opening)}.*?^\1}}", text, re.DOTALL | re.MULTILINE)
    assert match, opening
    return match[0]


REUSE = re.compile(r"[Pp]lan_?[Cc]ache|\breuse|can_reuse|[Hh]ash|fingerprint|\bPlan\b")


# S1-31: models are added without a word about plans being kept; S1-11: and so are memories.
@pytest.mark.parametrize(
    "path", files("model/arch") + files("model/blocks") + files("memory"), ids=lambda p: p.name
)
def test_models_and_memories_do_not_mention_reuse(path):
    assert not REUSE.search(code(path)), path


def test_the_check_for_reuse_can_fail():
    assert REUSE.search(code(CPP / "runtime" / "step" / "engine.h"))


# S1-20: what runs for every step knows nodes, weights and caches by number. Names are made for people,
# when they ask (graph_info.cpp) or trace.
@pytest.mark.parametrize(
    "name",
    [
        "runtime/step/step_runner.cpp", "plan/plan.cpp", "plan/plan_cache.cpp", "graph/plan_key.cpp",
        "backend/cpu/executable.cpp", "batch/prepare.cpp", "batch/split.cpp", "memory/row_table.cpp",
        "memory/attention.cpp", "memory/recurrent.cpp", "memory/memory.cpp", "memory/sliding.cpp",
    ],
)  # fmt: skip
def test_no_name_is_compared_while_decoding(name):
    text = code(CPP / name)
    assert not re.search(
        r'strn?cmp|\.compare\(|[=!]= ?""|""s?\s*[=!]=|\.name\(\)|full_name|op_name', text
    )


# S1-13: a node has no text; what it is called is made from its role and layer when somebody asks.
def test_nodes_carry_no_text():
    header = (CPP / "graph" / "graph.h").read_text()
    assert "std::string" not in body_of(header, "struct BasicNode {")
    users = {
        p.relative_to(CPP).as_posix()
        for room in MAY_INCLUDE
        for p in files(room, "*.cpp")
        if re.search(r"\bfull_name\(", code(p))
    }
    # What people read: names, a plan's nodes, a trace, and which values to capture or differentiate.
    assert users <= {
        "graph/role.cpp",
        "graph/capture.cpp",
        "gradient/gradient.cpp",
        "runtime/step/gradients.cpp",
        "runtime/step/graph_info.cpp",
        "runtime/step/engine.cpp",
        "runtime/session.cpp",
    }
    engine = code(CPP / "runtime" / "step" / "engine.cpp")
    assert engine.count("full_name(") == body_of(engine, "void Engine::record_trace").count(
        "full_name("
    )


# S4-43: an architecture is one function in one file and one line of the registry.
def test_an_architecture_is_a_function_and_a_line_of_the_registry():
    registry = CPP / "model" / "registry.cpp"
    makers = re.findall(r'ROW\((make_\w+), "[^"]+"\)', registry.read_text())
    assert len(makers) >= 40
    everywhere = {p: p.read_text() for room in MAY_INCLUDE for p in files(room)}
    own = set()
    for make in makers:
        users = {p for p, text in everywhere.items() if re.search(rf"\b{make}\b", text)}
        own |= (defined := users - {registry})
        assert len(defined) == 1
        assert len(re.findall(rf"\b{make}\b", everywhere[registry])) == 1
    assert own == set(files("model/arch"))
    assert not [target for _, target in INCLUDES if target.startswith("model/arch/")]


def op_structs():
    """(family file, name of the op, its declaration with the comment above it) of every op."""
    for path in sorted((CPP / "graph" / "ops").glob("*.h")):
        for match in re.finditer(
            r"((?:^//[^\n]*\n)*)^struct \w+ \{.*?^\};", path.read_text(), re.DOTALL | re.MULTILINE
        ):
            name = re.search(r'kInfo\{\s*\.name = "(\w+)"', match[0])
            if name:
                yield path, name[1], match[0]


# S1-44: writing to a cache is one operation with a description, a formula and tests of its own; S1-52: and
# so is every other that a backend computes.
def test_every_operation_of_a_model_has_a_twin_and_a_test():
    computed = {name for _, name, text in op_structs() if "OpKind::" not in text}
    fused = {"linear_add"}  # tested against the ops that it replaces
    twins = {p.stem.rstrip("_") for p in (ROOT / "tests" / "reference").glob("*.py")}
    assert len(computed) > 30
    assert "store_rows" in computed
    assert computed - fused - twins == set()
    tested = "".join(p.read_text() for p in (ROOT / "tests" / "cpp" / "backend").rglob("*.cpp"))
    compared = "".join(p.read_text() for p in (ROOT / "tests" / "python" / "ops").glob("*.py"))
    for op in sorted(computed - fused):
        assert re.search(rf"kernels\(\)\.{op}\b|\b{op}\(", tested), op
        # Its kernels are compared with the formula on every device.
        assert re.search(
            rf"^from reference\.{op}_? import|^from reference import {op}\b", compared, re.M
        ), op
        assert re.search(rf'\bops\.{op}\(|"{op}"[,:]', compared), op


# A formula that no test imports could be wrong without notice.
def test_every_reference_is_compared_with_something():
    used = set()
    for path in (ROOT / "tests" / "python").rglob("*.py"):
        for package, names in re.findall(
            r"^from (reference[\w.]*) import (.+)$", path.read_text(), re.M
        ):
            used.add(package.rpartition(".")[2])
            used |= {name.split()[0] for name in names.split(", ")}
    references = {path.stem for path in (ROOT / "tests" / "reference").rglob("*.py")}
    assert len(references) > 40
    assert references - used == set()


# S0-16: what a step returns, its plan and its graph are one class each, and no interface is empty.
def test_results_and_plans_are_concrete_classes():
    def classes(path):
        for match in re.finditer(
            r"^(?:class|struct) (\w+)([^;{]*)\{\n(.*?)^\};",
            path.read_text(),
            re.DOTALL | re.MULTILINE,
        ):
            yield match.groups()

    concrete = {
        "Outputs": "runtime/step/outputs.h",
        "Plan": "plan/plan.h",
        "Graph": "graph/graph.h",
    }
    for name, header in concrete.items():
        (found,) = [each for each in classes(CPP / header) if each[0] == name]
        assert found[1].strip() in ("", "final")
        assert "virtual" not in found[2]
    interfaces = 0
    for path in CPP.rglob("*.h"):
        for name, _, body in classes(path):
            if "virtual ~" in body:
                interfaces += 1
                assert body.count("virtual ") > 1, f"{path.name}: {name} has no functions"
    assert interfaces > 10


# S2-29: what another backend has to compute is in graph/ops/: the shape of every operand, and what each op
# computes.
def test_operations_are_written_down_for_other_backends():
    declared = 0
    for path in sorted((CPP / "graph" / "ops").glob("*.h")):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if not re.match(r"Value \w+[^;]*\(", line):
                continue
            declared += 1
            above = [text for text in lines[max(0, i - 12) : i + 3] if "//" in text]
            assert any(re.search(r"\[[^]]*\]|same|vector|element", text) for text in above), line
    assert declared > 30


# -- limits of size ----------------------------------------------------------------------------------------

MAX_FUNCTION_LINES = 80
MAX_FOLDER_FILES = 40
SMALL_FILE_LINES = 40
MAX_SMALL_SHARE = 0.25
BINDINGS = ROOT / "bindings"


def blank(text):
    """C++ code with its comments, strings and characters blanked; every line keeps its number."""

    def newlines(match):
        return "\n" * match[0].count("\n")

    text = re.sub(r"//[^\n]*|/\*.*?\*/", newlines, text, flags=re.DOTALL)
    text = re.sub(r'R"(\w*)\(.*?\)\1"', newlines, text, flags=re.DOTALL)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"'(\\.|[^'\\\n])'", "' '", text)


def cpp_functions(text):
    """(declaration, lines of the body) of each function; nested functions belong to the outer one."""
    text = blank(text)
    open_braces, start = [], 0
    for i, c in enumerate(text):
        if c not in ";{}":
            continue
        if c == "{":
            head = text[start:i].strip()
            inside = any(head for head, _ in open_braces)
            scope = re.search(r"\b(namespace|class|struct|union|enum)\b[^()=]*$", head)
            is_function = not inside and not scope and re.search(r"\)[^()=]*$", head)
            open_braces.append((head if is_function else "", i))
        elif c == "}":
            head, begin = open_braces.pop()
            if head:
                yield " ".join(head.split()), text.count("\n", begin, i) + 1
        start = i + 1


def python_functions(text):
    """(name, lines without the docstring) of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documentation = ast.get_docstring(node, clean=False)
            lines = node.end_lineno - node.lineno + 1
            yield node.name, lines - (documentation.count("\n") + 1 if documentation else 0)


def test_functions_are_short():
    sources = [p for room in MAY_INCLUDE for p in files(room)] + sorted(BINDINGS.glob("*.[hc]*"))
    found = [
        (path.relative_to(ROOT).as_posix(), name, lines)
        for paths, functions in [
            (sources, cpp_functions), (sorted((ROOT / "python").rglob("*.py")), python_functions)
        ]
        for path in paths
        for name, lines in functions(path.read_text(encoding="utf-8"))
    ]  # fmt: skip
    assert len(found) > 3000, "the functions are no longer found"
    long = [f"{path}: {name} has {n} lines" for path, name, n in found if n > MAX_FUNCTION_LINES]
    assert long == [], f"divide them into functions of at most {MAX_FUNCTION_LINES} lines"


def test_the_check_of_function_lengths_can_fail():
    text = """
    namespace a {
    struct B {
        B() : x_{1} {}  // "{" in a comment
        int f(int y) const {
            const auto g = [&] {
                return "}";
            };
            return y;
        }
    };
    }
    """
    assert list(cpp_functions(text))[-1] == ("int f(int y) const", 6)
    assert list(python_functions('def f():\n    """A.\n\n    B."""\n    return 1\n')) == [("f", 2)]


def tracked_files():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_folders_have_few_files():
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in tracked_files())
    del counts["docs/decisions"]  # a numbered log, which its README lists
    full = {folder: n for folder, n in counts.items() if n > MAX_FOLDER_FILES}
    assert full == {}, f"divide folders of more than {MAX_FOLDER_FILES} files by subject"


def test_few_files_are_small():
    lines = {path: path.read_text().count("\n") for room in MAY_INCLUDE for path in files(room)}
    small = sorted(str(path) for path, n in lines.items() if n < SMALL_FILE_LINES)
    share = len(small) / len(lines)
    assert share < MAX_SMALL_SHARE, (
        f"{share:.0%} of the files of cpp/ have fewer than {SMALL_FILE_LINES} lines: merge those of one "
        "subject:\n" + "\n".join(small)
    )


# -- what code must not do ---------------------------------------------------------------------------------


# No consumer outside graph/ addresses operands by position.
def test_operands_have_names():
    for room in set(MAY_INCLUDE) - {"graph"}:
        for path in files(room):
            assert not re.search(r"\binputs\[\d|\*input\+\+", code(path)), (
                f"{path}: give the operand a name in the op's struct"
            )


# A plan holds the weight stores of every backend in one list, and each backend gets its own back.
MAY_CAST = {"cpp/backend/weight_stores.h": 1}


def test_types_are_known_without_dynamic_cast():
    sources = [p for room in MAY_INCLUDE for p in files(room)] + sorted(BINDINGS.glob("*.[hc]*"))
    counts = {p.relative_to(ROOT).as_posix(): code(p).count("dynamic_cast") for p in sources}
    assert {name: n for name, n in counts.items() if n} == MAY_CAST, (
        "add a virtual function to the interface instead, or a reason to MAY_CAST"
    )


# S1-27: how to add a memory fits on a page, and names files that exist.
@pytest.mark.parametrize("what", ["an op", "an architecture", "a memory"])
def test_recipes_are_short_and_right(what):
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    (recipe,) = re.findall(rf"^## Add {what}\n(.*?)^## ", guide, re.DOTALL | re.MULTILINE)
    assert 3 <= len(re.findall(r"^\d\. ", recipe, re.MULTILINE)) <= 6
    assert len(recipe.splitlines()) < 20
    named = re.findall(r"`([\w/]+\.(?:h|cpp|md|py))`", recipe)
    assert named
    for name in named:
        assert list(CPP.rglob(name)) or (ROOT / name).is_file(), name


# -- the Python package ------------------------------------------------------------------------------------

PACKAGE = ROOT / "python" / "plait"


def python_modules():
    """Module name to file, of every module of the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def python_imports():
    """Module to the modules of the package that it imports: at the top, in functions and for type checkers.

    The import of a parent package that Python does by itself is not counted.
    """
    modules = python_modules()
    found = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    root = package.split(".")
                    root = root[: len(root) - node.level + 1]
                    base = ".".join([*root, base] if base else root)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    targets.add(inner if inner in modules or inner == "plait._core" else base)
        found[name] = (targets & modules.keys()) - {name}
    return found


def circle(graph):
    """The nodes of one circle of the graph in order, or nothing."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        path.append(node)
        for target in sorted(graph.get(node, ())):
            if found := visit(target):
                return found
        path.pop()
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])


def test_python_modules_import_each_other_in_no_circle():
    graph = python_imports()
    assert "plait.numerics" in graph["plait.evaluation.scoring"]
    assert "plait.generation.sampler" in graph["plait"]  # for type checkers only
    assert circle(graph) == []


def test_python_packages_import_each_other_in_no_circle():
    """Neither do the folders of the package, each taken as a whole."""

    def folder(name):
        parts = name.split(".")
        return ".".join(parts[:2])

    graph = {}
    for name, targets in python_imports().items():
        graph.setdefault(folder(name), set()).update({folder(t) for t in targets} - {folder(name)})
    assert "plait.generation" in graph["plait.testing"]
    assert circle(graph) == []


def test_the_check_for_circles_can_fail():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
