"""PrefixStore: a directory of saved prefixes, which processes share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, SupportsIndex

import numpy as np

from plait.arguments import expect, integer
from plait.generation.prefix_tree import PrefixTree
from plait.whole_file import replace_file

_MAX_BYTES: Final = 8 << 30
# An entry: the header, the token ids as int32, a digest of both and of the name of the directory, and the state, which
# has checksums of its own. Integers are little-endian. The name of the file is a digest of the tokens, `start` and the
# parent, so a name always stands for the same rows.
_HEADER: Final = struct.Struct("<8sQQQ16s")  # magic, n_tokens, start, bytes of the state, parent
_MAGIC: Final = b"plaitpx1"
_DIGEST: Final = 32  # bytes
_NO_PARENT: Final = bytes(16)
_SUFFIX: Final = ".prefix"
_TEMPORARY: Final = ".tmp"
_TICK: Final = 50_000_000  # nanoseconds; file systems do not distinguish shorter times
_log: Final = logging.getLogger("plait")


@dataclass(eq=False, slots=True)
class Entry:
    """A saved prefix.

    Attributes:
        path: The file.
        tokens: The tokens of the prefix.
        start: Number of leading tokens whose rows are in the parent and not in the state.
        parent: Name of the entry with these rows, 16 zero bytes if `start` is 0.
    """

    path: Path
    tokens: list[int]
    start: int
    parent: bytes

    @property
    def name(self) -> bytes:
        """The name that children refer to."""
        return bytes.fromhex(self.path.stem)


class PrefixStore:
    """A directory that keeps what prompts have computed, for other processes and later runs.

    A process that meets the same first tokens, under the same conditions, reads them instead of computing them, and
    gets logits of the same bits. The conditions are the bytes of the model file, the build of plait, the instruction
    set and devices, the types and kind of the cache, adapters, control vectors, and all options that can change a
    bit. Whatever differs is another entry. While edits are open, the store is not used.

    Any number of processes and threads may share a directory. If a process is killed while it writes, the store stays
    usable. An entry that is damaged is removed and computed again. If a file cannot be written, because the disk is
    full, a warning is logged (logger "plait") and generation continues.

    On devices, and with `invariant=False`, bits depend on which tokens a step computes together. There, a prompt that
    is loaded up to its last token has the bits of its first computation; other prompts may differ in the last bits.

    Memories with one row per token keep the rows of a common prefix once. Windows and recurrent states can only resume
    where they were saved: at the end of a prompt, and where prompts diverge.

    To identify the model, its file is read once per store, by several threads at a time. If the path of the model or of
    an adapter leads to another file than the one that was opened, a warning is logged and the store is not used.

    Args:
        path: The directory, created if it does not exist.
        max_bytes: Max size of all files. The least recently used entries are removed.

    Attributes:
        path: The directory.
        max_bytes: As given.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `max_bytes` is negative.
        OSError: The directory cannot be created.

    Example:
        store = plait.PrefixStore("prefixes", max_bytes=4 << 30)
        for event in plait.generate(model, prompts, prefixes=store):
            print(event.text, end="")
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: SupportsIndex = _MAX_BYTES) -> None:
        expect(path, (str, os.PathLike), "PrefixStore: path", "a path")
        self.max_bytes = integer(max_bytes, "PrefixStore: max_bytes", 0)
        self.path = Path(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self._folders: dict[str, Folder] = {}
        self._folders_lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(size for _, size, _ in _files(self.path))

    def __len__(self) -> int:
        """Number of entries."""
        return sum(path.suffix == _SUFFIX for _, _, path in _files(self.path))

    def __bool__(self) -> bool:
        """True, even if the store is empty."""
        return True

    def __repr__(self) -> str:
        return f"<plait.PrefixStore {str(self.path)!r}: {len(self)} entries, {self.nbytes} of {self.max_bytes} bytes>"

    def __reduce__(self) -> tuple[type[PrefixStore], tuple[str, int]]:
        return PrefixStore, (str(self.path), self.max_bytes)

    def clear(self) -> None:
        """Remove all entries."""
        with self._locked():
            for _, _, path in _files(self.path):
                if path.suffix in (_SUFFIX, _TEMPORARY):
                    path.unlink(missing_ok=True)

    def _folder(self, name: str) -> Folder:
        """Return the entries that were computed under the same conditions.

        Args:
            name: Digest of the conditions, in hexadecimal.
        """
        with self._folders_lock:
            return self._folders.setdefault(name, Folder(self, name))

    def _digest_of_file(self, path: str | os.PathLike[str]) -> str:
        """Return the digest of a file, which is read once per store as long as it is the same file.

        Args:
            path: The file.

        Raises:
            OSError: The file cannot be read.
        """
        found = os.stat(path)
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self.path / f"{hashlib.sha256(repr(identity).encode()).hexdigest()[:32]}.digest"
        with contextlib.suppress(OSError):
            content = known.read_bytes()
            digest = content[:_DIGEST]
            if content[_DIGEST:] == _checksum(digest, known.name):
                return digest.hex()
        digest = _digest(path)
        with contextlib.suppress(OSError), self._locked():
            check = _checksum(digest, known.name)
            replace_file(known, digest, check, temporary=known.with_suffix(_TEMPORARY))
        return digest.hex()

    # -- writing; everything below holds the lock of the directory -----------------------------------------

    def _put(self, path: Path, parts: list[bytes | memoryview], parents: set[Path]) -> None:
        """Write an entry unless it exists, and remove the least recently used entries above the budget.

        If the entry does not fit beside its parents, it is not written and nothing is removed.

        Args:
            path: The file, whose parent directory is created.
            parts: Its content.
            parents: The entries that it needs.

        Raises:
            OSError: The file cannot be written.
        """
        needed = sum(map(len, parts))
        with self._locked():
            if path.exists() or not self._make_room(needed, parents):
                return
            path.parent.mkdir(exist_ok=True)
            replace_file(path, *parts, temporary=path.with_suffix(_TEMPORARY))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory, which the system releases if the process dies."""
        with open(self.path / "lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, needed: int, kept: set[Path]) -> bool:
        """Remove the least recently used entries other than `kept`. Returns whether there is room."""
        excess = needed - self.max_bytes
        entries = []
        for used, size, path in _files(self.path):
            if path.suffix == _TEMPORARY:  # of a process that was killed
                path.unlink(missing_ok=True)
                continue
            excess += size
            if path.suffix == _SUFFIX and path not in kept:
                entries.append((used, size, path))
        if excess > sum(size for _, size, _ in entries):
            return False
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size
        return True


class Folder:
    """The entries of a store that were computed under the same conditions, and an index of their tokens.

    Args:
        store: The store.
        name: Digest of the conditions, in hexadecimal.
    """

    def __init__(self, store: PrefixStore, name: str) -> None:
        self._store = store
        self._path = store.path / name
        self._lock = threading.Lock()
        self._entries: dict[bytes, Entry] = {}
        self._tree: PrefixTree[Entry] = PrefixTree()
        self._read_at: int | None = None  # time of change of the directory when it was read

    def find(self, tokens: list[int], partial: bool) -> tuple[list[Entry], int]:
        """Find the entries that hold the longest prefix of these tokens.

        Args:
            tokens: The tokens.
            partial: Whether a part of an entry can be used.

        Returns:
            The entries, each the parent of the next, and the length of the prefix.
        """
        with self._lock:
            self._refresh()
            best: list[Entry] = []
            best_n = 0
            for n, entries in self._tree.matches(tokens):
                if n <= best_n:
                    break
                for entry in entries:
                    usable = min(n, len(entry.tokens))
                    if usable <= best_n or not (partial or usable == len(entry.tokens)):
                        continue
                    chain = self._chain(entry, usable)
                    if chain:
                        best, best_n = chain, usable
                    if best_n == n:
                        break
            return best, best_n

    def common(self, tokens: list[int]) -> int:
        """Return how many of the first tokens an entry has in common with these."""
        with self._lock:
            self._refresh()
            return next((n for n, _ in self._tree.matches(tokens)), 0)

    def read(self, entry: Entry) -> memoryview | None:
        """Return the state of an entry. None if it is missing or damaged, which removes it."""
        try:
            data = entry.path.read_bytes()
        except OSError:
            self.forget(entry)
            return None
        header = _read_header(data, entry.path)
        if header is None or header[3] != len(data):
            self.remove(entry)
            return None
        return memoryview(data)[header[4] :]

    def touch(self, chain: list[Entry]) -> None:
        """Mark entries as used now. Parents count as used later than their children, which go first."""
        now = time.time_ns()
        for i, entry in enumerate(reversed(chain)):
            with contextlib.suppress(OSError):
                os.utime(entry.path, ns=(now + i, now + i))

    def add(self, tokens: list[int], parents: list[Entry], start: int, state: bytes) -> None:
        """Add an entry, unless the budget has no room for it beside its parents.

        Args:
            tokens: The tokens of the prefix.
            parents: The entries that hold the rows before `start`.
            start: The first token whose rows are in the state.
            state: The state.
        """
        ids = np.array(tokens, "<i4").tobytes()
        parent = parents[-1].name if parents else _NO_PARENT
        head = _HEADER.pack(_MAGIC, len(tokens), start, len(state), parent) + ids
        path = self._path / (_name_of(ids, start, parent) + _SUFFIX)
        try:
            self._store._put(
                path,
                [head, _checksum(head, self._path.name), memoryview(state)],
                {entry.path for entry in parents},
            )
        except OSError as error:
            _log.warning("PrefixStore: an entry was not written: %s", error)
            return
        self.touch([*parents, Entry(path, tokens, start, parent)])

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is damaged."""
        _log.warning("PrefixStore: removing a damaged entry: %s", entry.path)
        with contextlib.suppress(OSError):
            entry.path.unlink(missing_ok=True)
        self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Remove an entry from the index."""
        with self._lock:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
                self._tree.remove(entry.tokens, entry)

    # -- the index; the caller holds the lock --------------------------------------------------------------

    def _chain(self, entry: Entry, n: int) -> list[Entry]:
        """Return the entries that hold the first `n` tokens of an entry. Empty if one is missing."""
        chain = [] if entry.start >= n else [entry]
        while entry.start > 0:
            parent = self._entries.get(entry.parent)
            if parent is None or parent.tokens[: entry.start] != entry.tokens[: entry.start]:
                return []
            if parent.start < n:
                chain.append(parent)
            entry = parent
        return chain[::-1]

    def _refresh(self) -> None:
        """Read the entries that other processes and threads have added or removed."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            changed = 0
        if changed == self._read_at:
            return
        # Directories that have just changed are read again, since another change may have the same time.
        self._read_at = changed if changed < time.time_ns() - _TICK else None
        names = set()
        with contextlib.suppress(OSError):
            names = {name for name in os.listdir(self._path) if name.endswith(_SUFFIX)}
        for entry in [e for e in self._entries.values() if e.path.name not in names]:
            del self._entries[entry.name]
            self._tree.remove(entry.tokens, entry)
        for name in names - {entry.path.name for entry in self._entries.values()}:
            entry_read = self._read_entry(self._path / name)
            if entry_read is not None:
                self._entries[entry_read.name] = entry_read
                self._tree.add(entry_read.tokens, entry_read)

    def _read_entry(self, path: Path) -> Entry | None:
        """Read an entry without its state. Returns None if it is missing or damaged, which removes it."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(_HEADER.size)
                n_tokens = _HEADER.unpack(head)[1] if len(head) == _HEADER.size else 0
                head += file.read(min(4 * n_tokens + _DIGEST, size))
        except OSError:
            return None
        header = _read_header(head, path)
        if header is None or header[3] != size:
            _log.warning("PrefixStore: removing a damaged entry: %s", path)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        ids, start, parent, _, _ = header
        return Entry(path, np.frombuffer(ids, "<i4").tolist(), start, parent)


def store_of(prefixes: PrefixStore | None, function: str) -> PrefixStore | None:
    """Return an argument that is a PrefixStore or None.

    Args:
        prefixes: The argument.
        function: The name of the function, for the message.

    Raises:
        TypeError: It is something else.
    """
    if prefixes is not None:
        expect(prefixes, PrefixStore, f"{function}: prefixes", "a PrefixStore")
    return prefixes


def _read_header(data: bytes, path: Path) -> tuple[bytes, int, bytes, int, int] | None:
    """Parse the beginning of an entry.

    Args:
        data: The beginning, or all of the file.
        path: The file.

    Returns:
        The tokens, `start`, the parent, the size of the file and the offset of the state. None if it is damaged.
    """
    if len(data) < _HEADER.size:
        return None
    magic, n_tokens, start, n_state, parent = _HEADER.unpack_from(data)
    end = _HEADER.size + 4 * n_tokens
    digest = data[end : end + _DIGEST]
    if magic != _MAGIC or digest != _checksum(data[:end], path.parent.name):
        return None
    ids = data[_HEADER.size : end]
    if path.stem != _name_of(ids, start, parent):
        return None
    begin = end + _DIGEST
    return ids, start, parent, begin + n_state, begin


def _checksum(data: bytes, place: str) -> bytes:
    """Return the checksum of bytes and of the name of the file or directory that they belong to."""
    return hashlib.blake2b(data + place.encode(), digest_size=_DIGEST).digest()


def _name_of(ids: bytes, start: int, parent: bytes) -> str:
    """Return the name of an entry in hexadecimal."""
    return hashlib.blake2b(struct.pack("<Q16s", start, parent) + ids, digest_size=16).hexdigest()


def _files(path: Path) -> list[tuple[int, int, Path]]:
    """Return (time of last use in ns, size in bytes, path) of all files of a store."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            with contextlib.suppress(OSError):  # removed meanwhile
                stat = file.stat()
                found.append((stat.st_mtime_ns, stat.st_size, file))
    return found


def _digest(path: str | os.PathLike[str]) -> bytes:
    """Return the digest of the digests of the parts of a file, which several threads read."""
    from concurrent.futures import ThreadPoolExecutor

    size, step = os.path.getsize(path), 64 << 20

    def part(begin: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            found, left = hashlib.sha256(), step
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                found.update(data)
                left -= len(data)
            return found.digest()

    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(part, range(0, size, step)))).digest()
