"""Texts longer than a model or a context was made for, by moving positions: what the sequence operations allow.

None of it changes a model; whether it understands what it then sees is for each to try.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

from plait.arguments import expect_context
from plait.cache.sequence import Sequence
from plait.context import Context


def attention_sinks(
    seq: Sequence,
    most: SupportsIndex,
    sinks: SupportsIndex = 4,
    discard: SupportsIndex | None = None,
) -> int:
    """Make room in a sequence of `most` cells or more, keeping its first `sinks` tokens and the latest.

    `discard` tokens after the sinks are forgotten (None: half of those that are no sinks) and what follows moves back
    to close the gap, so positions stay below `most` for ever: call it before each decode(). Models attend to their
    first tokens whatever these are, and lose their way without them (StreamingLLM: Xiao et al. 2023, arXiv:2309.17453).

    Returns how many tokens were forgotten, 0 for a shorter sequence. Raises ValueError where sinks and discard are
    negative or more than there is, and what Sequence.shift() does.
    """
    _expect_sequence(seq, "attention_sinks")
    limit, first = operator.index(most), operator.index(sinks)
    if seq.pos < limit:
        return 0
    n = (seq.pos - first) // 2 if discard is None else operator.index(discard)
    if first < 0 or n < 1 or first + n > seq.pos:
        raise ValueError(
            f"attention_sinks: {first} sinks and {n} to discard, of a sequence of {seq.pos} tokens"
        )
    seq.shift(first, n)
    return n


class SelfExtend:
    """Lets a sequence have more tokens than the model has positions, by sharing positions among old ones.

    Whenever `width` tokens have come, the oldest `width` that have a position each get one for every `group` of them,
    and what follows moves down: the latest stay at their distances, old ones are told apart in groups alone. N tokens
    then take about N / group positions. Call update() after each decode(). Grouped attention of Self-Extend (Jin et al.
    2024, arXiv:2401.01325), on the cache: keys are rotated, nothing is computed again.

    `seq` is a sequence of `ctx` that begins at position 0 and that nobody else changes. The context needs a cell for
    every token: choose its n_ctx so. Raises ValueError for a group below 2, and a width that is no multiple of it.
    """

    def __init__(
        self, ctx: Context, seq: Sequence, group: SupportsIndex = 4, width: SupportsIndex = 512
    ) -> None:
        expect_context(ctx, "SelfExtend")
        _expect_sequence(seq, "SelfExtend")
        self._kv = ctx.kv
        self.seq = seq
        self.group = operator.index(group)
        self.width = operator.index(width)
        if self.group < 2 or self.width < self.group or self.width % self.group:
            raise ValueError(
                f"SelfExtend: group is {self.group} and width {self.width}, expected at least 2 and a multiple of it"
            )
        self.n_grouped = 0  # positions, from 0, that stand for `group` tokens each

    def update(self) -> int:
        """Group what is old enough; how many positions that saved. Raises what KVCache.seq_div() does."""
        before = self.seq.pos
        while self.seq.pos >= self.n_grouped + self.width:
            self._group_oldest()
        return before - self.seq.pos

    def _group_oldest(self) -> None:
        kv, begin = self._kv, self.n_grouped
        n_new = self.width // self.group
        # Dividing rounds towards 0, so the block is first moved to where its quotients are begin, begin + 1, ...
        apart = begin * (self.group - 1)
        kv.seq_add(self.seq, begin, None, apart)
        kv.seq_div(self.seq, begin + apart, begin + apart + self.width, self.group)
        kv.seq_add(self.seq, begin + apart + self.width, None, -(apart + self.width - n_new))
        self.n_grouped = begin + n_new


def _expect_sequence(seq: object, what: str) -> None:
    if not isinstance(seq, Sequence):
        raise TypeError(f"{what}: expected a Sequence, got {type(seq).__name__}")
