"""Arguments of calls as values of a JSON file, and back.

None, bool, int, float and str stand for themselves, lists for lists and tuples. Everything else is an object with one
key that names its kind, such as {"sequence": 2}. Arrays and bytes are stored once, under their SHA-256.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, Final, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.errors import ReceiptError

Blobs = dict[str, bytes]
"""Bytes by their SHA-256, in hexadecimal digits."""

_DTYPES: Final = ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")


def digest(*parts: bytes | memoryview | npt.NDArray[Any]) -> str:
    """Return the SHA-256 of the concatenated bytes as 64 hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return found.hexdigest()


def encode(value: Any, blobs: Blobs, adapters: Callable[[_core.Adapter], int]) -> Any:
    """Return an argument of a call as a value of a JSON file.

    Args:
        value: The argument.
        blobs: Receives the bytes of arrays.
        adapters: Returns the index of an adapter in the receipt.

    Raises:
        TypeError: The argument is of another kind than the arguments of a Context and its cache.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, _core.SequenceHandle):
        return {"sequence": value.id}
    if isinstance(value, _core.Batch):
        return {"batch": encode_batch(value, blobs)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": _stored(bytes(value), blobs)}
    if isinstance(value, slice | range):
        return {type(value).__name__: [value.start, value.stop, value.step]}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, list | tuple | Set):
        return [encode(each, blobs, adapters) for each in value]
    if isinstance(value, Mapping):
        return {"adapters": [[adapters(adapter), float(scale)] for adapter, scale in value.items()]}
    if isinstance(value, SupportsIndex) and not isinstance(value, np.ndarray):
        return operator.index(value)
    if isinstance(value, SupportsFloat) and not hasattr(value, "__len__"):
        number = float(value)
        return number if math.isfinite(number) else encode(np.array(number), blobs, adapters)
    return encode_array(np.asarray(value), blobs)


def encode_array(array: npt.NDArray[Any], blobs: Blobs) -> dict[str, Any]:
    """Return an array as a value of a JSON file.

    Args:
        array: The array.
        blobs: Receives its bytes.

    Raises:
        TypeError: The elements are not numbers.
    """
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in _DTYPES:
        if array.dtype.kind not in "fiu":
            raise TypeError(f"expected numbers, got an array of {array.dtype}")
        little = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
    key = _stored(little.tobytes(), blobs)
    return {"array": key, "dtype": little.dtype.str, "shape": list(array.shape)}


def encode_batch(batch: _core.Batch, blobs: Blobs) -> dict[str, Any]:
    """Return the entries of a batch as a value of a JSON file.

    Args:
        batch: The batch.
        blobs: Receives the bytes of embeddings.
    """
    tokens, positions, sequences, wanted = batch.to_arrays()
    found: dict[str, Any] = {}
    if tokens.ndim == 2:
        found["embeddings"] = encode_array(tokens, blobs)
        if batch.both_directions:
            found["both_directions"] = True
    else:
        found["tokens"] = tokens.tolist()
    if sequences.shape[1] > 1:
        found["sequences"] = [[each for each in row if each >= 0] for row in sequences.tolist()]
    elif len(sequences) and (sequences == sequences[0]).all():
        found["sequences"] = int(sequences[0, 0])
    else:
        found["sequences"] = sequences[:, 0].tolist()
    continues = positions is None or (positions < 0).all()
    found["positions"] = None if continues else positions.tolist()
    found["outputs"] = np.flatnonzero(wanted).tolist()
    return found


class Decoder:
    """Returns the arguments of recorded calls as the calls of a new context take them.

    Args:
        blobs: The bytes of the receipt.
        adapters: The adapters of the receipt, loaded again.

    Attributes:
        handles: The open sequences of the new context by id.
    """

    def __init__(self, blobs: Blobs, adapters: list[_core.Adapter]) -> None:
        self._blobs = blobs
        self._adapters = adapters
        self.handles: dict[int, _core.SequenceHandle] = {}

    def __call__(self, value: Any) -> Any:
        """Return the argument that was encoded as `value`.

        Args:
            value: What encode() returned, or anything that a JSON file can hold.

        Raises:
            ReceiptError: encode() returns no such value.
        """
        if isinstance(value, list):
            return [self(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return self._array(value)
        if len(value) != 1:
            raise ReceiptError(f"expected an argument of a call, got {value!r:.80}")
        ((kind, content),) = value.items()
        if kind == "sequence" and isinstance(content, int):
            if content not in self.handles:
                raise ReceiptError(f"sequence {content} is not open")
            return self.handles[content]
        if kind == "bytes":
            return self._bytes(content)
        if kind in ("slice", "range") and isinstance(content, list) and len(content) == 3:
            try:
                return (slice if kind == "slice" else range)(*content)
            except (TypeError, ValueError) as error:
                raise ReceiptError(f"{kind}: {error}") from None
        if kind == "adapters" and isinstance(content, list):
            return dict(map(self._scaled, content))
        if kind == "batch" and isinstance(content, dict):
            return self._batch(content)
        raise ReceiptError(f"expected an argument of a call, got {value!r:.80}")

    def sequence(self, seq_id: int) -> Any:
        """Return the open sequence of an id, or else the id."""
        return self.handles.get(seq_id, seq_id)

    def _bytes(self, key: object) -> bytes:
        if not isinstance(key, str) or key not in self._blobs:
            raise ReceiptError(f"the receipt has no data of digest {key!r:.80}")
        return self._blobs[key]

    def _array(self, value: dict[str, Any]) -> npt.NDArray[Any]:
        data, dtype, shape = self._bytes(value["array"]), value.get("dtype"), value.get("shape")
        if dtype not in _DTYPES:
            raise ReceiptError(
                f"array: dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r:.40}"
            )
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise ReceiptError(f"array: shape: expected a list of sizes, got {shape!r:.80}")
        try:
            found: npt.NDArray[Any] = np.frombuffer(data, dtype).reshape(shape).copy()
        except (ValueError, OverflowError) as error:
            raise ReceiptError(f"array: {error}") from None
        return found

    def _scaled(self, pair: object) -> tuple[_core.Adapter, float]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
            raise ReceiptError(f"adapters: expected [index, scale], got {pair!r:.80}")
        index, scale = pair
        if not 0 <= index < len(self._adapters) or not isinstance(scale, float):
            raise ReceiptError(f"adapters: expected [index, scale], got {pair!r:.80}")
        return self._adapters[index], scale

    def _batch(self, content: dict[str, Any]) -> _core.Batch:
        """Build a batch of runs of entries that belong to the same sequences."""
        try:
            if "embeddings" in content:
                rows = self._array(content["embeddings"]).astype(np.float32, copy=False)
            else:
                rows = np.array(content["tokens"], np.int32)
            n = len(rows)
            wanted = np.zeros(n, bool)
            wanted[np.array(content["outputs"], np.int64)] = True
            positions = content["positions"]
            if positions is not None:
                positions = np.array(positions, np.int32)
            sequences = content["sequences"]
            if type(sequences) is int:
                sequences = [sequences] * n
            owners = [[each] if type(each) is int else each for each in sequences]
            if len(owners) != n or (positions is not None and len(positions) != n):
                raise ReceiptError(f"batch: {n} entries, but {len(owners)} sequences")
            batch = _core.Batch()
            add: Any = batch.add_sequence
            if "embeddings" in content:
                both = content.get("both_directions", False)
                add = partial(batch.add_embeddings, both_directions=both)
            begin = 0
            for end in _ends(owners, positions):
                part = slice(begin, end)
                seq = [self.sequence(owner) for owner in owners[begin]]
                given = None if positions is None or positions[begin].min() < 0 else positions[part]
                add(rows[part], seq=seq, pos=given, logits=wanted[part])
                begin = end
        except (KeyError, IndexError, OverflowError) as error:
            raise ReceiptError(f"batch: {type(error).__name__}: {error}") from None
        return batch


def _ends(owners: list[Any], positions: npt.NDArray[np.int32] | None) -> list[int]:
    """Return the end of each run of entries of the same sequences that all state their position, or all do not."""
    n = len(owners)
    stated = [False] * n if positions is None else [bool(p.min() >= 0) for p in positions]
    return [
        i
        for i in range(1, n + 1)
        if i == n or (owners[i], stated[i]) != (owners[i - 1], stated[i - 1])
    ]


def _stored(data: bytes, blobs: Blobs) -> str:
    key = digest(data)
    blobs[key] = data
    return key
