"""Misuse of scores and embeddings raises errors that name the argument."""

import numpy as np
import plait
import pytest
from python.model.test_encoders import SENTENCES, tiny_bert


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: plait.score(m, "Once", " upon"), r"continuations is str; pass a list of texts"),
        (lambda m: plait.score(m, "Once", b" upon"), "continuations is bytes; pass a list"),
        (lambda m: plait.score(m, b"Once", [" upon"]), "context is bytes; pass a str"),
        (lambda m: plait.score(m, "Once", [b" upon"]), "continuation 0 is bytes; pass a str"),
        (lambda m: plait.score(m, "Once", 5), "continuations: expected a list of texts"),
        (lambda m: plait.perplexity(m, b"Once upon"), "text is bytes; pass a str"),
        (lambda m: plait.token_logprobs(m, b"Once upon"), "text is bytes; pass a str"),
        (lambda m: plait.embed(m, b"Once upon"), "texts is bytes; pass a list of texts"),
        (lambda m: plait.embed(m, [b"Once upon"]), "text 0 is bytes; pass a str"),
    ],
)
def test_bytes_and_strings_in_place_of_lists_are_type_errors(tiny, call, message):
    with pytest.raises(TypeError, match=message):
        call(tiny)


def test_long_texts_are_named_and_can_be_truncated(tmp_path):
    model = plait.Model(tiny_bert(tmp_path / "bert.gguf"))
    limit, end = model.n_ctx_train, model.tokenizer.eos
    long = [5 + i % 200 for i in range(limit + 30)] + [end]
    with pytest.raises(
        ValueError, match=rf"text 1 has {len(long)} tokens.*for {limit}; pass truncate=True"
    ):
        plait.embed(model, [SENTENCES[0], long])
    got = plait.embed(model, [long, long[:-1]], truncate=True)
    want = plait.embed(model, [[*long[: limit - 1], end], long[:limit]])
    np.testing.assert_array_equal(got, want)
    short = plait.embed(model, SENTENCES[:2])
    np.testing.assert_array_equal(plait.embed(model, SENTENCES[:2], truncate=True), short)
