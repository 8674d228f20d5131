"""Embedder and embed(): embeddings of many texts, and the order of documents by their relevance for a query."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import flag, integer, string
from plait.closeable import Closeable
from plait.context import Context, SharedContext, model_of
from plait.errors import CacheFull, UnsupportedError
from plait.evaluation.reranking import answer_ids, pair_ids, question_ids, yes_minus_no
from plait.evaluation.texts import Text, text_list, token_ids
from plait.generation.prompts import require_fit
from plait.model import Model
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence

Rows = npt.NDArray[np.float32]

_MAX_SEQUENCES = 16  # of the contexts that an Embedder creates
_RANK_POOLING = 4  # in the metadata of a file
_FIRST_LENGTH = 512  # tokens of a text for which such a context has room at first


class Embedder(Closeable):
    """Computes embeddings, and scores of documents for a query, in batches of similar length.

    Calls from several threads run one after another. Progress functions may call the Embedder, too. close(), or leaving
    a `with` block, frees the contexts that the Embedder created.

    Args:
        model: A Model, for which contexts are created when they are needed; a Context with embeddings=True, of which
            free sequences are used; or an Engine, whose model is used in another context, and whose requests continue.
        normalize: Divide each embedding by its Euclidean length. Scores are never divided.
        pooling: "mean", "cls", "last" or "rank" (scores of the model's head). "auto": the type in the file, or the mean
            if the file has none. For a Context: "auto" or the pooling of the context.
        truncate: Cut longer texts to the training length of the model, or to `n_ctx` if that is smaller.
        n_ctx: Max tokens of a text, or of a query with a document. None: as many as the model and a given Context take.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `pooling` is "none", or differs from that of a given Context; or `n_ctx` is below 1.

    Example:
        with plait.Embedder(model) as embedder:
            cosines = embedder.embed(texts) @ embedder.embed(queries).T
    """

    def __init__(
        self,
        model: Model | Context | SharedContext,
        normalize: bool = True,
        pooling: str = "auto",
        *,
        truncate: bool = False,
        n_ctx: SupportsIndex | None = None,
    ) -> None:
        self.model = model_of(model, "Embedder")
        self.normalize = flag(normalize, "Embedder: normalize")
        self.pooling = string(pooling, "Embedder: pooling")
        self.truncate = flag(truncate, "Embedder: truncate")
        self.n_ctx = None if n_ctx is None else integer(n_ctx, "Embedder: n_ctx", 1)
        if pooling == "none":
            raise ValueError('Embedder: pooling is "none"; it must give one embedding per text')
        self._given = model if isinstance(model, Context) else None
        self._engine = model if isinstance(model, SharedContext) else None
        if self._given is not None and pooling not in ("auto", self._given.pooling):
            raise ValueError(
                f"Embedder: pooling is {pooling!r}, but the context was created with {self._given.pooling!r}; pass the "
                f"model, or create a context with that pooling"
            )
        self._made: dict[str, Context] = {}  # by pooling
        self._lock = threading.RLock()  # a progress function may call the Embedder
        self._closed = False

    def embed(
        self,
        texts: str | Iterable[Text],
        progress: ProgressOption = None,
        *,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Rows:
        """Compute one embedding per text.

        Args:
            texts: A text or several; each is a str or token ids.
            progress: Called with (done, total), in texts. True shows a tqdm progress bar; None shows it for 16 or more
                texts when stderr is a terminal or a notebook.
            add_special: As in Tokenizer.encode().
            parse_special: As in Tokenizer.encode().

        Returns:
            float32 (n, n_embd), in the order of the texts. With the pooling "rank": float32 (n, n_labels).

        Raises:
            TypeError: A text is neither str nor token ids.
            ValueError: A text has no tokens or is too long for the model, or the Embedder is closed.
            CacheFull: No sequence of a given Context is free.
            UnsupportedError: The model is an encoder-decoder.
        """
        items = [texts] if isinstance(texts, str) else text_list(texts, "embed: texts")
        ids = [
            token_ids(self.model, text, f"text {i}", add_special, parse_special)
            for i, text in enumerate(items)
        ]
        for i, text in enumerate(ids):
            if not text:
                raise ValueError(f"embed: text {i} has no tokens")
        if not ids:
            return np.empty((0, self._width()), np.float32)
        made, how = self._rows(ids, self.pooling, progress, "embed")
        if self.normalize and how != "rank":
            length = np.linalg.norm(made.astype(np.float64), axis=1, keepdims=True)
            made = (made / np.where(length > 0, length, 1)).astype(np.float32)
        return made

    def rerank(
        self,
        query: str,
        documents: Iterable[str],
        progress: ProgressOption = None,
        *,
        instruction: str | None = None,
    ) -> Rows:
        """Score how relevant documents are for a query.

        A model with a classification head, such as a cross-encoder, reads each pair of query and document and returns
        its first score. Other causal models are asked whether the document meets the query; the score is the
        log-probability of "yes" minus that of "no", and what the questions have in common is computed once. The
        question is the template "rerank" of the file, or else that of Qwen3-Reranker. Text of the query and the
        documents never becomes special tokens.

        Args:
            query: The query.
            documents: The documents.
            progress: As in embed(), in documents.
            instruction: The task, for models that are asked. None: to retrieve passages that answer the query.

        Returns:
            float32 (n,), in the order of the documents; higher is more relevant. The logistic function of a score is a
            probability.

        Raises:
            TypeError: An argument is not text.
            ValueError: A pair is too long for the model.
            CacheFull: No sequence of a given Context is free.
            UnsupportedError: The model has no classification head and is not decoder-only.
        """
        string(query, "rerank: query")
        given = text_list(documents, "rerank: documents")
        texts = [string(text, f"rerank: document {i}") for i, text in enumerate(given)]
        if instruction is not None:
            string(instruction, "rerank: instruction")
        check_progress(progress, "rerank")
        if not texts:
            return np.empty(0, np.float32)
        if has_head(self.model):
            pairs = [pair_ids(self.model, query, text) for text in texts]
            scores, _ = self._rows(pairs, "rank", progress, "rerank")
            return np.ascontiguousarray(scores[:, 0])
        if not self._generates():
            raise UnsupportedError(
                f"rerank: this {self.model.arch} model has no classification head and is not decoder-only; compare "
                f"embeddings with embed(), or use a reranking model"
            )
        questions = [question_ids(self.model, query, text, instruction) for text in texts]
        if self.n_ctx is not None:
            for i, question in enumerate(questions):
                require_fit(question, self.n_ctx, f"rerank: document {i} with the query")
        with self._lock, Progress(progress, len(texts), "document") as bar:
            self._check_open()
            owner = self._engine or self._given or self.model
            return yes_minus_no(owner, questions, answer_ids(self.model), bar)

    def close(self) -> None:
        """Free the contexts. Does nothing if already closed."""
        with self._lock:
            self._closed = True
            for ctx in self._made.values():
                ctx.close()
            self._made.clear()

    def __repr__(self) -> str:
        return f"<plait.Embedder of {self.model!r}, pooling={self.pooling!r}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("Embedder: the embedder is closed")

    def _generates(self) -> bool:
        """Return whether the model is decoder-only, so that it has logits after a prompt."""
        model = self.model
        has_encoder = any(name.startswith("enc.") for name in model.tensors)
        return (
            not has_encoder
            and model.metadata.get(f"{model.arch}.attention.causal", True) is not False
        )

    def _width(self) -> int:
        """Return the length of the rows that embed() returns."""
        model = self.model
        how = self.pooling if self._given is None else self._given.pooling
        if how == "auto" and model.metadata.get(f"{model.arch}.pooling_type") == _RANK_POOLING:
            how = "rank"
        head = model.tensors.get("cls.output.weight")
        if how != "rank" or head is None:
            return model.n_embd
        return math.prod(head.shape) // model.n_embd

    def _rows(
        self, ids: list[list[int]], pooling: str, progress: ProgressOption, function: str
    ) -> tuple[Rows, str]:
        """Return the pooled output of each text, and the kind of pooling."""
        check_progress(progress, function)
        ids = self._fitting(ids, function)
        rows: dict[int, Rows] = {}
        with self._lock, Progress(progress, len(ids), "text") as bar:
            order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
            while len(rows) < len(ids):
                self._check_open()
                ctx = self._context(len(ids[order[0]]), pooling, function)
                how = ctx.pooling
                with ExitStack() as handles:
                    seqs = _free_sequences(ctx, len(ids) - len(rows), handles)
                    left = order[len(rows) : len(rows) + len(seqs)]
                    group = _group(ids, left, ctx.n_batch)
                    batch = Batch()
                    for seq, i in zip(seqs, group, strict=False):
                        batch.add_sequence(ids[i], seq=seq, logits="last")
                    out = ctx.encode(batch).embeddings
                    assert out is not None
                    rows.update(zip(group, out, strict=True))
                bar.update(len(group))  # may use the sequences, replace the context or close it
            return np.stack([rows[i] for i in range(len(ids))]), how

    def _fitting(self, texts: list[list[int]], function: str) -> list[list[int]]:
        """Cut texts that are too long if `truncate`; else raise ValueError for them."""
        trained = self.model.n_ctx_train
        if self.truncate:
            limit = min((n for n in (trained, self.n_ctx) if n), default=None)
            return [_cut(self.model, text, limit) for text in texts] if limit else texts
        for i, text in enumerate(texts):
            if self.n_ctx is not None:
                require_fit(text, self.n_ctx, f"{function}: text {i}")
            if trained and len(text) > trained and "position_embd.weight" in self.model.tensors:
                raise ValueError(
                    f"{function}: text {i} has {len(text)} tokens, but this model has positions for {trained}; pass "
                    "truncate=True to cut it"
                )
        return texts

    def _context(self, longest: int, pooling: str, function: str) -> Context:
        """Return a context with room for a text of `longest` tokens."""
        if self._given is not None:
            return _usable(self._given, longest, pooling, function)
        ctx = self._made.get(pooling)
        if ctx is None or min(ctx.n_batch, ctx.n_ctx) < longest:
            if ctx is not None:
                self._made.pop(pooling).close()  # first, because creating another one can fail
            ctx = self._made[pooling] = _embedding_context(self.model, longest, pooling)
        return ctx


def embed(
    model: Model | Context | SharedContext,
    texts: str | Iterable[Text],
    *,
    pooling: str = "auto",
    normalize: bool = True,
    truncate: bool = False,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
) -> Rows:
    """Compute one embedding per text, in batches of similar length. For several calls, use plait.Embedder.

    Args:
        model: As in Embedder.
        texts: A text or several; each is a str or token ids.
        pooling: As in Embedder.
        normalize: As in Embedder.
        truncate: As in Embedder.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: As in Embedder.embed().

    Returns:
        float32 (n, n_embd), in the order of the texts.

    Raises:
        TypeError: A text is neither str nor token ids.
        ValueError: A text has no tokens or is too long for the model, or `pooling` is "none".
        CacheFull: No sequence of a given Context is free.
        UnsupportedError: The model is an encoder-decoder.
    """
    with Embedder(model, normalize, pooling, truncate=truncate) as embedder:
        return embedder.embed(texts, progress, add_special=add_special, parse_special=parse_special)


def has_head(model: Model) -> bool:
    """Return whether a model has a classification head."""
    return not model.tensors.keys().isdisjoint(("cls.weight", "cls.output.weight"))


def _cut(model: Model, text: list[int], limit: int) -> list[int]:
    """Cut a text to `limit` tokens; a special token at its end is kept."""
    if len(text) <= limit:
        return text
    tokenizer = model.tokenizer
    last = text[-1:] if text[-1] in (tokenizer.sep, tokenizer.eos) else []
    return text[: limit - len(last)] + last


def _usable(ctx: Context, longest: int, pooling: str, function: str) -> Context:
    """Return a caller's context if it can pool such texts, else raise ValueError."""
    if ctx.pooling == "none" or pooling not in ("auto", ctx.pooling):
        wanted = "a pooling" if pooling == "auto" else f"pooling={pooling!r}"
        raise ValueError(
            f"{function}: the context has the pooling {ctx.pooling!r}; create it with embeddings=True and {wanted}, or "
            f"pass the model"
        )
    if longest > min(ctx.n_batch, ctx.n_ctx):
        raise ValueError(
            f"{function}: a text has {longest} tokens, but n_batch of the context is {ctx.n_batch} and n_ctx is "
            f"{ctx.n_ctx}; create it with larger ones, or pass the model"
        )
    return ctx


def _embedding_context(model: Model, longest: int, pooling: str) -> Context:
    length = max(longest, min(model.n_ctx_train or _FIRST_LENGTH, _FIRST_LENGTH))

    def make(how: str) -> Context:
        return Context(
            model, n_ctx=length, n_seq_max=_MAX_SEQUENCES, kv_cells=length,
            n_batch=max(length, 512), embeddings=True, pooling=how,
        )  # fmt: skip

    ctx = make(pooling)
    if ctx.kv.kind == "cross":
        ctx.close()
        raise UnsupportedError(
            f"embed: a {model.arch} model is an encoder-decoder, whose output is not pooled"
        )
    if ctx.pooling != "none":
        return ctx
    ctx.close()
    return make("mean")


def _free_sequences(ctx: Context, n: int, handles: ExitStack) -> list[Sequence]:
    """Open up to `n` sequences, at least one, and return them in the order of their ids, as the output has them."""
    found = [handles.enter_context(ctx.sequence())]
    with suppress(CacheFull):
        while len(found) < n:
            found.append(handles.enter_context(ctx.sequence()))
    return sorted(found, key=lambda seq: seq.id)


def _group(ids: list[list[int]], indices: list[int], n_tokens: int) -> list[int]:
    """Return the first indices of texts, at least one, that have `n_tokens` tokens together at most."""
    ends = np.cumsum([len(ids[i]) for i in indices])
    return indices[: max(1, int(np.searchsorted(ends, n_tokens, side="right")))]
