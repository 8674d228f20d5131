"""Every public name says what it is."""

import importlib
import inspect

import plait
import pytest

MODULES = [
    "plait",
    "plait.quant",
    "plait.testing",
    "plait.figures",
    "plait.gguf",
    "plait.hub",
    "plait._core",
]


def public(module):
    names = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items()
        if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
    ]  # fmt: skip
    return [(name, getattr(module, name)) for name in names if not name.startswith("__")]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    missing = []
    for name, thing in public(module):
        if inspect.ismodule(thing) or not (inspect.isclass(thing) or callable(thing)):
            continue
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing) and thing.__module__.startswith("plait"):
            for member in vars(thing):
                value = inspect.getattr_static(thing, member)
                described = inspect.isroutine(value) or isinstance(
                    value, property | classmethod | staticmethod
                )
                if not member.startswith("_") and described and not inspect.getdoc(value):
                    missing.append(f"{name}.{member}")
    assert missing == []


def test_arrays_are_told_with_dtype_and_shape():
    """What gives an array says of which dtype and shape it is."""
    for thing in (
        plait.Output.logits, plait.Output.embeddings, plait.Output.indices, plait.KVCache.keys, plait.KVCache.cells,
        plait.Model.tensor, plait.embed, plait.quant.quantize, plait.quant.dequantize, plait.Context.capture,
    ):  # fmt: skip
        text = inspect.getdoc(thing)
        assert any(kind in text for kind in ("float32", "int32", "uint8", "structured ndarray")), (
            thing
        )
        assert "shape" in text or "(n" in text, thing
