"""Receipts: what a context computed, call by call, as a JSON file from which it can be computed again."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from plait import _core
from plait.arguments import expect
from plait.errors import ReceiptError, ReceiptNotFoundError
from plait.files.hub import parts
from plait.inspect.call_values import Blobs, digest
from plait.whole_file import replace_file

if TYPE_CHECKING:
    from threading import RLock

    from plait._core import Model

_FORMAT: Final = "plait receipt"
_VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20

# The types of the fields of a file.
_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "format": str, "version": int, "plait": dict, "model": dict, "isa": str, "devices": dict, "options": dict,
    "adapters": list, "sequences": list, "state": (str, type(None)), "calls": list, "problem": (str, type(None)),
    "data": dict, "sha256": str,
}  # fmt: skip


class Recording(Protocol):
    """What fills a receipt, until it is stopped.

    Attributes:
        lock: Held while the receipt changes.
    """

    lock: RLock

    def settle(self) -> None:
        """Set the receipt's problem if an exception made it incomplete."""

    def stop(self, receipt: Receipt) -> None:
        """End the receipt."""


class Receipt:
    """What a context computed: the model, the options, every call and the digests of the results.

    Context.record() returns one, which records the calls inside its `with` block. plait.verify()
    computes the calls again.

    Attributes:
        calls: One dict for each call, in order, after those that restore the adapters, the control
            vector and the cache of the beginning: its name ("call"), its arguments ("args"), and the
            SHA-256 of its output ("sha256"), which is that of the bytes of `Output.logits` followed
            by those of `Output.embeddings`; or its result ("result"), if that is a number.
        options: The options of the context by name. Defaults are omitted.
        isa: The CPU instruction set of the context.
        problem: Why the calls cannot be computed again, or None.
    """

    def __init__(self, start: Callable[[Receipt], Recording] | None = None) -> None:
        self._start = start
        self._recorder: Recording | None = None
        self._header: dict[str, Any] = {}
        self._blobs: Blobs = {}
        self._model: Model | None = None
        self.calls: list[dict[str, Any]] = []
        self.adapters: list[dict[str, Any]] = []
        self.problem: str | None = None

    def __enter__(self) -> Receipt:
        if self._start is None:
            raise ValueError("record: this receipt has recorded already; call ctx.record() again")
        start, self._start = self._start, None
        self._recorder = start(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._recorder is not None:
            self._recorder.stop(self)
            self._recorder = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the context by name, without defaults."""
        return dict(self._header.get("options", {}))

    @property
    def isa(self) -> str:
        """The CPU instruction set of the context."""
        return str(self._header.get("isa", ""))

    @property
    def build(self) -> dict[str, Any]:
        """The "version", "commit" and "compiler" of plait that recorded."""
        return dict(self._header.get("plait", {}))

    @property
    def model(self) -> dict[str, Any]:
        """The model: its "arch" and its "files", each with "name", "size" in bytes and "sha256"."""
        if self._model is not None and "model" not in self._header:
            self._header["model"] = {"arch": self._model.arch, "files": model_files(self._model)}
        return dict(self._header.get("model", {}))

    @property
    def n_tokens(self) -> int:
        """Number of entries of all batches."""
        batches = (
            call["args"]["batch"]["batch"] for call in self.calls if "batch" in call.get("args", {})
        )
        return sum(
            len(b["tokens"]) if "tokens" in b else b["embeddings"]["shape"][0] for b in batches
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calls so far to a JSON file. An existing file is replaced atomically.

        The first call for a model reads its whole file to compute the SHA-256.

        Args:
            path: Path of the file.

        Raises:
            TypeError: `path` is not a path.
            ValueError: The recording has not begun.
            ModelError: The file of the model has changed since it was opened.
            OSError: A file cannot be read or written.
        """
        expect(path, (str, os.PathLike), "save: path", "a path")
        if not self._header:
            raise ValueError(
                "save: the receipt is empty; record with `with ctx.record() as receipt:`"
            )
        self.model  # noqa: B018 - computes the digests without the lock
        with self._recorder.lock if self._recorder else nullcontext():
            if self._recorder is not None:
                self._recorder.settle()
            text = self._text()
        replace_file(path, text.encode("ascii"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Receipt:
        """Read a file that save() wrote.

        Args:
            path: Path of the file.

        Returns:
            The receipt.

        Raises:
            TypeError: `path` is not a path.
            ReceiptError: The file does not exist, is not a receipt, has another version, or was
                changed.
            OSError: The file cannot be read.
        """
        expect(path, (str, os.PathLike), "load: path", "a path")
        content = _parsed(_read(path), os.fspath(path))
        receipt = cls()
        for key, text in content["data"].items():
            receipt._blobs[key] = _blob(key, text, os.fspath(path))
        receipt.calls = content["calls"]
        receipt.adapters = content["adapters"]
        receipt.problem = content["problem"]
        receipt._header = {
            name: content[name]
            for name in ("plait", "model", "isa", "devices", "options", "sequences", "state")
        }
        return receipt

    def __len__(self) -> int:
        return len(self.calls)

    def __str__(self) -> str:
        files = ", ".join(
            str(file.get("name")) for file in self._header.get("model", {}).get("files", [])
        )
        of = f" of {files}" if files else ""
        return f"{len(self)} calls with {self.n_tokens} tokens{of} on {self.isa}"

    def __repr__(self) -> str:
        return f"<plait.Receipt: {self}>" if self._header else "<plait.Receipt, empty>"

    def _text(self) -> str:
        """Return the text of the file, with a line for each call."""
        content = {
            "format": _FORMAT, "version": _VERSION, "plait": self._header["plait"], "model": self.model,
            **{name: self._header[name] for name in ("isa", "devices", "options")}, "adapters": self.adapters,
            **{name: self._header[name] for name in ("sequences", "state")}, "problem": self.problem,
            "calls": self.calls,
            "data": {key: base64.b64encode(blob).decode() for key, blob in self._blobs.items()},
        }  # fmt: skip
        lines = []
        for name, value in content.items():
            if name == "calls":
                calls = ",\n".join(json.dumps(call) for call in self.calls)
                lines.append(f'"calls": [\n{calls}\n]' if calls else '"calls": []')
            else:
                lines.append(f'"{name}": {json.dumps(value, allow_nan=False)}')
        lines.append(f'"sha256": "{_checksum(content)}"')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def model_files(model: Model) -> list[dict[str, Any]]:
    """Return the name, the size in bytes and the SHA-256 of each file of a model.

    The digests are computed once for each Model object.

    Args:
        model: The model.

    Raises:
        ModelError: A file has changed since it was opened.
        OSError: A file cannot be read.
    """
    known: list[dict[str, Any]] | None = getattr(model, "_file_digests", None)
    if known is None:
        folder, name = os.path.split(model.path)
        known = [file_digest(os.path.join(folder, part)) for part in parts(name)]
        _core.check_unchanged(model)
        model._file_digests = known  # type: ignore[attr-defined]
    return known


def adapter_file(adapter: _core.Adapter) -> dict[str, Any]:
    """Return the name, the size in bytes and the SHA-256 of the file of an adapter.

    Args:
        adapter: The adapter.

    Raises:
        ModelError: The file has changed since it was opened.
        OSError: The file cannot be read.
    """
    found = file_digest(adapter.path)
    _core.check_adapter_unchanged(adapter)
    return found


def file_digest(path: str) -> dict[str, Any]:
    """Return the name, the size in bytes and the SHA-256 of a file.

    Args:
        path: The path.

    Raises:
        OSError: The file cannot be read.
    """
    found = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
            size += len(chunk)
    return {"name": os.path.basename(path), "size": size, "sha256": found.hexdigest()}


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a file's content but the checksum, in one spelling."""
    others = {name: value for name, value in content.items() if name != "sha256"}
    return digest(
        json.dumps(others, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    )


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ReceiptNotFoundError(f"receipt: {os.fspath(path)}: no such file") from None
    except ValueError as error:  # a path with a null character
        raise ReceiptError(f"load: path: {error}") from None


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    """Return the content of a file, with fields of the right types and the right checksum."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number of JSON")

    try:
        content = json.loads(data.decode("ascii"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{path} is not a receipt: {error!s:.200}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ReceiptError(
            f'{path} is not a receipt: expected an object with "format": "{_FORMAT}"'
        )
    version = content.get("version")
    if type(version) is not int or version != _VERSION:
        raise ReceiptError(
            f"{path} has version {version!r:.40} of the format; this version of plait reads version {_VERSION}"
        )
    for name, types in _FIELDS.items():
        if name not in content or not isinstance(content[name], types):
            raise ReceiptError(f'{path} is damaged: "{name}" is missing or has the wrong type')
    try:
        checksum = _checksum(content)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{path} is damaged: {error!s:.200}") from None
    if checksum != content["sha256"]:
        raise ReceiptError(
            f"{path} was changed after it was saved: its SHA-256 does not match its content"
        )
    for i, call in enumerate(content["calls"]):
        if not isinstance(call, dict) or not isinstance(call.get("call"), str):
            raise ReceiptError(f"{path} is damaged: call {i} has no name")
        if not isinstance(call.get("args"), dict):
            raise ReceiptError(f"{path} is damaged: call {i} has no arguments")
    return content


def _blob(key: str, text: object, path: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        found = b""
    if digest(found) != key:
        raise ReceiptError(f"{path} is damaged: the data of digest {key:.80} has another one")
    return found
