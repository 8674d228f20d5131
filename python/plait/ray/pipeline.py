"""A model whose layers are divided among the processes and machines of a Ray cluster."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import ObjectLostError, RayActorError

from plait.arguments import integer
from plait.closeable import Closeable
from plait.model import Model
from plait.ray.calls import nodes, results, start_ray
from plait.ray.stage import Entries, Stage

if TYPE_CHECKING:
    from plait._core import Batch

T = TypeVar("T")


@dataclasses.dataclass
class PipelineOutput:
    """What Pipeline.decode() returns.

    Attributes:
        logits: float32 (n_outputs, n_vocab), in batch order; None if the model computes none.
        embeddings: float32 (n_outputs, n_embd), or None.
    """

    logits: npt.NDArray[np.float32] | None
    embeddings: npt.NDArray[np.float32] | None


@dataclasses.dataclass
class _Decode:
    """Entries of some sequences; inputs has what each stage receives: arrays, then references."""

    entries: Entries
    inputs: list[Any]

    def send(self, stage: Any, i: int) -> Any:
        return stage.decode.remote(self.entries, self.inputs[i])


@dataclasses.dataclass
class _Change:
    """A call that changes the cache of every stage."""

    method: str
    arguments: tuple[Any, ...]

    def send(self, stage: Any, i: int) -> Any:
        return stage.change.remote(self.method, self.arguments)


@dataclasses.dataclass
class _Steering(_Change):
    """A call that sets adapters or control vectors of every stage; `arguments` has a dict of them."""

    def send(self, stage: Any, i: int) -> Any:
        return stage.steer.remote(self.method, *self.arguments)


class Pipeline(Closeable):
    """Stages that each run some of the layers. close(), or leaving a `with` block, ends them.

    A batch is divided by sequences, so that stages work at the same time on different sequences.
    The results have the bits of one context of all layers. If a stage dies, it is replaced, and its
    cache is computed again from what the pipeline has kept: the inputs of the stages since their
    last state, which it saves from time to time.

    Args:
        model: A path that every node can open, or "demo" for the model inside the package.
        devices: The `backend` of each stage, such as ["cpu", "vulkan:0"]. None: the CPU of each
            node, but at least two stages.
        layers: The range of layers of each stage. None: ranges of about equal weights.
        cpus: CPUs per stage, which are also its threads unless `threads` is given.
        retries: Number of times that a call is repeated if a stage dies.
        state_every: Number of changes after which the states of all stages are saved.
        context: Options of plait.Context for all stages: n_ctx, n_seq_max, kv, type_k, threads.
            `embeddings` applies to the last stage.

    Raises:
        ValueError: A number is below 1, the ranges do not make up the model, or an option is not
            supported.
        UnsupportedError: The layers of the model cannot run apart, or it has an encoder and a
            decoder. Other exceptions of plait.Model and plait.Context are raised as well.

    Example:
        with plait.ray.Pipeline("model.gguf", devices=["cpu", "cpu"], n_ctx=2048) as pipeline:
            logits = pipeline.decode(batch).logits
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        devices: Sequence[str] | None = None,
        *,
        layers: Iterable[range] | None = None,
        cpus: int = 1,
        retries: int = 3,
        state_every: int = 64,
        **context: Any,
    ) -> None:
        self._stages: list[Any] = []
        for name, number in (("cpus", cpus), ("retries", retries), ("state_every", state_every)):
            integer(number, f"Pipeline: {name}", 1)
        for name in ("pooling", "backend"):
            if name in context:
                raise ValueError(
                    f"Pipeline: {name} is not an option of a pipeline"
                    + ("; use devices" if name == "backend" else "; pool the embeddings yourself")
                )
        path = os.fspath(model)
        opened = Model.demo() if path == "demo" else Model(path)
        given = None if layers is None else list(layers)
        start_ray()
        if devices is None:
            devices = ["cpu"] * (len(given) if given else max(2, min(len(nodes()), opened.n_layer)))
        self._layers = ranges_of(opened, len(devices)) if given is None else given
        _check_ranges(self._layers, opened.n_layer, len(devices))
        self._make: Any = ray.remote(num_cpus=cpus, scheduling_strategy="SPREAD")(Stage).remote
        common = {"threads": cpus} | context
        hidden = common.pop("embeddings", False)
        self._arguments = [
            (path, common | {"backend": device, "layers": run, "pooling": "none"})
            for device, run in zip(devices, self._layers, strict=True)
        ]
        self._arguments[-1][1]["embeddings"] = hidden
        self._retries, self._state_every = retries, state_every
        self._log: list[_Decode | _Change] = []
        self._states: list[bytes | None] = [None] * len(devices)
        self._steering: list[_Steering] = []  # before these states
        self._adapters: dict[str, None] = {}  # paths, in the order in which stages loaded them
        try:
            self._stages = [self._make(*arguments) for arguments in self._arguments]
            results(ray.get, [stage.open.remote() for stage in self._stages])
        except BaseException:
            self.close()
            raise

    @property
    def layers(self) -> list[range]:
        """The layers of each stage."""
        return list(self._layers)

    @property
    def kv(self) -> PipelineCache:
        """The caches of all stages."""
        return PipelineCache(self)

    def decode(self, batch: Batch) -> PipelineOutput:
        """Run a batch and store its keys and values in the caches of all stages.

        If an exception is raised, the caches are as they were before the call.

        Args:
            batch: The batch, with ids as sequences.

        Returns:
            A row for each entry that requested one, in batch order.

        Raises:
            ValueError: The pipeline is closed. Exceptions of Context.decode() are raised as well.
            RayActorError: Stages died in each of `retries` repetitions.
        """
        rows, positions, sequences, wants = batch.to_arrays()
        if positions is None:
            positions = np.full(len(rows), -1, np.int32)
        if positions.ndim == 1:
            positions = positions[:, None]
        entries = Entries(positions, sequences, wants, batch.both_directions)
        n_groups = len(self._arguments)
        groups = _independent(sequences, n_groups) if len(rows) else [np.arange(0)]
        parts = [(index, rows[index], entries.of(index)) for index in groups]
        return self._repeat(lambda: self._decode(parts))

    def _decode(self, parts: list[tuple[Any, Any, Entries]]) -> PipelineOutput:
        sent = []
        for _, rows, entries in parts:
            change = _Decode(entries, [rows])
            for i, stage in enumerate(self._stages):
                change.inputs.append(change.send(stage, i))
            sent.append(change)
        found = results(ray.get, [change.inputs.pop() for change in sent])
        self._log += sent
        order = np.argsort(np.concatenate([index[one.wants] for index, _, one in parts]))

        def together(which: int) -> Any:
            if found[0][which] is None:
                return None
            return np.concatenate([rows[which] for rows in found])[order]

        return PipelineOutput(together(0), together(1))

    def change(self, method: str, *arguments: Any) -> Any:
        """Call a method of the cache of every stage; see PipelineCache.

        If a stage refuses, by an exception or by returning False, no stage is changed.

        Args:
            method: Name of the method.
            arguments: Its arguments.

        Returns:
            The largest number that a stage returned, or None; False if a stage refused.
        """
        return self._apply(_Change(method, arguments))

    def _apply(self, made: _Change) -> Any:
        def run() -> Any:
            calls = [made.send(stage, i) for i, stage in enumerate(self._stages)]
            found = results(ray.get, calls)
            if any(one is False for one in found):
                self._recover()
                return False
            self._log.append(made)
            return None if found[0] is None else max(found)

        return self._repeat(run)

    def set_lora(
        self,
        adapters: Mapping[str | os.PathLike[str], float] | None,
        *,
        seq: int | Iterable[int] | None = None,
    ) -> None:
        """Set the adapters for all later calls, in every stage; see Context.set_lora().

        A stage that is replaced gets them again.

        Args:
            adapters: Scale of each adapter, by a path that every node can open. They are summed in
                the order in which the pipeline first received their paths. None removes all adapters.
            seq: The sequences that use these adapters. None: all sequences.

        Raises:
            ValueError: The pipeline is closed. Exceptions of Model.load_lora() and Context.set_lora()
                are raised as well; no stage is changed then.
        """
        scales = None
        if adapters is not None:
            scales = {os.fspath(path): scale for path, scale in adapters.items()}
        self._steer("set_lora", {"adapters": scales, "seq": _ids(seq)})

    def set_control_vector(
        self,
        vector: npt.ArrayLike | None,
        first_layer: int = 1,
        last_layer: int | None = None,
        *,
        seq: int | Iterable[int] | None = None,
    ) -> None:
        """Add a control vector to the layer outputs in all later calls; see Context.set_control_vector().

        Args:
            vector: float32 array of shape (n_layer, n_embd), for all layers of the model. None removes
                the vector.
            first_layer: First layer that the vector is added to.
            last_layer: Last layer that the vector is added to. None: the last layer of the model.
            seq: The sequences that use this vector. None: all sequences.

        Raises:
            ValueError: The pipeline is closed. Exceptions of Context.set_control_vector() are raised
                as well; no stage is changed then.
        """
        rows = None if vector is None else np.array(vector, np.float32)
        arguments = {"vector": rows, "first_layer": first_layer, "last_layer": last_layer}
        self._steer("set_control_vector", arguments | {"seq": _ids(seq)})

    def _steer(self, method: str, arguments: dict[str, Any]) -> None:
        self._apply(_Steering(method, (arguments,)))

    def read(self, stages: slice, name: str, *arguments: Any, call: bool = True) -> list[Any]:
        """Return an attribute of the caches of some stages, or what it returns.

        Args:
            stages: Which stages.
            name: Name of the attribute.
            arguments: Arguments of a method.
            call: Whether the attribute is a method.

        Returns:
            A value per stage.
        """
        given = arguments if call else None

        def run() -> list[Any]:
            calls = [stage.read.remote(name, given) for stage in self._stages[stages]]
            found: list[Any] = results(ray.get, calls)
            return found

        return self._repeat(run)

    def pids(self) -> list[int]:
        """Return the process ids of the stages."""
        return self._repeat(lambda: results(ray.get, [s.pid.remote() for s in self._stages]))

    def close(self) -> None:
        """End the stages. Does nothing if already closed."""
        while self._stages:
            ray.kill(self._stages.pop())

    def _repeat(self, call: Callable[[], T]) -> T:
        """Return the result of a call. Undoes what a failed call did; repeats it if a stage died."""
        if not self._stages:
            raise ValueError("Pipeline: the pipeline is closed")
        tries = 0
        while True:
            try:
                if tries > 0 or len(self._log) >= self._state_every:
                    self._recover()
                    self._save()
                return call()
            except (RayActorError, ObjectLostError):
                tries += 1
                if tries > self._retries:
                    raise
            except BaseException:
                self._recover()
                raise

    def _save(self) -> None:
        """Keep the states of the stages instead of the changes since the last ones."""
        if len(self._log) < self._state_every:
            return
        states = results(ray.get, [stage.state.remote() for stage in self._stages])
        for change in self._log:
            if isinstance(change, _Steering):
                self._keep(change)
        self._states, self._log = states, []

    def _keep(self, change: _Steering) -> None:
        """Keep a call that sets adapters or control vectors, and forget those whose effect it replaces."""
        (given,) = change.arguments
        self._steering = [
            each
            for each in self._steering
            if each.method != change.method or given["seq"] not in (None, each.arguments[0]["seq"])
        ]
        self._steering.append(change)
        self._adapters |= dict.fromkeys(given.get("adapters") or ())

    def _recover(self) -> None:
        """Give every stage the content that the kept states and changes make."""
        for tries in range(self._retries + 1):
            try:
                self._replay(everything=tries > 0)
            except (RayActorError, ObjectLostError):
                if tries == self._retries:
                    raise
            else:
                return

    def _replay(self, everything: bool) -> None:
        """Replace stages that died, and redo the changes on them and on those with other changes.

        Args:
            everything: Redo all stages, from tokens, because kept rows were lost with a node.
        """
        redone = []
        for i, stage in enumerate(self._stages):
            n_changes = _changes_of(stage)
            if n_changes == len(self._log) and not everything:
                continue
            if n_changes is None:
                stage = self._stages[i] = self._make(*self._arguments[i])
                results(ray.get, stage.open.remote())
            steering = [(change.method, *change.arguments) for change in self._steering]
            adapters = list(self._adapters)
            results(ray.get, stage.restore.remote(self._states[i], adapters, steering))
            redone.append(i)
        calls = []
        for change in self._log:
            for i in redone:
                calls.append(change.send(self._stages[i], i))
                if everything and isinstance(change, _Decode) and i + 1 < len(self._stages):
                    change.inputs[i + 1] = calls[-1]
        results(ray.get, calls)


class PipelineCache:
    """The caches of the stages of a pipeline, with the operations of plait.KVCache on sequences.

    Sequences are ids. An operation that one stage refuses changes none.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def seq_rm(self, seq: int, p0: int = 0, p1: int | None = None) -> bool:
        """Remove positions of a sequence; see KVCache.seq_rm()."""
        return bool(self._pipeline.change("seq_rm", seq, p0, p1))

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        """Copy positions of a sequence to another; see KVCache.seq_cp()."""
        self._pipeline.change("seq_cp", src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Remove all other sequences; see KVCache.seq_keep()."""
        self._pipeline.change("seq_keep", seq)

    def seq_add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        """Shift positions of a sequence; see KVCache.seq_add()."""
        self._pipeline.change("seq_add", seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int | None, divisor: int) -> None:
        """Divide positions of a sequence; see KVCache.seq_div()."""
        self._pipeline.change("seq_div", seq, p0, p1, divisor)

    def evict(self, seq: int, positions: npt.ArrayLike) -> int:
        """Remove single positions from a sequence; see KVCache.evict()."""
        return int(self._pipeline.change("evict", seq, np.array(positions)))

    def clear(self) -> None:
        """Remove all sequences."""
        self._pipeline.change("clear")

    def seq_pos_max(self, seq: int) -> int:
        """Return the largest position of a sequence, or -1 if it is empty."""
        return int(max(self._pipeline.read(slice(None), "seq_pos_max", seq)))

    def seq_pos_min(self, seq: int) -> int:
        """Return the smallest position of a sequence, or -1 if it is empty."""
        found = self._pipeline.read(slice(None), "seq_pos_min", seq)
        return int(min((pos for pos in found if pos >= 0), default=-1))

    def keys(self, layer: int, seq: int) -> npt.NDArray[np.float32]:
        """Return the keys of a layer of the model; see KVCache.keys()."""
        return self._of_layer("keys", layer, seq)

    def values(self, layer: int, seq: int) -> npt.NDArray[np.float32]:
        """Return the values of a layer of the model; see KVCache.values()."""
        return self._of_layer("values", layer, seq)

    @property
    def nbytes(self) -> list[int]:
        """Size in bytes of the cache of each stage."""
        return self._pipeline.read(slice(None), "nbytes", call=False)

    def _of_layer(self, name: str, layer: int, seq: int) -> npt.NDArray[np.float32]:
        for i, layers in enumerate(self._pipeline.layers):
            if layer in layers:
                found: npt.NDArray[np.float32]
                (found,) = self._pipeline.read(slice(i, i + 1), name, layer, seq)
                return found
        n_layer = self._pipeline.layers[-1].stop
        raise IndexError(f"layer {layer} does not exist: expected 0 to {n_layer - 1}")


def _changes_of(stage: Any) -> int | None:
    """Return the number of changes since the last state of a stage; None if it died."""
    try:
        n_changes: int = ray.get(stage.applied.remote())
    except RayActorError:
        return None
    return n_changes


def ranges_of(model: Model, n_stages: int) -> list[range]:
    """Divide the layers of a model into ranges of about equal size in bytes.

    Args:
        model: The model.
        n_stages: Number of ranges.

    Returns:
        The ranges, in order.

    Raises:
        ValueError: There are more stages than layers, or none.
    """
    n = model.n_layer
    if not 1 <= n_stages <= n:
        raise ValueError(f"Pipeline: {n_stages} stages for {n} layers; expected 1 to {n} stages")
    sizes = np.zeros(n)
    for name, tensor in model.tensors.items():
        number = name.split("blk.")[-1].split(".")[0]
        if "blk." in name and int(number) < n:
            sizes[int(number)] += tensor.nbytes
    ends = np.cumsum(sizes)
    bounds = [0]
    for i in range(1, n_stages):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * i / n_stages))) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), n - (n_stages - i)))
    return [range(a, b) for a, b in itertools.pairwise([*bounds, n])]


def _ids(seq: int | Iterable[int] | None) -> int | list[int] | None:
    """Return sequences as what a process can be sent."""
    return list(seq) if isinstance(seq, Iterable) else seq


def _check_ranges(layers: list[range], n_layer: int, n_stages: int) -> None:
    if len(layers) != n_stages:
        raise ValueError(f"Pipeline: {len(layers)} ranges of layers for {n_stages} devices")
    ends = [0, *(run.stop for run in layers)]
    starts = [*(run.start for run in layers), n_layer]
    if starts != ends or any(len(run) == 0 or run.step != 1 for run in layers):
        raise ValueError(
            f"Pipeline: layers: expected consecutive ranges from 0 to {n_layer}, got {layers}"
        )


def _independent(sequences: npt.NDArray[np.int32], n: int) -> list[npt.NDArray[np.intp]]:
    """Divide entries into at most n groups that share no sequence.

    Args:
        sequences: int32 (entries, k), padded with -1.
        n: Max number of groups.

    Returns:
        The indices of the entries of each group, ascending.
    """
    group_of: dict[int, int] = {}  # the smallest sequence of the group, by sequence
    for row in np.unique(sequences, axis=0):
        ids = [int(seq) for seq in row if seq >= 0]
        merged = {group_of.get(seq, seq) for seq in ids}
        group_of |= dict.fromkeys(ids, min(merged))
        group_of |= {seq: min(merged) for seq, group in group_of.items() if group in merged}
    names = np.array([group_of[int(row[0])] for row in sequences])
    found, counts = np.unique(names, return_counts=True)
    members: list[list[int]] = [[] for _ in range(min(n, len(found)))]
    loads = np.zeros(len(members), np.int64)
    for i in np.argsort(-counts, kind="stable"):  # the largest group first, to the least load
        least = int(np.argmin(loads))
        loads[least] += counts[i]
        members[least].append(int(found[i]))
    return [np.flatnonzero(np.isin(names, one)) for one in members]
