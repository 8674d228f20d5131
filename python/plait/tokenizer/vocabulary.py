"""Reads and validates the tokenizer.ggml.* metadata of a GGUF file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section "Tokenizer". Defaults of
absent keys depend on the vocabulary type and follow llama.cpp, which wrote most existing files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.errors import ModelError, UnsupportedError
from plait.tokenizer.patterns import DEFAULT, PRE_TOKENIZERS, PreTokenizer

PREFIX: Final = "tokenizer.ggml."
TOKENS: Final = PREFIX + "tokens"

SPACE: Final = "\u2581"  # represents a space in SentencePiece

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# Files that store ids as unsigned 32-bit integers represent "none" as 2**32 - 1.
_NO_ID: Final = (-1, 0xFFFFFFFF)


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Kind:
    """The algorithm and the defaults for a value of tokenizer.ggml.model."""

    name: str
    ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    clean_up_spaces: bool = False
    adds_special: bool = True  # False: no BOS and EOS, even if the file enables them


# BPE files that do not specify special ids have none. llama.cpp's default of 11 is correct only for Falcon, whose files
# specify it.
_KINDS: Final[Mapping[str, _Kind]] = {
    "llama": _Kind("spm", {"bos": 1, "eos": 2, "unknown": 0}, add_bos=True, add_space_prefix=True),
    "gpt2": _Kind("bpe", clean_up_spaces=True),
    "gemma4": _Kind("bpe", clean_up_spaces=True),
    "whitespace": _Kind("bpe", clean_up_spaces=True),
    "bert": _Kind(
        "wordpiece",
        {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
        add_bos=True,
        clean_up_spaces=True,
    ),
    "t5": _Kind("unigram", {"eos": 1, "unknown": 2, "padding": 0}, add_eos=True),
    "rwkv": _Kind("rwkv", adds_special=False),
    "plamo2": _Kind("plamo2", {"bos": 1, "eos": 2, "unknown": 0, "padding": 3}, adds_special=False),
}

# Names in the key "tokenizer.ggml.<name>_token_id". "seperator" is the format's own spelling.
_ID_NAMES: Final = (
    "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask",
    "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep",
)  # fmt: skip
_OLD_NAMES: Final = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid", "cls": "bos"}


@dataclass
class Vocabulary:
    """Validated contents of the tokenizer keys. special.resolve() completes `types` and `ids`."""

    kind: str  # spm bpe wordpiece unigram rwkv plamo2
    model: str  # tokenizer.ggml.model
    tokens: list[str]
    types: list[TokenType]
    scores: list[float]
    merges: list[tuple[str, str]]
    to_id: dict[str, int]  # the first of equal tokens counts
    ids: dict[str, int]  # special role -> id; see _ID_NAMES
    pre: PreTokenizer
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool  # spaces are stored as SPACE
    clean_up_spaces: bool
    lowercase: bool
    strip_accents: bool
    charsmap: bytes | None
    pre_name: str
    architecture: str
    model_name: str

    def byte_of(self, token: int) -> int:
        """Return the byte of a token of type BYTE, such as "<0xE2>"."""
        match = _BYTE_TOKEN.fullmatch(self.tokens[token])
        if match is None:
            raise ModelError(
                f'{TOKENS}[{token}]: byte token {self.tokens[token]!r} is not of the form "<0xE2>"'
            )
        return int(match[1], 16)

    def without_control(self) -> dict[str, int]:
        """Return the ids of tokens by text, as `to_id`, but without control tokens, which text must not become."""
        found: dict[str, int] = {}
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind is not TokenType.CONTROL:
                found.setdefault(token, index)
        return found

    def byte_tokens(self) -> list[int]:
        """Return the token of each byte: "<0xE2>", else the byte as text, else the unknown token, else -1."""
        unknown = self.ids.get("unknown", -1)
        plain = [
            self.to_id.get(chr(byte), unknown) if byte < 128 else unknown for byte in range(256)
        ]
        return [self.to_id.get(f"<0x{byte:02X}>", plain[byte]) for byte in range(256)]


class _Reader:
    """Typed access to the metadata. A value of another type raises ModelError, which names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def string(self, key: str, default: str) -> str:
        value = self._metadata.get(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{key}: expected a string, got {_describe(value)}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._metadata.get(key, default)
        if not isinstance(value, (bool, np.bool_)):
            raise ModelError(f"{key}: expected a bool, got {_describe(value)}")
        return bool(value)

    def token_id(self, key: str, n_tokens: int) -> int | None:
        value = self._metadata.get(key)
        if value is None:
            return None
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise ModelError(f"{key}: expected an integer, got {_describe(value)}")
        if int(value) in _NO_ID:
            return None
        if not 0 <= int(value) < n_tokens:
            raise ModelError(
                f"{key}: {value} is not a token id; the vocabulary has {n_tokens} tokens"
            )
        return int(value)

    def strings(self, key: str) -> Sequence[str]:
        value = self._metadata.get(key)
        if value is None:
            raise ModelError(f"{key}: missing")
        if isinstance(value, np.ndarray) and value.size == 0:
            return []
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{key}: expected an array of strings, got {_describe(value)}")
        return value

    def array(
        self, key: str, dtypes: tuple[type[np.generic], ...], length: int | None
    ) -> npt.NDArray[np.generic] | None:
        """Return a one-dimensional array of one of `dtypes`, of `length` unless None; None if the key is absent."""
        value = self._metadata.get(key)
        if value is None:
            return None
        names = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        if not isinstance(value, np.ndarray) or value.dtype not in dtypes or value.ndim != 1:
            raise ModelError(f"{key}: expected an array of {names}, got {_describe(value)}")
        if length is not None and len(value) != length:
            raise ModelError(f"{key}: expected {length} values, one per token, got {len(value)}")
        return value


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def read(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and validate all tokenizer keys of `metadata`.

    Returns:
        The vocabulary.

    Raises:
        ModelError: A key is missing or invalid; the message names it.
        UnsupportedError: The tokenizer is unknown.
    """
    reader = _Reader(metadata)
    model = reader.string(PREFIX + "model", "")
    kind = _kind(reader, model)
    tokens = _read_tokens(reader)
    pre_name = (
        model if model in ("gemma4", "whitespace") else reader.string(PREFIX + "pre", "default")
    )
    pre = _pre_tokenizer(pre_name) if kind.name == "bpe" else DEFAULT
    lowercase = reader.boolean(PREFIX + "normalizer.lowercase", kind.name != "bpe")
    to_id: dict[str, int] = {}
    for index, token in enumerate(tokens):
        to_id.setdefault(token, index)
    ids = _read_ids(reader, kind, len(tokens))
    vocabulary = Vocabulary(
        kind=kind.name,
        model=model,
        tokens=tokens,
        types=_read_types(reader, len(tokens)),
        scores=_read_scores(reader, len(tokens)),
        merges=_read_merges(reader) if kind.name == "bpe" else [],
        to_id=to_id,
        ids=ids,
        pre=pre,
        add_bos=_read_add(reader, "bos", kind.add_bos or pre.add_bos, ids, pre.always_bos)
        and kind.adds_special,
        add_eos=_read_add(reader, "eos", kind.add_eos, ids) and kind.adds_special,
        add_space_prefix=reader.boolean(PREFIX + "add_space_prefix", kind.add_space_prefix),
        remove_extra_whitespaces=reader.boolean(PREFIX + "remove_extra_whitespaces", False),
        escape_whitespaces=pre.escape_whitespaces
        if kind.name == "bpe"
        else kind.name not in ("rwkv", "plamo2"),
        clean_up_spaces=kind.clean_up_spaces and pre.clean_up_spaces,
        lowercase=lowercase,
        strip_accents=reader.boolean(PREFIX + "normalizer.strip_accents", lowercase),
        charsmap=_read_charsmap(reader),
        pre_name=pre_name,
        architecture=reader.string("general.architecture", ""),
        model_name=reader.string("general.name", "").lower(),
    )
    for index, token_type in enumerate(vocabulary.types):
        if token_type is TokenType.BYTE:
            vocabulary.byte_of(index)
    return vocabulary


def _kind(reader: _Reader, model: str) -> _Kind:
    key = PREFIX + "model"
    if key not in reader:
        raise ModelError(f"{key}: missing")
    if model in ("no_vocab", "none"):
        raise UnsupportedError(
            f'{key}: the value is "{model}", so the file holds no tokenizer; pass token ids'
        )
    if model not in _KINDS:
        raise UnsupportedError(
            f"{key}: unknown tokenizer {model!r}; known: {', '.join(sorted(_KINDS))}"
        )
    return _KINDS[model]


def _pre_tokenizer(name: str) -> PreTokenizer:
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{PREFIX}pre: unknown pre-tokenizer {name!r}; known: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


def _read_tokens(reader: _Reader) -> list[str]:
    tokens = list(reader.strings(TOKENS))
    if not tokens:
        raise ModelError(f"{TOKENS}: empty")
    for index, token in enumerate(tokens):
        if not token:
            tokens[index] = f"[EMPTY_{index}]"
    return tokens


def _read_types(reader: _Reader, n_tokens: int) -> list[TokenType]:
    key = PREFIX + "token_type"
    values = reader.array(key, (np.int32,), n_tokens)
    if values is None:
        return [TokenType.NORMAL] * n_tokens
    known = {int(member): member for member in TokenType}
    try:
        return [known[value] for value in values.tolist()]
    except KeyError as error:
        raise ModelError(
            f"{key}: {error.args[0]} is not a token type; expected 0 to {max(known)}"
        ) from None


def _read_scores(reader: _Reader, n_tokens: int) -> list[float]:
    key = PREFIX + "scores"
    values = reader.array(key, (np.float32,), n_tokens)
    if values is None:
        return [0.0] * n_tokens
    if np.isnan(values.astype(np.float32, copy=False)).any():
        raise ModelError(f"{key}: contains NaN")
    return [float(value) for value in values.tolist()]


def _read_merges(reader: _Reader) -> list[tuple[str, str]]:
    """Return the pairs "left right" in order of rank. The first character can itself be a space."""
    key = PREFIX + "merges"
    pairs = []
    for index, merge in enumerate(reader.strings(key)):
        cut = merge.find(" ", 1)
        if cut < 0 or cut == len(merge) - 1:
            raise ModelError(
                f"{key}[{index}]: {merge[:40]!r} is not two tokens with a space between them"
            )
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _read_ids(reader: _Reader, kind: _Kind, n_tokens: int) -> dict[str, int]:
    ids = {name: default for name, default in kind.ids.items() if default < n_tokens}
    names = {name: name for name in _ID_NAMES}
    for name, role in {**_OLD_NAMES, **names}.items():
        found = reader.token_id(f"{PREFIX}{name}_token_id", n_tokens)
        if found is not None and (name != "cls" or kind.name == "wordpiece"):
            ids[role] = found
    return ids


def _read_add(
    reader: _Reader, name: str, default: bool, ids: Mapping[str, int], always: bool = False
) -> bool:
    """Return whether encode() adds the token `name`, bos or eos. A file that enables it must define the token."""
    key = f"{PREFIX}add_{name}_token"
    if reader.boolean(key, False) and name not in ids:
        raise ModelError(f"{key}: true, but there is no {PREFIX}{name}_token_id")
    return (always or reader.boolean(key, default)) and name in ids


def _read_charsmap(reader: _Reader) -> bytes | None:
    values = reader.array(PREFIX + "precompiled_charsmap", (np.uint8, np.int8), None)
    return None if values is None else values.tobytes()
