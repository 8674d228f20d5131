"""Prompts and scores of reranking models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from plait.context import Context, SharedContext
from plait.errors import UnsupportedError
from plait.generation.prompts import require_fit
from plait.generation.scheduler import Scheduler

if TYPE_CHECKING:
    from plait.model import Model
    from plait.progress import Progress

_TEMPLATE_KEY: Final = "tokenizer.chat_template.rerank"
_INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
_MAX_SEQUENCES: Final = 16  # of the context that yes_minus_no() creates
# Qwen3-Reranker (Zhang et al. 2025, arXiv:2506.05176); its special tokens are used if the vocabulary has them.
_SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_QUESTION: Final = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
_CHATML: Final = (
    f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{_QUESTION}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
_THOUGHT: Final = "<think>\n\n</think>\n\n"
_PLAIN: Final = f"{_SYSTEM}\n{_QUESTION}\nAnswer: "
_FIELD: Final = re.compile(r"\{(query|document|instruction)\}")


def pair_ids(model: Model, query: str, document: str) -> list[int]:
    """Return the tokens of a pair for a classification head.

    Without a template in the file: BOS query EOS document EOS, with SEP in place of EOS in BERT vocabularies, and
    another SEP between them if the file has the key tokenizer.ggml.add_sep_token.
    """
    template = model.metadata.get(_TEMPLATE_KEY)
    if template is not None:
        return _filled(
            model, str(template), query=query, document=document, instruction=_INSTRUCTION
        )
    tokenizer = model.tokenizer
    first = tokenizer.encode(query, add_special=True, parse_special=False).tolist()
    second = tokenizer.encode(document, add_special=True, parse_special=False).tolist()
    if second and tokenizer.bos is not None and second[0] == tokenizer.bos:
        del second[0]
    adds_sep = model.metadata.get("tokenizer.ggml.add_sep_token", False)
    between = [tokenizer.sep] if adds_sep and tokenizer.kind != "wordpiece" else []
    return [*first, *(token for token in between if token is not None), *second]


def question_ids(
    model: Model, query: str, document: str, instruction: str | None = None
) -> list[int]:
    """Return the tokens of the question whether a document meets a query."""
    template = model.metadata.get(_TEMPLATE_KEY)
    if template is None:
        tokenizer = model.tokenizer
        if tokenizer.token_id("<|im_start|>") is None:
            template = _PLAIN
        elif tokenizer.token_id("<think>") is None:
            template = _CHATML
        else:
            template = _CHATML + _THOUGHT
    return _filled(
        model,
        str(template),
        query=query,
        document=document,
        instruction=instruction or _INSTRUCTION,
    )


def answer_ids(model: Model) -> tuple[int, int]:
    """Return the first tokens at which "yes" and "no" differ.

    Raises:
        UnsupportedError: They do not differ.
    """
    both = (model.tokenizer.encode(text, add_special=False).tolist() for text in ("yes", "no"))
    for yes, no in zip(*both, strict=False):
        if yes != no:
            return yes, no
    raise UnsupportedError('rerank: the vocabulary has no different tokens for "yes" and "no"')


def yes_minus_no(
    owner: Model | Context | SharedContext,
    questions: list[list[int]],
    answers: tuple[int, int],
    progress: Progress,
) -> npt.NDArray[np.float32]:
    """Return the log-probability of "yes" minus that of "no" after each question.

    Args:
        owner: Where to compute them.
        questions: The tokens of each. Their common prefix is computed once.
        answers: The tokens of "yes" and "no".
        progress: Reports how many are done.

    Returns:
        float32 (n,).

    Raises:
        ValueError: A question has more tokens than n_ctx of the given context.
    """
    scores = np.empty(len(questions), np.float32)

    def read(row: npt.NDArray[np.float32], seq: int) -> int:
        scores[seq] = row[answers[0]] - row[answers[1]]
        return answers[0]

    made: Context | None = None
    given = owner.ctx if isinstance(owner, SharedContext) else owner
    if isinstance(given, Context):
        for i, question in enumerate(questions):
            require_fit(question, given.n_ctx, f"rerank: document {i} with the query")
    if isinstance(owner, SharedContext):
        scheduler = owner.batch()
    else:
        if not isinstance(owner, Context):
            longest = max(map(len, questions))
            n_seqs = min(len(questions), _MAX_SEQUENCES) + 1
            owner = made = Context(
                owner, n_ctx=longest, n_seq_max=n_seqs, kv_cells=longest * min(n_seqs, 4)
            )
        scheduler = Scheduler(owner)
    try:
        with scheduler:
            for i, question in enumerate(questions):
                scheduler.submit(question, 1, sampler=read, index=i, key=i)
            for _ in scheduler.run():
                progress.update()
    finally:
        if made is not None:
            made.close()
    return scores


def _filled(model: Model, template: str, **fields: str) -> list[int]:
    """Return the tokens of a template with fields. Special tokens are those of the template only."""
    tokenizer = model.tokenizer
    special = {
        tokenizer.token_bytes(token).decode(errors="replace") for token in tokenizer.control_ids
    }
    for text in ("<think>", "</think>"):
        if tokenizer.token_id(text) is not None:
            special.add(text)
    special.discard("")
    at = "|".join(re.escape(text) for text in sorted(special, key=len, reverse=True))
    pieces = re.split(f"({at})", template) if at else [template]
    ids: list[int] = []
    for i, piece in enumerate(pieces):
        text = _FIELD.sub(lambda match: fields[match[1]], piece)
        if text:
            add = i == 0 and not ids and not template.startswith(tuple(special))
            encoded = tokenizer.encode(text, add_special=False, parse_special=piece in special)
            if add and tokenizer.add_bos and tokenizer.bos is not None:
                ids.append(tokenizer.bos)
            ids += encoded.tolist()
    return ids
