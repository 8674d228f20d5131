"""generate(), complete() and agenerate(): generation from any number of prompts."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final, SupportsIndex

from plait.arguments import integer, renamed
from plait.closeable import begun
from plait.context import Context, SharedContext, context_with_at_most, model_of
from plait.generation.events import Completion, Event
from plait.interrupts import keeping
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    import asyncio

    from plait.generation.drafts import Drafter
    from plait.generation.parameters import Limits, Parameters, Samplers, Seeds
    from plait.generation.prefix_store import PrefixStore
    from plait.generation.prompts import Prompt
    from plait.generation.request import Request
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
_MAX_SEGMENT = 256  # tokens of an entry of a PrefixStore, as there


def generate(
    model: Model | Context | SharedContext,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: Limits = 128,
    sampler: Samplers = None,
    *,
    n: SupportsIndex = 1,
    stop: Stop | Iterable[Stop] = (),
    seed: Seeds = None,
    top_logprobs: SupportsIndex = 0,
    draft: Drafter | None = None,
    prefixes: PrefixStore | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    top: SupportsIndex | None = None,
) -> Generator[Event, None, None]:
    """Generate from prompts in one context, and yield every token as it is generated.

    Prompts start while sequences and cells are free; when one ends, the next takes its place. Common prefixes are
    computed once. For prompts that arrive over time, use plait.Engine.

    The sequences are freed when their generations end; all of them are freed if the generator is closed or raises.

    Args:
        model: A Model, for which a context is created; a Context, whose other sequences are not touched; or an Engine,
            whose other requests continue.
        prompts: A prompt or an iterable of prompts. A prompt is a str or token ids.
        max_tokens: Max tokens to generate per prompt, or a list with one number per prompt.
        sampler: Chooses each token; None is greedy. With a plait.Sampler, the text depends only on the prompt, the
            parameters, the seed and the sample. Another callable is called as sampler(logits_row, seq=key), where the
            key is the index of the prompt plus 2**32 times the sample. May be a list with one per prompt.
        n: Number of generations per prompt.
        stop: Strings and token ids that end a generation, in addition to `tokenizer.eog`. Text of events never contains
            a stop string. A list of lists has the strings and ids of each prompt.
        seed: Seed to use instead of that of the Sampler, or a list with one per prompt. None: the sampler's own.
        top_logprobs: Number of top log-probabilities reported per token.
        draft: Proposes draft tokens: a PromptLookup, DraftModel or MTP. The generated text is the same, and generation
            is faster if many drafts are accepted.
        prefixes: A plait.PrefixStore, from which prefixes of the prompts are loaded and where they are saved. Not for
            an Engine, which has its own.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: Called with (done, total), in generations. True shows a tqdm progress bar, if tqdm is installed. None
            shows it for 16 or more generations when stderr is a terminal or a notebook.
        top: Deprecated name of `top_logprobs`.

    Returns:
        A generator of an Event per token. The finish reason of the last one is "stop", or "length" after `max_tokens`
        tokens or at n_ctx.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A prompt is empty or longer than n_ctx, a number is out of range, or a list of parameters does not
            have one element per prompt.
        IndexError: A token id is outside the vocabulary.
        CacheFull: While running: a prompt does not fit into the free room of the context.
    """
    return _start(
        model, prompts, max_tokens, sampler, n=n, stop=stop, seed=seed, top_logprobs=top_logprobs, draft=draft,
        prefixes=prefixes, add_special=add_special, parse_special=parse_special, progress=progress, top=top,
    )[0]  # fmt: skip


async def agenerate(
    model: Model | Context | SharedContext,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: Limits = 128,
    sampler: Samplers = None,
    *,
    n: SupportsIndex = 1,
    stop: Stop | Iterable[Stop] = (),
    seed: Seeds = None,
    top_logprobs: SupportsIndex = 0,
    draft: Drafter | None = None,
    prefixes: PrefixStore | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    top: SupportsIndex | None = None,
) -> AsyncGenerator[Event, None]:
    """Generate like generate(), for asyncio: the model runs in another thread.

    If the task is cancelled, the generation ends after the current step. If that step raises, its exception is logged
    (logger "plait", level WARNING). To share one context between tasks, use plait.Engine.

    Args:
        model: As in generate().
        prompts: As in generate().
        max_tokens: As in generate().
        sampler: As in generate().
        n: As in generate().
        stop: As in generate().
        seed: As in generate().
        top_logprobs: As in generate().
        draft: As in generate().
        prefixes: As in generate().
        add_special: As in generate().
        parse_special: As in generate().
        progress: As in generate().
        top: Deprecated name of `top_logprobs`.

    Yields:
        An Event per token.

    Raises:
        ValueError: As in generate(), like its other exceptions.
        asyncio.CancelledError: The task was cancelled.
    """
    import asyncio

    start = functools.partial(
        _start,
        model, prompts, max_tokens, sampler, n=n, stop=stop, seed=seed, top_logprobs=top_logprobs, draft=draft,
        prefixes=prefixes, add_special=add_special, parse_special=parse_special, progress=progress, top=top,
    )  # fmt: skip
    if isinstance(model, SharedContext):  # it waits while the queue of the engine is full
        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            events, _ = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_abandon)
            raise
    else:
        events, _ = start()
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


def _abandon(starting: asyncio.Future[tuple[Generator[Event, None, None], list[Request]]]) -> None:
    """End the requests of a task that was cancelled while they were submitted."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result()[0].close()


def complete(
    model: Model | Context | SharedContext,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: Limits = 128,
    sampler: Samplers = None,
    *,
    n: SupportsIndex = 1,
    stop: Stop | Iterable[Stop] = (),
    seed: Seeds = None,
    top_logprobs: SupportsIndex = 0,
    draft: Drafter | None = None,
    prefixes: PrefixStore | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    top: SupportsIndex | None = None,
) -> list[Completion]:
    """Generate from prompts and return whole generations, ordered by prompt and then by sample.

    Args:
        model: As in generate().
        prompts: As in generate().
        max_tokens: As in generate().
        sampler: As in generate().
        n: As in generate().
        stop: As in generate().
        seed: As in generate().
        top_logprobs: As in generate().
        draft: As in generate().
        prefixes: As in generate().
        add_special: As in generate().
        parse_special: As in generate().
        progress: As in generate().
        top: Deprecated name of `top_logprobs`.

    Returns:
        A Completion per prompt and sample.

    Raises:
        ValueError: As in generate(), like its other exceptions.
        KeyboardInterrupt: Ctrl-C. Its attribute `partial` is the list of the generations that have
            started; the finish reason of those that have not ended is "cancelled".
    """
    events, requests = _start(
        model, prompts, max_tokens, sampler, n=n, stop=stop, seed=seed, top_logprobs=top_logprobs, draft=draft,
        prefixes=prefixes, add_special=add_special, parse_special=parse_special, progress=progress, top=top,
    )  # fmt: skip
    with keeping(lambda: _in_order(request for request in requests if request.tokens)):
        for _ in events:
            pass
    return _in_order(requests)


def _in_order(requests: Iterable[Request]) -> list[Completion]:
    """Return the generations so far, ordered by prompt and then by sample."""
    found = [request.completion() for request in requests]
    return sorted(found, key=lambda one: (one.index, one.sample))


def _start(
    model: Model | Context | SharedContext,
    prompts: Prompt | Iterable[Prompt],
    max_tokens: Limits,
    sampler: Samplers,
    *,
    n: SupportsIndex,
    stop: Stop | Iterable[Stop],
    seed: Seeds,
    top_logprobs: SupportsIndex,
    draft: Drafter | None,
    prefixes: PrefixStore | None,
    add_special: bool,
    parse_special: bool,
    progress: ProgressOption,
    top: SupportsIndex | None,
) -> tuple[Generator[Event, None, None], list[Request]]:
    """Submit the requests of generate() and return the generator of their events, and the requests."""
    # Imported here because these modules import NumPy.
    from plait.generation.parameters import parameters_of
    from plait.generation.prompts import encode, prompt_list

    source = model_of(model, "generate")
    samples = integer(n, "generate: n", 1, _MAX_SAMPLES)
    check_progress(progress, "generate")
    n_top = renamed(top_logprobs, top, "top_logprobs", "top", "generate", stacklevel=4)
    if prefixes is not None:
        from plait.generation.prefix_store import store_of

        store_of(prefixes, "generate")
        if isinstance(model, SharedContext):
            raise TypeError("generate: prefixes: an Engine has its own; create it with prefixes=")
    given = prompt_list(prompts, "generate")
    parameters = parameters_of(len(given), max_tokens, sampler, stop, seed)
    ids = [
        encode(source, prompt, f"prompt {i}", add_special, parse_special, images=True)
        for i, prompt in enumerate(given)
    ]
    limits = [one.max_tokens for one in parameters]
    with ExitStack() as undo:
        if isinstance(model, SharedContext):
            ctx = model.ctx
            scheduler = undo.enter_context(model.batch())
        else:
            from plait.generation.scheduler import Scheduler

            ctx = (
                model
                if isinstance(model, Context)
                else _context_for(source, ids, limits, samples, prefixes is not None)
            )
            if ctx is not model:
                undo.enter_context(closing(ctx))
            scheduler = undo.enter_context(Scheduler(ctx, prefixes=prefixes))
        requests = _submit(scheduler, ids, parameters, samples, n_top, draft)
        _warn_of_length(ctx, ids, limits)
        bar = undo.enter_context(Progress(progress, len(requests), "prompt"))
        return begun(_events(scheduler, bar, undo.pop_all())), requests


def _submit(
    scheduler: Scheduler,
    prompts: list[list[int]],
    parameters: list[Parameters],
    samples: int,
    top_logprobs: SupportsIndex,
    draft: Drafter | None,
) -> list[Request]:
    from plait.generation.sampler import Sampler

    return [
        scheduler.submit(
            prompt, one.max_tokens, sampler=one.sampler, stop=one.stop, seed=one.seed, top_logprobs=top_logprobs,
            draft=draft, index=i, sample=sample,
            key=None if isinstance(one.sampler, Sampler) else i + (sample << 32),
        )
        for sample, (i, (prompt, one)) in itertools.product(
            range(samples), enumerate(zip(prompts, parameters, strict=True))
        )
    ]  # fmt: skip


def _events(
    scheduler: Scheduler, progress: Progress, resources: ExitStack
) -> Generator[Event | None, None, None]:
    """Yield None, as begun() requires, and then the events of all requests. At the end, free the resources."""
    with resources:
        yield None
        for event in scheduler.run():
            if event.finish_reason is not None:
                progress.update()
            yield event


def _warn_of_length(ctx: Context, prompts: list[list[int]], limits: list[int]) -> None:
    """Warn about generations that can exceed the training length of the model."""
    trained, longest = ctx.model.n_ctx_train, max(map(len, prompts), default=0)
    total, limit = _longest(prompts, limits)
    if not trained or min(total, ctx.n_ctx) <= trained:
        return
    if longest > trained:
        problem = f"a prompt has {longest} tokens"
    else:
        problem = f"a prompt has {total - limit} tokens and max_tokens is {limit}"
    warnings.warn(
        f"generate: {problem}, but the model was trained on at most {trained}; its output may be of low quality beyond "
        "them",
        stacklevel=4,
    )


def _longest(prompts: list[list[int]], limits: list[int]) -> tuple[int, int]:
    """Return the max length of a prompt with its generation, and the max tokens of that generation."""
    pairs = zip(prompts, limits, strict=True)
    return max(((len(prompt) + limit, limit) for prompt, limit in pairs), default=(1, 0))


def _context_for(
    model: Model, prompts: list[list[int]], limits: list[int], samples: int, stored: bool
) -> Context:
    """Create a context for these prompts. If all of many prompts grow to the full length, some must wait."""
    longest = max((len(prompt) for prompt in prompts), default=1)
    # An entry of a PrefixStore may be longer than the prompt that uses a part of it.
    n_ctx = _longest(prompts, limits)[0] + (_MAX_SEGMENT if stored else 0)
    if model.n_ctx_train:
        n_ctx = max(longest, min(n_ctx, model.n_ctx_train))
    n_seqs = max(1, min(len(prompts) * samples, _MAX_SEQUENCES))
    cells = min(n_ctx * n_seqs, max(n_ctx * _MAX_FULL_LENGTH, _MIN_CELLS))
    # One more sequence holds a common prefix, and one is reserved for a PrefixStore.
    return context_with_at_most(cells, model, n_ctx=n_ctx, n_seq_max=n_seqs + (n_seqs > 1) + stored)
