"""Fixtures of the tests of images."""

import plait
import pytest
from python.vision import image_models, towers


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return plait.Model(image_models.text_model(tmp_path_factory.mktemp("images") / "text.gguf"))


@pytest.fixture
def vision(tmp_path):
    with plait.Vision(towers.write(tmp_path, "qwen2vl")) as vision:
        yield vision


@pytest.fixture
def ctx(model):
    with plait.Context(
        model, n_ctx=image_models.N_CTX, n_seq_max=2, type_k="f32", type_v="f32"
    ) as ctx:
        yield ctx
