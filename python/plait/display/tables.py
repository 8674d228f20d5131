"""HTML of models, contexts, outputs and statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plait import _core
from plait.arguments import expect
from plait.display.cache_map import cache_html
from plait.display.page import details, escaped, table, title
from plait.numerics import log_softmax

if TYPE_CHECKING:
    from plait._core import Model, Output, Stats

_MAX_ROWS = 8
_TOP = 5
_MAX_TOKENS = 64  # of a score
_MAX_LENGTH = 80  # characters of a value


def model_html(model: Model) -> str:
    """Return HTML with the shape and the types of a model; metadata and tensors are collapsed.

    Args:
        model: The model.
    """
    expect(model, _core.Model, "model_html: model", "a Model")
    types = Counter[str]()
    for tensor in model.tensors.values():
        types[tensor.dtype] += tensor.nbytes
    facts = [
        ("file", model.path),
        ("layers", f"{model.n_layer}"),
        ("width", f"{model.n_embd}"),
        ("vocabulary", f"{model.n_vocab:,}"),
        ("training length", f"{model.n_ctx_train:,} tokens" if model.n_ctx_train else "unknown"),
        *((f"in {dtype}", f"{n / 1e6:,.2f} MB") for dtype, n in types.most_common()),
    ]
    metadata = [(key, _short(value)) for key, value in model.metadata.items()]
    tensors = [
        (t.name, " x ".join(map(str, t.shape)), t.dtype, f"{t.nbytes:,}")
        for t in model.tensors.values()
    ]
    return (
        title(repr(model))
        + table(("", ""), facts)
        + details(f"{len(metadata)} keys of metadata", table(("key", "value"), metadata))
        + details(f"{len(tensors)} tensors", table(("tensor", "shape", "type", "bytes"), tensors))
    )


def context_html(ctx: _core.Context) -> str:
    """Return HTML with the parameters and the cache of a context.

    Args:
        ctx: The context.
    """
    expect(ctx, _core.Context, "context_html: ctx", "a Context")
    if ctx.closed:
        return title(repr(ctx))
    kv = _core.KVCache(ctx)
    facts = [
        ("n_ctx, n_seq_max", f"{ctx.n_ctx:,}, {ctx.n_seq_max}"),
        ("n_batch, n_ubatch", f"{ctx.n_batch:,}, {ctx.n_ubatch:,}"),
        ("keys, values", f"{ctx.type_k}, {ctx.type_v}"),
        ("cache", f"{kv.nbytes / 1e6:,.2f} MB"),
        ("compute buffers", f"{ctx.compute_bytes / 1e6:,.2f} MB"),
    ]
    return title(repr(ctx)) + table(("", ""), facts) + cache_html(kv)


def output_html(output: Output) -> str:
    """Return HTML with the most likely tokens of each row and bars of their probabilities.

    Args:
        output: The output of decode() or encode().
    """
    expect(output, _core.Output, "output_html: output", "an Output")
    text = title(repr(output))
    logits = output.logits
    if logits is None:
        return text
    for entry, row in zip(output.indices[:_MAX_ROWS].tolist(), logits, strict=False):
        text += f"<div>after entry {entry}</div>{_most_likely(output, row)}"
    if len(logits) > _MAX_ROWS:
        text += f"<div>and {len(logits) - _MAX_ROWS} more rows</div>"
    return text


def _most_likely(output: Output, row: np.ndarray) -> str:
    if not np.isfinite(row.max()):
        return "<div>no probabilities: the row holds NaN or +inf, or only -inf</div>"
    logprobs = log_softmax(row)
    lines = ""
    for token in np.argsort(-row, kind="stable")[:_TOP].tolist():
        p = float(np.exp(logprobs[token]))
        lines += (
            f'<tr><td style="text-align:left">{escaped(_token_text(output, token))}</td><td>{token}</td>'
            f'<td>{p:.4f}</td><td style="width:12em">{_bar(p)}</td></tr>'
        )
    return f"<table>{lines}</table>"


def _token_text(output: Output, token: int) -> str:
    from plait.errors import Error

    try:
        data: bytes = output.model.tokenizer.token_bytes(token)
    except (AttributeError, Error):  # the model was deleted, or has no vocabulary
        return ""
    return repr(data.decode(errors="backslashreplace"))


def stats_html(stats: Stats) -> str:
    """Return HTML with counters, times by phase, and the reasons for building plans.

    Args:
        stats: The statistics.
    """
    expect(stats, _core.Stats, "stats_html: stats", "a Stats")
    counters = [
        ("tokens", f"{stats.tokens:,}"),
        ("microbatches", f"{stats.microbatches:,}"),
        ("plans built", f"{stats.plans_built:,}"),
        *((f"reason: {reason}", f"{count:,}") for reason, count in stats.plan_misses.items()),
        ("plans reused", f"{stats.plans_reused:,}"),
        *((f"nodes on {device}", f"{count:,}") for device, count in stats.nodes.items()),
    ]
    times = [(phase, f"{seconds * 1e3:.2f}") for phase, seconds in stats.seconds.items()]
    return table(("", "count"), counters) + table(("phase", "ms"), times)


def score_html(
    name: str, tokens: Sequence[int], logprobs: Sequence[float], greedy: Sequence[bool]
) -> str:
    """Return HTML with the log-probability of each token of a score and a bar of its probability.

    Args:
        name: The representation of the score.
        tokens: The token ids.
        logprobs: The log-probability of each.
        greedy: Whether each is the most likely one.
    """
    lines = ""
    for token, logprob, best in list(zip(tokens, logprobs, greedy, strict=True))[:_MAX_TOKENS]:
        mark = "most likely" if best else ""
        lines += (
            f'<tr><td>{token}</td><td>{logprob:.4f}</td><td style="width:12em">{_bar(math.exp(logprob))}</td>'
            f"<td>{mark}</td></tr>"
        )
    head = "<tr><th>token</th><th>log p</th><th>p</th><th></th></tr>"
    return f"{title(name)}<table>{head}{lines}</table>{_more(len(tokens) - _MAX_TOKENS, 'token')}"


def completion_html(text: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return HTML with the text of a completion and its figures.

    Args:
        text: The text.
        facts: Names and values of the figures.
    """
    shown = f'<pre style="white-space:pre-wrap">{escaped(text)}</pre>'
    return f"<b>plait.Completion</b>{shown}{table(('', ''), facts)}"


def batch_html(name: str, n: int, entries: list[tuple[str, str, str, bool]]) -> str:
    """Return HTML with the first entries of a batch.

    Args:
        name: The representation of the batch.
        n: Number of entries.
        entries: The token, positions and sequences of each, and whether it requests an output row.
    """
    rows = [
        (str(i), token, position, sequences, "yes" if output else "")
        for i, (token, position, sequences, output) in enumerate(entries)
    ]
    head = ("entry", "token", "position", "sequences", "output")
    return title(name) + (table(head, rows) if rows else "") + _more(n - len(entries), "entry")


def _more(n: int, noun: str) -> str:
    if n <= 0:
        return ""
    return f"<div>and {n:,} more {noun if n == 1 else 'entries' if noun == 'entry' else noun + 's'}</div>"


def _bar(p: float) -> str:
    return f'<div style="background:#0072b2;height:0.8em;width:{max(100 * p, 0.5):.1f}%"></div>'


def _short(value: object) -> str:
    if isinstance(value, list | np.ndarray):
        start = ", ".join(str(item) for item in value[:4])
        text = f"{len(value):,} of [{start}{', ...' if len(value) > 4 else ''}]"
    else:
        text = str(value)
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."
