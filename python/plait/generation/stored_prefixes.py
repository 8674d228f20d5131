"""StoredPrefixes: the entries of a PrefixStore that fit a context."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
import struct
from typing import TYPE_CHECKING, Final

from plait import _core
from plait.closeable import Closeable
from plait.context import Context
from plait.errors import CacheFull, ModelError, StateError

if TYPE_CHECKING:
    from plait.cache.sequence import Sequence
    from plait.generation.prefix_store import Entry, Folder, PrefixStore

MIN_PREFIX: Final = 8  # min tokens for which a fork, waiting for one, or an entry pays off
MAX_SEGMENT: Final = 256  # max tokens of an entry of a memory that can be cut anywhere
REMOVING_KINDS: Final = ("unified", "streams")  # kinds of memory that keep one row per token
_log: Final = logging.getLogger("plait")
_PART: Final = re.compile(r"-\d{5}-of-(\d{5})(\.gguf)$")


class StoredPrefixes(Closeable):
    """Loads and saves the prefixes of sequences of one context.

    Args:
        store: The store.
        ctx: The context.

    Attributes:
        is_invariant: Whether rows have the same bits however the tokens of a prompt are divided among steps.
    """

    def __init__(self, store: PrefixStore, ctx: Context) -> None:
        self._store = store
        self._ctx = ctx
        self._partial = ctx.kv.kind in REMOVING_KINDS
        # What a decoder with an encoder computes depends on more than its tokens.
        self._usable = ctx.causal and ctx.kv.kind != "cross"
        self.is_invariant = ctx.invariant and ctx.devices == ["cpu"]
        self._conditions = [*_build(), *_options(ctx)]
        try:
            self._conditions += _model(store, ctx)
        except (ModelError, OSError) as error:
            _log.warning("PrefixStore: not used for this context: %s", error)
            self._usable = False
        self._folder_of: tuple[int, Folder | None] | None = None  # with the epoch
        self._steered = False  # whether adapters or a control vector apply
        self._spare: Sequence | None = None
        if self._partial and ctx.n_seq_max > 1:
            with contextlib.suppress(CacheFull):
                self._spare = ctx.sequence()

    def close(self) -> None:
        """Release the sequence of the context that is used to join and cut entries."""
        if self._spare is not None:
            self._spare.close()

    def common(self, tokens: list[int]) -> int:
        """Return how many of the first tokens any entry has in common with these.

        Args:
            tokens: The tokens.
        """
        folder = self._folder()
        return 0 if folder is None else folder.common(tokens)

    def find(self, tokens: list[int]) -> int:
        """Return the length of the longest prefix of these tokens that load() would load.

        Args:
            tokens: The tokens.
        """
        folder = self._folder()
        n = 0 if folder is None else folder.find(tokens, self._partial)[1]
        return n if n >= MIN_PREFIX else 0

    def load(self, seq: Sequence, tokens: list[int]) -> int:
        """Load the longest prefix of these tokens.

        Args:
            seq: An empty sequence.
            tokens: The tokens.

        Returns:
            The length of the loaded prefix. 0 if there is none or it has no room.
        """
        while (folder := self._folder()) is not None:
            chain, n = folder.find(tokens, self._partial)
            if n < MIN_PREFIX:
                break
            states = [state for state in map(folder.read, chain) if state is not None]
            if len(states) < len(chain):
                continue  # an entry was damaged and has been removed
            damaged = self._restore(seq, chain, states, n)
            if damaged is None:
                folder.touch(chain)
                return seq.pos
            self._ctx.kv.seq_rm(seq)
            folder.remove(damaged)
        return 0

    def save(self, seq: Sequence, tokens: list[int], epoch: int) -> None:
        """Save a sequence, unless that is done, or adapters, control vectors or edits have changed meanwhile.

        Args:
            seq: A sequence that holds these tokens.
            tokens: The tokens.
            epoch: The epoch of the context in which the sequence was opened.
        """
        folder = self._folder()
        if folder is None or len(tokens) < MIN_PREFIX or epoch != self._ctx._epoch:
            return
        chain, n = folder.find(tokens, self._partial)
        if n == len(tokens):
            folder.touch(chain)
            return
        if not (self._partial and self._spare):
            state = self._ctx.kv.to_bytes(seq)
            if epoch == self._ctx._epoch:
                folder.add(tokens, [], 0, state)
            return
        if n < MIN_PREFIX:
            chain, n = [], 0
        while n < len(tokens):
            end = min(len(tokens), n + MAX_SEGMENT)
            state = self._segment(seq, n, end)
            if not state or epoch != self._ctx._epoch:
                break
            folder.add(tokens[:end], chain, n, state)
            chain, n = folder.find(tokens[:end], True)
            if n < end:  # it was not written
                break

    def _segment(self, seq: Sequence, begin: int, end: int) -> bytes:
        """Return the state of a part of a sequence. Empty if there is no room to cut it."""
        kv, spare = self._ctx.kv, self._spare
        assert spare is not None
        try:
            kv.seq_cp(seq, spare, begin, end)
            return kv.to_bytes(spare)
        except CacheFull:
            return b""
        finally:
            kv.seq_rm(spare)

    def _folder(self) -> Folder | None:
        """Return the entries that a new sequence can use. None: none, for example because an edit is open."""
        ctx = self._ctx
        if not self._usable or ctx._open_edits:
            return None
        if self._folder_of is None or self._folder_of[0] != ctx._epoch:
            epoch = ctx._epoch
            try:
                empty = self._spare or ctx.sequence()
                facts, changes = _facts(ctx.kv.to_bytes(empty))
                if empty is not self._spare:
                    empty.close()
            except CacheFull:
                return None
            self._steered = any(changes)
            try:
                adapters = _adapters(self._store, ctx)
            except (ModelError, OSError) as error:
                _log.warning("PrefixStore: not used with these adapters: %s", error)
                self._folder_of = epoch, None
                return None
            conditions = repr((self._conditions, adapters, facts, changes)).encode()
            digest = hashlib.sha256(conditions).hexdigest()[:32]
            self._folder_of = epoch, self._store._folder(digest)
        return self._folder_of[1]

    def _restore(
        self, seq: Sequence, chain: list[Entry], states: list[memoryview], n: int
    ) -> Entry | None:
        """Load the first `n` tokens from a chain of entries. Returns the entry that is damaged, if any."""
        if len(chain) == 1 or self._spare is not None:
            return _join(self._ctx, seq, self._spare, chain, states, n)
        if self._steered:  # the scratch context has no adapters
            return _join(self._ctx, seq, None, chain[:1], states[:1], chain[1].start)
        ctx, sizes = self._ctx, [len(entry.tokens) - entry.start for entry in chain]
        given = {
            name: ctx._options[name]
            for name in ("swa_full", "causal", "layers")
            if name in ctx._options
        }
        with Context(
            ctx.model, n_ctx=ctx.n_ctx, n_seq_max=2, kv_cells=max(sum(sizes), ctx.n_ctx), type_k=ctx.type_k,
            type_v=ctx.type_v, n_batch=1, n_ubatch=1, threads=1, **given,
        ) as scratch, scratch.sequence() as whole, scratch.sequence() as part:  # fmt: skip
            damaged = _join(scratch, whole, part, chain, states, n)
            with contextlib.suppress(CacheFull):
                ctx.kv.from_bytes(scratch.kv.to_bytes(whole), seq)
            return damaged


def _join(
    ctx: Context,
    seq: Sequence,
    part: Sequence | None,
    chain: list[Entry],
    states: list[memoryview],
    n: int,
) -> Entry | None:
    """Load the first `n` tokens from a chain of entries, or as many as have room.

    Args:
        ctx: The context.
        seq: An empty sequence.
        part: Another one, for chains of several entries.
        chain: The entries.
        states: Their states.
        n: Number of tokens to load.

    Returns:
        The entry that is damaged, if any.
    """
    ends = [*(entry.start for entry in chain[1:]), n]
    for entry, state, end in zip(chain, states, ends, strict=True):
        try:
            if entry.start == 0:
                ctx.kv.from_bytes(state, seq)
                seq.truncate(end)
            else:
                assert part is not None
                try:
                    ctx.kv.from_bytes(state, part)
                    ctx.kv.seq_cp(part, seq, entry.start, end)
                finally:
                    ctx.kv.seq_rm(part)
        except CacheFull:
            break
        except StateError:
            return entry
        if seq.pos != end:
            return entry
    return None


def _facts(state: bytes) -> tuple[bytes, bytes]:
    """Return the sections of a state with the facts and with the adapters; see cpp/runtime/state/state_format.h."""
    (n_sections,) = struct.unpack_from("<I", state, 12)
    (facts,) = struct.unpack_from("<Q", state, 24 + 4)
    (adapters,) = struct.unpack_from("<Q", state, 24 + 20 + 4)
    begin = 24 + 20 * n_sections + 8
    return state[begin : begin + facts], state[begin + facts : begin + facts + adapters]


@functools.cache
def _build() -> list[str]:
    """Return what identifies the build of plait."""
    assert _core.__file__ is not None
    with open(_core.__file__, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    # "blas" depends on whether OpenBLAS is installed, which changes no bit of other instruction sets.
    return [digest, " ".join(isa for isa in _core.build_info()["isas"] if isa != "blas")]


def _model(store: PrefixStore, ctx: Context) -> list[str]:
    """Return the digests of the files of the model."""
    path = ctx.model.path
    paths = [path]
    if found := _PART.search(path):
        n = int(found[1])
        paths = [f"{path[: found.start()]}-{i + 1:05}-of-{n:05}{found[2]}" for i in range(n)]
    digests = [store._digest_of_file(one) for one in paths]
    _core.check_unchanged(ctx.model)  # the digests are of the files that the path leads to now
    return digests


def _adapters(store: PrefixStore, ctx: Context) -> list[tuple[str, float]]:
    """Return the digests of the files of the active adapters, with their scales."""
    digests = []
    for adapter, scale in ctx._adapters:
        digests.append((store._digest_of_file(adapter.path), scale))
        _core.check_adapter_unchanged(adapter)
    return digests


def _options(ctx: Context) -> list[str]:
    """Return the options that can change bits of the cache and are no facts of a saved state."""
    options = [ctx.isa, ctx.kv.kind, f"flash_attention {ctx.flash_attention}", f"fuse {ctx.fuse}"]
    if ctx.isa == "blas":
        options.append(str(_core.build_info()["blas"]))
    if not ctx.invariant:
        options.append(f"batches {ctx.n_batch} {ctx.n_ubatch} {ctx._options.get('threads')}")
    if ctx.devices != ["cpu"]:
        known = {device.name: device.description for device in _core.devices()}
        options += [f"{name} {known.get(name.partition('/')[0])}" for name in ctx.devices]
        options += [f"{node['name']} {node['device']}" for node in ctx.graph_nodes(1, 1, 1)]
    return options
