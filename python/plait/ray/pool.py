"""Generation, scoring and embedding of many texts on a Ray cluster.

Each node has an actor with a model and a context, so the model is in the memory of a node once.
Idle actors receive batches of texts of similar length; results are returned in the order of the
texts. If an actor dies, it is replaced and its batch is repeated.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from plait.closeable import Closeable
from plait.context import Context
from plait.evaluation.embedding import embed
from plait.evaluation.scoring import Score, score
from plait.evaluation.texts import text_list
from plait.generation.events import Completion
from plait.generation.generate import complete
from plait.generation.parameters import Limits, Samplers, Seeds, parameters_of
from plait.model import Model
from plait.progress import Progress, ProgressOption, check_progress
from plait.ray.calls import nodes, results, start_ray

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from plait.generation.stops import Stop


class Pool(Closeable):
    """Actors that process texts. close(), or leaving a `with` block, ends them.

    Args:
        model: A path that every node can open, or "demo" for the model inside the package.
        actors: Number of actors. None: one per node.
        cpus: CPUs per actor. None: those of the smallest node, divided among its actors.
        batch: Number of texts per call of an actor.
        retries: Number of times that a batch is repeated if its actor dies.
        context: Options of plait.Context for generate() and score(): n_ctx, n_seq_max, kv, type_k,
            threads (default `cpus`).

    Raises:
        ValueError: A number is below 1. Exceptions of plait.Model are raised if an actor cannot
            open the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        actors: int | None = None,
        cpus: int | None = None,
        batch: int = 32,
        retries: int = 3,
        **context: Any,
    ) -> None:
        for name, number in (("actors", actors), ("cpus", cpus), ("batch", batch)):
            if number is not None and number < 1:
                raise ValueError(f"Pool: {name} is {number}; it must be at least 1")
        start_ray()
        alive = nodes()
        n_actors = actors or len(alive)
        if cpus is None:
            per_node = -(-n_actors // len(alive))
            smallest = min(int(node["Resources"].get("CPU", 1)) for node in alive)
            cpus = max(1, smallest // per_node)
        self._make = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(_Worker).remote
        self._arguments = (os.fspath(model), {"threads": cpus} | context)
        self._batch, self._retries = batch, retries
        self._idle: deque[Any] = deque(self._make(*self._arguments) for _ in range(n_actors))
        try:
            results(ray.get, [worker.open.remote() for worker in self._idle])
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: str | Iterable[str],
        max_tokens: Limits = 128,
        *,
        progress: ProgressOption = None,
        **options: Any,
    ) -> list[Completion]:
        """Generate from each prompt; the results are in the order of the prompts.

        Args:
            prompts: One prompt or several.
            max_tokens: Max tokens per generation, or a list with one number per prompt.
            progress: As in plait.generate(), in prompts.
            options: More arguments of plait.complete(); `n` is 1. Arguments with a value per prompt are divided among
                the batches. A Sampler without a seed keeps the one that it has drawn.

        Returns:
            A Completion per prompt.

        Raises:
            ValueError: `n` is not 1, or as in plait.complete(), like the other exceptions.
        """
        texts = _texts(prompts)
        if (n := options.pop("n", 1)) != 1:
            raise ValueError(
                f"Pool: n is {n}, but a pool generates once per prompt; repeat the prompts, with a seed for each"
            )
        own = {name: options.pop(name) for name in ("sampler", "stop", "seed") if name in options}
        each = _per_prompt(len(texts), max_tokens, **own)
        options |= {"progress": False}
        lengths = [len(text) for text in texts]
        found = self._map("generate", texts, lengths, progress, options, each)
        return [replace(done, index=i) for i, done in enumerate(found)]

    def score(
        self,
        pairs: Iterable[tuple[str, Items[str]]],
        *,
        progress: ProgressOption = None,
        **options: Any,
    ) -> list[list[Score]]:
        """Score continuations; see plait.score().

        Args:
            pairs: Pairs (context, continuations).
            progress: As in plait.generate(), in pairs.
            options: More arguments of plait.score(), except `receipt`.

        Returns:
            For each pair the scores of its continuations.

        Raises:
            ValueError: `receipt` was given, or as in plait.score(), like the other exceptions.
            TypeError: The continuations of a pair are a single text.
        """
        if options.get("receipt") is not None:
            raise ValueError(
                f"Pool: receipt is {options['receipt']!r}, but each pair is computed on its own and would replace "
                f"the receipt of the one before; call plait.score() for a pair of which you need one"
            )
        asked = [
            (context, text_list(continuations, "Pool: continuations"))
            for context, continuations in pairs
        ]
        lengths = [len(context) + sum(map(len, rest)) for context, rest in asked]
        return self._map("score", asked, lengths, progress, options)

    def embed(
        self, texts: str | Iterable[str], *, progress: ProgressOption = None, **options: Any
    ) -> npt.NDArray[np.float32]:
        """Embed texts; see plait.embed().

        Args:
            texts: One text or several.
            progress: As in plait.generate(), in texts.
            options: More arguments of plait.embed().

        Returns:
            float32 (n, n_embd).

        Raises:
            ValueError: There are no texts.
        """
        import numpy as np

        asked = _texts(texts)
        if not asked:
            raise ValueError("embed: texts is empty; expected at least one text")
        return np.stack(self._map("embed", asked, [len(t) for t in asked], progress, options))

    def pids(self) -> list[int]:
        """Return the process ids of the actors."""
        found: list[int] = ray.get([worker.pid.remote() for worker in self._idle])
        return found

    def close(self) -> None:
        """End the actors. Does nothing if already closed."""
        while self._idle:
            ray.kill(self._idle.pop())

    def _map(
        self,
        method: str,
        items: list[Any],
        lengths: list[int],
        progress: ProgressOption,
        options: dict[str, Any],
        each: Mapping[str, list[Any]] = MappingProxyType({}),
    ) -> list[Any]:
        """Return the results of a method of the actors; `each` has the options with a value per item."""
        if not self._idle:
            raise ValueError("Pool: the pool is closed")
        order = sorted(range(len(items)), key=lambda i: -lengths[i])
        pending = deque((order[i : i + self._batch], 0) for i in range(0, len(order), self._batch))
        running: dict[Any, tuple[Any, list[int], int]] = {}
        done: list[Any] = [None] * len(items)
        check_progress(progress, "Pool")
        bar = Progress(progress, len(items), "text")
        try:
            while pending or running:
                while pending and self._idle:
                    members, tries = pending.popleft()
                    worker = self._idle.popleft()
                    own = {name: [values[i] for i in members] for name, values in each.items()}
                    share = [items[i] for i in members]
                    try:
                        call = getattr(worker, method).remote(share, options | own)
                    except BaseException:  # an argument cannot be sent
                        self._idle.append(worker)
                        raise
                    running[call] = (worker, members, tries)
                (call, *_), _ = ray.wait(list(running))
                worker, members, tries = running.pop(call)
                try:
                    found = results(ray.get, call)
                except RayActorError:
                    self._idle.append(self._make(*self._arguments))
                    if tries >= self._retries:
                        raise
                    pending.appendleft((members, tries + 1))
                    continue
                except BaseException:
                    self._idle.append(worker)
                    raise
                self._idle.append(worker)
                for i, result in zip(members, found, strict=True):
                    done[i] = result
                bar.update(len(members))
        finally:
            bar.close()
            for worker, *_ in running.values():  # after an error, running calls are abandoned
                ray.kill(worker)
                self._idle.append(self._make(*self._arguments))
        return done


def _texts(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _per_prompt(
    n: int,
    max_tokens: Limits = 128,
    sampler: Samplers = None,
    stop: Stop | Iterable[Stop] = (),
    seed: Seeds = None,
) -> dict[str, list[Any]]:
    """Return these arguments of plait.complete() with a value for each of `n` prompts.

    Raises:
        ValueError: As in plait.complete(), like its other exceptions.
    """
    stops: Any = list(stop) if isinstance(stop, Iterator | set | frozenset | tuple) else stop
    checked = parameters_of(n, max_tokens, sampler, stops, seed)
    if not isinstance(stops, list):
        stops = [stops]
    if any(isinstance(one, list | tuple | set | frozenset) for one in stops):
        # A batch may contain only prompts whose stop is one string.
        stops = [one if isinstance(one, list | tuple | set | frozenset) else [one] for one in stops]
    else:
        stops = [stops] * n
    return {
        "max_tokens": [one.max_tokens for one in checked],
        "sampler": [one.sampler for one in checked],
        "stop": stops,
        "seed": [one.seed for one in checked],
    }


class _Worker:
    """The actor: a model, and a context that is created on first use."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._path = path
        self._options = {"n_seq_max": 32} | options

    @functools.cached_property
    def _model(self) -> Model:
        # Not in __init__, because Ray does not pass on exceptions raised while an actor is created.
        return Model.demo() if self._path == "demo" else Model(self._path)

    @functools.cached_property
    def _context(self) -> Context:
        return Context(self._model, **self._options)

    def open(self) -> None:
        self._model  # noqa: B018

    def pid(self) -> int:
        return os.getpid()

    def generate(self, prompts: list[str], options: dict[str, Any]) -> list[Completion]:
        return complete(self._context, prompts, **options)

    def score(
        self, pairs: list[tuple[str, list[str]]], options: dict[str, Any]
    ) -> list[list[Score]]:
        return [score(self._context, context, rest, **options) for context, rest in pairs]

    def embed(self, texts: list[str], options: dict[str, Any]) -> list[npt.NDArray[np.float32]]:
        return list(embed(self._model, texts, **options))
