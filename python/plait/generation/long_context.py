"""Texts longer than the training length or the context, by changing positions in the cache.

These methods do not change the model. How well a model handles them must be tested.
"""

from __future__ import annotations

from typing import SupportsIndex

from plait.arguments import expect_context, integer, kind
from plait.cache.sequence import Sequence
from plait.context import Context
from plait.errors import UnsupportedError


def attention_sinks(
    seq: Sequence,
    max_length: SupportsIndex,
    sinks: SupportsIndex = 4,
    discard: SupportsIndex | None = None,
) -> int:
    """Make room in a long sequence by removing tokens after the first `sinks`.

    Call it before each decode(). If the sequence has at least `max_length` tokens, the `discard`
    tokens after the sinks are removed and later ones move back to close the gap, so that positions
    stay below `max_length`. Models attend strongly to their first tokens, whatever these are, and
    fail without them (StreamingLLM: Xiao et al. 2023, arXiv:2309.17453).

    Args:
        seq: The sequence.
        max_length: Length in tokens from which on tokens are removed.
        sinks: Number of leading tokens to keep.
        discard: Number of tokens to remove. None: half of those after the sinks.

    Returns:
        Number of tokens removed; 0 if the sequence is shorter than `max_length`.

    Raises:
        ValueError: `sinks` or `discard` is out of range.
        UnsupportedError: As in Sequence.shift().
        CacheFull: As in Sequence.shift().
    """
    _expect_sequence(seq, "attention_sinks")
    limit = integer(max_length, "attention_sinks: max_length", 1)
    first = integer(sinks, "attention_sinks: sinks", 0)
    if discard is not None:
        discard = integer(discard, "attention_sinks: discard", 1)
    if seq.pos < limit:
        return 0
    n = (seq.pos - first) // 2 if discard is None else integer(discard, "attention_sinks: discard")
    if first < 0 or n < 1 or first + n > seq.pos:
        raise ValueError(
            f"attention_sinks: sinks is {first} and discard is {n}, but the sequence has {seq.pos} tokens; expected "
            f"sinks >= 0, discard >= 1 and sinks + discard at most the length of the sequence"
        )
    seq.shift(first, n)
    return n


class SelfExtend:
    """Extends a sequence beyond the model's training length by letting old tokens share positions.

    Whenever `width` more tokens are in the cache, the oldest `width` tokens with individual
    positions are grouped: each `group` of them shares one position, and later positions move down.
    Recent tokens keep their exact distances; old ones are distinguished only by group. N tokens
    thus use about N / group positions. Grouped attention of Self-Extend (Jin et al. 2024,
    arXiv:2401.01325), applied to the cache: keys are rotated, and nothing is recomputed.

    Call update() after each decode(). The context needs one cell per token; choose its n_ctx
    accordingly.

    Args:
        ctx: The context.
        seq: A sequence of `ctx` that begins at position 0 and that no other code changes.
        group: Number of tokens per shared position.
        width: Number of tokens to group at a time, a multiple of `group`.

    Attributes:
        n_grouped: Number of leading positions that stand for `group` tokens each.

    Raises:
        ValueError: `group` is below 2, or `width` is not a multiple of it.
        UnsupportedError: The context cannot change positions, or it frees the keys that have left a
            sliding window; `swa_full=True` keeps them.
    """

    def __init__(
        self, ctx: Context, seq: Sequence, group: SupportsIndex = 4, width: SupportsIndex = 512
    ) -> None:
        expect_context(ctx, "SelfExtend")
        _expect_sequence(seq, "SelfExtend")
        if not seq.belongs_to(ctx):
            raise ValueError("SelfExtend: seq is closed or belongs to another context than ctx")
        _expect_movable(ctx)
        self._kv = ctx.kv
        self.seq = seq
        self.group = integer(group, "SelfExtend: group", 2)
        self.width = integer(width, "SelfExtend: width", 1)
        if self.group < 2 or self.width < self.group or self.width % self.group:
            raise ValueError(
                f"SelfExtend: group is {self.group} and width is {self.width}; group must be at least 2, "
                f"and width a multiple of group"
            )
        self.n_grouped = 0

    def update(self) -> int:
        """Group the tokens that are old enough.

        Returns:
            Number of positions saved.

        Raises:
            CacheFull: Other sequences share cells of this one, and copying them needs more cells than
                are free. Nothing has changed.
        """
        before = self.seq.pos
        while self.seq.pos >= self.n_grouped + self.width:
            self._group_oldest()
        return before - self.seq.pos

    def _group_oldest(self) -> None:
        kv, begin = self._kv, self.n_grouped
        n_new = self.width // self.group
        # Division rounds towards 0, so the block is first moved to where its quotients are begin, begin + 1, ...
        apart = begin * (self.group - 1)
        # Two calls, so that the first always changes positions: it copies all cells that other sequences share, or
        # raises CacheFull. The calls after it need no cells, and cannot fail with some of the changes made.
        kv.seq_add(self.seq, begin, None, apart + 1)
        kv.seq_add(self.seq, begin + apart + 1, None, -1)
        kv.seq_div(self.seq, begin + apart, begin + apart + self.width, self.group)
        kv.seq_add(self.seq, begin + apart + self.width, None, -(apart + self.width - n_new))
        self.n_grouped = begin + n_new


def _expect_movable(ctx: Context) -> None:
    if not ctx.kv.can_shift:
        raise UnsupportedError(f"SelfExtend: a {ctx.model.arch} model cannot change positions")
    if ctx.kv.kind == "sliding" and not ctx._options.get("swa_full"):
        raise UnsupportedError(
            "SelfExtend: the context frees the keys that have left a sliding window, so old tokens cannot move into "
            "the window again; create it with swa_full=True, which keeps all keys"
        )


def _expect_sequence(seq: object, what: str) -> None:
    if not isinstance(seq, Sequence):
        raise TypeError(f"{what}: seq: expected a Sequence, got {kind(seq)}")
