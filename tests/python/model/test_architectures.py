"""docs/architectures.md agrees with the registry, the tests and the memories of contexts."""

import importlib.util
from pathlib import Path

import plait
import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def script(data_dir):
    if not (data_dir.parent / "data-2026" / "index.json").is_file():
        pytest.skip("the second part of the reference data is not beside the first")
    spec = importlib.util.spec_from_file_location("architectures", DOCS / "architectures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DATA = data_dir
    return module


def test_the_table_is_up_to_date(script):
    assert (DOCS / "architectures.md").read_text() == script.table(), (
        "out of date; run python docs/architectures.py"
    )


def test_the_readme_names_the_models(script):
    assert (DOCS.parent / "README.md").read_text() == script.readme(), (
        "out of date; run python docs/architectures.py"
    )


def test_every_architecture_has_a_row(script):
    assert sorted(script.ARCHITECTURES) == sorted(plait.build_info()["architectures"])


def test_the_table_has_the_memory_of_contexts(script, any_model):
    with plait.Context(any_model, n_ctx=32) as ctx:
        assert ctx.kv.kind in script.ARCHITECTURES[any_model.arch].memory.split(" or ")
