"""embed(): embeddings of many texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_model, flag, string
from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.texts import Text, text_list, token_ids

if TYPE_CHECKING:
    from plait.model import Model

_MAX_SEQUENCES = 16  # of the context that embed() creates


def embed(
    model: Model,
    texts: str | Iterable[Text],
    *,
    pooling: str = "auto",
    normalize: bool = True,
    truncate: bool = False,
    add_special: bool = True,
    parse_special: bool = True,
) -> npt.NDArray[np.float32]:
    """Compute one embedding per text, in batches of similar length.

    Args:
        model: The model.
        texts: A text or several; each is a str or token ids.
        pooling: "mean", "cls", "last" or "rank" (scores of the model's head). "auto": the type in
            the file, or the mean if the file has none.
        truncate: Cut longer texts to the training length of the model.
        normalize: Divide each embedding by its Euclidean length. Scores are never divided.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().

    Returns:
        float32 (n, n_embd), in the order of the texts.

    Raises:
        TypeError: A text is neither str nor token ids.
        ValueError: A text has no tokens or is too long for the model, or `pooling` is "none".
        UnsupportedError: The model is an encoder-decoder.
    """
    expect_model(model, "embed")
    normalize, truncate = flag(normalize, "embed: normalize"), flag(truncate, "embed: truncate")
    string(pooling, "embed: pooling")
    items = [texts] if isinstance(texts, str) else text_list(texts, "embed: texts")
    ids = [
        token_ids(model, text, f"text {i}", add_special, parse_special)
        for i, text in enumerate(items)
    ]
    for i, text in enumerate(ids):
        if not text:
            raise ValueError(f"embed: text {i} has no tokens")
    if not ids:
        return np.empty((0, model.n_embd), np.float32)
    ids = _fitting(model, ids, truncate)
    longest = max(len(text) for text in ids)
    with _embedding_context(model, longest, pooling) as ctx:
        if ctx.kv.kind == "cross":
            raise UnsupportedError(
                f"embed: a {model.arch} model is an encoder-decoder, whose output is not pooled"
            )
        rows: dict[int, npt.NDArray[np.float32]] = {}
        for group in _groups(ids, ctx.n_seq_max, ctx.n_batch):
            batch = Batch()
            for seq, i in enumerate(group):
                batch.add_sequence(ids[i], seq=seq, logits="last")
            out = ctx.encode(batch).embeddings
            assert out is not None
            rows.update(zip(group, out, strict=True))
        kind = ctx.pooling
    made = np.stack([rows[i] for i in range(len(ids))])
    if normalize and kind != "rank":
        length = np.linalg.norm(made.astype(np.float64), axis=1, keepdims=True)
        made = (made / np.where(length > 0, length, 1)).astype(np.float32)
    return made


def _fitting(model: Model, texts: list[list[int]], truncate: bool) -> list[list[int]]:
    """Cut texts to the training length if `truncate`; else raise ValueError for those without a position."""
    limit = model.n_ctx_train
    if not limit:
        return texts
    if truncate:
        return [_cut(model, text, limit) for text in texts]
    for i, text in enumerate(texts):
        if len(text) > limit and "position_embd.weight" in model.tensors:
            raise ValueError(
                f"embed: text {i} has {len(text)} tokens, but this model has positions for {limit}; pass truncate=True "
                "to cut it"
            )
    return texts


def _cut(model: Model, text: list[int], limit: int) -> list[int]:
    """Cut a text to `limit` tokens; a special token at its end is kept."""
    if len(text) <= limit:
        return text
    tokenizer = model.tokenizer
    last = text[-1:] if text[-1] in (tokenizer.sep, tokenizer.eos) else []
    return text[: limit - len(last)] + last


def _embedding_context(model: Model, longest: int, pooling: str) -> Context:
    def make(how: str) -> Context:
        return Context(
            model, n_ctx=longest, n_seq_max=_MAX_SEQUENCES, kv_cells=longest,
            n_batch=max(longest, 512), embeddings=True, pooling=how,
        )  # fmt: skip

    ctx = make(pooling)
    if ctx.pooling != "none" or ctx.kv.kind == "cross":
        return ctx
    ctx.close()
    if pooling == "none":
        raise ValueError('embed: pooling is "none"; it must give one embedding per text')
    return make("mean")


def _groups(ids: list[list[int]], n_seqs: int, n_tokens: int) -> Iterator[list[int]]:
    """Yield groups of indices of texts to compute in one call, longest texts first."""
    group: list[int] = []
    held = 0
    for i in sorted(range(len(ids)), key=lambda i: -len(ids[i])):
        if group and (len(group) == n_seqs or held + len(ids[i]) > n_tokens):
            yield group
            group, held = [], 0
        group.append(i)
        held += len(ids[i])
    if group:
        yield group
