"""Fixtures of the Python tests."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import plait
import pytest
from python.drive import UNDER_ASAN
from python.instruction_sets import ISAS

from python import gguf_writer, validation

DATA = Path(
    os.environ.get("PLAIT_TEST_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data"
)
# The tiny models of the reference data, and of its second part if that stands beside it.
MODELS = [
    path
    for folder in (DATA, DATA.parent / "data-2026")
    for path in sorted((folder / "conformance").glob("*/model.gguf"))
]
# A shell without job control lets background processes ignore SIGINT, which tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests write no files to the user's home.
os.environ.setdefault("PLAIT_VULKAN_CACHE", "off")
os.environ.setdefault("PLAIT_PACKED_CACHE", "off")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the goals of each test to the report (--junitxml), which docs/evidence reads; skip what cannot be timed."""
    for item in items:
        if UNDER_ASAN and item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.skip(reason="sanitizers take longer"))
        item.user_properties += [
            ("goal", g) for mark in item.iter_markers("goal") for g in mark.args
        ]


if log := os.environ.get("PLAIT_TEST_VALIDATION"):

    @contextlib.contextmanager
    def messages() -> Iterator[list[str]]:
        """Collect the messages of the layers. Instances keep their position, so the log can start with zeros."""
        os.truncate(log, 0)
        said: list[str] = []
        yield said
        if text := Path(log).read_text().strip("\0"):
            said.append(text)

    @pytest.fixture(scope="session")
    def watched() -> None:
        """The layers are active and log violations."""
        with messages() as said:
            validation.wrong_call()
        assert "VUID-vkGetPhysicalDeviceImageFormatProperties-usage-requiredbitmask" in said[0]

    @pytest.fixture(autouse=True)
    def nothing_is_wrong(watched: None) -> Iterator[None]:
        """Messages of the layers during a test are a failure of that test."""
        with messages() as said:
            yield
        assert said == []


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The reference data: tiny models, their logits, tokenizer vectors."""
    if not (DATA / "index.json").is_file():
        pytest.skip(f"no reference data in {DATA} (PLAIT_TEST_DATA says where)")
    return DATA.resolve()


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set this build has and this machine runs, for Context(isa=...)."""
    if request.param not in plait.build_info()["isas"]:
        pytest.skip(f"this machine does not run {request.param}")
    return request.param


@pytest.fixture
def invariant_isa(isa: str) -> str:
    """Each of them with which the bits of a sequence do not depend on the rest of the batch."""
    if isa == "blas":
        pytest.skip("with OpenBLAS, bits depend on the batch")
    return isa


@pytest.fixture(scope="session")
def demo_model() -> plait.Model:
    """The demo model, loaded once."""
    return plait.Model.demo()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with two layers, so that tests without special requirements need no reference data."""
    return gguf_writer.tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> plait.Model:
    """That model, loaded once."""
    return plait.Model(tiny_path)


@pytest.fixture(scope="session", params=MODELS, ids=[path.parent.name for path in MODELS])
def any_model(request: pytest.FixtureRequest) -> plait.Model:
    """Each tiny model of the reference data whose architecture is supported."""
    try:
        return plait.Model(request.param)
    except plait.UnsupportedError as error:
        pytest.skip(str(error)[:80])
