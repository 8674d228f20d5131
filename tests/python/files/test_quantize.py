"""Quantisation of files, and its errors."""

import ctypes
import math
import os

import numpy as np
import plait
import pytest
from plait import quant
from plait.demo import ask, corpus
from plait.files import gguf
from python.file_size_limit import file_size_limit

from python import gguf_writer

# Squared error over squared weights that llama.cpp's quantisers (ggml 0.20.0, no importance matrix)
# leave on the matrices of the embedded model.
OF_LLAMA_CPP = {"Q8_0": 0.0, "Q4_0": 0.0087174796, "Q4_K": 0.0053641848, "Q6_K": 0.00037991243}


def as_floats(model: plait.Model, path, dtype="F32"):
    """A copy of the model with its matrices in a float type."""
    head = gguf.read_head(model.path)
    names = [t.name for t in head.tensors]
    data = [quant.quantize(model.tensor(name), dtype).tobytes() for name in names]
    listed = [
        (t.name, t.shape, gguf.TENSOR_TYPES[dtype], len(bytes_))
        for t, bytes_ in zip(head.tensors, data, strict=True)
    ]
    gguf.write_file(path, head.metadata, listed, iter(data))
    return path


@pytest.fixture(scope="module")
def floats(demo_model, tmp_path_factory):
    return plait.Model(as_floats(demo_model, tmp_path_factory.mktemp("floats") / "demo.gguf"))


def relative_error(model, other):
    lost = whole = 0.0
    for name, tensor in model.tensors.items():
        if len(tensor.shape) == 2:
            values = model.tensor(name).astype(np.float64)
            lost += ((other.tensor(name) - values) ** 2).sum()
            whole += (values**2).sum()
    return lost / whole


def right_answers(model):
    stories = list(corpus.stories(11, 6, "unseen"))
    right = total = 0
    with ask.context(model, questions=16) as ctx:
        for story in stories:
            with ask.read(ctx, model.tokenizer, story.text) as prefix:
                given = ask.answer(ctx, model.tokenizer, prefix, [q for q, _ in story.questions])
            right += sum(a == b for a, (_, b) in zip(given, story.questions, strict=True))
            total += len(story.questions)
    return right / total


@pytest.mark.parametrize("dtype", OF_LLAMA_CPP)
def test_little_is_lost(floats, tmp_path, dtype):
    path = tmp_path / "out.gguf"
    done = quant.quantize_file(floats, path, dtype.lower(), output_type=dtype)
    made = plait.Model(path)
    assert {t.dtype for t in made.tensors.values() if len(t.shape) == 2} == {dtype}
    assert relative_error(floats, made) <= 1.02 * OF_LLAMA_CPP[dtype]
    assert done.bytes_before == floats.nbytes
    assert done.bytes_after == made.nbytes
    assert sum(done.types.values()) == made.nbytes
    assert right_answers(made) >= (0.85 if dtype.startswith("Q4") else 0.95)
    assert (
        made.metadata["general.file_type"] == {"Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18}[dtype]
    )
    for key, value in floats.metadata.items():
        if key not in ("general.file_type", "general.quantization_version"):
            np.testing.assert_array_equal(made.metadata[key], value)
    for name, tensor in floats.tensors.items():
        if len(tensor.shape) == 1:
            np.testing.assert_array_equal(made.tensor(name), floats.tensor(name))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K"])
def test_at_most_two_percent_more_error_than_llama_cpp(floats, dtype):
    pytest.importorskip("llama_cpp")
    from llama_cpp import llama_cpp as lib

    encode = ctypes.CDLL(lib._lib._name).ggml_quantize_chunk
    long, pointer = ctypes.c_int64, ctypes.c_void_p
    encode.argtypes = [ctypes.c_int, pointer, pointer, long, long, long, pointer]
    encode.restype = ctypes.c_size_t
    ours = theirs = 0.0
    for name, tensor in floats.tensors.items():
        if len(tensor.shape) != 2:
            continue
        values = floats.tensor(name)
        mine = quant.quantize(values, dtype)
        other = np.zeros_like(mine)
        type_id = gguf.TENSOR_TYPES[dtype]
        encode(type_id, values.ctypes.data, other.ctypes.data, 0, *values.shape, None)
        ours += ((quant.dequantize(mine, dtype) - values.astype(np.float64)) ** 2).sum()
        theirs += ((quant.dequantize(other, dtype) - values.astype(np.float64)) ** 2).sum()
    assert ours <= 1.02 * theirs
    assert theirs / ours == pytest.approx(OF_LLAMA_CPP[dtype] / relative(floats, dtype), rel=1e-3)


def relative(model, dtype):
    lost = whole = 0.0
    for name, tensor in model.tensors.items():
        if len(tensor.shape) == 2:
            values = model.tensor(name)
            back = quant.dequantize(quant.quantize(values, dtype), dtype).astype(np.float64)
            lost += ((back - values) ** 2).sum()
            whole += (values.astype(np.float64) ** 2).sum()
    return lost / whole


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_floats_can_be_quantised(floats, tmp_path, dtype):
    halves = plait.Model(as_floats(floats, tmp_path / "halves.gguf", dtype))
    quant.quantize_file(halves, tmp_path / "out.gguf", "Q4_K")
    made = plait.Model(tmp_path / "out.gguf")
    types = {name: t.dtype for name, t in made.tensors.items()}
    assert types["token_embd.weight"] == "Q6_K"  # also the output matrix
    assert types["blk.0.ffn_up.weight"] == "Q4_K"
    assert types["blk.0.attn_norm.weight"] == dtype
    assert relative_error(floats, made) < 0.006


def test_rows_that_are_not_multiples_of_a_block(tiny, tmp_path):
    with pytest.raises(plait.UnsupportedError, match="allow_fallback=True"):
        quant.quantize_file(tiny, tmp_path / "out.gguf", "Q6_K")
    with pytest.raises(plait.UnsupportedError, match="allow_fallback=True"):
        quant.quantize_file(tiny, tmp_path / "out.gguf", "Q6_K", tensor_types={})
    assert not (tmp_path / "out.gguf").exists()
    with pytest.warns(UserWarning, match=r"16 of 16 matrices cannot be stored as Q6_K.*16 as Q8_0"):
        quant.quantize_file(tiny, tmp_path / "out.gguf", "Q6_K", allow_fallback=True)
    made = plait.Model(tmp_path / "out.gguf")
    types = {name: t.dtype for name, t in made.tensors.items()}
    assert types["blk.0.ffn_up.weight"] == "Q8_0"  # rows of 64
    assert made.metadata["general.file_type"] == 7  # Q8_0, not what was requested
    with plait.Context(made, n_ctx=8) as ctx:
        batch = plait.Batch()
        batch.add_sequence([1, 5, 9])
        assert np.isfinite(ctx.decode(batch).logits).all()


def test_types_of_single_tensors_do_not_hide_fallbacks_of_the_others(tiny, tmp_path):
    out, named = tmp_path / "out.gguf", {"output.weight": "F16"}
    with pytest.raises(plait.UnsupportedError, match="15 of 15 would be stored differently"):
        quant.quantize_file(tiny, out, "Q4_K", tensor_types=named)
    with pytest.warns(UserWarning, match="15 of 15 matrices cannot be stored as Q4_K"):
        quant.quantize_file(tiny, out, "Q4_K", tensor_types=named, allow_fallback=True)
    named = dict.fromkeys((name for name in tiny.tensors if "norm" not in name), "Q8_0")
    assert quant.quantize_file(tiny, out, "Q4_K", tensor_types=named).types.keys() == {
        "Q8_0",
        "F32",
    }
    del named["output.weight"]  # which should be Q6_K
    with pytest.warns(UserWarning, match="1 of 1 matrices"):
        quant.quantize_file(tiny, out, "Q4_K", tensor_types=named)


def test_routers_and_positions_stay_as_they_are(tmp_path):
    from plait.files.quantize import _KEPT, fnmatchcase

    for name in ("blk.1.ffn_gate_inp.weight", "position_embd.weight", "blk.0.attn_norm.weight"):
        assert any(fnmatchcase(name, pattern) for pattern in _KEPT)
    for name in ("blk.1.ffn_gate_exps.weight", "output.weight", "token_embd.weight"):
        assert not any(fnmatchcase(name, pattern) for pattern in _KEPT)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("data/conformance/rwkv6", "first lerp_x lerp_fused w1 w2 decay_w1 decay_w2"),
        ("data/conformance/rwkv7", "lerp_fused w1 w2 a1 a2 v1 v2 g1 g2"),
    ],
)
def test_small_matrices_of_recurrences_stay_as_they_are(data_dir, name, kept):
    from plait.files.quantize import is_quantisable

    model = plait.Model(data_dir.parent / name / "model.gguf", packed_cache=False)
    found = {
        tensor.name.removeprefix("blk.1.time_mix_").removesuffix(".weight")
        for tensor in model.tensors.values()
        if tensor.name.startswith("blk.1.time_mix_") and len(tensor.shape) >= 2
        and not is_quantisable(tensor, requantize=True)
    }  # fmt: skip
    assert found - {"v1", "v2"} == set(kept.split()) - {"v1", "v2"}
    for large in ("key", "value", "receptance", "output"):
        assert is_quantisable(model.tensors[f"blk.1.time_mix_{large}.weight"], requantize=True)


def test_of_the_alternating_updates_only_large_matrices_are_quantised(data_dir):
    from plait.files.quantize import is_quantisable

    path = data_dir.parent / "data-2026" / "conformance" / "gemma3n-a" / "model.gguf"
    if not path.exists():
        pytest.skip(f"no {path}")
    model = plait.Model(path, packed_cache=False)
    found = {
        tensor.name
        for tensor in model.tensors.values()
        if "altup" in tensor.name and is_quantisable(tensor, requantize=True)
    }
    assert found == {"altup_proj.weight", "altup_unembd_proj.weight"}


def test_a_model_whose_file_was_replaced_is_refused(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "a.gguf", 1)
    model = plait.Model(path, packed_cache=False)
    gguf_writer.tiny_llama(tmp_path / "b.gguf", 2).replace(path)
    with pytest.raises(plait.ModelError, match="changed since it was opened"):
        quant.quantize_file(model, tmp_path / "out.gguf", "Q8_0", progress=False)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        quant.quantize_file(model, tmp_path / "out.gguf", "Q8_0", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_file_is_replaced_during_the_call_is_refused(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "a.gguf", 1)
    other = gguf_writer.tiny_llama(tmp_path / "b.gguf", 2)
    model = plait.Model(path, packed_cache=False)

    def replace(done, total):
        if other.exists():
            other.replace(path)

    with pytest.raises(plait.ModelError, match="changed since it was opened"):
        quant.quantize_file(model, tmp_path / "out.gguf", "Q8_0", progress=replace)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"another file" * 10, "another architecture"])
def test_a_model_whose_file_became_another_kind_of_file_is_refused(tmp_path, content):
    path = gguf_writer.tiny_llama(tmp_path / "a.gguf")
    model = plait.Model(path, packed_cache=False)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        gguf_writer.write(path, {}, {"other.weight": np.ones((4, 64), np.float32)})
    with pytest.raises(plait.ModelError):
        quant.quantize_file(model, tmp_path / "out.gguf", "Q8_0", progress=False)
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_of_the_file_may_change(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "a.gguf", 1)
    path.chmod(0o600)
    model = plait.Model(path, packed_cache=False)
    (tmp_path / "link.gguf").hardlink_to(path)
    path.chmod(0o640)
    quant.quantize_file(model, tmp_path / "out.gguf", "Q8_0", progress=False)
    assert (tmp_path / "out.gguf").exists()


def test_a_file_that_is_only_named_like_a_part_is_read_alone(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "x-00001-of-00002.gguf")
    quant.quantize_file(plait.Model(path), tmp_path / "out.gguf", "Q8_0", progress=False)
    assert (tmp_path / "out.gguf").exists()


def test_quantised_models_are_refused_unless_requested(demo_model, tmp_path):
    path = tmp_path / "out.gguf"
    with pytest.raises(plait.UnsupportedError, match=r"already quantised \(Q8_0\)"):
        quant.quantize_file(demo_model, path, "Q4_K")
    assert not path.exists()
    seen = []
    quant.quantize_file(
        demo_model, path, "Q4_K", requantize=True, threads=1,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert plait.Model(path).tensors["blk.0.attn_q.weight"].dtype == "Q4_K"
    assert seen[-1] == (demo_model.nbytes, demo_model.nbytes)
    assert seen == sorted(seen)


def test_mistakes_change_nothing(floats, tmp_path):
    with pytest.raises(ValueError, match='"IQ5_XS"'):
        quant.quantize_file(floats, tmp_path / "out.gguf", "IQ5_XS")
    with pytest.raises(ValueError, match="own file"):
        quant.quantize_file(floats, floats.path, "Q4_K")
    with pytest.raises(OSError, match="nowhere"):
        quant.quantize_file(floats, tmp_path / "nowhere" / "out.gguf", "Q4_K")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quant.quantize_file(floats, tmp_path / "out.gguf", "Q4_K", progress=stop)
    with pytest.raises(IsADirectoryError, match="expected a file"):
        quant.quantize_file(floats, tmp_path, "Q4_K")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("part", ["header", "contents"])
def test_a_full_disk_leaves_the_old_file(floats, tmp_path, part, resume):
    path = tmp_path / "out.gguf"
    path.write_bytes(b"old")
    n_header = min(tensor.offset for tensor in gguf.read_head(floats.path).tensors)
    limit = n_header // 2 if part == "header" else n_header + (1 << 16)
    with pytest.raises(OSError, match=r"out\.gguf.*\.plait-tmp"), file_size_limit(limit):
        quant.quantize_file(floats, path, "Q8_0", progress=False, resume=resume)
    assert path.read_bytes() == b"old"
    unfinished = [one for one in tmp_path.iterdir() if one != path]
    assert len(unfinished) == (resume and part == "contents")  # which the next call continues
    quant.quantize_file(floats, path, "Q8_0", progress=False, resume=resume)
    assert list(tmp_path.iterdir()) == [path]
    assert plait.Model(path).n_vocab == floats.n_vocab


def test_the_unfinished_file_is_not_the_models(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "x.gguf.plait-tmp")
    with pytest.raises(ValueError, match=r"x\.gguf\.plait-tmp is the model's own file"):
        quant.quantize_file(plait.Model(path), tmp_path / "x.gguf", "Q8_0")
    assert list(tmp_path.iterdir()) == [path]


def test_an_unfinished_file_is_deleted_where_it_cannot_be_renamed(tmp_path):
    (tmp_path / "out.gguf").mkdir()
    with pytest.raises(IsADirectoryError):
        gguf.write_file(tmp_path / "out.gguf", {}, [], iter([]))
    assert list(tmp_path.iterdir()) == [tmp_path / "out.gguf"]


def with_a_weight(path, weight):
    """A tiny model with a weight of this value."""
    weights = gguf_writer.llama_weights()
    weights["blk.0.attn_q.weight"][1, 2] = weight
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    return plait.Model(gguf_writer.write(path, metadata, weights), packed_cache=False)


@pytest.mark.parametrize(
    ("weight", "dtype", "message"),
    [
        (np.nan, "Q8_0", r"element .* is nan"),
        (np.nan, "F16", "an element is nan"),
        (-np.inf, "BF16", "an element is inf"),
        (1e6, "F16", r"values up to 1e\+06 are not finite as F16"),
        (-1e6, "Q4_0", r"values up to 1e\+06 are not finite as Q4_0"),
    ],
)
def test_a_tensor_that_is_not_finite_is_named(tmp_path, weight, dtype, message):
    model = with_a_weight(tmp_path / "a.gguf", weight)
    with pytest.raises(
        ValueError, match=r"quantize_file: blk\.0\.attn_q\.weight: (values: )?" + message
    ):
        quant.quantize_file(model, tmp_path / "out.gguf", dtype, output_type=dtype)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.filterwarnings("ignore:.*cannot be stored")
def test_a_matrix_that_becomes_zero_is_reported(tmp_path, caplog):
    weights = gguf_writer.llama_weights()
    weights["blk.0.attn_q.weight"] *= np.float32(1e-6)
    weights["blk.0.attn_k.weight"] *= np.float32(0)
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    model = plait.Model(gguf_writer.write(tmp_path / "a.gguf", metadata, weights))
    quant.quantize_file(model, tmp_path / "out.gguf", "NVFP4", output_type="Q8_0", progress=False)
    assert caplog.messages == [
        "quantize_file: blk.0.attn_q.weight: all values become zero as NVFP4; choose another type for it"
    ]


def test_a_head_is_read_as_it_is_written(tmp_path):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {
        "general.alignment": 64,
        "odd.strings": ["", "a\nb", b"\xff\xfe"],
        "odd.flag": True,
    }
    metadata |= {"odd.long": gguf_writer.Typed(gguf_writer.U64, 1 << 40)}
    first = tmp_path / "first.gguf"
    gguf_writer.write(first, metadata | {"general.alignment": 32}, gguf_writer.llama_weights())
    head = gguf.read_head(first)
    chunks = []
    for tensor in head.tensors:
        n_bytes = 4 * math.prod(tensor.shape)
        chunks.append(first.read_bytes()[tensor.offset : tensor.offset + n_bytes])
    listed = [(t.name, t.shape, t.type, len(c)) for t, c in zip(head.tensors, chunks, strict=True)]
    gguf.write_file(tmp_path / "second.gguf", head.metadata, listed, iter(chunks))
    assert (tmp_path / "second.gguf").read_bytes() == first.read_bytes()


def test_threads_are_counted_where_the_system_has_no_affinity(monkeypatch):
    from plait.files.quantize import n_usable_cores

    assert n_usable_cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert n_usable_cores() == (os.cpu_count() or 1)
