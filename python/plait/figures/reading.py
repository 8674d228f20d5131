"""Decoding of a text with captured values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import string
from plait.context import Context, model_of
from plait.errors import UnsupportedError

if TYPE_CHECKING:
    from plait.inspect.capture import Capture
    from plait.model import Model


class TextReading:
    """Decodes a text in an empty sequence, in parts of n_batch tokens, and captures values of the given roles.

    Args:
        model: A Model, for which a context is created, or a Context.
        text: The text.
        roles: Names of values within a layer, such as "attn_heads".

    Raises:
        ValueError: The text has no tokens.
    """

    def __init__(self, model: Model | Context, text: str, roles: tuple[str, ...]) -> None:
        self.model = model_of(model, "figures")
        string(text, "text")
        self._ids = self.model.tokenizer.encode(text)
        if len(self._ids) == 0:
            raise ValueError("the text has no tokens; expected at least one")
        self._owns_context = not isinstance(model, Context)
        self._ctx = (
            model if isinstance(model, Context) else Context(self.model, n_ctx=len(self._ids))
        )
        token_bytes = self.model.tokenizer.token_bytes
        self.tokens = [token_bytes(int(token)).decode(errors="replace") for token in self._ids]
        self._roles = roles
        self._seen: Capture | None = None
        self.logits: Any = None

    def __enter__(self) -> TextReading:
        ctx = self._ctx
        names = [
            name for name in ctx.value_names() if name.startswith("blk.") and name.split(".")[2] in self._roles
        ]  # fmt: skip
        if not names or ctx.kv.kind == "cross":
            raise UnsupportedError(f"a {self.model.arch} model has no {' or '.join(self._roles)}")
        self._names = set(names)
        with ctx.sequence() as seq, ctx.capture(*names) as seen:
            parts = []
            for begin in range(0, len(self._ids), ctx.n_batch):
                batch = Batch()
                batch.add_sequence(self._ids[begin : begin + ctx.n_batch], seq=seq, logits="all")
                parts.append(ctx.decode(batch).logits)
        self.logits = None if parts[0] is None else np.concatenate(parts)
        self._seen = seen
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_context:
            self._ctx.close()

    def value(self, role: str, layer: int) -> npt.NDArray[np.float32]:
        """Return a captured value, float32 (n_tokens, ...).

        Raises:
            UnsupportedError: The layer has no such value.
        """
        name = f"blk.{layer}.{role}"
        if name not in self._names or self._seen is None:
            raise UnsupportedError(f"layer {layer} of this {self.model.arch} model has no {role}")
        return self._seen[name]

    def first(self, layer: int, *roles: str) -> npt.NDArray[np.float32]:
        """Return the value of the first of these roles that the layer has."""
        for role in roles:
            if f"blk.{layer}.{role}" in self._names:
                return self.value(role, layer)
        return self.value(roles[-1], layer)
