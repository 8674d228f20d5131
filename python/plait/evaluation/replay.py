"""Verification of receipts: the recorded calls again, in a new context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait import _core
from plait.arguments import expect, expect_model, items, kind
from plait.cache.sequence import Sequence
from plait.context import Context
from plait.errors import BackendError, Error, ReceiptError, VerificationError
from plait.inspect.call_values import Decoder
from plait.inspect.receipt import Receipt, adapter_file, file_digest, model_files
from plait.inspect.recorder import RECORDED, stated_result
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from plait.inspect.edit import Edit
    from plait.model import Model

# What arguments of a receipt that save() did not write can raise in the calls of a context.
_REFUSALS = (Error, ValueError, TypeError, LookupError, OverflowError, RuntimeError, AttributeError)


def verify(
    receipt: Receipt | str | os.PathLike[str],
    model: Model,
    *,
    adapters: Iterable[_core.Adapter] = (),
    progress: ProgressOption = None,
) -> Receipt:
    """Compute the calls of a receipt again and compare every result bit by bit.

    The calls run in a new context of the recorded options, with the recorded instruction set, at
    the speed of the original.

    Args:
        receipt: Path of a file that Receipt.save() wrote, or the Receipt.
        model: The model, whose files must have the recorded SHA-256.
        adapters: Adapters of the model that are used in place of those of the recorded paths, if
            their files have the same SHA-256; needed if a file has moved, or was loaded with
            `rank_stabilized`. Load several in the order in which the recorded ones were loaded.
        progress: Called after each call with (done, total). True shows a tqdm progress bar.

    Returns:
        The receipt, all of whose calls gave the same bits.

    Raises:
        TypeError: An argument has the wrong type.
        ReceiptError: Before anything is computed: the file is not a receipt, is damaged, or has
            another version; it is of another model, or needs an instruction set, a device or an
            adapter that is not there; or it contains an edit by a function.
        VerificationError: A call gave other bits or failed. It names the first such call.
        OSError: A file cannot be read.

    Example:
        with ctx.record() as receipt:
            ctx.decode(batch)
        plait.verify(receipt, ctx.model)
    """
    expect_model(model, "verify")
    given = items(adapters, "verify: adapters", "Adapter")
    for adapter in given:
        expect(adapter, _core.Adapter, "verify: adapters", "a list of Adapter")
    check_progress(progress, "verify")
    if not isinstance(receipt, Receipt | str | os.PathLike):
        raise TypeError(f"verify: receipt: expected a Receipt or a path, got {kind(receipt)}")
    if not isinstance(receipt, Receipt):
        receipt = Receipt.load(receipt)
    _check(receipt, model)
    decoder = Decoder(receipt._blobs, _adapters(receipt, model, given))
    with _context(receipt, model, decoder) as ctx, Progress(progress, len(receipt), "call") as bar:
        replay = _Replay(ctx, decoder)
        replay.begin(receipt)
        for i, call in enumerate(receipt.calls):
            _compare(i, call, replay)
            bar.update()
    return receipt


@contextmanager
def recorded(ctx: Context, path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Record the calls inside a `with` block and save the receipt at its end, unless it raises.

    Args:
        ctx: The context.
        path: Path of the receipt. None: do nothing.
    """
    if path is not None:
        expect(path, (str, os.PathLike), "receipt", "a path")
    with nullcontext() if path is None else ctx.record() as receipt:
        yield
    if receipt is not None and path is not None:
        receipt.save(path)


class _Replay:
    """The calls of a receipt in a new context.

    Args:
        ctx: The context.
        decoder: Returns the arguments.
    """

    def __init__(self, ctx: Context, decoder: Decoder) -> None:
        self._ctx = ctx
        self._decoded = decoder
        self._edits: dict[Any, Edit] = {}
        self._transactions: list[
            tuple[Any, dict[int, Any]]
        ] = []  # with the handles at the beginning
        self._own: dict[str, Callable[..., object]] = {
            "open": self._open, "close": self._close, "delete": self._delete,
            "edit": self._edit, "end_edit": self._end_edit,
            "transaction": self._begin, "commit": self._commit, "rollback": self._roll_back,
        }  # fmt: skip

    def begin(self, receipt: Receipt) -> None:
        """Open the sequences of the beginning. Earlier versions stored the state there, too, not as a call."""
        header = receipt._header
        try:
            for seq in header["sequences"]:
                self._open(seq)
            if header["state"] is not None:
                self._ctx.kv.from_bytes(self._decoded({"bytes": header["state"]}))
        except BackendError:
            raise
        except _REFUSALS as error:
            raise ReceiptError(f"the state at the beginning cannot be restored: {error}") from error

    def run(self, call: dict[str, Any]) -> Any:
        """Run a call and return its result."""
        name, args = call["call"], call["args"]
        if name in self._own:
            return self._own[name](**args)
        if name not in RECORDED:
            raise ReceiptError(f"this version of plait knows no call named {name!r:.80}")
        owner, method = (self._ctx.kv, name[3:]) if name.startswith("kv.") else (self._ctx, name)
        function = getattr(owner, method, None)
        if function is None:
            raise ReceiptError(f"this version of plait has no {name}")
        return function(**{key: self._decoded(value) for key, value in args.items()})

    def _open(self, sequence: Any) -> None:
        """Open the sequence of an id. Those of lower ids may be empty but not open."""
        others = []
        try:
            while (handle := Sequence(self._ctx)).id != sequence:
                others.append(handle)
        finally:
            for other in others:
                other.close()
        self._decoded.handles[sequence] = handle

    def _close(self, sequence: Any) -> None:
        self._decoded.handles.pop(sequence).close()

    def _delete(self, sequence: Any) -> None:
        """Delete a sequence but keep its cells: a rollback restores the cells of an object that is gone."""
        handle = self._decoded.handles[sequence]
        for handles in (self._decoded.handles, *(each for _, each in self._transactions)):
            if handles.get(sequence) is handle:
                del handles[sequence]
        ctx: Any = self._ctx
        with ctx.transaction() as transaction:
            del handle
            transaction.rollback()

    def _edit(self, number: Any, what: Any, seq: Any, positions: Any, **args: Any) -> None:
        ids = None if seq is None else [self._decoded.sequence(each) for each in seq]
        what, positions = self._decoded(what), self._decoded(positions)
        edit = self._ctx.edit(args["name"], what, args["mode"], seq=ids, positions=positions)
        edit.__enter__()
        self._edits[number] = edit

    def _end_edit(self, number: Any) -> None:
        self._edits.pop(number).__exit__(None, None, None)

    def _begin(self) -> None:
        ctx: Any = self._ctx
        transaction = ctx.transaction()
        transaction.__enter__()
        self._transactions.append((transaction, dict(self._decoded.handles)))

    def _commit(self) -> None:
        transaction, _ = self._transactions.pop()
        transaction.__exit__(None, None, None)

    def _roll_back(self) -> None:
        transaction, handles = self._transactions.pop()
        transaction.rollback()
        self._decoded.handles = handles


def _check(receipt: Receipt, model: Model) -> None:
    """Raise ReceiptError if the receipt cannot be verified with this model on this machine."""
    if not receipt._header:
        raise ReceiptError("the receipt is empty: nothing was recorded")
    if receipt.problem is not None:
        raise ReceiptError(f"the receipt cannot be verified: {receipt.problem}")
    isas = _core.build_info()["isas"]
    if receipt.isa not in isas:
        raise ReceiptError(
            f"the receipt was recorded with the instruction set {receipt.isa!r:.40}; this machine has {', '.join(isas)}"
        )
    here = {device.name: device.description for device in _core.devices()}
    for name, description in receipt._header["devices"].items():
        if here.get(name) != description:
            raise ReceiptError(
                f"the receipt was recorded with the device {name} = {description!r:.80}; here it is {here.get(name)!r}"
            )
    files = receipt.model.get("files")
    ours = model_files(model)
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise ReceiptError("the receipt is damaged: it names no files of a model")
    if [file.get("sha256") for file in files] != [file["sha256"] for file in ours]:
        raise ReceiptError(
            f"the receipt is of another model: {_described(files)}; the given one is {_described(ours)}"
        )


def _described(files: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{file.get('name')!s:.80} ({file.get('size')!s:.20} bytes, SHA-256 {file.get('sha256')!s:.12}...)"
        for file in files
    )


def _adapters(receipt: Receipt, model: Model, given: list[_core.Adapter]) -> list[_core.Adapter]:
    """Return the adapters of a receipt, loaded in the recorded order, in which their products are summed."""
    all_facts, left = receipt.adapters, list(given)
    in_order = sorted(range(len(all_facts)), key=lambda i: _order(all_facts[i], i))
    loaded = {i: _adapter(all_facts[i], model, left) for i in in_order}
    return [loaded[i] for i in range(len(all_facts))]


def _order(facts: Any, index: int) -> int:
    """Return when an adapter was loaded. Earlier versions stored only which was used first."""
    order = facts.get("order") if isinstance(facts, dict) else None
    return order if type(order) is int else index


def _adapter(facts: Any, model: Model, given: list[_core.Adapter]) -> _core.Adapter:
    """Return the adapter of the recorded digest: one of those given, which it removes, or that of the recorded path."""
    if not isinstance(facts, dict) or not isinstance(facts.get("path"), str):
        raise ReceiptError("the receipt is damaged: an adapter has no path")
    path, wanted = facts["path"], facts.get("sha256")
    for adapter in given:
        if adapter_file(adapter)["sha256"] == wanted:
            given.remove(adapter)
            return adapter
    try:
        # Only an ordinary file of the right size is read.
        found = Path(path).is_file() and os.path.getsize(path) == facts.get("size")
    except (OSError, ValueError):
        found = False
    if not found or file_digest(path)["sha256"] != wanted:
        raise ReceiptError(
            f"the receipt uses an adapter of SHA-256 {wanted!s:.12}..., which is not at {path!r:.200}; load it with "
            f"model.load_lora() and pass adapters=[...]"
        )
    return model.load_lora(path)


@contextmanager
def _context(receipt: Receipt, model: Model, decoder: Decoder) -> Iterator[Context]:
    """Create the context of the recorded options."""
    try:
        ctx = Context(model, **{name: decoder(value) for name, value in receipt.options.items()})
    except BackendError:
        raise
    except _REFUSALS as error:
        raise ReceiptError(
            f"a context of the recorded options cannot be created: {error}"
        ) from error
    try:
        if ctx.isa != receipt.isa:
            raise ReceiptError(
                f"the receipt was recorded with the instruction set {receipt.isa}; the environment variable PLAIT_ISA "
                f"limits this process to {ctx.isa}"
            )
        yield ctx
    finally:
        ctx.close()


def _compare(i: int, call: dict[str, Any], replay: _Replay) -> None:
    """Run call `i`; raise VerificationError if its result differs."""
    expected: dict[str, Any] = {name: call[name] for name in ("sha256", "result") if name in call}
    if call["call"] == "kv.defrag":  # stated by earlier versions, see stated_result()
        expected = {}
    try:
        found = stated_result(call["call"], replay.run(call))
    except BackendError:
        raise
    except _REFUSALS as error:
        told = f"{type(error).__name__}: {error}"
        raise VerificationError(
            f"call {i} ({call['call']:.40}) failed: {told}", i, _shown(expected), told
        ) from error
    if found != expected or list(map(type, found.values())) != list(map(type, expected.values())):
        raise VerificationError(
            f"call {i} ({call['call']}) gave another result: expected {_shown(expected)}, found {_shown(found)}",
            i, _shown(expected), _shown(found),
        )  # fmt: skip


def _shown(result: dict[str, Any]) -> str:
    return str(next(iter(result.values()), "no result"))[:80]
