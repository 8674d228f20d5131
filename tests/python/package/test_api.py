"""The package as a whole: public names, documentation, and the cost of importing it."""

import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import plait
import pytest

CLASSES = [name for name in plait.__all__ if inspect.isclass(getattr(plait, name))]


def public(cls):
    for name, member in inspect.getmembers(cls):
        field_of_dataclass = inspect.ismemberdescriptor(member)
        if not name.startswith("_") and name != "mro" and not field_of_dataclass:
            yield name, member


def test_every_name_of_all_exists():
    assert [name for name in plait.__all__ if not hasattr(plait, name)] == []
    assert set(plait.__all__) <= set(dir(plait))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        plait.nothing  # noqa: B018


@pytest.mark.parametrize("name", plait.__all__)
def test_public_names_are_documented(name):
    item = getattr(plait, name)
    if isinstance(item, str):
        return
    assert item.__doc__, name
    assert not inspect.isclass(item) or item.__doc__ != object.__doc__


@pytest.mark.parametrize(
    "name", [c for c in CLASSES if not issubclass(getattr(plait, c), (Exception, tuple))]
)
def test_public_members_are_documented(name):
    for member, value in public(getattr(plait, name)):
        doc = inspect.getdoc(value) or ""
        assert len(doc) > 5, f"{name}.{member}"


@pytest.mark.timing
def test_import_is_quick_and_brings_no_tokenizer():
    code = (
        "import sys, time, numpy; start = time.process_time(); import plait;"
        "print(time.process_time() - start, 'tokenizers' in sys.modules, 'matplotlib' in sys.modules)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    best = min(float(run.stdout.split()[0]) for run in runs)
    assert best < 0.15
    assert runs[0].stdout.split()[1:] == ["False", "False"]


def test_errors_are_of_pythons_kinds_and_of_ours():
    kinds = {
        plait.ModelError: ValueError,
        plait.BatchError: ValueError,
        plait.CacheFull: RuntimeError,
        plait.StateError: ValueError,
        plait.BackendError: RuntimeError,
        plait.UnsupportedError: NotImplementedError,
    }
    for error, kind in kinds.items():
        assert issubclass(error, plait.Error)
        assert issubclass(error, kind)


def test_cache_full_keeps_its_figures_through_pickle():
    error = pickle.loads(pickle.dumps(plait.CacheFull("no room", 7, 3)))
    assert (str(error), error.needed, error.free) == ("no room", 7, 3)


def test_build_info_describes_the_build():
    info = plait.build_info()
    assert info["version"] == plait.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", plait.__version__)
    assert info["isas"][0] == "scalar"
    assert set(info["isas"]) <= set(info["isas_built"])
    assert isinstance(info["vulkan"], bool)
    assert set(info["cooperative_matrices"]) <= ({"KHR", "NV"} if info["vulkan"] else set())
    assert "llama" in info["architectures"]
    assert info["compiler"].split()[0] in ("gcc", "clang")
    assert info["commit"] is None or re.fullmatch(r"[0-9a-f]{7,40}", info["commit"])


def test_devices_have_the_names_that_contexts_use(tiny):
    names = [device.name for device in plait.devices()]
    assert names[0] == "cpu"
    assert plait.devices()[0].features == plait.build_info()["isas"]
    assert plait.devices()[0].memory > 0
    with plait.Context(tiny, n_ctx=8) as ctx:
        assert ctx.devices == ["cpu"]


def test_every_object_has_a_repr(tiny):
    with plait.Context(tiny, n_ctx=32, n_seq_max=2) as ctx:
        batch = plait.Batch()
        assert repr(batch) == "<plait.Batch of 0 entries>"
        batch.add(5, logits=True)
        assert repr(batch) == "<plait.Batch of 1 entry>"
        out = ctx.decode(batch)
        assert repr(out) == "<plait.Output of 1 entries: 1 rows, logits (1, 288)>"
        assert repr(tiny).startswith("<plait.Model llama: 2 layers, n_embd=64, n_vocab=288")
        assert "unified, n_ctx=32, n_seq_max=2, 1 of 64 cells used" in repr(ctx)
        assert repr(ctx.kv).startswith(
            "<plait.KVCache unified: 1 of 64 cells used, 1 of 2 sequences"
        )
        assert repr(ctx.stats).startswith("<plait.Stats: 1 tokens in 1 microbatches")
        seq = ctx.sequence()
        assert repr(seq) == "<plait.Sequence 1: 0 cells, next position 0>"
        assert repr(tiny.tensors["output.weight"]) == (
            "TensorInfo(name='output.weight', shape=(288, 64), dtype='F32', nbytes=73728)"
        )
        assert repr(plait.devices()[0]).startswith("<plait.Device cpu:")
    assert repr(ctx) == "<plait.Context, closed>"
    assert repr(ctx.kv) == "<plait.KVCache, closed>"
    assert repr(ctx.stats).startswith("<plait.Stats: 1 tokens")
    assert repr(seq) == "<plait.Sequence 1 of a closed context>"
    seq.close()
    assert repr(seq) == "<plait.Sequence 1, closed>"


def test_notebooks_get_tables(tiny):
    with plait.Context(tiny, n_ctx=32, n_seq_max=3) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=0)
        ctx.decode(batch)
        ctx.kv.seq_cp(0, 2, 0, 2)
        assert "<td>2</td><td>2</td><td>2</td><td>0 to 1</td>" in ctx.kv._repr_html_()
        assert "<td>tokens</td><td>3</td>" in ctx.stats._repr_html_()
        assert "reason: " in ctx.stats._repr_html_()
    assert "closed" in ctx.kv._repr_html_()


def test_plot_draws_a_bar_for_each_run_of_rows(tiny):
    plt = pytest.importorskip("matplotlib.pyplot", reason="plait[viz] is not installed")
    plt.switch_backend("agg")
    with plait.Context(tiny, n_ctx=32, n_seq_max=2) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=0)
        ctx.decode(batch)
        ctx.kv.seq_cp(0, 1, 0, 2)
        ax = ctx.kv.plot()
        widths = [path.get_extents().width for bars in ax.collections for path in bars.get_paths()]
        assert widths == [1, 2, 2]  # of sequence 0 alone, of 0 shared, of 1 shared
        plt.close("all")


def test_statistics_draw_a_bar_for_each_phase(tiny):  # S1-12
    plt = pytest.importorskip("matplotlib.pyplot", reason="plait[viz] is not installed")
    plt.switch_backend("agg")
    with plait.Context(tiny, n_ctx=64) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7])
        ctx.decode(batch)
        ax = ctx.stats.plot()
        labels = [label.get_text() for label in ax.get_yticklabels()]
        assert labels == list(ctx.stats.seconds)
        assert len(ax.patches) == len(labels)
    plt.close("all")


@pytest.mark.parametrize(
    "call",
    [
        lambda model: plait.quant.dequantize(np.zeros((1, 34), np.uint8), "\ud800"),
        lambda model: plait.Batch().add_sequence([1], seq=0, logits="\ud800"),
        lambda model: plait.Context(model, flash_attention="\ud800"),
        lambda model: model.tensor("\ud800"),
    ],
)
def test_invalid_unicode_is_a_value_error(tiny, call):  # A1
    with pytest.raises(ValueError, match="surrogate"):
        call(tiny)


@pytest.mark.parametrize("function", ["generate", "score", "token_logprobs", "perplexity", "embed"])
def test_arguments_that_are_not_models_are_named(function):  # A1
    with pytest.raises(TypeError, match="model: expected a Model, got int"):
        getattr(plait, function)(3, "text", *([["a"]] if function == "score" else []))
