"""The actor of a pipeline: a context that runs some of the layers, and what is sent to it."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from plait._core import Adapter, Batch
from plait.context import Context
from plait.errors import UnsupportedError
from plait.model import Model


@dataclasses.dataclass
class Entries:
    """Entries of a batch without tokens and embeddings: see Batch.to_arrays().

    Attributes:
        positions: (n, n_pos_per_token), -1 where an entry continues its sequence.
        sequences: (n, k), padded with -1.
        wants: (n,), True for each entry that requests an output row.
        both_directions: True if the entries also attend to later entries of their sequence.
    """

    positions: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]
    wants: npt.NDArray[np.bool_]
    both_directions: bool

    def of(self, index: npt.NDArray[np.intp]) -> Entries:
        """Return the entries with these indices."""
        return dataclasses.replace(
            self,
            positions=self.positions[index],
            sequences=self.sequences[index],
            wants=self.wants[index],
        )

    def batch(self, rows: npt.NDArray[Any], everything: bool) -> Batch:
        """Return a batch of these tokens or embeddings.

        Args:
            rows: int32 (n,) tokens or float32 (n, width) embeddings.
            everything: Request an output row for every entry, as the next stage needs them.
        """
        made = Batch()
        add: Any = made.add_sequence
        if rows.ndim == 2:
            add = partial(made.add_embeddings, both_directions=self.both_directions)
        n, start = len(rows), 0
        continues = self.positions[:, 0] < 0
        for end in range(1, n + 1):
            same = (
                end < n
                and continues[end] == continues[start]
                and np.array_equal(self.sequences[end], self.sequences[start])
            )
            if same:
                continue
            part = slice(start, end)
            ids = self.sequences[start]
            positions = self.positions[part]
            add(
                rows[part],
                seq=ids[ids >= 0].tolist(),
                pos=None
                if continues[start]
                else positions[:, 0]
                if positions.shape[1] == 1
                else positions,
                logits="all" if everything else self.wants[part],
            )
            start = end
        return made


class Stage:
    """The actor. It counts the changes since its last state, which the pipeline compares with its log.

    Args:
        path: Path of the model, or "demo".
        options: Options of Context.
    """

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._path, self._options = path, options
        self._applied = 0
        self._adapters: dict[str, Adapter] = {}

    def open(self) -> None:
        """Open the model and create the context; not in __init__, whose exceptions Ray hides."""
        self._model = Model.demo() if self._path == "demo" else Model(self._path)
        self._ctx = Context(self._model, **self._options)
        self._is_last = self._ctx.layers.stop == self._model.n_layer
        if self._ctx.kv.kind == "cross":
            raise UnsupportedError(
                f"Pipeline: {self._model.arch} models have an encoder, which a pipeline cannot run; "
                "chain contexts with layers=range(a, b) instead"
            )

    def pid(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def applied(self) -> int:
        """Return the number of changes since the last state."""
        return self._applied

    def decode(self, entries: Entries, rows: npt.NDArray[Any]) -> Any:
        """Return what the layers pass on, or the logits and embeddings of the last ones."""
        output = self._ctx.decode(entries.batch(rows, everything=not self._is_last))
        self._applied += 1
        if not self._is_last:
            return output.embeddings.copy()
        return tuple(None if x is None else x.copy() for x in (output.logits, output.embeddings))

    def change(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the cache that changes it, unless it returns False."""
        result = getattr(self._ctx.kv, method)(*arguments)
        if result is not False:
            self._applied += 1
        return result

    def steer(self, method: str, arguments: dict[str, Any]) -> None:
        """Set adapters or a control vector, and count it as a change.

        Args:
            method: "set_lora" or "set_control_vector".
            arguments: The arguments of that method, with paths as adapters.
        """
        self._steer(method, arguments)
        self._applied += 1

    def _steer(self, method: str, arguments: dict[str, Any]) -> None:
        if method == "set_lora" and arguments["adapters"] is not None:
            scales = {self._adapter(path): x for path, x in arguments["adapters"].items()}
            arguments = arguments | {"adapters": scales}
        getattr(self._ctx, method)(**arguments)

    def _adapter(self, path: str) -> Adapter:
        if path not in self._adapters:
            self._adapters[path] = self._model.load_lora(path)
        return self._adapters[path]

    def read(self, name: str, arguments: tuple[Any, ...] | None) -> Any:
        """Return an attribute of the cache; calls it unless there are no arguments."""
        value = getattr(self._ctx.kv, name)
        return value if arguments is None else value(*arguments)

    def state(self) -> bytes:
        """Return the content of the cache, and count from here."""
        self._applied = 0
        return self._ctx.kv.to_bytes()

    def restore(
        self, state: bytes | None, adapters: list[str], steering: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Replace the content of the cache, the adapters and the control vectors by earlier ones.

        Args:
            state: The content of the cache. None empties it.
            adapters: The paths of all adapters before that state, in the order in which they were loaded.
            steering: The calls of steer() before that state that later ones do not replace.
        """
        self._applied = -1
        self._ctx.kv.clear()
        self._ctx.set_lora(None)
        self._ctx.set_control_vector(None)
        for path in adapters:
            self._adapter(path)
        for method, arguments in steering:
            self._steer(method, arguments)
        if state is not None:
            self._ctx.kv.from_bytes(state)
        self._applied = 0
