"""Importance matrices, files quantised with them, and types chosen for a size."""

import contextlib
import ctypes
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import plait
import pytest
from plait import quant
from plait.demo import corpus
from plait.evaluation import budget, importance
from plait.files import gguf, quantize
from python.model.test_related_architectures import (
    ATTENTION,
    GATED,
    HEAD_DIM,
    HEADS,
    tensors,
)
from python.model.test_related_architectures import model as tiny_model
from python.reference_data import model_path

from python import gguf_writer


@pytest.fixture(scope="module")
def floats(demo_model, tmp_path_factory):
    """The embedded model with F32 weights."""
    path = tmp_path_factory.mktemp("floats") / "demo.gguf"
    quant.quantize_file(demo_model, path, "F16", output_type="F16", requantize=True, progress=False)
    return plait.Model(path)


@pytest.fixture(scope="module")
def text():
    return " ".join(story.text for story in corpus.stories(3, 16, "train"))


@pytest.fixture(scope="module")
def matrix(floats, text):
    return quant.importance_matrix(floats, text, window=128)


def test_the_sums_are_those_of_the_inputs(floats, text, matrix):
    ids = floats.tokenizer.encode(text)
    n = len(ids) // 128
    assert (matrix.chunk_count, matrix.chunk_size) == (n, 128)
    assert len(matrix.sums) == sum(len(t.shape) == 2 for t in floats.tensors.values())
    squares = np.zeros(512)
    with plait.Context(floats, n_ctx=128) as ctx:
        for i in range(n):
            with ctx.sequence() as seq, ctx.capture("blk.2.ffn_norm", "blk.2.ffn_act") as seen:
                batch = plait.Batch()
                batch.add_sequence(ids[128 * i : 128 * (i + 1)], seq=seq, logits="all")
                ctx.decode(batch)
            up, gate = (floats.tensor(f"blk.2.ffn_{part}.weight") for part in ("up", "gate"))
            x = seen["blk.2.ffn_norm"]
            activated = (x @ gate.T) / (1 + np.exp(-(x @ gate.T))) * (x @ up.T)
            np.testing.assert_allclose(seen["blk.2.ffn_act"], activated, rtol=0.02, atol=0.02)
            squares += (seen["blk.2.ffn_act"].astype(np.float64) ** 2).sum(axis=0)
    np.testing.assert_allclose(matrix.sums["blk.2.ffn_down.weight"][0], squares, rtol=1e-5)
    assert matrix.counts["blk.2.ffn_down.weight"] == 128 * n


# The value that each matrix computes, by the part of its name after the layer. Others are not compared.
OUTPUTS = {
    "attn_output": "attn_out", "ffn_gate": "ffn_gate", "ffn_up": "ffn_up", "ffn_down": "ffn_out",
    "ffn_gate_exps": "ffn_gate", "ffn_up_exps": "ffn_up", "ffn_down_exps": "experts",
}  # fmt: skip


def checked_matrices(model):
    """Compare each matrix times its recorded input with what the model computes; return the parts of their names."""
    ids = np.random.default_rng(0).integers(3, model.n_vocab, 7)
    with plait.Context(model, n_ctx=16, type_k="f32", type_v="f32") as ctx:
        inputs = importance._inputs(model, set(ctx.value_names()))
        outputs = {}
        for name in inputs:
            layer, _, part = name.removesuffix(".weight").rpartition(".")
            if part in OUTPUTS:
                outputs[name] = f"{layer}.{OUTPUTS[part]}"
        batch = plait.Batch()
        batch.add_sequence(ids, logits="all")
        with ctx.capture(*{*outputs.values(), *(inputs[name] for name in outputs)}) as seen:
            ctx.decode(batch)
    for name, output in outputs.items():
        matrix, x, expected = model.tensor(name), seen[inputs[name]], seen[output]
        if matrix.ndim == 2:
            found = x.reshape(len(ids), -1) @ matrix.T
            expected = expected.reshape(found.shape)
        else:  # the output of one expert for each place, whichever it is
            x = x.reshape(len(ids), -1, 1, x.shape[-1])
            every = np.einsum("tjoi,eni->tjen", x, matrix)
            apart = np.abs(every - expected[:, :, None]).max(axis=-1)
            found = np.take_along_axis(every, apart.argmin(axis=2)[..., None, None], 2)[:, :, 0]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=0.02 * scale, err_msg=name)
    return {name.split(".")[2] for name in outputs}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("llama-gqa", set()),
        ("mixtral", set()),
        ("qwen3next", {"attn_output"}),
        ("qwen35-a", {"attn_output"}),
        ("qwen35moe-a", {"attn_output"}),
        ("llama4-a", {"ffn_gate_exps", "ffn_up_exps"}),
    ],
)
def test_entries_have_the_inputs_of_their_matrices(data_dir, name, missing):
    model = plait.Model(model_path(data_dir, name))
    parts = {name.split(".")[2] for name in model.tensors if name.startswith("blk.")}
    assert checked_matrices(model) == parts.intersection(OUTPUTS) - missing


def test_matrices_behind_a_norm_have_no_entry(tmp_path):
    norms = {"attn_sub_norm": (HEADS * HEAD_DIM,), "ffn_sub_norm": (gguf_writer.N_FFN,)}
    bitnet = tiny_model(tmp_path, "bitnet", {}, tensors(ATTENTION | GATED | norms))
    found = quant.importance_matrix(bitnet, [5, 6, 7])
    parts = {name.split(".")[2] for name in found.sums if name.startswith("blk.")}
    assert parts == {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}


def test_files_keep_everything(matrix, tmp_path):
    matrix.save(tmp_path / "m.gguf")
    back = quant.ImportanceMatrix.load(tmp_path / "m.gguf")
    assert back.datasets == ["text"]
    assert (back.chunk_count, back.chunk_size) == (matrix.chunk_count, matrix.chunk_size)
    assert back.sums.keys() == matrix.sums.keys()
    for name in matrix.sums:
        np.testing.assert_array_equal(back.sums[name], matrix.sums[name])
        np.testing.assert_array_equal(back.counts[name], matrix.counts[name])
    head = gguf.read_head(tmp_path / "m.gguf")
    shapes = {t.name: t.shape for t in head.tensors}
    assert shapes["blk.0.ffn_down.weight.in_sum2"] == (1, 512)
    assert shapes["blk.0.ffn_down.weight.counts"] == (1, 1)


def test_damaged_files_are_refused(matrix, tiny_path, tmp_path):
    path = tmp_path / "m.gguf"
    matrix.save(path)
    whole = path.read_bytes()
    for length in (0, 10, 200, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:length])
        with pytest.raises((ValueError, plait.Error)):
            quant.ImportanceMatrix.load(path)
    with pytest.raises(ValueError, match="is not an importance matrix"):
        quant.ImportanceMatrix.load(tiny_path)
    gguf_writer.write(path, {"general.type": "imatrix"}, {"a.in_sum2": np.ones((1, 4), np.float32)})
    with pytest.raises(ValueError, match="a needs sums of shape"):
        quant.ImportanceMatrix.load(path)
    for bad in (np.nan, -1, np.inf):
        arrays = {
            "a.in_sum2": np.full((1, 4), bad, np.float32),
            "a.counts": np.ones((1, 1), np.float32),
        }
        gguf_writer.write(path, {"general.type": "imatrix"}, arrays)
        with pytest.raises(ValueError, match="a has values that are negative, infinite or NaN"):
            quant.ImportanceMatrix.load(path)
    with pytest.raises(OSError, match="nowhere"):
        quant.ImportanceMatrix.load(tmp_path / "nowhere.gguf")
    arrays = {name: np.ones((1, 1), np.float32) for name in ("a.in_sum2", "a.counts")}
    for key, value in {
        "chunk_count": np.zeros(2, np.uint32), "chunk_size": math.inf, "datasets": "text",
    }.items():  # fmt: skip
        gguf_writer.write(path, {"general.type": "imatrix", f"imatrix.{key}": value}, arrays)
        with pytest.raises(ValueError, match=rf"m\.gguf: imatrix\.{key}: expected"):
            quant.ImportanceMatrix.load(path)


def test_all_parts_of_a_split_file_are_read(tmp_path):
    for i, name in enumerate("ab"):
        metadata = {
            "general.type": "imatrix", "split.count": gguf_writer.Typed(gguf_writer.U16, 2),
            "split.no": gguf_writer.Typed(gguf_writer.U16, i),
            "split.tensors.count": gguf_writer.Typed(gguf_writer.I32, 4),
        }  # fmt: skip
        arrays = {
            f"{name}.in_sum2": np.full((1, 4), i, np.float32),
            f"{name}.counts": np.ones((1, 1), np.float32),
        }
        gguf_writer.write(tmp_path / f"m-0000{i + 1}-of-00002.gguf", metadata, arrays)
    found = quant.ImportanceMatrix.load(tmp_path / "m-00001-of-00002.gguf")
    assert {name: sums.tolist() for name, sums in found.sums.items()} == {
        "a": [[0, 0, 0, 0]],
        "b": [[1, 1, 1, 1]],
    }


def test_arrays_of_a_matrix_are_checked_and_converted(tmp_path):
    path = tmp_path / "m.gguf"
    quant.ImportanceMatrix({"a": np.ones((2, 4))}, {"a": np.ones(2)}).save(path)
    assert quant.ImportanceMatrix.load(path).sums["a"].dtype == np.float32
    path.unlink()
    for key, value in (("chunk_count", -1), ("chunk_size", 1 << 32)):
        matrix = quant.ImportanceMatrix({}, {}, **{key: value})
        with pytest.raises(ValueError, match=f"ImportanceMatrix: {key} is {value}"):
            matrix.save(path)
    for sums, counts in ((np.ones(4), {"a": np.ones(1)}), (np.ones((2, 4)), {})):
        matrix = quant.ImportanceMatrix({"a": sums}, counts)
        for use in (lambda m: m.save(path), lambda m: m.weights("a", 2, 4)):
            with pytest.raises(ValueError, match="counts for a; expected the shape"):
                use(matrix)
    assert list(tmp_path.iterdir()) == []


def weighted_error(model, path, matrix):
    made, total = plait.Model(path), 0.0
    for name in matrix.sums:
        weights = matrix.weights(name, 1, model.tensors[name].shape[-1])[0].astype(np.float64)
        lost = made.tensor(name).astype(np.float64) - model.tensor(name)
        total += (weights * lost**2).sum() / (weights * model.tensor(name) ** 2).sum()
    return total


@pytest.mark.parametrize("dtype", ["Q2_K", "Q3_K", "Q4_0", "IQ4_XS", "Q6_K"])
def test_the_matrix_lowers_the_weighted_error(floats, matrix, tmp_path, dtype):
    for name, imatrix in (("a", None), ("b", matrix)):
        quant.quantize_file(
            floats, tmp_path / name, dtype, output_type=dtype, imatrix=imatrix, progress=False
        )
    plain, weighted = (weighted_error(floats, tmp_path / name, matrix) for name in "ab")
    assert weighted < 0.97 * plain


@pytest.mark.oracle
@pytest.mark.parametrize(
    "dtype",
    [
        "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q3_K", "Q2_K",
        "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S",
    ],
)  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True])
def test_at_most_the_weighted_error_of_llama_cpp(floats, matrix, dtype, weighted):
    pytest.importorskip("llama_cpp")
    if not weighted and dtype.startswith(("IQ1", "IQ2")):
        pytest.skip("llama.cpp writes this type only with an importance matrix")
    from llama_cpp import llama_cpp as lib

    encode = ctypes.CDLL(lib._lib._name).ggml_quantize_chunk
    long, pointer = ctypes.c_int64, ctypes.c_void_p
    encode.argtypes = [ctypes.c_int, pointer, pointer, long, long, long, pointer]
    encode.restype = ctypes.c_size_t
    rng, ours, theirs = np.random.default_rng(0), 0.0, 0.0
    for name in matrix.sums:
        values = floats.tensor(name)
        values = values + 1e-3 * rng.standard_normal(values.shape).astype(np.float32)
        weights = matrix.weights(name, 1, values.shape[1])[0]
        mine = quant.quantize(values, dtype, weights if weighted else None, search=True)
        other = np.zeros_like(mine)
        given = weights.ctypes.data if weighted else None
        encode(
            gguf.TENSOR_TYPES[dtype], values.ctypes.data, other.ctypes.data, 0, *values.shape, given
        )
        importance = (weights if weighted else np.ones_like(weights)).astype(np.float64)
        scale = (importance * values.astype(np.float64) ** 2).sum()
        for raw, engine in ((mine, "ours"), (other, "theirs")):
            lost = (
                importance * (quant.dequantize(raw, dtype) - values.astype(np.float64)) ** 2
            ).sum()
            if engine == "ours":
                ours += lost / scale
            else:
                theirs += lost / scale
    assert ours <= theirs


def test_experts_have_their_own_columns(data_dir, tmp_path):
    model = plait.Model(data_dir / "conformance" / "mixtral" / "model.gguf")
    matrix = quant.importance_matrix(model, list(range(5, 69)))
    name = "blk.1.ffn_down_exps.weight"
    assert matrix.sums[name].shape == (6, 96)
    options = {"output_type": "Q4_0", "imatrix": matrix, "progress": False}
    quant.quantize_file(model, tmp_path / "a", "Q4_0", **options)
    matrix.sums[name][3] = np.arange(96)
    quant.quantize_file(model, tmp_path / "b", "Q4_0", **options)
    a, b = (plait.Model(tmp_path / part).tensor(name) for part in "ab")
    assert [bool((a[i] == b[i]).all()) for i in range(6)] == [True, True, True, False, True, True]


def test_matrices_of_other_models_are_refused(floats, matrix, tiny, tmp_path):
    short = quant.ImportanceMatrix(
        {"blk.0.attn_q.weight": np.ones((1, 8), np.float32)},
        {"blk.0.attn_q.weight": np.ones(1, np.float32)},
    )
    with pytest.raises(
        ValueError, match=r"1 x 8 values for blk\.0\.attn_q\.weight; expected 1 x 256"
    ):
        quant.quantize_file(floats, tmp_path / "out.gguf", "Q4_K", imatrix=short)
    foreign = quant.ImportanceMatrix({"a": short.sums["blk.0.attn_q.weight"]}, {"a": np.ones(1)})
    with pytest.raises(ValueError, match="has no entry for any matrix of"):
        quant.quantize_file(floats, tmp_path / "out.gguf", "Q4_K", imatrix=foreign)
    with pytest.raises(TypeError, match="imatrix: expected an ImportanceMatrix, got str"):
        quant.quantize_file(floats, tmp_path / "out.gguf", "Q4_K", imatrix="m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_file_is_continued(floats, matrix, tmp_path):
    quant.quantize_file(floats, tmp_path / "whole.gguf", "Q4_K", imatrix=matrix, progress=False)
    path, seen = tmp_path / "out.gguf", []

    def stop(done, total):
        seen.append(done)
        if len(seen) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quant.quantize_file(floats, path, "Q4_K", imatrix=matrix, resume=True, progress=stop)
    assert not path.exists()
    (unfinished,) = tmp_path.glob("out.gguf.*")
    unfinished.write_bytes(unfinished.read_bytes() + bytes(7))  # a tensor that was begun
    # Other settings do not continue it.
    quant.quantize_file(floats, path, "Q4_K", resume=True, progress=False)
    assert path.read_bytes() != (tmp_path / "whole.gguf").read_bytes()
    before = unfinished.stat().st_size
    steps = []
    quant.quantize_file(
        floats, path, "Q4_K", imatrix=matrix, resume=True,
        progress=lambda done, total: steps.append(unfinished.stat().st_size),
    )  # fmt: skip
    assert before - 7 <= steps[0] <= before
    assert path.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"out.gguf", "whole.gguf"}


def kl(model, path, tokens):
    def logprobs(one):
        with plait.Context(one, n_ctx=len(tokens), type_k="f32", type_v="f32") as ctx:
            batch = plait.Batch()
            batch.add_sequence(tokens, logits="all")
            logits = ctx.decode(batch).logits.astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    p, q = logprobs(model), logprobs(plait.Model(path))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def bits(model):
    return 8 * model.nbytes / sum(math.prod(t.shape) for t in model.tensors.values())


@pytest.fixture(scope="module")
def stories(data_dir):
    return plait.Model(data_dir / "models" / "stories260K-f32.gguf")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "dtype"),
    [("floats", t) for t in ("Q3_K", "Q4_0", "Q4_K", "Q5_0", "Q6_K")]
    + [("stories", t) for t in ("Q4_0", "IQ4_NL", "Q5_1", "Q8_0")],
)
def test_a_budget_beats_the_fixed_type_of_its_size(source, dtype, request, tmp_path):
    model = request.getfixturevalue(source)
    texts = [" ".join(s.text for s in corpus.stories(seed, 8, "train")) for seed in (3, 4)]
    learned, unseen = (model.tokenizer.encode(one)[:256] for one in texts)
    fixed, chosen = tmp_path / "fixed.gguf", tmp_path / "chosen.gguf"
    with pytest.warns() if source == "stories" else contextlib.nullcontext():
        quant.quantize_file(model, fixed, dtype, output_type=dtype, progress=False)
    size = bits(plait.Model(fixed))
    types = quant.choose_types(model, learned, size, window=256, progress=False)
    quant.quantize_file(model, chosen, tensor_types=types, progress=False)
    assert bits(plait.Model(chosen)) <= size
    assert kl(model, chosen, unseen) < 0.9 * kl(model, fixed, unseen)


@pytest.mark.slow
def test_small_budgets_use_the_smallest_types(floats, text):
    types = quant.choose_types(floats, text[:400], 2.4, progress=False)
    assert set(types.values()) & {"IQ2_XXS", "IQ2_XS", "IQ2_S"}


def test_an_interrupted_choice_of_types_continues(tiny, tmp_path):
    kept, calls = tmp_path / "measurements.jsonl", []

    def interrupt(done, total):
        calls.append(done)
        if done == 5:
            raise KeyboardInterrupt

    arguments = (tiny, list(range(5, 101)), 8)
    with pytest.raises(KeyboardInterrupt):
        quant.choose_types(*arguments, measurements=kept, progress=interrupt)
    first = kept.read_bytes()
    assert first.count(b'"key"') >= 5
    kept.write_bytes(first + b'{"key": "cut off')
    chosen = quant.choose_types(*arguments, measurements=kept, progress=False)
    assert chosen == quant.choose_types(*arguments, progress=False)
    complete = kept.read_bytes()
    assert complete.startswith(first)
    assert complete.count(b"\n") == complete.count(b'"key"') > first.count(b'"key"')
    assert quant.choose_types(*arguments, measurements=kept, progress=False) == chosen
    assert kept.read_bytes() == complete  # nothing was measured again
    quant.choose_types(tiny, list(range(5, 85)), 8, measurements=kept, progress=False)
    assert len(kept.read_bytes()) > 1.9 * len(complete)  # another text: everything was


def changed_tiny(path, changes):
    """The tiny model with other values of the element (1, 2) of some matrices."""
    weights = gguf_writer.llama_weights()
    for name, value in changes.items():
        weights[name][1, 2] = value
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    return plait.Model(gguf_writer.write(path, metadata, weights), packed_cache=False)


@pytest.mark.parametrize("weight", [7e4, -1e6, 1e30])
@pytest.mark.parametrize("size", [6, 18])
@pytest.mark.parametrize("weighted", [False, True])
def test_only_types_that_can_store_the_weights_are_chosen(tmp_path, weight, size, weighted):
    large, ids = "blk.0.attn_q.weight", list(range(5, 37))
    model = changed_tiny(tmp_path / "large.gguf", {large: weight})
    matrix = quant.importance_matrix(model, ids, window=16) if weighted else None
    types = quant.choose_types(model, ids, size, imatrix=matrix, progress=False)
    quant.quantize_file(
        model, tmp_path / "out.gguf", tensor_types=types, imatrix=matrix, progress=False
    )
    made = plait.Model(tmp_path / "out.gguf", packed_cache=False)
    assert bits(made) <= size
    assert np.isfinite(made.tensor(large)).all()


@pytest.mark.parametrize("weight", [1e30, np.inf, np.nan])
def test_a_matrix_that_no_smaller_type_can_store_keeps_its_type(tmp_path, weight):
    unused = {"token_embd.weight": weight}  # of token 1, which the text does not have
    model = changed_tiny(tmp_path / "unused.gguf", unused)
    types = quant.choose_types(model, list(range(5, 37)), 18, progress=False)
    assert types.pop("token_embd.weight") == "F32"
    assert set(types.values()) - {"F32"}
    with pytest.raises(ValueError, match="too few; the smallest types that this model can have"):
        quant.choose_types(model, list(range(5, 37)), 6, progress=False)


def test_matrices_that_are_quantised_already_keep_their_type(tiny, tmp_path):
    mixed, out = tmp_path / "mixed.gguf", tmp_path / "out.gguf"
    own_types = {name: tensor.dtype for name, tensor in tiny.tensors.items()}
    quantised = {name: "Q4_0" for name in own_types if "ffn_" in name and "norm" not in name}
    quant.quantize_file(tiny, mixed, tensor_types=own_types | quantised, progress=False)
    model = plait.Model(mixed)
    types = quant.choose_types(model, list(range(5, 21)), 6, progress=False)
    assert types.items() >= quantised.items()
    for requantize in (False, True):
        quant.quantize_file(model, out, tensor_types=types, requantize=requantize, progress=False)
        made = plait.Model(out)
        assert bits(made) <= 6
        assert {name: made.tensors[name].dtype for name in types} == types
    del types[next(iter(quantised))]
    with pytest.raises(plait.UnsupportedError, match=r"already quantised \(Q4_0\)"):
        quant.quantize_file(model, out, tensor_types=types, progress=False)


def test_a_choice_whose_output_is_not_finite_is_never_the_best(tiny, monkeypatch):
    class Logits(plait.Context):
        def decode(self, batch):
            out = super().decode(batch)
            if self.model.tensors["blk.0.attn_q.weight"].dtype == "F32":
                return out
            return SimpleNamespace(logits=np.full_like(out.logits, np.nan))

    monkeypatch.setattr(budget, "Context", Logits)
    types = quant.choose_types(tiny, list(range(5, 37)), 8, progress=False)
    assert types["blk.0.attn_q.weight"] == "F32"


def test_a_model_whose_output_is_not_finite_is_refused(tmp_path):
    model = changed_tiny(tmp_path / "nan.gguf", {"blk.0.attn_v.weight": np.nan})
    with pytest.raises(ValueError, match="output for the text is NaN or infinite"):
        quant.choose_types(model, list(range(5, 37)), 18, progress=False)


@pytest.mark.parametrize("size", [64, 1e308, 10**400])
def test_a_size_may_exceed_that_of_the_model(tiny, size):
    types = quant.choose_types(tiny, list(range(5, 21)), size, progress=False)
    assert set(types.values()) == {"F32"}


def test_a_warning_reports_that_a_text_is_too_long(tiny, monkeypatch):
    ids = list(range(5, 25))
    monkeypatch.setattr(budget, "_MAX_LOGITS", 12 * tiny.n_vocab)
    with pytest.warns(UserWarning, match="text has 20 tokens; only the first 12 are used"):
        types = quant.choose_types(tiny, ids, 8, progress=False)
    assert quant.choose_types(tiny, ids[:12], 8, progress=False) == types


def test_windows_may_be_longer_than_the_usual_batch(tiny):
    def stop(done, total):
        raise ZeroDivisionError

    ids = [5 + i % 90 for i in range(2049)]
    assert quant.importance_matrix(tiny, ids, window=len(ids)).chunk_size == len(ids)
    with pytest.raises(ZeroDivisionError):  # after the first measurement
        quant.choose_types(tiny, ids, 8, window=len(ids), progress=stop)


def test_threads_are_those_of_all_measurements(tiny, monkeypatch):
    used = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, n):
            used.append(n)
            super().__init__(n)

    class Context(plait.Context):
        def __init__(self, *args, **options):
            used.append(options["threads"])
            super().__init__(*args, **options)

    for module in (budget, quantize):
        monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(budget, "Context", Context)
    quant.choose_types(tiny, list(range(5, 21)), 8, threads=1, progress=False)
    assert set(used) == {1}


def test_measurements_keep_no_packed_weights(tiny, tmp_path, monkeypatch):
    def opened(path, packed_cache=tmp_path):  # a folder that is named keeps models of every size
        return plait.Model(path, packed_cache=packed_cache)

    monkeypatch.setattr("plait.evaluation.budget.Model", opened)
    quant.choose_types(tiny, list(range(5, 21)), 8, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_not_taken_for_measurements(floats, text, tmp_path):
    for content in (b"GGUF", b"1\n", b'{"key": "a"}\n', b'{"key": "a", "value": "b"}\n', b"\xff\n"):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(ValueError, match="other is not a file of measurements"):
            quant.choose_types(floats, text, 4.5, measurements=other, progress=False)
        assert other.read_bytes() == content
    with pytest.raises(TypeError, match="measurements: expected a path or None"):
        quant.choose_types(floats, text, 4.5, measurements=3, progress=False)


def test_budgets_are_checked(floats, demo_model, text, tmp_path):
    for few in (1, np.float32(1), np.int64(1)):
        with pytest.raises(
            ValueError, match=r"bits_per_weight is 1\.00, which is too few; .* take 1\."
        ):
            quant.choose_types(floats, text, few)
    for bad in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="expected a positive number"):
            quant.choose_types(floats, text, bad)
    for bad in ("4.5", None, True):
        with pytest.raises(TypeError, match="bits_per_weight: expected a number"):
            quant.choose_types(floats, text, bad)
    with pytest.raises(plait.UnsupportedError, match="no matrix with float weights"):
        quant.choose_types(demo_model, text, 4)
    with pytest.raises(ValueError, match="at least 2"):
        quant.choose_types(floats, [1], 4.5)
    with pytest.raises(ValueError, match="window is 1"):
        quant.choose_types(floats, text, 4.5, window=1)
    with pytest.raises(TypeError, match="window"):
        quant.choose_types(floats, text, 4.5, window="long")
    out = tmp_path / "out.gguf"
    for types, message in (
        ({"nothing": "Q4_K"}, 'has no tensor "nothing"'),
        ({"blk.0.attn_q.weight": "Q9"}, 'blk.0.attn_q.weight is "Q9"'),
        ({"blk.0.attn_norm.weight": "Q4_K"}, "blk.0.attn_norm.weight is no matrix"),
        ({"blk.0.attn_q.weight": "I32"}, 'blk.0.attn_q.weight is "I32"'),
    ):
        with pytest.raises(ValueError, match=message):
            quant.quantize_file(floats, out, tensor_types=types)
    with pytest.raises(TypeError, match="tensor_types: expected a mapping"):
        quant.quantize_file(floats, out, tensor_types=["Q4_K"])
    assert not out.exists()


def test_texts_are_checked(floats):
    with pytest.raises(ValueError, match="the text has no tokens"):
        quant.importance_matrix(floats, [])
    with pytest.raises(ValueError, match="window"):
        quant.importance_matrix(floats, "a", window=0)
    with pytest.raises(TypeError, match="importance_matrix"):
        quant.importance_matrix("model.gguf", "a")
