"""Recording of the calls that change the state of a context or compute outputs.

While a recording is open, the calls of RECORDED are attributes of the context and of its cache, in front of the methods
of their classes. Without a recording, nothing stands between a caller and the method.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from plait import _core
from plait.errors import Error, UnsupportedError
from plait.inspect.call_values import digest, encode
from plait.inspect.receipt import Receipt, adapter_file
from plait.model import loading_order

if TYPE_CHECKING:
    from plait.inspect.edit import Edit

RECORDED: Final = (
    "decode", "encode", "set_lora", "set_control_vector",
    "kv._discard", "kv.clear", "kv.defrag", "kv.from_bytes", "kv.seq_add", "kv.seq_cp", "kv.seq_div", "kv.seq_keep",
    "kv.seq_rewind", "kv.seq_rm", "kv.to_bytes", "kv.write",
)  # fmt: skip
"""The calls that are recorded, if the context has them. Each returns an Output, bytes, a number or None.

Calls that save a state are among them, because they apply pending shifts.
"""

Context = Any
"""A plait.Context, whose module imports this one."""

_STEERING: Final = ("set_lora", "set_control_vector")
_READS: Final = ("kv.keys", "kv.values")  # they apply pending shifts


class Recorder:
    """Records the calls of one context for its open receipts.

    Args:
        context: The context.

    Attributes:
        lock: Held during each recorded call, so that calls from several threads are recorded in the order in which
            they run.
    """

    def __init__(self, context: Context) -> None:
        self.lock = _lock_of(context)
        self._ctx = context
        # The open recorded transactions, outermost first, with the handles at their beginning.
        self._transactions: list[tuple[weakref.ref[_Transaction], dict[int, Any]]] = []
        self._n_replaced = context.kv.n_replaced
        self._open: list[weakref.ref[Receipt]] = []
        self._unsure: str | None = (
            None  # the call after which an interrupt could have prevented the record
        )
        self._signatures: dict[str, inspect.Signature] = {}
        self._edits: list[int] = []  # numbers of the open edits
        self._handles: dict[int, weakref.ref[_core.SequenceHandle] | None] = {}
        self._adapters: list[tuple[_core.Adapter, dict[str, Any]]] = []
        # Of the class, not those that record.
        self._check_named = functools.partial(_core.KVCache.check_named, context.kv)

    def start(self, receipt: Receipt) -> None:
        """Begin a receipt with the present state of the context.

        Args:
            receipt: The receipt.

        Raises:
            UnsupportedError: Sequences have adapters or control vectors of their own, or a transaction is open.
        """
        with self.lock:
            ctx = self._ctx
            for name in _STEERING:
                if ctx._steering[name] is None:
                    raise UnsupportedError(
                        f"record: sequences have adapters or control vectors of their own, which cannot be read back; "
                        f"call {name}(..., seq=...) inside the block, or first set them for all sequences"
                    )
            if getattr(ctx.kv, "in_transaction", False):
                raise UnsupportedError(
                    "record: a transaction is open, whose rollback would restore a state that is not recorded; open it "
                    "inside the block"
                )
            nested = bool(self._receipts)
            if nested:
                self._begin("record")
                self._note_changes()
                self._unsure = None
            else:
                self._handles = {i: None for i in range(ctx.n_seq_max) if self._is_open(i)}
            before = [(name, *given) for name in _STEERING if (given := ctx._steering[name])]
            # The state comes last, because it can only be loaded with the adapters and vectors that it was made with.
            if (state := self._state()) is not None:
                before.append(("kv.from_bytes", (state,), {}))
            header = {
                "plait": {k: _core.build_info()[k] for k in ("version", "commit", "compiler")},
                "isa": ctx.isa, "devices": _devices(ctx), "options": self._options(receipt),
                # Saving the state for a nested recording notes the sequences that were closed until then.
                "sequences": sorted(self._handles), "state": None,
            }  # fmt: skip
            for name, args, kwargs in before:
                entry, problem = self._encoded(name, args, kwargs, [receipt])
                receipt.calls.append(entry)
                receipt.problem = receipt.problem or problem
            if nested:
                for edit in self._open_edits():
                    self._add_edit([receipt], edit)
            else:
                self._edits = []
                self._n_replaced = ctx.kv.n_replaced
                self._install()
            self._transactions = []  # none is open, see above
            receipt._model, receipt._header = ctx.model, header
            self._open = [*map(weakref.ref, self._receipts), weakref.ref(receipt)]
            self._unsure = None

    def stop(self, receipt: Receipt) -> None:
        """End a receipt.

        Args:
            receipt: The receipt.
        """
        with self.lock:
            self.settle()
            self._open = [weakref.ref(each) for each in self._receipts if each is not receipt]
            if not self._open:
                self._uninstall()

    def settle(self) -> None:
        """Mark the open receipts as useless if an exception arrived between a change and its record."""
        if self._unsure is not None:
            self.fail(f"{self._unsure} was interrupted")
            self._unsure = None

    @property
    def closed(self) -> bool:
        """True once the context is closed."""
        return bool(self._ctx.closed)

    @property
    def _receipts(self) -> list[Receipt]:
        """The open receipts. One whose `with` statement an exception prevented is deleted and not among them."""
        return [receipt for ref in self._open if (receipt := ref()) is not None]

    def _begin(self, name: str) -> None:
        self.settle()
        self._unsure = name
        self._note_rollbacks()
        if getattr(self._ctx.kv, "in_transaction", False) and not self._transactions:
            self.fail("a transaction that was created before the recording is open")

    def opened(self, handle: _core.SequenceHandle) -> None:
        """Record that a Sequence was opened.

        Args:
            handle: The Sequence.
        """
        with self.lock:
            self._begin("sequence")
            self._note_changes(reopened=handle.id)
            self._handles[handle.id] = weakref.ref(handle)
            self._add(self._receipts, "open", {"sequence": handle.id})
            self._unsure = None

    def begin_transaction(self, transaction: _Transaction, enter: Callable[[], object]) -> None:
        """Enter and record a transaction.

        Args:
            transaction: The transaction.
            enter: Enters it.
        """
        self._begin("transaction")
        self._note_changes()
        handles = dict(self._handles)
        self._unless_refused(enter)
        self._transactions.append((weakref.ref(transaction), handles))
        self._add(self._receipts, "transaction", {})
        self._unsure = None

    def end_transaction(
        self, transaction: _Transaction, how: str, end: Callable[[], object]
    ) -> None:
        """End and record a transaction.

        Args:
            transaction: The transaction.
            how: "commit" or "rollback". A rollback includes the transactions inside of this one.
            end: Ends it.
        """
        self._begin("transaction")
        self._note_changes()
        index = self._index_of(transaction)
        try:
            self._unless_refused(end)
        except BaseException:
            if how == "commit" and index is not None:
                self.fail("a transaction ended in another way than a block does")
            raise
        if index is not None:  # else it was rolled back with an outer one
            self._note_ends(index, how)
        self._n_replaced = self._ctx.kv.n_replaced
        self._unsure = None

    def _unless_refused(self, call: Callable[[], object]) -> None:
        """Call a method of the core's transaction. An error that the method itself raises need not be recorded."""
        try:
            call()
        except Exception as error:
            if _is_raised_by(call, error):
                self._unsure = None
            raise

    def _index_of(self, transaction: _Transaction) -> int | None:
        for i, (ref, _) in enumerate(self._transactions):
            if ref() is transaction:
                return i
        return None

    def _note_ends(self, index: int, how: str) -> None:
        """Record the end of the open transactions from an index on, the innermost first."""
        while len(self._transactions) > index:
            _, handles = self._transactions.pop()
            self._add(self._receipts, how, {})
            if how == "rollback":
                self._handles = handles

    def fail(self, problem: str) -> None:
        """Mark the open receipts as useless.

        Args:
            problem: The reason.
        """
        for receipt in self._receipts:
            receipt.problem = receipt.problem or f"call {len(receipt.calls)}: {problem}"

    def _install(self) -> None:
        ctx = self._ctx
        ctx._recorder = self
        for name in RECORDED:
            owner, method = self._place(name)
            owner.__dict__.pop(method, None)
            if hasattr(owner, method):
                owner.__dict__[method] = self._recorded(name, getattr(owner, method))
        if hasattr(ctx, "transaction"):
            ctx.__dict__["transaction"] = lambda: _Transaction(self, type(ctx).transaction(ctx))
        ctx.kv.__dict__["load"] = self._load
        ctx.kv.__dict__["save"] = self._save
        ctx.kv.__dict__["copy_to"] = self._copy_to
        for name in _READS:
            owner, method = self._place(name)
            owner.__dict__[method] = functools.partial(self._read, method)

    def _uninstall(self) -> None:
        if self._ctx._recorder is not self:
            return
        del self._ctx._recorder
        for name in (*RECORDED, *_READS, "transaction", "kv.load", "kv.save", "kv.copy_to"):
            owner, method = self._place(name)
            owner.__dict__.pop(method, None)

    def _place(self, name: str) -> tuple[object, str]:
        """Return the object that a call belongs to, and the name of its method."""
        if name.startswith("kv."):
            return self._ctx.kv, name[3:]
        return self._ctx, name

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                return self._call(name, function, args, kwargs)

        return recorded

    def _call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run and record a call. Of one that fails, only the pending shifts that it has applied are recorded."""
        receipts = self._receipts
        if not receipts:
            self._uninstall()
            return function(*args, **kwargs)
        self._begin(name)
        entry, problem = self._encoded(name, args, kwargs, receipts)
        n_tokens, shifts = self._ctx.stats.tokens, self._has_pending_shifts()
        # Right before the call: encoding the arguments may delete sequences and edits.
        self._note_changes()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if name in ("decode", "encode"):
                changed = self._ctx.stats.tokens != n_tokens
            else:  # an exception of a signal handler, not of the call itself
                changed = not isinstance(error, Exception) or not _is_raised_by(function, error)
            if not changed:
                self._unsure = None
                if shifts and not self._has_pending_shifts():
                    self._ctx.kv.to_bytes()
            raise
        stated = stated_result(name, result)
        for receipt in receipts:
            receipt.calls.append(entry | stated)
        if problem:
            self.fail(problem)
        if any(ref() is None for ref, _ in self._transactions):
            self.fail(
                f"an open transaction was deleted during {name}; its rollback may have come before or after"
            )
        self._n_replaced = self._ctx.kv.n_replaced
        self._unsure = None
        return result

    def _encoded(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], receipts: list[Receipt]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the entry of a call, and what prevents it. The call itself reports wrong arguments."""
        entry: dict[str, Any] = {"call": name, "args": {}}
        try:
            if name not in self._signatures:
                self._signatures[name] = inspect.signature(getattr(*self._place(name)))
            for key, value in self._signatures[name].bind(*args, **kwargs).arguments.items():
                entry["args"][key] = self._value(value, receipts)
        except (Error, TypeError, ValueError, OverflowError, AttributeError, OSError) as error:
            return entry, f"{name} cannot be recorded: {type(error).__name__}: {error}"
        return entry, None

    def _value(self, value: Any, receipts: list[Receipt]) -> Any:
        blobs: dict[str, bytes] = {}
        encoded = encode(value, blobs, self._adapter)
        for receipt in receipts:
            receipt._blobs.update(blobs)
            for _, facts in self._adapters[len(receipt.adapters) :]:
                receipt.adapters.append(facts)
        return encoded

    def _adapter(self, adapter: _core.Adapter) -> int:
        """Return the index of an adapter in the receipts."""
        for i, (known, _) in enumerate(self._adapters):
            if known is adapter:
                return i
        facts = {"path": os.path.abspath(adapter.path), "order": loading_order(adapter)}
        self._adapters.append((adapter, facts | adapter_file(adapter)))
        return len(self._adapters) - 1

    def _add(self, receipts: list[Receipt], name: str, args: dict[str, Any]) -> None:
        encoded = {key: self._value(value, receipts) for key, value in args.items()}
        for receipt in receipts:
            receipt.calls.append({"call": name, "args": encoded})

    # --- what changes without a recorded call -------------------------------------------------------

    def _note_rollbacks(self) -> None:
        """Record the rollback of transactions that were deleted while they were open."""
        dropped = [i for i, (ref, _) in enumerate(self._transactions) if ref() is None]
        n_rollbacks = 0
        if dropped:
            n_rollbacks = len(self._transactions) - dropped[0]
            self._note_ends(dropped[0], "rollback")
        n_replaced = self._ctx.kv.n_replaced
        if n_replaced - self._n_replaced > n_rollbacks:
            self.fail(
                "the sequences were replaced by a call that is not recorded, such as the rollback of a transaction "
                "that was created before the recording"
            )
        self._n_replaced = n_replaced

    def _note_changes(self, reopened: int | None = None) -> None:
        """Record the rollbacks, closed sequences and beginnings and ends of edits since the last call."""
        self._note_rollbacks()
        for seq, handle in list(self._handles.items()):
            alive = self._is_open(seq) if handle is None else _is_alive(handle)
            if seq == reopened or not alive:
                self._note_closed(seq, handle)
        open_edits = self._open_edits()
        numbers = [edit.number for edit in open_edits]
        for number in self._edits:
            if number not in numbers:
                self._add(self._receipts, "end_edit", {"number": number})
        for edit in open_edits:
            if edit.number not in self._edits:
                self._add_edit(self._receipts, edit)
        self._edits = numbers

    def _note_closed(self, seq: int, handle: weakref.ref[_core.SequenceHandle] | None) -> None:
        """Record that a sequence was closed, or deleted in a transaction whose rollback restored its cells."""
        del self._handles[seq]
        kept = not self._is_open(seq) and self._holds_cells(seq)
        if kept:
            # The rollback of an outer transaction cannot reopen it either.
            for _, handles in self._transactions:
                if seq in handles and handles[seq] is handle:
                    del handles[seq]
        self._add(self._receipts, "delete" if kept else "close", {"sequence": seq})

    def _open_edits(self) -> list[Edit]:
        found = [
            edit
            for ref in self._ctx._edits.valuerefs()
            if (edit := ref()) is not None and edit.number
        ]
        return sorted(found, key=lambda edit: edit.number)

    def _add_edit(self, receipts: list[Receipt], edit: Edit) -> None:
        what: Any = edit._what
        if callable(what):
            for receipt in receipts:
                receipt.problem = receipt.problem or (
                    f"call {len(receipt.calls)}: {edit.name} is edited by a function, which a receipt cannot hold; "
                    f"edit with arrays"
                )
            what = None
        args = {"name": edit.name, "what": what, "mode": edit.mode, "positions": edit.positions}
        self._add(receipts, "edit", {"number": edit.number, **args, "seq": edit.sequences})

    def _is_open(self, seq: int) -> bool:
        try:
            self._check_named(seq)
        except ValueError:
            return not self._ctx.closed
        return False

    def _holds_cells(self, seq: int) -> bool:
        return not self._ctx.closed and self._ctx.kv.seq_pos_max(seq) >= 0

    # --- calls that name files or other contexts ------------------------------------------------------

    def _load(self, path: str | os.PathLike[str], seq: SupportsIndex | None = None) -> None:
        """Restore a state from a file that save() wrote; see KVCache.load()."""
        kv = self._ctx.kv
        if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
            with self.lock:
                _core.KVCache.load(kv, path, seq)  # which reports what is wrong with the path
                self.fail(f"kv.load: {path!r:.80} is not an ordinary file, which can be read twice")
            return
        kv.from_bytes(Path(path).read_bytes(), seq)

    def _save(self, path: str | os.PathLike[str], seq: SupportsIndex | None = None) -> None:
        """Write to_bytes(seq) to a file; see KVCache.save()."""
        kv = self._ctx.kv
        kv.to_bytes(seq)
        type(kv).save(kv, path, seq)

    def _read(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return keys or values; see KVCache.keys() and KVCache.values()."""
        kv = self._ctx.kv
        with self.lock:
            if self._has_pending_shifts():
                kv.to_bytes()
            return getattr(type(kv), method)(kv, *args, **kwargs)

    def _has_pending_shifts(self) -> bool:
        """Return whether keys wait for a rotation, which the next call that needs them applies."""
        return bool(self._ctx.kv.cells()["shift"].any())

    def _copy_to(self, other: Context) -> None:
        """Replace the cache of another context with a copy of this one; see KVCache.copy_to()."""
        kv = self._ctx.kv
        kv.to_bytes()
        type(kv).copy_to(kv, other)

    # --- the state at the beginning -------------------------------------------------------------------

    def _options(self, receipt: Receipt) -> dict[str, Any]:
        """Return the given options, with the values that were chosen for this machine."""
        ctx = self._ctx
        given = ctx._options | {"n_ctx": ctx.n_ctx, "isa": ctx.isa}
        if given.get("backend") == "auto":
            given["backend"] = next((d.name for d in _core.devices() if d.name != "cpu"), "cpu")
        return {name: self._value(value, [receipt]) for name, value in given.items()}

    def _state(self) -> bytes | None:
        """Return the saved state, or None if the cache is empty."""
        kv = self._ctx.kv
        empty = all(kv.seq_pos_max(seq) < 0 for seq in range(self._ctx.n_seq_max))
        if kv.kind == "none" or (empty and kv.kind != "cross"):
            return None
        return bytes(kv.to_bytes())


class _Transaction:
    """A transaction whose beginning and end are recorded.

    Args:
        recorder: The recorder of the context.
        transaction: The transaction.
    """

    def __init__(self, recorder: Recorder, transaction: Any) -> None:
        self._recorder = recorder
        self._transaction = transaction

    @property
    def open(self) -> bool:
        """True inside the block, until rollback()."""
        return bool(self._transaction.open)

    def __enter__(self) -> _Transaction:
        with self._recorder.lock:
            self._recorder.begin_transaction(self, self._transaction.__enter__)
        return self

    def __exit__(self, *error: object) -> None:
        with self._recorder.lock:
            end = functools.partial(self._transaction.__exit__, *error)
            if self.open and not self._recorder.closed:
                how = "commit" if error[0] is None else "rollback"
                self._recorder.end_transaction(self, how, end)
            else:
                end()

    def rollback(self) -> None:
        """Undo all calls since the beginning of the block; see Context.transaction()."""
        with self._recorder.lock:
            self._recorder.end_transaction(self, "rollback", self._transaction.rollback)


def stated_result(name: str, value: Any) -> dict[str, Any]:
    """Return what a receipt states of the result of a call: its digest or its value.

    Args:
        name: The name of the call.
        value: The result.
    """
    if name == "kv.defrag":  # depends on the rows of the cells, which a saved state does not keep
        return {}
    if isinstance(value, _core.Output):
        # The bytes in the order in which they lie in memory, float32, little endian.
        arrays = [np.asarray(a) for a in (value.logits, value.embeddings) if a is not None]
        return {"sha256": digest(*arrays)}
    if isinstance(value, bytes):
        return {"sha256": digest(value)}
    return {} if value is None else {"result": value if isinstance(value, bool) else int(value)}


def _is_raised_by(function: Callable[..., Any], error: BaseException) -> bool:
    """Return whether an exception comes from a call itself, not from a signal handler meanwhile.

    The traceback begins with the frame of the caller. A method of the core has no frame, a method in Python has one;
    a signal handler has a frame below.
    """
    # No variable here or in the caller may refer to the traceback: it refers to their frames and thus to the arguments.
    below = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    own = getattr(function, "__code__", None)
    return below == ([] if own is None else [own])


def _is_alive(handle: weakref.ref[_core.SequenceHandle]) -> bool:
    found = handle()
    return found is not None and not found.closed


def _devices(ctx: Context) -> dict[str, str]:
    """Return the descriptions of the devices beside the CPU by name, as far as the options can choose them."""
    backend = ctx._options.get("backend", "cpu")
    if backend == "cpu":
        return {}
    return {device.name: device.description for device in _core.devices() if device.name != "cpu"}


def start(ctx: Context, receipt: Receipt) -> Recorder:
    """Begin a receipt of a context.

    Args:
        ctx: The context.
        receipt: The receipt.

    Returns:
        The recorder of the context, which its open receipts share.
    """
    with _lock_of(ctx):
        recorder = ctx._recorder or Recorder(ctx)
        recorder.start(receipt)
        return recorder


def _lock_of(ctx: Context) -> threading.RLock:
    """Return the lock of the recordings of a context."""
    try:
        lock = threading.RLock()
    except RuntimeError as error:  # which is how Python reports that there is no memory for a lock
        raise MemoryError(f"record: {error}") from None
    kept: threading.RLock = ctx.__dict__.setdefault("_record_lock", lock)
    return kept
