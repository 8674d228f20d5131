"""Text from prompts: a loop over Context.decode() that any number of prompts share."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from plait._core import Batch
from plait.context import Context, model_of
from plait.errors import CacheFull
from plait.sampling import Sampler

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from plait.model import Model
    from plait.sequence import Sequence
    from plait.tokenizer import Tokenizer, TokenStream

    Prompt = str | Items[int] | npt.NDArray[np.integer]

_MOST_AT_ONCE = 8  # sequences of a context that generate() makes itself


@dataclass(frozen=True, slots=True)
class Event:
    """One token of a generation.

    `index`: which prompt. `token`: its id. `text`: what it completes, often nothing inside a character of several
    tokens; of a token that ends the generation only what was left. `logprob`: natural logarithm of the probability that
    the model gave it, before the sampler changed anything. `finish_reason`: None until the last token of a prompt, then
    "stop" (a token that ends a generation) or "length".
    """

    index: int
    token: int
    text: str
    logprob: float
    finish_reason: str | None


class _Request:
    """A prompt and what came of it so far."""

    def __init__(self, index: int, prompt: list[int], limit: int, stream: TokenStream) -> None:
        self.index = index
        self.pending = prompt  # tokens that are not in the cache yet
        self.n_prompt = len(prompt)
        self.limit = limit  # most new tokens
        self.stream = stream
        self.n_new = 0
        self.n_held = 0
        self.n_reserved = 0  # cells that it may come to hold
        self.seq: Sequence | None = None


def generate(
    model: Model | Context,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: int = 128,
    sampler: Callable[..., int] | None = None,
    *,
    stop: Iterable[int] = (),
    add_special: bool = True,
    parse_special: bool = True,
) -> Iterator[Event]:
    """Continue prompts, all of them in one context, and yield every token as it comes.

    Prompts are admitted while there are free sequences and cells for all they may need; as one ends the next takes its
    place. A prompt is a str or token ids. `model` is a Model, for which a context is made, or a Context, whose other
    sequences are left alone. `sampler(logits_row, seq=index)` chooses a token; None is greedy. A generation ends
    ("stop") with a token of `tokenizer.eog` or `stop`, or ("length") after `max_tokens` tokens or when its sequence is
    n_ctx long. `add_special` and `parse_special` are those of Tokenizer.encode().

    The sequences are freed when a prompt ends, and all of them when the generator is closed or fails.

    Raises, at the call: TypeError and ValueError for prompts that are empty or longer than n_ctx and for a max_tokens
    below 1. Raises, while running: CacheFull when a prompt does not fit into what the context has left.
    """
    if max_tokens < 1:
        raise ValueError(f"generate: expected max_tokens of at least 1, got {max_tokens}")
    own = not isinstance(model, Context)
    source = model_of(model, "generate")
    tokenizer = source.tokenizer
    ids = [
        _encode(tokenizer, prompt, i, add_special, parse_special)
        for i, prompt in enumerate(_as_list(prompts))
    ]
    if isinstance(model, Context):
        ctx = model
    else:
        longest = max((len(prompt) for prompt in ids), default=1) + max_tokens
        n_ctx = min(longest, source.n_ctx_train) if source.n_ctx_train else longest
        n_ctx = max([n_ctx, *(len(prompt) for prompt in ids)])
        ctx = Context(source, n_ctx=n_ctx, n_seq_max=max(1, min(len(ids), _MOST_AT_ONCE)))
    for i, prompt in enumerate(ids):
        if len(prompt) > ctx.n_ctx:
            raise ValueError(
                f"generate: prompt {i} has {len(prompt)} tokens, the context holds n_ctx = {ctx.n_ctx}"
            )
    ends = tokenizer.eog | frozenset(stop)
    if isinstance(sampler, Sampler):
        sampler.bind(tokenizer)
        for i, prompt in enumerate(ids):
            sampler.start(i, prompt)
    requests = [
        _Request(
            i,
            prompt,
            min(max_tokens, ctx.n_ctx - len(prompt) + 1),
            tokenizer.stream(continuing=True),
        )
        for i, prompt in enumerate(ids)
    ]
    return _run(ctx, own, requests, sampler, ends)


def _as_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(hasattr(item, "__index__") and not hasattr(item, "__len__") for item in items):
        return [cast("list[int]", items)]  # the ids of one prompt
    return cast("list[Prompt]", items)


def _encode(
    tokenizer: Tokenizer, prompt: Prompt, index: int, add_special: bool, parse_special: bool
) -> list[int]:
    if isinstance(prompt, str):
        ids: list[int] = tokenizer.encode(
            prompt, add_special=add_special, parse_special=parse_special
        ).tolist()
    elif hasattr(prompt, "__iter__"):
        ids = [int(token) for token in prompt]
    else:
        raise TypeError(
            f"generate: prompt {index}: expected str or token ids, got {type(prompt).__name__}"
        )
    if not ids:
        raise ValueError(f"generate: prompt {index} has no tokens")
    return ids


def _run(
    ctx: Context,
    own: bool,
    requests: list[_Request],
    sampler: Callable[..., int] | None,
    ends: frozenset[int],
) -> Iterator[Event]:
    waiting, active = deque(requests), list[_Request]()
    batch = Batch()
    try:
        while waiting or active:
            _admit(ctx, waiting, active)
            answered = _fill(ctx, batch, active)
            out = ctx.decode(batch)
            for request, row in zip(answered, out, strict=True):
                token = (
                    int(row.argmax()) if sampler is None else int(sampler(row, seq=request.index))
                )
                event = _advance(request, token, _logprob(row, token), token in ends)
                if event.finish_reason is not None:
                    active.remove(request)
                    _release(request)
                yield event
    finally:
        for request in active:
            _release(request)
        if own:
            ctx.close()


def _free_cells(ctx: Context, active: list[_Request]) -> int:
    """What nobody holds or will come to need. A recurrent state takes one, however long its sequence is."""
    if ctx.kv.kind == "recurrent":
        return sys.maxsize
    return ctx.kv.n_free - sum(request.n_reserved - request.n_held for request in active)


def _admit(ctx: Context, waiting: deque[_Request], active: list[_Request]) -> None:
    """Start prompts while the cells that all of them may come to need are there."""
    while waiting:
        free = _free_cells(ctx, active)
        request = waiting[0]
        needed = request.n_prompt + request.limit - 1  # the last token is never put back
        if needed > free and not active and free >= request.n_prompt:
            request.limit = free - request.n_prompt + 1
            needed = free
        if needed > free:
            if not active:
                raise CacheFull(
                    f"generate: prompt {request.index} has {request.n_prompt} tokens, {free} cells are free",
                    request.n_prompt, free,
                )  # fmt: skip
            return
        try:
            request.seq = ctx.sequence()
        except CacheFull:
            if not active:
                raise
            return
        request.n_reserved = needed
        active.append(waiting.popleft())


def _fill(ctx: Context, batch: Batch, active: list[_Request]) -> list[_Request]:
    """Put into the batch what fits of every pending token, shortest first; return who gets an answer, in order."""
    batch.clear()
    room = ctx.n_batch
    answered = []
    for request in sorted(active, key=lambda request: len(request.pending)):
        assert request.seq is not None
        tokens, request.pending = request.pending[:room], request.pending[room:]
        if not tokens:
            break
        batch.add_sequence(tokens, seq=request.seq, logits="none" if request.pending else "last")
        room -= len(tokens)
        request.n_held += len(tokens)
        if not request.pending:
            answered.append(request)
    return answered


def _advance(request: _Request, token: int, logprob: float, ends: bool) -> Event:
    request.n_new += 1
    request.pending = [token]
    reason = "stop" if ends else "length" if request.n_new >= request.limit else None
    text = "" if ends else request.stream.push(token)
    if reason is not None:
        text += request.stream.flush()
    return Event(request.index, token, text, logprob, reason)


def _release(request: _Request) -> None:
    if request.seq is not None:
        request.seq.close()


def _logprob(row: npt.NDArray[np.float32], token: int) -> float:
    import numpy as np

    highest = row.max()
    return float(row[token] - highest) - math.log(
        float(np.exp(row - highest).sum(dtype=np.float64))
    )
