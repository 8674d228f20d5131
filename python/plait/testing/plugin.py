"""The pytest plugin. `pytest --markers` and `pytest --fixtures` describe it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from plait.context import Context
from plait.model import Model
from plait.testing.snapshot import Snapshot

# Max bytes of a snapshot's name. File systems allow 255, of which the name of the temporary file needs 39 more.
_MAX_NAME = 210
_REUSE = {"on": (True,), "off": (False,), "both": (True, False)}
_MARKERS = (
    "plait(**options): options of plait.Context for plait_context",
    "plait_memory(*variants): run with plait_context in each of these memories (default: unified and streams); a "
    'variant is the kind, or kind/type_k, or kind/type_k/type_v: "streams", "unified/q8_0", "unified/q8_0/q4_0"',
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that start with --plait."""
    group = parser.getgroup("plait", "language models")
    group.addoption(
        "--plait-model",
        metavar="PATH",
        help="GGUF file of plait_model (default: the model inside the package)",
    )
    group.addoption(
        "--plait-backend",
        default="cpu",
        metavar="NAME",
        help="backend of plait_context: cpu or vulkan",
    )
    group.addoption(
        "--plait-reuse",
        default="on",
        choices=sorted(_REUSE),
        help="whether plait_context keeps plans between steps; both: run its tests twice (default on)",
    )
    group.addoption(
        "--plait-update", action="store_true", help="write snapshots instead of comparing with them"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests by the memories of plait_memory and the values of --plait-reuse."""
    if "_plait_memory" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("plait_memory")
        if marker is not None:
            metafunc.parametrize(
                "_plait_memory", marker.args or ("unified", "streams"), indirect=True
            )
    if "_plait_reuse" in metafunc.fixturenames:
        kinds = _REUSE[metafunc.config.getoption("plait_reuse")]
        if len(kinds) > 1:
            ids = ["reuse" if kind else "no-reuse" for kind in kinds]
            metafunc.parametrize("_plait_reuse", kinds, ids=ids, indirect=True)


@pytest.fixture
def _plait_memory(request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of plait.Context for the memory of this test."""
    names = ("kv", "type_k", "type_v")
    parts = getattr(request, "param", "").split("/")
    if len(parts) > len(names):
        raise pytest.UsageError(
            f'plait_memory: expected kind, kind/type_k or kind/type_k/type_v, got "{request.param}"'
        )
    if len(parts) == 2:
        parts.append(parts[1])
    return {name: part for name, part in zip(names, parts, strict=False) if part}


@pytest.fixture
def _plait_reuse(request: pytest.FixtureRequest) -> bool:
    """Whether the context of this test keeps execution plans."""
    default: str = request.config.getoption("plait_reuse")
    reuse: bool = getattr(request, "param", default == "on")
    return reuse


@pytest.fixture(scope="session")
def plait_model(request: pytest.FixtureRequest) -> Model:
    """The model of --plait-model, by default the one inside the package; opened once per session."""
    path: str | None = request.config.getoption("plait_model")
    return Model.demo() if path is None else Model(path)


@pytest.fixture
def plait_context(
    request: pytest.FixtureRequest,
    plait_model: Model,
    _plait_memory: dict[str, str],
    _plait_reuse: bool,
) -> Iterator[Context]:
    """A new context of plait_model with 8 sequences; @pytest.mark.plait(...) sets its options."""
    options: dict[str, Any] = {
        "n_seq_max": 8,
        "backend": request.config.getoption("plait_backend"),
        "graph_reuse": _plait_reuse,
    }
    for marker in reversed(list(request.node.iter_markers("plait"))):
        options |= marker.kwargs
    with Context(plait_model, **(options | _plait_memory)) as ctx:
        yield ctx


@pytest.fixture
def plait_snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """The snapshot of this test, in snapshots/<file>/<classes and test>.json next to it."""
    node: pytest.Item = request.node
    folder = request.path.parent / "snapshots" / request.path.stem
    return Snapshot(folder / _snapshot_name(node), bool(request.config.getoption("plait_update")))


def _snapshot_name(node: pytest.Item) -> str:
    """Return the file name of a test's snapshot, which no other test of the same file has.

    Such as "TestA--test_x.json", or "test_x-both.json" for test_x[both]. Parameters that a file name cannot
    hold as they are, or that would make it ambiguous, are followed by a digest of the whole name. A long name is cut
    before it.
    """
    classes = [each.name for each in node.listchain() if isinstance(each, pytest.Class)]
    test = _without_reuse(node)
    whole = "--".join([*classes, test])
    plain = re.fullmatch(r"(\w+)(?:\[(\w|\w[\w.-]*\w)\])?", test)
    name = re.sub(r"[^\w.-]+", "-", whole).strip("-")
    if plain is None or len(name.encode()) > _MAX_NAME:
        digest = "-" + hashlib.sha256(whole.encode()).hexdigest()[:10]
        name = name.encode()[: _MAX_NAME - len(digest)].decode(errors="ignore") + digest
    return f"{name}.json"


def _without_reuse(node: pytest.Item) -> str:
    """Return the name of a test without the id that `--plait-reuse both` adds: plan reuse changes no result."""
    if "_plait_reuse" not in getattr(getattr(node, "callspec", None), "params", {}):
        return node.name
    before, _, ids = node.name.partition("[")
    left = re.sub(r"(?:^|-)(?:no-)?reuse(?=-|$)", "", ids.removesuffix("]"), count=1).removeprefix(
        "-"
    )
    return f"{before}[{left}]" if left else before
