"""Text from prompts, any number of them side by side: what most people call."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from plait.context import Context, model_of
from plait.generation.events import Completion, Event, completions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence as Items

    import numpy as np
    import numpy.typing as npt

    from plait.generation.drafts import Drafter
    from plait.generation.request import Request
    from plait.generation.scheduler import Scheduler, Stop
    from plait.model import Model

    Prompt = str | Items[int] | npt.NDArray[np.integer]

__all__ = ["Completion", "Event", "agenerate", "complete", "generate"]

_MOST_AT_ONCE = 32  # sequences of a context that generate() makes itself
_MOST_WHOLE = 8  # of which so many may grow as long as the longest
_FEW_CELLS = 8192  # which are there for all in any case
_LONG = 16  # generations that are worth a progress bar


def generate(
    model: Model | Context,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: SupportsIndex = 128,
    sampler: Callable[..., int] | None = None,
    *,
    n: SupportsIndex = 1,
    stop: Stop = (),
    top: SupportsIndex = 0,
    draft: Drafter | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: bool | None = None,
) -> Generator[Event, None, None]:
    """Continue prompts, all of them in one context, and yield every token as it comes.

    Prompts are admitted while there are sequences and cells; as one ends the next takes its place. What prompts have in
    common at their beginning is computed once. plait.Scheduler says more, and takes prompts at any time.

    A prompt is a str or token ids. `model` is a Model, for which a context is made, or a Context, whose other sequences
    are left alone. `sampler(logits_row, seq=...)` chooses a token, `seq` naming the generation: the index of its prompt
    plus 2**32 times its sample; a plait.Sampler is told the prompt too. None is greedy. `n` generations of each prompt.

    A generation ends ("stop") with a token of `tokenizer.eog`, or with what `stop` names, token ids and strings, which
    no event's text contains; or ("length") after `max_tokens` tokens or when its sequence is n_ctx long. `top`: how
    many of the likeliest tokens events tell. `draft`: who guesses ahead, a PromptLookup or DraftModel; the text is the
    same, and comes sooner where the guesses are good. `progress`: a bar of tqdm's, if that is installed; None: for many
    prompts, where people look on.

    The sequences are freed when a prompt ends, and all of them when the generator is closed or fails.

    Raises, at the call: TypeError and ValueError for prompts that are empty or longer than n_ctx and for numbers below
    1. Raises, while running: CacheFull when a prompt does not fit into what the context has left.
    """
    from plait.generation.scheduler import Scheduler, encode, stops_of  # and with them NumPy

    source = model_of(model, "generate")
    samples = operator.index(n)
    if samples < 1:
        raise ValueError(f"generate: expected n of at least 1, got {samples}")
    if (limit := operator.index(max_tokens)) < 1:
        raise ValueError(f"generate: expected max_tokens of at least 1, got {limit}")
    stops_of(stop)
    ids = [
        encode(source.tokenizer, prompt, f"prompt {i}", add_special, parse_special)
        for i, prompt in enumerate(_as_list(prompts))
    ]
    with ExitStack() as undo:
        if isinstance(model, Context):
            ctx = model
        else:
            ctx = _context_for(source, ids, limit, samples)
            undo.enter_context(closing(ctx))
        scheduler = undo.enter_context(Scheduler(ctx))
        requests = [
            scheduler.submit(
                prompt, limit, sampler=sampler, stop=stop, top=top, draft=draft,
                index=i, sample=sample, key=i + (sample << 32),
            )
            for sample in range(samples)
            for i, prompt in enumerate(ids)
        ]  # fmt: skip
        bar = _bar(progress, requests)
        if bar is not None:
            undo.enter_context(closing(bar))
        return _events(scheduler, bar, undo.pop_all())


async def agenerate(
    model: Model | Context,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: SupportsIndex = 128,
    sampler: Callable[..., int] | None = None,
    **options: Any,
) -> AsyncGenerator[Event, None]:
    """The same for asyncio: the model runs in another thread, the event loop goes on.

    Arguments, events and errors are those of generate(). A task that is cancelled ends the generation when the step
    that is running has ended.
    """
    import asyncio

    events = generate(model, prompts, max_tokens, sampler, **options)
    running: asyncio.Task[Event | None] | None = None
    try:
        while True:
            running = asyncio.ensure_future(asyncio.to_thread(next, events, None))
            event = await asyncio.shield(running)
            if event is None:
                return
            yield event
    finally:
        if running is not None and not running.done():
            await asyncio.wait([running])
        events.close()


def complete(
    model: Model | Context,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: SupportsIndex = 128,
    sampler: Callable[..., int] | None = None,
    **options: Any,
) -> list[Completion]:
    """Whole generations instead of events, by prompt and then sample. Arguments and errors are those of generate()."""
    return completions(generate(model, prompts, max_tokens, sampler, **options))


def _events(scheduler: Scheduler, bar: Any, ends: ExitStack) -> Generator[Event, None, None]:
    with ends:
        for event in scheduler.run():
            if bar is not None and event.finish_reason is not None:
                bar.update()
            yield event


def _as_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(hasattr(item, "__index__") and not hasattr(item, "__len__") for item in items):
        return [cast("list[int]", items)]  # the ids of one prompt
    return cast("list[Prompt]", items)


def _context_for(model: Model, prompts: list[list[int]], limit: int, samples: int) -> Context:
    """As long as the longest may become; where all of many grow that long, some wait."""
    longest = max((len(prompt) for prompt in prompts), default=1)
    n_ctx = longest + limit
    if model.n_ctx_train:
        n_ctx = max(longest, min(n_ctx, model.n_ctx_train))
    n_seqs = max(1, min(len(prompts) * samples, _MOST_AT_ONCE))
    cells = min(n_ctx * n_seqs, max(n_ctx * _MOST_WHOLE, _FEW_CELLS))
    # One more for what the others begin with.
    return Context(model, n_ctx=n_ctx, n_seq_max=n_seqs + (n_seqs > 1), kv_cells=cells)


def _bar(progress: bool | None, requests: list[Request]) -> Any:
    if progress is None:
        progress = len(requests) >= _LONG and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if not progress:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its wish for ipywidgets: a line of text will do
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=len(requests), unit="prompt", delay=2.0)
