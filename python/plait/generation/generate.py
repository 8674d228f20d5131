"""generate(), complete() and agenerate(): generation from any number of prompts."""

from __future__ import annotations

import itertools
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from plait.arguments import flag, integer
from plait.context import Context, model_of
from plait.generation.events import Completion, Event, completions

if TYPE_CHECKING:
    import asyncio

    from plait.generation.drafts import Drafter
    from plait.generation.prompts import Prompt
    from plait.generation.scheduler import Scheduler
    from plait.generation.stops import Stop
    from plait.model import Model

__all__ = ["Completion", "Event", "agenerate", "complete", "generate"]

_log: Final = logging.getLogger("plait")
# Limits of the context that generate() creates for a model.
_MAX_SEQUENCES = 32
_MAX_FULL_LENGTH = 8  # sequences that can grow to the full length at the same time
_MIN_CELLS = 8192  # cells to allocate at least, unless the prompts need fewer
_MAX_SAMPLES = 1 << 20
_MIN_FOR_PROGRESS = 16  # generations from which on a progress bar is shown by default


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
    """Generate from prompts in one context, and yield every token as it is generated.

    Prompts start while sequences and cells are free; when one ends, the next takes its place. Common prefixes are
    computed once. For prompts that arrive over time, use plait.Scheduler.

    The sequences are freed when their generations end; all of them are freed if the generator is closed or raises.

    Args:
        model: A Model, for which a context is created, or a Context, whose other sequences are not touched.
        prompts: A prompt or an iterable of prompts. A prompt is a str or token ids.
        max_tokens: Max tokens to generate per prompt.
        sampler: Chooses each token; None is greedy. With a plait.Sampler, the text depends only on the prompt, the
            parameters, the seed and the sample. Another callable is called as sampler(logits_row, seq=key), where the
            key is the index of the prompt plus 2**32 times the sample.
        n: Number of generations per prompt.
        stop: Strings and token ids that end a generation, in addition to `tokenizer.eog`. Text of events never contains
            a stop string.
        top: Number of top log-probabilities reported per token.
        draft: Proposes draft tokens: a PromptLookup or DraftModel. The generated text is the same, and generation is
            faster if many drafts are accepted.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: Show a tqdm progress bar, if tqdm is installed. None shows it for 16 or more generations when stderr
            is a terminal or a notebook.

    Yields:
        An Event per token. The finish reason of the last one is "stop", or "length" after `max_tokens` tokens or at
        n_ctx.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A prompt is empty or longer than n_ctx, or a number is out of range.
        IndexError: A token id is outside the vocabulary.
        CacheFull: While running: a prompt does not fit into the free room of the context.
    """
    # Imported here because these modules import NumPy.
    from plait.generation.prompts import encode, prompt_list
    from plait.generation.sampler import Sampler
    from plait.generation.scheduler import Scheduler
    from plait.generation.stops import StopConditions

    source = model_of(model, "generate")
    samples = integer(n, "generate: n", 1, _MAX_SAMPLES)
    limit = integer(max_tokens, "generate: max_tokens", 1)
    if progress is not None:
        progress = flag(progress, "generate: progress")
    conditions = StopConditions.of(stop)
    ids = [
        encode(source, prompt, f"prompt {i}", add_special, parse_special)
        for i, prompt in enumerate(prompt_list(prompts, "generate"))
    ]
    with ExitStack() as undo:
        if isinstance(model, Context):
            ctx = model
        else:
            ctx = _context_for(source, ids, limit, samples)
            undo.enter_context(closing(ctx))
        scheduler = undo.enter_context(Scheduler(ctx))
        for sample, (i, prompt) in itertools.product(range(samples), enumerate(ids)):
            key = None if isinstance(sampler, Sampler) else i + (sample << 32)
            scheduler.submit(
                prompt, limit, sampler=sampler, stop=conditions, top=top, draft=draft,
                index=i, sample=sample, key=key,
            )  # fmt: skip
        _warn_of_length(ctx, ids, limit)
        bar = _progress_bar(progress, samples * len(ids))
        if bar is not None:
            undo.enter_context(closing(bar))
        return _events(scheduler, bar, undo.pop_all())


async def agenerate(
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
) -> AsyncGenerator[Event, None]:
    """Generate like generate(), for asyncio: the model runs in another thread.

    If the task is cancelled, the generation ends after the current step. If that step raises, its exception is logged
    (logger "plait", level WARNING).

    Args:
        model: As in generate().
        prompts: As in generate().
        max_tokens: As in generate().
        sampler: As in generate().
        n: As in generate().
        stop: As in generate().
        top: As in generate().
        draft: As in generate().
        add_special: As in generate().
        parse_special: As in generate().
        progress: As in generate().

    Yields:
        An Event per token.

    Raises:
        ValueError: As in generate(), like its other exceptions.
    """
    import asyncio

    events = generate(
        model, prompts, max_tokens, sampler, n=n, stop=stop, top=top, draft=draft,
        add_special=add_special, parse_special=parse_special, progress=progress,
    )  # fmt: skip
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
            if not running.cancelled() and (error := running.exception()) is not None:
                _log.warning(
                    "agenerate: the step during which the task was cancelled raised", exc_info=error
                )
        events.close()


def complete(
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
) -> list[Completion]:
    """Generate from prompts and return whole generations, ordered by prompt and then by sample.

    Args:
        model: As in generate().
        prompts: As in generate().
        max_tokens: As in generate().
        sampler: As in generate().
        n: As in generate().
        stop: As in generate().
        top: As in generate().
        draft: As in generate().
        add_special: As in generate().
        parse_special: As in generate().
        progress: As in generate().

    Raises:
        ValueError: As in generate(), like its other exceptions.
    """
    events = generate(
        model, prompts, max_tokens, sampler, n=n, stop=stop, top=top, draft=draft,
        add_special=add_special, parse_special=parse_special, progress=progress,
    )  # fmt: skip
    return completions(events)


def _events(scheduler: Scheduler, bar: Any, resources: ExitStack) -> Generator[Event, None, None]:
    with resources:
        for event in scheduler.run():
            if bar is not None and event.finish_reason is not None:
                bar.update()
            yield event


def _warn_of_length(ctx: Context, prompts: list[list[int]], limit: int) -> None:
    """Warn about generations that can exceed the training length of the model."""
    trained, longest = ctx.model.n_ctx_train, max(map(len, prompts), default=0)
    if not trained or min(longest + limit, ctx.n_ctx) <= trained:
        return
    if longest > trained:
        problem = f"a prompt has {longest} tokens"
    else:
        problem = f"a prompt has {longest} tokens and max_tokens is {limit}"
    warnings.warn(
        f"generate: {problem}, but the model was trained on at most {trained}; its output may be of low quality beyond "
        "them",
        stacklevel=3,
    )


def _context_for(model: Model, prompts: list[list[int]], limit: int, samples: int) -> Context:
    """Create a context for these prompts. If all of many prompts grow to the full length, some must wait."""
    longest = max((len(prompt) for prompt in prompts), default=1)
    n_ctx = longest + limit
    if model.n_ctx_train:
        n_ctx = max(longest, min(n_ctx, model.n_ctx_train))
    n_seqs = max(1, min(len(prompts) * samples, _MAX_SEQUENCES))
    cells = min(n_ctx * n_seqs, max(n_ctx * _MAX_FULL_LENGTH, _MIN_CELLS))
    # One more sequence holds a common prefix.
    return Context(model, n_ctx=n_ctx, n_seq_max=n_seqs + (n_seqs > 1), kv_cells=cells)


def _progress_bar(progress: bool | None, n: int) -> Any:
    if progress is None:
        shown = sys.stderr.isatty() or "ipykernel" in sys.modules
        progress = n >= _MIN_FOR_PROGRESS and shown
    if not progress:
        return None
    try:
        with warnings.catch_warnings():
            # tqdm recommends ipywidgets; its text bar is sufficient.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=n, unit="prompt", delay=2.0)
