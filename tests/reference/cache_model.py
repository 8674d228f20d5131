"""What a KV cache holds, as plain Python: every sequence a list of cells, oldest first.

The definition that the real caches are compared with. It knows nothing of rows: a cell is an
object, and two sequences that hold the same object share it. Attention caches only ("unified": one
pool of cells for all sequences, copies share; "streams": each sequence has cells of its own, copies
copy).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

LAST_POSITION = 2**31 - 2


class Refused(ValueError):
    """The cache does not do this; nothing has changed."""


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
    shift: int = 0  # how far the cell has been moved since its key was last rotated
    ordinal: int = 0  # tokens of its sequence that came before it when it was written


@dataclass(frozen=True)
class Entry:
    """One entry of a batch; `pos` None goes on where the sequence ends."""

    token: int
    seqs: tuple[int, ...]
    pos: int | None = None


@dataclass
class CacheModel:
    n_ctx: int
    n_seq_max: int = 1
    kind: str = "unified"
    kv_cells: int | None = None
    sequences: list[list[Cell]] = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in ("unified", "streams"):
            raise ValueError(f"kind is {self.kind!r}, expected 'unified' or 'streams'")
        self.sequences = [[] for _ in range(self.n_seq_max)]

    # -- what it holds -------------------------------------------------------------------------

    @property
    def n_cells(self) -> int:
        return self.n_ctx * self.n_seq_max if self.kv_cells is None else self.kv_cells

    @property
    def n_used(self) -> int:
        return len({id(cell) for cells in self.sequences for cell in cells})

    @property
    def n_free(self) -> int:
        return self.n_cells - self.n_used

    def pos_min(self, seq: int) -> int:
        return self.sequences[seq][0].pos if self.sequences[seq] else -1

    def pos_max(self, seq: int) -> int:
        return self.sequences[seq][-1].pos if self.sequences[seq] else -1

    def positions(self, seq: int) -> list[int]:
        return [cell.pos for cell in self.sequences[seq]]

    def tokens(self, seq: int) -> list[int]:
        return [cell.token for cell in self.sequences[seq]]

    def cells(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """(position, shift, ordinal, sequences) of every cell, sorted: rows do not matter."""
        holders: dict[int, tuple[Cell, list[int]]] = {}
        for seq, cells in enumerate(self.sequences):
            for cell in cells:
                holders.setdefault(id(cell), (cell, []))[1].append(seq)
        return sorted((c.pos, c.shift, c.ordinal, tuple(seqs)) for c, seqs in holders.values())

    # -- steps ---------------------------------------------------------------------------------

    def decode(self, entries: Iterable[Entry]) -> None:
        """Appends a batch, or raises Refused or Full with nothing changed."""
        before = [list(cells) for cells in self.sequences]
        try:
            added = self._append(list(entries))
            self._check_room(before, added)
        except (Refused, Full):
            self.sequences = before
            raise

    def _append(self, entries: Sequence[Entry]) -> int:
        if not entries:
            raise Refused("the batch is empty")
        for i, entry in enumerate(entries):
            if not entry.seqs or len(set(entry.seqs)) != len(entry.seqs):
                raise Refused(f"entry {i} names sequences {entry.seqs}")
            if not all(0 <= seq < self.n_seq_max for seq in entry.seqs):
                raise Refused(f"entry {i} names sequences {entry.seqs}")
            first = self.sequences[entry.seqs[0]]
            if len(entry.seqs) > 1:
                if self.kind == "streams":
                    raise Refused("a token of several sequences needs cells they can share")
                if any(self.sequences[seq] != first for seq in entry.seqs):
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
        for seq, cells in enumerate(self.sequences):
            if len(cells) > self.n_ctx:
                raise Full(len(cells) - len(before[seq]), self.n_ctx - len(before[seq]))
        if self.kind == "unified" and self.n_used > self.n_cells:
            raise Full(added, self.n_cells - (self.n_used - added))

    # -- edits ---------------------------------------------------------------------------------

    def rm(self, seq: int, p0: int = 0, p1: int | None = None) -> bool:
        self.sequences[seq] = [c for c in self.sequences[seq] if not _inside(c, p0, p1)]
        return True

    def cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        if src == dst:
            return
        copied = [c for c in self.sequences[src] if _inside(c, p0, p1)]
        kept = [c for c in self.sequences[dst] if not _inside(c, p0, p1)]
        if len(copied) + len(kept) > self.n_ctx:
            raise Full(len(copied), self.n_ctx - len(kept))
        if self.kind == "streams":
            copied = [replace(c) for c in copied]
        before = [c for c in kept if c.pos < p0]
        self.sequences[dst] = before + copied + kept[len(before) :]

    def keep(self, seq: int) -> None:
        self.sequences = [c if i == seq else [] for i, c in enumerate(self.sequences)]

    def add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        if delta != 0:
            self._move(seq, p0, p1, divisor=1, delta=delta)

    def div(self, seq: int, p0: int, p1: int | None, divisor: int) -> None:
        if divisor < 1:
            raise Refused(f"the divisor is {divisor}")
        if divisor != 1:
            self._move(seq, p0, p1, divisor=divisor, delta=0)

    def clear(self) -> None:
        self.sequences = [[] for _ in range(self.n_seq_max)]

    def apply_shifts(self) -> None:
        """What the next decode does before anything else."""
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
        shared = sum(id(c) in others for c in inside)
        if shared > self.n_free:
            raise Full(shared, self.n_free)
        self.sequences[seq] = moved


def _inside(cell: Cell, p0: int, p1: int | None) -> bool:
    return p0 <= cell.pos and (p1 is None or cell.pos < p1)
