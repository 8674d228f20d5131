"""Drafts from a model's own layer for multi-token prediction.

DeepSeek-AI 2024, arXiv:2412.19437, section 2.2: after the last layer, one more layer reads the hidden
state of a position and the embedding of the next token, and predicts the token after that. Its output
is the hidden state for the next draft token.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_context, flag, integer, number
from plait.context import Context
from plait.errors import CacheFull, UnsupportedError
from plait.generation.drafts import Acceptance, DraftRequest, in_calls, likeliest
from plait.output_norm import OutputNorm

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.model import Model

Rows = npt.NDArray[np.float32]

# Hidden states of a prompt that are stored until the layer reads them.
MAX_UNREAD = 512
TRIAL = {True: 8, False: 4}  # steps with and without drafts, to measure both
FIRST_PERIOD, LAST_PERIOD = 32, 512  # steps between two trials


class MTP:
    """Drafts with the model's own layer for multi-token prediction (`nextn_predict_layers`).

    Needs no second model. The layer has a cache of its own, a fraction 1 / n_layer of the model's. It
    does not see a prefix of the prompt that another sequence had computed, nor adapters, control vectors and edits of
    the context; its drafts are then worse, but the text is the same. While MTP drafts for a context,
    no other capture of that context can be open.

    Drafting pauses while it is slower than decoding without drafts, which is measured from time to
    time. Calls from several threads are serialised.

    Args:
        n: Max draft tokens per step. The layer is trained to draft one and is applied repeatedly.
        p_min: Drafting stops at a token with a lower probability than this.
        pauses: False to draft even if that is slower.

    Attributes:
        acceptance: Statistics.

    Raises:
        ValueError: A number is out of range. On use: MTP already drafts for another context.
        UnsupportedError: On use: the file has no such layer, or it is one of an architecture whose
            layers are not supported.
    """

    def __init__(
        self, n: SupportsIndex = 2, p_min: SupportsFloat = 0.0, *, pauses: bool = True
    ) -> None:
        self.n = integer(n, "MTP: n", 1)
        self.p_min = number(p_min, "MTP: p_min", 0, 1)
        self.acceptance = Acceptance()
        self._balance = _Balance() if flag(pauses, "MTP: pauses") else None
        self._head: _Head | None = None
        self._texts: dict[Hashable, _Text] = {}
        self._lock = threading.RLock()
        self.reads = ""  # see StateReader; set by attach()

    def attach(self, ctx: Context) -> None:
        """Create the context of the layer.

        Args:
            ctx: The context that verifies the drafts.

        Raises:
            UnsupportedError: The model has no such layer.
            ValueError: Drafts for another context are in use.
        """
        expect_context(ctx, "attach")
        if self._serves(ctx):
            return
        with self._lock:
            if self._serves(ctx):
                return
            if self._texts:
                raise ValueError(
                    "MTP: drafts for another context are in use; use one MTP per context"
                )
            self.close()
            self._head = _Head(ctx, self.n)
            self.reads = self._head.reads

    def observe(self, key: Hashable, tokens: list[int], start: int, states: Rows) -> None:
        """Store the hidden states of tokens that the model has computed.

        Args:
            key: Identifies the generation.
            tokens: All of its tokens; rejected draft tokens are not among them.
            start: Position of the first hidden state.
            states: float32 (n, n_embd), the residual stream after the last layer.
        """
        with self._lock:
            if self._head is None:
                return
            text = self._texts.setdefault(key, _Text())
            text.add(start, states)
            if len(text.states) >= MAX_UNREAD:
                try:
                    self._head.read([(text, tokens)], logits=False)
                except CacheFull:
                    self._free()

    def propose(self, asks: list[DraftRequest]) -> list[list[int]]:
        """Return for each generation the most likely continuation; nothing during a pause, or after close().

        Args:
            asks: The generations.
        """
        drafts: list[list[int]] = [[] for _ in asks]
        with self._lock:
            if self._head is None:
                return drafts
            if self._balance is not None and not self._balance.drafts(
                {a.key: len(a.tokens) for a in asks}
            ):
                return drafts
            try:
                self._draft(self._head, asks, drafts)
            except CacheFull:
                self._free()
        return drafts

    def release(self, key: Hashable) -> None:
        """Free the cells of a generation.

        Args:
            key: Identifies the generation.
        """
        with self._lock:
            text = self._texts.pop(key, None)
            if text is not None:
                text.close()

    def close(self) -> None:
        """Free the context of the layer. It is created again when a request that uses this drafter is submitted."""
        with self._lock:
            self._free()
            if self._head is not None:
                self._head.close()
                self._head = None

    def __reduce__(self) -> tuple[Any, ...]:
        made = functools.partial(type(self), self.n, self.p_min, pauses=self._balance is not None)
        return made, ()

    def _serves(self, ctx: Context) -> bool:
        head = self._head
        return head is not None and head.serves(ctx)

    def _free(self) -> None:
        while self._texts:
            self._texts.popitem()[1].close()

    def _draft(self, head: _Head, asks: list[DraftRequest], drafts: list[list[int]]) -> None:
        texts = {}
        for i, ask in enumerate(asks):
            text = self._texts.get(ask.key)
            if text is not None and ask.max_tokens > 0 and text.knows(ask.tokens):
                texts[i] = text
        if not texts:
            return
        live = list(texts)
        rows, states = head.read([(texts[i], asks[i].tokens) for i in live], logits=True)
        while live:
            steps = {}
            for i, row, state in zip(live, rows, states, strict=True):
                token = likeliest(row, self.p_min)
                if token is None:
                    continue
                drafts[i].append(token)
                if len(drafts[i]) < min(self.n, asks[i].max_tokens):
                    steps[i] = (texts[i], token, state)
            live = list(steps)
            if live:
                rows, states = head.step(list(steps.values()))


@dataclass(slots=True)
class _Text:
    """What the layer knows of one generation."""

    seq: Sequence | None = None
    at: int = 0  # position of the first hidden state that the layer has not read
    states: Rows = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def add(self, start: int, states: Rows) -> None:
        """Add the hidden states of the positions from `start` on, which replace later ones."""
        end = self.at + len(self.states)
        if start > end or start < self.at or not len(self.states):
            self.at, self.states = start, states
        else:
            self.states = np.concatenate([self.states[: start - self.at], states])

    def knows(self, tokens: list[int]) -> bool:
        """Return whether the hidden state before the last token is known and unread."""
        return self.at < len(tokens) - 1 <= self.at + len(self.states)

    def close(self) -> None:
        """Free the cells."""
        if self.seq is not None:
            self.seq.close()
            self.seq = None


class _Head:
    """The layer with its context."""

    def __init__(self, ctx: Context, n: int) -> None:
        model = ctx.model
        if model.n_mtp_layer == 0:
            raise UnsupportedError(
                f"MTP: this {model.arch} file has no layer for multi-token prediction that plait supports"
            )
        self._for = ctx
        self._norm = OutputNorm(model)
        own = f"blk.{model.n_layer}.nextn.embed_tokens.weight"
        self._table = own if own in model.tensors else "token_embd.weight"
        self._model: Model = model
        same = ("backend", "threads", "isa")
        options = {name: ctx._options[name] for name in same if name in ctx._options}
        self._ctx = Context(
            model,
            n_ctx=ctx.n_ctx + n,
            n_seq_max=ctx.n_seq_max,
            kv_cells=ctx.kv.n_cells + n * ctx.n_seq_max,
            layers=range(model.n_layer, model.n_layer + 1),
            embeddings=True,
            pooling="none",
            **options,
        )
        self.reads = f"blk.{model.n_layer - 1}.l_out"

    def serves(self, ctx: Context) -> bool:
        return self._for is ctx and not self._ctx.closed

    def close(self) -> None:
        self._ctx.close()

    def read(self, texts: list[tuple[_Text, list[int]]], *, logits: bool) -> tuple[Rows, Rows]:
        """Read the hidden states whose next tokens are known.

        Returns:
            The logits after the last token of each text and the hidden states for the next draft
            token; no rows without `logits`.
        """
        inputs = []
        for text, tokens in texts:
            n = min(len(text.states), len(tokens) - 1 - text.at)
            rows = self._inputs(tokens[text.at + 1 : text.at + 1 + n], self._norm(text.states[:n]))
            self._open(text).truncate(text.at)
            inputs.append((text, rows))
        result = self._decode(inputs, logits)
        for text, rows in inputs:
            text.at += len(rows)
            text.states = text.states[len(rows) :]
        return result

    def step(self, steps: list[tuple[_Text, int, Rows]]) -> tuple[Rows, Rows]:
        """Read one draft token of each text, which the next read() forgets."""
        inputs = [(text, self._inputs([token], state[None])) for text, token, state in steps]
        return self._decode(inputs, logits=True)

    def _open(self, text: _Text) -> Sequence:
        if text.seq is None:
            text.seq = self._ctx.sequence()
        return text.seq

    def _inputs(self, tokens: list[int], states: Rows) -> Rows:
        return np.concatenate([states, self._model.tensor_rows(self._table, tokens)], axis=1)

    def _decode(self, inputs: list[tuple[_Text, Rows]], logits: bool) -> tuple[Rows, Rows]:
        """Decode the inputs of each text after what its sequence holds."""
        begins = [max(text.at, self._open(text).pos) for text, _ in inputs]
        rows, states = [], []
        for call in in_calls([len(given) for _, given in inputs], self._ctx.n_batch):
            batch = Batch()
            for i, begin, end in call:
                text, given = inputs[i]
                wanted = logits and end == len(given)
                batch.add_embeddings(
                    given[begin:end],
                    seq=self._open(text),
                    pos=begins[i] + begin,
                    logits="last" if wanted else "none",
                )
            out = self._ctx.decode(batch)
            rows.append(out.logits)
            states.append(out.embeddings)
        return np.concatenate(rows), np.concatenate(states)


class _Balance:
    """Decides whether drafting pays, from the seconds per token with and without drafts.

    A trial is a few steps of each kind; the better kind is then used for some steps, for longer each
    time the result is the same.
    """

    def __init__(self) -> None:
        self._drafting = True
        self._left = TRIAL[True]
        self._in_trial = True
        self._between = FIRST_PERIOD
        self._best = True
        self._seconds = {True: 0.0, False: 0.0}
        self._tokens = {True: 0, False: 0}
        self._last: dict[Hashable, int] = {}
        self._since = 0.0

    def drafts(self, lengths: dict[Hashable, int], now: float | None = None) -> bool:
        """Return whether to draft in this step, and account for the last one.

        Args:
            lengths: The number of tokens of each generation.
            now: The time in seconds. None: time.perf_counter().
        """
        now = time.perf_counter() if now is None else now
        if self._in_trial and lengths.keys() == self._last.keys():
            self._seconds[self._drafting] += now - self._since
            self._tokens[self._drafting] += sum(lengths[key] - self._last[key] for key in lengths)
        self._last, self._since = lengths, now
        if self._left == 0:
            self._next_phase()
        self._left -= 1
        return self._drafting

    def _next_phase(self) -> None:
        if self._in_trial and self._drafting:
            self._drafting = False
        elif self._in_trial:
            best = self._cost(True) <= self._cost(False)
            self._between = (
                min(2 * self._between, LAST_PERIOD) if best == self._best else FIRST_PERIOD
            )
            self._in_trial, self._drafting, self._best = False, best, best
        else:
            self._in_trial = self._drafting = True
            self._seconds, self._tokens = {True: 0.0, False: 0.0}, {True: 0, False: 0}
        self._left = TRIAL[self._drafting] if self._in_trial else self._between

    def _cost(self, drafting: bool) -> float:
        n = self._tokens[drafting]
        return self._seconds[drafting] / n if n else 0.0
