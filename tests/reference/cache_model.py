"""A reference model of the KV cache in plain Python: every sequence is a list of cells, oldest first.

The definition that the real caches are compared with. It knows nothing of rows: a cell is an
object, and two sequences that hold the same object share it ("unified": one pool of cells for all
sequences, copies share; "streams": each sequence has cells of its own, copies copy).

What a model remembers beside or instead of full attention is added as layers: `window` (cells that
the next token does not see are given back), `recurrent` (a state without parts), `encoder` (output
that decoding reads). `full=False` says that no layer keeps every cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

LAST_POSITION = 2**31 - 2


class Refused(ValueError):
    """The cache does not support this; nothing has changed."""


class Full(RuntimeError):
    """There is no room; nothing has changed."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} cells needed, {free} free")
        self.needed = needed
        self.free = free


@dataclass(eq=False)
class Cell:
    """One token. Cells are compared by identity."""

    token: int
    pos: int
    shift: int = 0  # distance moved since the key was last rotated
    ordinal: int = 0  # number of earlier tokens of its sequence when it was written
    rows: object = None  # what a model that computes something stored with the token; moves keep it


@dataclass(frozen=True)
class Entry:
    """One entry of a batch; `pos` None continues the sequence."""

    token: int
    seqs: tuple[int, ...]
    pos: int | None = None


@dataclass(frozen=True)
class Window:
    kind: str  # "sliding", "chunked" or "symmetric"
    tokens: int

    def oldest_kept(self, last: int) -> int:
        """For a sequence that ends at `last`: the positions that its next token sees, and the last cell."""
        if self.kind == "sliding":
            begin = last + 1 - self.tokens + 1
        elif self.kind == "chunked":
            begin = (last + 1) // self.tokens * self.tokens
        else:
            begin = last + 1 - self.tokens // 2
        return min(max(begin, 0), last)


NOTHING = (0, 0)  # an empty range of positions


@dataclass
class CacheModel:
    n_ctx: int
    n_seq_max: int = 1
    kind: str = "unified"
    kv_cells: int | None = None
    full: bool = True
    window: Window | None = None
    recurrent: bool = False
    encoder: bool = False
    axes: int = 1  # positions of a token
    sequences: list[list[Cell]] = field(init=False)  # every token, released or not
    given_back: list[tuple[int, int]] = field(init=False)  # positions released by the window
    encoded: list[tuple[int, ...] | None] = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in ("unified", "streams"):
            raise ValueError(f"kind is {self.kind!r}, expected 'unified' or 'streams'")
        self.clear()

    @property
    def name(self) -> str:
        """The value of KVCache.kind."""
        if self.encoder:
            return "cross"
        if self.recurrent:
            return "hybrid" if self.full or self.window else "recurrent"
        return "sliding" if self.window else self.kind

    # -- contents -------------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        return self.n_ctx * self.n_seq_max if self.kv_cells is None else self.kv_cells

    def held(self, seq: int) -> list[Cell]:
        """The cells that count: all, or those within the widest window."""
        begin, end = self.given_back[seq]
        if self.full or self.window is None or begin == end:
            return self.sequences[seq]
        return [cell for cell in self.sequences[seq] if cell.pos >= end]

    @property
    def n_used(self) -> int:
        return len({id(cell) for seq in range(self.n_seq_max) for cell in self.held(seq)})

    @property
    def n_free(self) -> int:
        return self.n_cells - self.n_used

    def pos_min(self, seq: int) -> int:
        return self.held(seq)[0].pos if self.sequences[seq] else -1

    def pos_max(self, seq: int) -> int:
        return self.sequences[seq][-1].pos if self.sequences[seq] else -1

    def positions(self, seq: int) -> list[int]:
        return [cell.pos for cell in self.held(seq)]

    def tokens(self, seq: int) -> list[int]:
        return [cell.token for cell in self.held(seq)]

    def cells(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """(position, shift, ordinal, sequences) of every cell, sorted, since rows are irrelevant."""
        holders: dict[int, tuple[Cell, list[int]]] = {}
        for seq in range(self.n_seq_max):
            for cell in self.held(seq):
                holders.setdefault(id(cell), (cell, []))[1].append(seq)
        return sorted((c.pos, c.shift, c.ordinal, tuple(seqs)) for c, seqs in holders.values())

    # -- steps ---------------------------------------------------------------------------------

    def decode(self, entries: Iterable[Entry]) -> None:
        """Append a batch, or raise Refused or Full and change nothing."""
        entries = list(entries)
        before = [list(cells) for cells in self.sequences]
        try:
            added = self._append(entries)
            self._check_room(before, added)
        except (Refused, Full):
            self.sequences = before
            raise
        for seq in {seq for entry in entries for seq in entry.seqs}:
            self._give_back(seq)

    def encode(self, output: Iterable[int], seqs: Iterable[int]) -> None:
        output = tuple(output)
        for seq in seqs:
            self.encoded[seq] = output

    def _give_back(self, seq: int) -> None:
        if self.window is None or not self.sequences[seq]:
            return
        cells = self.sequences[seq]
        begin, end = self.given_back[seq]
        oldest = self.window.oldest_kept(cells[-1].pos)
        out = [c.pos for c in cells if c.pos < oldest and (begin == end or c.pos >= end)]
        if out:
            self.given_back[seq] = (out[0] if begin == end else begin, out[-1] + 1)

    def _sees_all(self, last: int | None, given_back: tuple[int, int]) -> bool:
        if self.window is None or given_back[0] == given_back[1]:
            return True
        return last is not None and given_back[1] <= self.window.oldest_kept(last)

    def _append(self, entries: Sequence[Entry]) -> int:
        if not entries:
            raise Refused("the batch is empty")
        for i, entry in enumerate(entries):
            if not entry.seqs or len(set(entry.seqs)) != len(entry.seqs):
                raise Refused(f"entry {i} names sequences {entry.seqs}")
            if not all(0 <= seq < self.n_seq_max for seq in entry.seqs):
                raise Refused(f"entry {i} names sequences {entry.seqs}")
            if self.encoder and any(self.encoded[seq] is None for seq in entry.seqs):
                raise Refused(f"entry {i}: a sequence of {entry.seqs} has no encoder output")
            first = self.sequences[entry.seqs[0]]
            if len(entry.seqs) > 1:
                if self.kind == "streams":
                    raise Refused("a token of several sequences needs cells they can share")
                heard = self.encoded[entry.seqs[0]]
                if any(
                    self.sequences[s] != first or self.encoded[s] is not heard for s in entry.seqs
                ):
                    raise Refused(f"sequences {entry.seqs} do not hold the same cells")
            expected = first[-1].pos + 1 if first else None
            pos = entry.pos if entry.pos is not None else expected or 0
            if not 0 <= pos <= LAST_POSITION or (expected is not None and pos != expected):
                raise Refused(f"entry {i} has position {pos}, expected {expected}")
            ordinal = first[-1].ordinal + 1 if first else 0
            cell = Cell(entry.token, pos, ordinal=ordinal)
            for seq in entry.seqs:
                self.sequences[seq].append(cell)
        return len(entries)

    def _check_room(self, before: Sequence[Sequence[Cell]], added: int) -> None:
        if not self.full:
            return  # windows and states have room for every batch
        for seq, cells in enumerate(self.sequences):
            if len(cells) > self.n_ctx:
                raise Full(len(cells) - len(before[seq]), self.n_ctx - len(before[seq]))
        if self.kind == "unified" and self.n_used > self.n_cells:
            raise Full(added, self.n_cells - (self.n_used - added))

    # -- edits ---------------------------------------------------------------------------------

    def rm(self, seq: int, p0: int = 0, p1: int | None = None) -> bool:
        if self._overlap(seq, p0, p1) == "part":
            return False
        cells = self.sequences[seq]
        kept = [c for c in cells if not _inside(c, p0, p1)]
        given_back = _without(self.given_back[seq], p0, p1)
        held = {id(c) for c in self._in_window(seq)}
        left = [c.pos for c in kept if id(c) in held]
        touched = any(_inside(c, p0, p1) for c in self._in_window(seq))
        if touched and not self._sees_all(left[-1] if left else None, given_back):
            return False
        self.sequences[seq] = kept
        self.given_back[seq] = given_back
        if p0 == 0 and p1 is None:
            self.encoded[seq] = None
        return True

    def cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        if src == dst:
            return
        copied = [c for c in self.sequences[src] if _inside(c, p0, p1)]
        kept = [c for c in self.sequences[dst] if not _inside(c, p0, p1)]
        if self.full and len(copied) + len(kept) > self.n_ctx:
            raise Full(len(copied), self.n_ctx - len(kept))
        given, replaced = self._overlap(src, p0, p1), self._overlap(dst, p0, p1)
        rest = bool(self.sequences[dst]) and replaced != "whole"
        if self.recurrent and ("part" in (given, replaced) or (given == "whole" and rest)):
            raise Refused("a state has no parts")
        after = [c.pos for c in kept if p1 is not None and c.pos >= p1]
        before = [c for c in kept if c.pos < p0]
        in_src = {id(c) for c in self._in_window(src)}
        in_dst = {id(c) for c in self._in_window(dst)}
        held = [c.pos for c in before if id(c) in in_dst]
        held += [c.pos for c in copied if id(c) in in_src] + after
        given_back = _around(
            _common(self.given_back[src], p0, p1), _without(self.given_back[dst], p0, p1)
        )
        if held and given_back != NOTHING:
            given_back = (min(given_back[0], held[0]), given_back[1])
        if not self._sees_all(held[-1] if held else None, given_back):
            raise Refused("the window at the end of the copy has been given back")
        if self.kind == "streams":
            copied = [replace(c) for c in copied]
        self.sequences[dst] = before + copied + kept[len(before) :]
        self.given_back[dst] = given_back
        self._give_back(dst)
        if p0 == 0 and p1 is None:
            self.encoded[dst] = self.encoded[src]
        elif self.encoded[src] is not None and (p1 is None or p1 > p0):
            self.encoded[dst] = self.encoded[src if p0 == 0 or self.encoded[dst] is None else dst]

    def keep(self, seq: int) -> None:
        for other in range(self.n_seq_max):
            if other != seq:
                self._empty(other)

    def add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        if self.axes > 1:
            raise Refused("positions with several axes cannot be shifted")
        if delta != 0:
            self._move(seq, p0, p1, divisor=1, delta=delta)

    def div(self, seq: int, p0: int, p1: int | None, divisor: int) -> None:
        if self.axes > 1:
            raise Refused("positions with several axes cannot be divided")
        if divisor < 1:
            raise Refused(f"the divisor is {divisor}")
        if divisor != 1:
            self._move(seq, p0, p1, divisor=divisor, delta=0)

    def clear(self) -> None:
        self.sequences = [[] for _ in range(self.n_seq_max)]
        self.given_back = [NOTHING] * self.n_seq_max
        self.encoded = [None] * self.n_seq_max

    def _empty(self, seq: int) -> None:
        self.sequences[seq] = []
        self.given_back[seq] = NOTHING
        self.encoded[seq] = None

    def _in_window(self, seq: int) -> list[Cell]:
        begin, end = self.given_back[seq]
        return [c for c in self.sequences[seq] if begin == end or c.pos >= end]

    def _overlap(self, seq: int, p0: int, p1: int | None) -> str:
        """Extend a range as recurrent states require: they cover all positions from the first to the last."""
        cells = self.sequences[seq]
        end = LAST_POSITION + 1 if p1 is None else p1
        if not self.recurrent or not cells or p0 >= end:
            return "none"
        if end <= cells[0].pos or p0 > cells[-1].pos:
            return "none"
        return "whole" if p0 <= cells[0].pos and end > cells[-1].pos else "part"

    def apply_shifts(self) -> None:
        """Apply what the next decode does first."""
        for cells in self.sequences:
            for cell in cells:
                cell.shift = 0

    def _move(self, seq: int, p0: int, p1: int | None, *, divisor: int, delta: int) -> None:
        others = {id(c) for i, cells in enumerate(self.sequences) if i != seq for c in cells}
        inside = [c for c in self.sequences[seq] if _inside(c, p0, p1)]
        moved: list[Cell] = []
        for cell in self.sequences[seq]:
            if _inside(cell, p0, p1):
                pos = cell.pos // divisor + delta
                cell = replace(cell, pos=pos, shift=cell.shift + pos - cell.pos)
            moved.append(cell)
        positions = [c.pos for c in moved]
        if positions != sorted(positions) or any(not 0 <= p <= LAST_POSITION for p in positions):
            raise Refused("positions would change their order or leave their range")
        if self.full:
            shared = sum(id(c) in others for c in inside)
            if shared > self.n_free:
                raise Full(shared, self.n_free)
        begin, end = self.given_back[seq]
        if begin != end:
            where = {c.pos: m.pos for c, m in zip(self.sequences[seq], moved, strict=True)}
            begin = _moved(begin, p0, p1, divisor, delta, where)
            end = _moved(end - 1, p0, p1, divisor, delta, where) + 1
            if not self._sees_all(positions[-1], (begin, end)):
                raise Refused("what the window has given back would come into sight")
        self.sequences[seq] = moved
        self.given_back[seq] = (begin, end)
        self._give_back(seq)


def _moved(
    pos: int, p0: int, p1: int | None, divisor: int, delta: int, where: dict[int, int]
) -> int:
    if pos in where:
        return where[pos]
    return pos // divisor + delta if p0 <= pos and (p1 is None or pos < p1) else pos


def _or_nothing(begin: int, end: int) -> tuple[int, int]:
    return (begin, end) if begin < end else NOTHING


def _common(span: tuple[int, int], p0: int, p1: int | None) -> tuple[int, int]:
    return _or_nothing(max(span[0], p0), span[1] if p1 is None else min(span[1], p1))


def _without(span: tuple[int, int], p0: int, p1: int | None) -> tuple[int, int]:
    """Return the remainder; all of it if the range is in the middle."""
    begin, end = span
    stop = LAST_POSITION + 1 if p1 is None else p1
    if p0 <= begin:
        begin = max(begin, stop)
    if stop >= end:
        end = min(end, p0)
    return _or_nothing(begin, end)


def _around(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if a[0] == a[1]:
        return b
    if b[0] == b[1]:
        return a
    return min(a[0], b[0]), max(a[1], b[1])


def _inside(cell: Cell, p0: int, p1: int | None) -> bool:
    return p0 <= cell.pos and (p1 is None or cell.pos < p1)
