"""Activation patching over layers and positions, computing only what a patch changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_model, integer, items, string
from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.texts import Text, token_ids
from plait.inspect.capture import find_value, no_such_value
from plait.model import Model
from plait.progress import Progress, ProgressOption, check_progress

Rows = npt.NDArray[np.float32]
Metric = Callable[[Rows], npt.ArrayLike]
_MAX_ROWS = 4096  # rows of one call: bounds the size of its cache and of its inputs
# Options of Context that the sweep sets itself.
_OWN_OPTIONS = (
    *("n_ctx", "n_seq_max", "kv_cells", "n_batch", "layers", "embeddings", "pooling", "causal"),
    *("kv", "swa_full"),
)


@dataclass(frozen=True, slots=True, eq=False)
class PatchSweep:
    """The results of patch_sweep().

    Attributes:
        values: What the metric returned for each patched run, (n_layers, n_positions, ...); without a
            metric the logits, float32 (n_layers, n_positions, n_vocab).
        layers: The layer of each row of `values`.
        positions: The position of each column of `values`.
        clean: The metric of the run that the values come from.
        corrupted: The metric of the run that is patched, without a patch.
        computed: Number of tokens times layers that were computed, as a share of those of all runs
            computed alone.
    """

    values: npt.NDArray[Any]
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    clean: npt.NDArray[Any]
    corrupted: npt.NDArray[Any]
    computed: float

    @property
    def restored(self) -> npt.NDArray[Any]:
        """How much of the difference of both runs each patch removes: 0 for nothing, 1 for all of it.

        float32 (n_layers, n_positions, ...), or the float type that follows from that of the metric.
        """
        values, clean, corrupted = (
            each.astype(np.float64) if each.dtype.kind in "bu" else each
            for each in (self.values, self.clean, self.corrupted)
        )
        found: npt.NDArray[Any] = (values - corrupted) / (clean - corrupted)
        return found

    def __repr__(self) -> str:
        return (
            f"<plait.PatchSweep of {len(self.layers)} layers and {len(self.positions)} positions, "
            f"{self.computed:.0%} computed>"
        )


def patch_sweep(
    model: Model,
    clean: Text,
    corrupted: Text,
    *,
    values: str = "l_out",
    layers: Iterable[SupportsIndex] | None = None,
    positions: Iterable[SupportsIndex] | None = None,
    metric: Metric | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    **options: Any,
) -> PatchSweep:
    """Patch a value of each layer at each position from one run into another.

    Each patched run is the run of `corrupted`, with the value of one layer at one position replaced by
    that of the run of `clean`. The result is bit-equal to a loop over ctx.edit(name, row, "replace",
    positions=position) on the CPU, but only what a patch can change is computed: the layers from the
    patched one on, from the residual stream of the unpatched run, and the tokens from the position on,
    in forks of the unpatched run. All positions of a layer are sequences of one batch. Nothing is
    computed where both runs have the same value, as before the first token in which they differ.
    Recurrent layers have no forks at earlier positions, so models with them compute the tokens before
    the position again.

    Args:
        model: The model.
        clean: Text or token ids of the run that the values come from.
        corrupted: Text or token ids of the run that is patched, with as many tokens.
        values: The value, without its layer: "l_out", the residual stream after the layer, "attn_out",
            "ffn_out", "attn_heads" or another one of Context.value_names(), except "attn_pattern".
        layers: Layers to patch. None: all.
        positions: Positions to patch. None: all.
        metric: A function that receives the logits of the last token of several runs, float32
            (n_runs, n_vocab), and returns an array (n_runs, ...). None returns the logits, which are
            large for many runs.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: Called after each layer with (done, total), in patched runs. True shows a tqdm progress
            bar.
        options: Options of Context, such as threads, backend, type_k, type_v or n_ubatch.

    Returns:
        The metric of each patched run, and of both runs without patches.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The texts differ in their number of tokens, a layer or a position does not exist or is
            given twice, a layer has no such value, the metric returns a wrong number of results, or an
            option is one that the sweep sets.
        UnsupportedError: The layers of the model cannot run apart, or it has an encoder.

    Example:
        encode = model.tokenizer.encode
        clean, corrupted = (encode(f"Tom lives in {x}. Tom lives in") for x in ("Oslo", "Rome"))
        oslo, rome = (encode(x, add_special=False)[0] for x in ("Oslo", "Rome"))
        sweep = plait.patch_sweep(
            model, clean, corrupted, metric=lambda logits: logits[:, oslo] - logits[:, rome]
        )
        words = [model.tokenizer.decode([token]) for token in corrupted]
        plait.figures.plot_layers(sweep.restored, words, "answer restored")
    """
    expect_model(model, "patch_sweep")
    check_progress(progress, "patch_sweep")
    if string(values, "patch_sweep: values") == "attn_pattern":
        raise ValueError(
            "patch_sweep: attn_pattern cannot be edited; patch attn_heads or q_rope instead"
        )
    for name in _OWN_OPTIONS:
        if name in options:
            raise ValueError(f"patch_sweep: {name} is not an option; the sweep sets it itself")
    if metric is not None and not callable(metric):
        raise TypeError(f"patch_sweep: metric: expected a function, got {type(metric).__name__}")
    texts = [
        token_ids(model, text, f"patch_sweep: {name}", add_special, parse_special)
        for name, text in (("clean", clean), ("corrupted", corrupted))
    ]
    n = len(texts[0])
    if n != len(texts[1]) or n == 0:
        raise ValueError(
            f"patch_sweep: clean has {n} tokens and corrupted {len(texts[1])}; expected the same "
            "number, at least 1"
        )
    sweep = _Sweep(model, texts[0], texts[1], values, metric or np.array, options)
    wanted = _indices(layers, "layers", model.n_layer), _indices(positions, "positions", n)
    return sweep.run(*wanted, progress)


class _Sweep:
    """Both runs without patches, and the calls with patches.

    Args:
        model: The model.
        clean: Tokens of the run that the values come from.
        corrupted: Tokens of the run that is patched.
        values: The value, without its layer.
        metric: What to return of logits.
        options: More options of Context.
    """

    def __init__(
        self,
        model: Model,
        clean: list[int],
        corrupted: list[int],
        values: str,
        metric: Metric,
        options: dict[str, Any],
    ) -> None:
        self._model, self._clean, self._corrupted = model, clean, corrupted
        self._values, self._metric, self._options = values, metric, options
        self._n = len(clean)
        self._n_computed = 0  # tokens times layers

    def run(
        self, layers: tuple[int, ...], positions: tuple[int, ...], progress: ProgressOption
    ) -> PatchSweep:
        """Compute the results of patch_sweep() for these layers and positions."""
        n_layer, n_runs = self._model.n_layer, len(layers) * len(positions)
        ends = self._read_both_runs(layers)
        results = np.stack([np.stack([ends[1]] * len(positions))] * len(layers))
        with Progress(progress, n_runs, "run") as bar:
            for index, layer in enumerate(layers):
                # A value that both runs have in common makes the run without a patch.
                changes = np.array([self._differs(layer, position) for position in positions])
                if changes.any():
                    patched = tuple(np.array(positions)[changes].tolist())
                    found = np.concatenate([*self._patch_layer(layer, patched)])
                    results = results.astype(np.result_type(results.dtype, found.dtype), copy=False)
                    results[index, changes] = found
                bar.update(len(positions))
        return PatchSweep(
            values=results,
            layers=layers,
            positions=positions,
            clean=ends[0],
            corrupted=ends[1],
            computed=self._n_computed / (n_runs * self._n * n_layer),
        )

    def _context(self, **options: Any) -> Context:
        # Layers with a sliding window would otherwise drop cells that forks of earlier positions read.
        return Context(self._model, n_ctx=self._n, swa_full=True, **options, **self._options)

    def _read_both_runs(self, layers: tuple[int, ...]) -> list[npt.NDArray[Any]]:
        """Keep the patched values of one run and the residual streams of the other; return their metrics."""
        n_layer = self._model.n_layer
        whole = range(n_layer)
        with self._context(layers=whole, n_batch=self._n) as ctx:
            if not ctx.causal or ctx.kv.kind in ("cross", "none"):
                raise UnsupportedError(
                    f"patch_sweep: {self._model.arch} models have an encoder; patch them with ctx.edit()"
                )
            known = ctx.value_names()
            names = {layer: self._name(known, layer) for layer in layers}
            self._shares_prefixes = ctx.kv.kind in ("unified", "streams", "sliding")
            with ctx.capture(*names.values()) as seen:
                ends = [self._decode(ctx, self._clean)]
            self._source = {layer: seen[name] for layer, name in names.items()}
            ctx.kv.clear()
            with ctx.capture("l_out.*", *names.values()) as seen:
                ends.append(self._decode(ctx, self._corrupted))
            self._replaced = {layer: seen[name] for layer, name in names.items()}
            self._streams = [seen[f"l_out.{layer}"] for layer in range(n_layer - 1)]
        if self._streams:
            self._add_passed_parts()
        return [self._measured(logits)[0] for logits in ends]

    def _differs(self, layer: int, position: int) -> bool:
        """Return True if the value of a layer has other bits in the two runs."""
        source, replaced = (of[layer][position] for of in (self._source, self._replaced))
        return bytes(source.tobytes()) != bytes(replaced.tobytes())

    def _name(self, known: list[str], layer: int) -> str:
        name = f"{self._values}.{layer}"
        if found := find_value(known, name):
            return found
        raise no_such_value("patch_sweep: values", known, name)

    def _decode(self, ctx: Context, tokens: list[int]) -> Rows:
        """Decode a run, with output rows for all tokens, so that the last layer has all of its values."""
        batch = Batch()
        batch.add_sequence(tokens, logits="all")
        self._n_computed += self._n * len(ctx.layers)
        logits: Rows = ctx.decode(batch).logits[-1:].copy()
        return logits

    def _add_passed_parts(self) -> None:
        """Append what layers pass on beside the residual stream, such as the first values of RWKV-7."""
        with self._context(layers=range(1), n_batch=self._n) as ctx:
            batch = Batch()
            batch.add_sequence(self._corrupted, logits="all")
            extra = ctx.decode(batch).embeddings[:, self._model.n_embd :]
            self._n_computed += self._n
            if extra.shape[1] > 0:
                self._streams = [np.hstack([rows, extra]) for rows in self._streams]

    def _measured(self, logits: Rows) -> npt.NDArray[Any]:
        found = np.asarray(self._metric(logits))
        if found.ndim == 0 or len(found) != len(logits):
            raise ValueError(
                f"patch_sweep: metric: expected {len(logits)} results for {len(logits)} runs, got an "
                f"array of shape {found.shape}"
            )
        return found

    def _patch_layer(self, layer: int, positions: tuple[int, ...]) -> Iterator[npt.NDArray[Any]]:
        """Yield the metrics of the runs with a patch of this layer."""
        n_layer = self._model.n_layer
        is_input = self._values == "l_out" and layer + 1 < n_layer
        first = layer + 1 if is_input else layer
        stream = self._streams[first - 1] if first > 0 else np.array(self._corrupted)
        groups = list(self._groups(positions))
        n_seqs = max(map(len, groups)) + 1
        n_rows = max(self._n, *(sum(self._n - self._begin(p) for p in group) for group in groups))
        with self._context(
            layers=range(first, n_layer),
            n_seq_max=n_seqs,
            n_batch=n_rows,
            kv_cells=n_rows + self._n,
        ) as ctx:
            if self._shares_prefixes and max(positions) > 0:
                self._add(base := Batch(), stream[: max(positions)], 0, "none")
                ctx.decode(base)
                self._n_computed += max(positions) * len(ctx.layers)
            for group in groups:
                yield self._measured(self._patch_group(ctx, layer, stream, group, is_input))

    def _begin(self, position: int) -> int:
        """Return the first position that a run computes."""
        return position if self._shares_prefixes else 0

    def _groups(self, positions: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Divide the positions into those of one call each."""
        begin = n_rows = 0
        for end, position in enumerate(positions):
            rows = self._n - self._begin(position)
            if n_rows + rows > _MAX_ROWS and end > begin:
                yield positions[begin:end]
                begin, n_rows = end, 0
            n_rows += rows
        yield positions[begin:]

    @staticmethod
    def _add(batch: Batch, rows: npt.NDArray[Any], seq: int, logits: str) -> None:
        add = batch.add_embeddings if rows.ndim == 2 else batch.add_sequence
        add(rows, seq=seq, logits=logits)

    def _patch_group(
        self,
        ctx: Context,
        layer: int,
        stream: npt.NDArray[Any],
        group: tuple[int, ...],
        is_input: bool,
    ) -> Rows:
        """Return the logits of the runs with a patch of this layer at these positions.

        Args:
            ctx: The layers to run; its sequence 0 has the run without patches.
            layer: The layer of the value.
            stream: What enters the first layer in the run without patches.
            group: The positions.
            is_input: True if the value is what enters the first layer.
        """
        batch, source = Batch(), self._source[layer]
        for seq in range(len(group) + 1, ctx.n_seq_max):  # of a group before with more sequences
            ctx.kv.seq_rm(seq)
        with ExitStack() as edits:
            for seq, position in enumerate(group, 1):
                begin, row = self._begin(position), source[position]
                ctx.kv.seq_rm(seq)
                if begin > 0:
                    ctx.kv.seq_cp(0, seq, 0, begin)
                rows = stream[begin:]
                if is_input:
                    rows = rows.copy()
                    rows[position - begin, : self._model.n_embd] = row
                else:
                    name = f"{self._values}.{layer}"
                    edit = ctx.edit(name, row, "replace", seq=seq, positions=position)
                    edits.enter_context(edit)
                self._add(batch, rows, seq, "last")
            self._n_computed += len(batch) * len(ctx.layers)
            logits: Rows = ctx.decode(batch).logits
        return logits


def _indices(given: Iterable[SupportsIndex] | None, name: str, n: int) -> tuple[int, ...]:
    """Return indices below n, all by default."""
    if given is None:
        return tuple(range(n))
    what = f"patch_sweep: {name}"
    found = tuple(integer(one, what, 0, n - 1) for one in items(given, what, "integers"))
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{what}: expected distinct integers, at least one, got {list(found)}")
    return found
