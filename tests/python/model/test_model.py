"""The Python view of a model file."""

import os
from pathlib import Path

import numpy as np
import plait
import pytest
from python.gguf_writer import F64, I8, I64, U64, Raw, Typed, write

from python import gguf_writer


def test_properties_equal_those_of_the_file(tiny, tiny_path):
    weights = gguf_writer.llama_weights()
    assert tiny.arch == "llama"
    assert (tiny.n_vocab, tiny.n_embd, tiny.n_layer) == (288, 64, 2)
    assert (tiny.n_ctx_train, tiny.n_pos_per_token) == (256, 1)
    assert tiny.n_params == sum(w.size for w in weights.values())
    assert tiny.nbytes == sum(w.nbytes for w in weights.values())
    assert tiny.path == str(tiny_path)


def test_metadata_keeps_every_type_and_the_order_of_the_file(tmp_path):
    values = {
        "i8": Typed(I8, -7), "i64": Typed(I64, -(2**60)), "u64": Typed(U64, 2**63 + 1), "f64": Typed(F64, 0.1),
        "flag": True, "text": "Zürich", "numbers": np.array([1, -2, 3], np.int16),
        "floats": np.array([0.5, 1.5], np.float32), "flags": np.array([True, False]), "words": ["a", "", "Öl"],
    }  # fmt: skip
    path = write(tmp_path / "m.gguf", gguf_writer.llama_metadata() | gguf_writer.vocabulary() | values,
                 gguf_writer.llama_weights())  # fmt: skip
    metadata = plait.Model(path).metadata
    assert list(metadata)[: len(gguf_writer.llama_metadata())] == list(gguf_writer.llama_metadata())
    for key, want in values.items():
        got = metadata[key]
        want = want.value if isinstance(want, Typed) else want
        if isinstance(want, np.ndarray):
            assert got.dtype == want.dtype
            assert got.tolist() == want.tolist()
        else:
            assert type(got) is type(want)
            assert got == want


def test_invalid_utf8_strings_become_surrogates(tmp_path):
    raw = b"caf\xe9 \xff"
    values = {"text": raw, "words": [raw, b"ok"]}
    path = write(tmp_path / "m.gguf", gguf_writer.llama_metadata() | gguf_writer.vocabulary() | values,
                 gguf_writer.llama_weights())  # fmt: skip
    metadata = plait.Model(path).metadata
    assert metadata["text"].encode("utf-8", "surrogateescape") == raw
    assert metadata["words"][0].encode("utf-8", "surrogateescape") == raw


def test_errors_quote_invalid_utf8_in_printable_form(tmp_path):
    values = {"llama.rope.scaling.type": b"li\x90ear"}
    path = write(tmp_path / "m.gguf", gguf_writer.llama_metadata() | gguf_writer.vocabulary() | values,
                 gguf_writer.llama_weights())  # fmt: skip
    with pytest.raises(plait.UnsupportedError, match=r'unknown scaling "li\\x90ear"') as raised:
        plait.Model(path)
    str(raised.value).encode()


def test_mappings_are_read_only_and_stay_the_same(tiny):
    assert tiny.metadata is tiny.metadata
    with pytest.raises(TypeError):
        tiny.metadata["general.name"] = "other"
    with pytest.raises(TypeError):
        del tiny.tensors["output.weight"]


def test_tensors_are_described_and_read(tiny):
    for name, want in gguf_writer.llama_weights().items():
        found = tiny.tensors[name]
        assert (found.name, found.shape, found.dtype, found.nbytes) == (
            name,
            want.shape,
            "F32",
            want.nbytes,
        )
        got = tiny.tensor(name)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)
    assert list(tiny.tensors) == list(gguf_writer.llama_weights())


def test_quantised_tensors_are_dequantised(tmp_path):
    # More than a megabyte of blocks, read in chunks, in a layer for draft tokens that nothing else reads.
    rng = np.random.default_rng(0)
    weights = gguf_writer.llama_weights()
    values = rng.standard_normal((3000, 512)).astype(np.float32)
    packed = plait.quant.quantize(values, "Q8_0")
    weights["blk.2.extra.weight"] = Raw("Q8_0", packed)
    layers = {"llama.block_count": gguf_writer.N_LAYERS + 1, "llama.nextn_predict_layers": 1}
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary() | layers
    model = plait.Model(write(tmp_path / "m.gguf", metadata, weights))
    assert model.tensors["blk.2.extra.weight"].shape == (3000, 512)
    assert model.tensors["blk.2.extra.weight"].dtype == "Q8_0"
    np.testing.assert_array_equal(
        model.tensor("blk.2.extra.weight"), plait.quant.dequantize(packed, "Q8_0")
    )


def test_rows_are_those_of_the_tensor(tmp_path, tiny):
    weights = gguf_writer.llama_weights()
    rng = np.random.default_rng(0)
    values = rng.standard_normal(weights["output.weight"].shape).astype(np.float32)
    weights["output.weight"] = Raw("Q8_0", plait.quant.quantize(values, "Q8_0"))
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    packed = plait.Model(write(tmp_path / "m.gguf", metadata, weights))
    rows = [3, 0, 287, 3]
    for model in (tiny, packed):
        for wanted in (rows, np.array(rows), np.array(rows, np.uint16), []):
            got = model.tensor_rows("output.weight", wanted)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(
                got, model.tensor("output.weight")[np.array(wanted, np.int64)]
            )
    for wrong, error, message in (
        ([288], IndexError, "expected 0 to 287, got 288"),
        ([-1], IndexError, "expected 0 to 287, got -1"),
        ([[1]], ValueError, r"expected the shape \(n,\), got \(1, 1\)"),
        ([0.5], TypeError, "rows"),
    ):
        with pytest.raises(error, match=message):
            tiny.tensor_rows("output.weight", wrong)
    with pytest.raises(ValueError, match=r'"output_norm\.weight" is not a matrix'):
        tiny.tensor_rows("output_norm.weight", [0])


def test_a_tensor_is_a_copy(tiny):
    first = tiny.tensor("output_norm.weight")
    first[:] = 0
    assert (tiny.tensor("output_norm.weight") != 0).any()


def test_unknown_tensors_are_key_errors(tiny):
    with pytest.raises(KeyError, match="no tensor"):
        tiny.tensor("nothing")


@pytest.mark.parametrize("mmap", [False, True])
def test_mapped_or_read_the_model_is_the_same(tiny, tiny_path, mmap):
    model = plait.Model(tiny_path, mmap=mmap)
    np.testing.assert_array_equal(model.tensor("output.weight"), tiny.tensor("output.weight"))


def test_paths_are_str_bytes_or_path_like(tiny_path):
    for path in (str(tiny_path), os.fsencode(tiny_path), tiny_path):
        assert plait.Model(path).arch == "llama"
    for path in (None, 3, object()):
        with pytest.raises(TypeError):
            plait.Model(path)
    with pytest.raises(ValueError, match="null"):
        plait.Model("a\0b")


def test_defects_name_the_file(tmp_path):
    missing = tmp_path / "missing.gguf"
    with pytest.raises(plait.ModelError, match=r"missing\.gguf"):
        plait.Model(missing)
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    with pytest.raises(plait.ModelError, match=r"text\.gguf"):
        plait.Model(text)
    with pytest.raises(plait.ModelError, match=r"text\.gguf"):
        plait.Tokenizer.from_gguf(text)


def test_errors_about_unknown_architectures_list_the_known_ones(tmp_path):
    path = write(tmp_path / "m.gguf", gguf_writer.llama_metadata() | {"general.architecture": "lstm"} |
                 gguf_writer.vocabulary(), gguf_writer.llama_weights())  # fmt: skip
    with pytest.raises(plait.UnsupportedError, match=r"lstm.*llama"):
        plait.Model(path)


def test_a_changed_file_is_an_error_or_goes_unnoticed(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "m.gguf")
    model = plait.Model(path)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(plait.ModelError):
        model.tensor("output.weight")


def test_a_replaced_file_is_read_as_it_was(tmp_path):
    path = gguf_writer.tiny_llama(tmp_path / "m.gguf")
    model = plait.Model(path)
    want = model.tensor("output.weight")
    os.replace(gguf_writer.tiny_llama(tmp_path / "other.gguf", seed=2), path)
    np.testing.assert_array_equal(model.tensor("output.weight"), want)


def test_the_tokenizer_is_created_once(tiny):
    assert tiny.tokenizer is tiny.tokenizer
    assert isinstance(tiny.tokenizer, plait.Tokenizer)
    assert tiny.tokenizer.n_vocab == tiny.n_vocab
    assert tiny.tokenizer.bos == gguf_writer.BOS


def test_weights_without_a_vocabulary_load(tmp_path):
    metadata = gguf_writer.llama_metadata() | {"tokenizer.ggml.model": "no_vocab"}
    model = plait.Model(write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights()))
    with pytest.raises(plait.UnsupportedError):
        model.tokenizer  # noqa: B018


def test_a_file_without_tokens_is_refused(tmp_path):
    with pytest.raises(plait.ModelError, match=r"tokenizer\.ggml"):
        plait.Model(
            write(tmp_path / "m.gguf", gguf_writer.llama_metadata(), gguf_writer.llama_weights())
        )


def test_tensors_unknown_to_the_architecture_are_refused(tmp_path):
    # Silently ignoring a bias or an output matrix would change the results.
    weights = gguf_writer.llama_weights()
    weights["output.weights"] = weights.pop("output.weight")
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    with pytest.raises(plait.ModelError, match=r"output\.weights does not belong to .* llama"):
        plait.Model(write(tmp_path / "m.gguf", metadata, weights))


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        ({"tokenizer.ggml.model": "hostile"}, plait.UnsupportedError, '"hostile".*gpt2.*no_vocab'),
        ({"tokenizer.ggml.scores": np.zeros(5, np.float32)}, plait.ModelError, "scores.*288.*5"),
        ({"tokenizer.ggml.scores": "none"}, plait.ModelError, "scores.*array of f32.*string"),
        ({"tokenizer.ggml.token_type": np.zeros(288, np.uint8)}, plait.ModelError, "array of i32"),
    ],
)
def test_a_wrong_vocabulary_is_refused_with_the_model(tmp_path, damage, error, match):
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary() | damage
    with pytest.raises(error, match=match):
        plait.Model(write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights()))


def test_every_tokenizer_can_be_named_by_a_model(tmp_path):
    from plait.tokenizer import vocabulary

    for name in vocabulary._KINDS:
        metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
        metadata["tokenizer.ggml.model"] = name
        plait.Model(write(tmp_path / "m.gguf", metadata, gguf_writer.llama_weights()))


def test_every_reference_model_of_a_known_architecture_loads(data_dir: Path):
    seen = 0
    for path in sorted(data_dir.glob("conformance/*/model.gguf")):
        try:
            model = plait.Model(path)
        except plait.UnsupportedError:
            continue
        seen += 1
        assert model.n_params == sum(int(np.prod(t.shape)) for t in model.tensors.values())
        assert model.nbytes == sum(t.nbytes for t in model.tensors.values())
        assert model.metadata["general.architecture"] == model.arch
    assert seen >= 4
