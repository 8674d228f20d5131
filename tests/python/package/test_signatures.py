"""Every public call has a signature, and a call that does not match names the argument at fault."""

from __future__ import annotations

import inspect
import re

import plait
import pytest

RECORDS = (plait.Adapter, plait.Defrag, plait.Device, plait.Output, plait.TensorInfo)


def public_callables():
    """Return the public functions, classes and methods by name."""
    found = {}
    for name in plait.__all__:
        value = getattr(plait, name)
        members = (
            {key: getattr(value, key) for key in value.__all__}
            if inspect.ismodule(value)
            else {name: value}
        )
        for key, member in members.items():
            if inspect.isclass(member):
                if not issubclass(member, BaseException) and member not in RECORDS:
                    found[key] = member
                found |= {
                    f"{key}.{attribute}": getattr(member, attribute)
                    for attribute in dir(member)
                    if not attribute.startswith("_")
                    and callable(getattr(member, attribute))
                    and not issubclass(member, BaseException)
                }
            elif callable(member):
                found[key] = member
    return found


def test_every_public_call_has_a_signature():
    callables = public_callables()
    assert len(callables) > 120
    for name, value in callables.items():
        parameters = inspect.signature(value).parameters.values()
        assert all(p.name and not re.fullmatch(r"arg\d*", p.name) for p in parameters), name


def test_signatures_hold_names_and_defaults():
    text = str(inspect.signature(plait.Context))
    assert text.startswith("(model, *, n_ctx=None, n_seq_max=1, kv='auto', kv_cells=None")
    assert str(inspect.signature(plait.Context.decode)) == "(self, batch)"
    with plait.Context(plait.Model.demo(), n_ctx=8) as ctx:
        assert str(inspect.signature(ctx.decode)) == "(batch)"
        assert str(inspect.signature(ctx.kv.seq_cp)) == "(src, dst, p0=0, p1=None)"
    assert str(inspect.signature(plait.devices)) == "()"
    assert "__text_signature__" not in (plait.Context.__doc__ or "")
    assert (plait.Context.decode.__doc__ or "").startswith("decode(self: ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m, b: plait.Context(m, n_threads=2),
            r"Context\(\) got an unexpected keyword argument 'n_threads'; did you mean threads\?",
        ),
        (
            lambda m, b: plait.Context(m, 512),
            r"Context\(\) takes 1 positional argument, but 2 were given; name the others, as in n_ctx=512",
        ),
        (lambda m, b: plait.Context(), r"Context\(\) missing the argument 'model'"),
        (
            lambda m, b: plait.Model("a", map=True),
            "unexpected keyword argument 'map'; did you mean mmap",
        ),
        (
            lambda m, b: b.add(5, sequence=3),
            r"Batch.add\(\) got an unexpected keyword argument 'sequence'; expected token, pos, seq, logits",
        ),
        (lambda m, b: b.add(5, 0, token=3), "got several values for argument 'token'"),
        (
            lambda m, b: b.add(1, 2, 3, True, 5),
            r"Batch.add\(\) takes 4 positional arguments, but 5 were given",
        ),
        (lambda m, b: b.clear(all=True), r"unexpected keyword argument 'all'; it takes none"),
        (lambda m, b: plait.Batch(5), r"Batch\(\) takes 0 positional arguments, but 1 were given"),
    ],
)
def test_a_call_that_does_not_match_names_the_argument(tiny, call, message):
    with pytest.raises(TypeError, match=message) as raised:
        call(tiny, plait.Batch())
    assert "\n" not in str(raised.value)


def test_an_argument_of_another_class_is_named(tiny):
    with plait.Context(tiny, n_ctx=8) as ctx:
        for wrong, name in (([5, 6], "list"), (None, "None"), ("text", "str")):
            with pytest.raises(TypeError, match=f"^batch: expected a Batch, got {name}$"):
                ctx.decode(wrong)


def test_errors_of_the_call_itself_are_unchanged(tiny):
    class Odd:
        def __index__(self):
            raise TypeError("__index__(): incompatible with me")

    with pytest.raises(TypeError, match="incompatible with me"):
        plait.Batch().add(Odd())
