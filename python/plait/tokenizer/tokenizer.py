"""Tokenizer: conversion between text and token ids."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.arguments import expect, flag, integer, string
from plait.arguments import kind as kind_of
from plait.errors import ModelError
from plait.tokenizer import special, vocabulary
from plait.tokenizer.bpe import Bpe, byte_alphabet
from plait.tokenizer.plamo import Plamo
from plait.tokenizer.spm import Spm
from plait.tokenizer.stream import TokenStream, clean_up_spaces
from plait.tokenizer.trie import Rwkv, unescape
from plait.tokenizer.unigram import Unigram
from plait.tokenizer.vocabulary import SPACE, TOKENS, TokenType, Vocabulary
from plait.tokenizer.wordpiece import WordPiece

Ids = Sequence[int] | npt.NDArray[np.integer]

_ENGINES: Final[Mapping[str, Callable[[Vocabulary], Callable[[str], list[int]]]]] = {
    "spm": Spm,
    "bpe": Bpe,
    "wordpiece": WordPiece,
    "unigram": Unigram,
    "rwkv": Rwkv,
    "plamo2": Plamo,
}
_BYTES: Final = {character: byte for byte, character in enumerate(byte_alphabet())}
_SHOWN: Final = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
_HIDDEN: Final = (TokenType.CONTROL, TokenType.UNKNOWN)


class Tokenizer:
    """Converts text to token ids and back, as the model was trained.

    Metadata is validated on construction; tables for encoding are built by the first call of
    encode(). Safe to use from several threads.

    Args:
        metadata: Maps GGUF keys to values: int, float, bool, str, ndarray, list[str].
        n_vocab: Number of rows of the model's embedding, if known. Rows beyond the last token are
            ids without text.

    Raises:
        ModelError: A key is missing or invalid; the message names it.
        UnsupportedError: The file has no vocabulary, or tokenizer.ggml.model or tokenizer.ggml.pre
            is unknown; the message lists the known ones.
    """

    def __init__(self, metadata: Mapping[str, object], n_vocab: int | None = None) -> None:
        expect(metadata, Mapping, "Tokenizer: metadata", "a mapping")
        if n_vocab is not None:
            n_vocab = integer(n_vocab, "Tokenizer: n_vocab", 0, (1 << 31) - 1)
        self._vocabulary = vocabulary.read(metadata)
        n_tokens = len(self._vocabulary.tokens)
        if n_vocab is not None and n_tokens > n_vocab:
            raise ModelError(f"{TOKENS}: {n_tokens} tokens, but the model has only {n_vocab}")
        stored = tuple(self._vocabulary.types)
        self._ends = special.resolve(self._vocabulary)
        self._partition = special.Partition(self._vocabulary, stored)
        self._n_vocab = n_tokens if n_vocab is None else n_vocab
        self._pieces: list[bytes | None] = [None] * n_tokens + [b""] * (self._n_vocab - n_tokens)
        self._engine: Callable[[str], list[int]] | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Create the tokenizer of a GGUF file, which may lack weights.

        Args:
            path: The file.

        Returns:
            The tokenizer.

        Raises:
            ModelError: The file is not GGUF, or its vocabulary is invalid.
            OSError: The file cannot be read.
        """
        from plait._core import read_metadata

        return cls(read_metadata(path))

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = True
    ) -> npt.NDArray[np.int32]:
        """Convert text to token ids.

        Args:
            text: The text.
            add_special: Add the special tokens that the vocabulary specifies before and after a
                text (BOS, EOS, CLS, SEP).
            parse_special: Convert control tokens that are written in the text, such as <|im_end|>,
                to those tokens. Pass False for untrusted text.

        Returns:
            int32 (n,).

        Raises:
            TypeError: `text` is not a str.
            ValueError: `text` contains a lone surrogate.
        """
        if not isinstance(text, str):
            raise TypeError(f"encode: text: expected a str, got {kind_of(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise ValueError(
                f"encode: text[{error.start}] is the lone surrogate U+{code:04X}"
            ) from None
        before, after = self._around() if flag(add_special, "encode: add_special") else ([], [])
        parse_special = flag(parse_special, "encode: parse_special")
        ids = before + self._encode_pieces(self._partition(text, parse_special)) + after
        return np.array(ids, dtype=np.int32)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Convert text in which a mark prevents parts of it from becoming special tokens.

        The text is split at special tokens first, then the marks are removed and the pieces are encoded. Without
        marks, the ids are those of encode(add_special=False).

        Args:
            text: The text.
            mark: A character that does not occur in the text other than as a mark.

        Returns:
            Token ids.

        Raises:
            ValueError: `text` contains a lone surrogate.
        """
        if mark not in string(text, "encode_marked: text"):
            ids: list[int] = self.encode(text, add_special=False).tolist()
            return ids
        pieces: list[str | int] = []
        for piece in self._partition(text, True):
            stripped = piece.replace(mark, "") if isinstance(piece, str) else piece
            if stripped != "":
                pieces.append(stripped)
        return self._encode_pieces(pieces)

    def special_texts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the texts of special tokens that encode() recognises.

        Returns:
            The texts of control and unknown tokens, and those of user-defined tokens.
        """
        return self._partition.texts()

    def decode(self, ids: Ids, skip_special: bool = True, clean_up: bool | None = None) -> str:
        """Convert token ids to text. Bytes that are not valid UTF-8 become U+FFFD.

        The space that encode() puts before a text is removed only from the first id. After BOS it stays, as in
        llama.cpp: decode(encode('Hello')) is ' Hello' in SentencePiece vocabularies.

        Args:
            ids: Integers, shape (n,).
            skip_special: Omit control and unknown tokens.
            clean_up: Remove spaces before punctuation. None: as the vocabulary specifies. False is
                lossless.

        Returns:
            The text.

        Raises:
            TypeError: `ids` are not integers.
            ValueError: `ids` has another shape.
            IndexError: An id is outside the vocabulary.
        """
        skip_special = flag(skip_special, "decode: skip_special")
        data, first = [], self._vocabulary.add_space_prefix
        for token in self._checked(ids):
            data.append(self._piece(token, skip_special, first))
            first = False
        text = b"".join(data).decode("utf-8", "replace")
        return clean_up_spaces(text) if self._cleans_up(clean_up) else text

    def stream(
        self,
        skip_special: bool = True,
        clean_up: bool | None = None,
        *,
        continuing: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> TokenStream:
        """Create a decoder that accepts one token at a time.

        Args:
            skip_special: As in decode().
            clean_up: As in decode().
            continuing: True if the tokens follow others, such as a prompt. A leading space is then part
                of the text.
            shown: Ids of control tokens to include in the text even if `skip_special` is True.

        Returns:
            The decoder.
        """
        skip_special = flag(skip_special, "stream: skip_special")
        expect(shown, frozenset, "stream: shown", "a frozenset of token ids")

        def piece(token: int, first: bool) -> bytes:
            hides = skip_special and token not in shown
            return self._piece(self._checked_one(token, "push"), hides, first)

        return TokenStream(
            piece,
            lstrip=self._vocabulary.add_space_prefix and not flag(continuing, "stream: continuing"),
            clean_up=self._cleans_up(clean_up),
        )

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; for a control token, its name.

        Args:
            token: The token id.

        Raises:
            IndexError: The id is outside the vocabulary.
        """
        return self._bytes(self._checked_one(token, "token_bytes"))

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that the file stores as `text`, or None.

        Args:
            text: The stored text. Special tokens are stored as they are displayed.
        """
        return self._vocabulary.to_id.get(string(text, "token_id: text"))

    def is_eog(self, token: int) -> bool:
        """Return whether a token ends a generation, such as EOS, end of turn or end of message.

        Args:
            token: The token id.
        """
        return integer(token, "is_eog: token") in self._ends

    @property
    def eog(self) -> frozenset[int]:
        """The ids that end a generation."""
        return self._ends

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids of control and unknown tokens, which decode() omits."""
        types = self._vocabulary.types
        return frozenset(token for token, kind in enumerate(types) if kind in _HIDDEN)

    @property
    def n_vocab(self) -> int:
        """Number of ids; the last ones may have no text."""
        return self._n_vocab

    @property
    def kind(self) -> str:
        """The algorithm: "spm", "bpe", "wordpiece", "unigram", "rwkv" or "plamo2"."""
        return self._vocabulary.kind

    @property
    def bos(self) -> int | None:
        """Beginning of sequence; CLS in BERT vocabularies."""
        return self._role("bos")

    @property
    def eos(self) -> int | None:
        """End of sequence."""
        return self._role("eos")

    @property
    def eot(self) -> int | None:
        """End of turn."""
        return self._role("eot")

    @property
    def eom(self) -> int | None:
        """End of message, after which the model continues once a tool has responded."""
        return self._role("eom")

    @property
    def unk(self) -> int | None:
        """Unknown token, for text that no token covers."""
        return self._role("unknown")

    @property
    def sep(self) -> int | None:
        """Separator in BERT vocabularies."""
        return self._role("seperator")

    @property
    def pad(self) -> int | None:
        """Padding."""
        return self._role("padding")

    @property
    def mask(self) -> int | None:
        """Mask of masked language models."""
        return self._role("mask")

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Maps roles to ids, as in the keys tokenizer.ggml.<role>_token_id, including roles known by their text
        (fim_pre, ...).
        """
        return MappingProxyType(self._vocabulary.ids)

    @property
    def add_bos(self) -> bool:
        """True if encode(add_special=True) adds BOS at the start."""
        return self._vocabulary.add_bos

    @property
    def add_eos(self) -> bool:
        """True if encode(add_special=True) adds EOS at the end."""
        return self._vocabulary.add_eos

    def __len__(self) -> int:
        return self._n_vocab

    def __repr__(self) -> str:
        name = self.kind + (f" {self._vocabulary.pre_name}" if self.kind == "bpe" else "")
        return f"<plait.Tokenizer {name}: {self._n_vocab} tokens, bos={self.bos}, eos={self.eos}, eot={self.eot}>"

    def _role(self, role: str) -> int | None:
        return self._vocabulary.ids.get(role)

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens before and after a text."""
        ids = self._vocabulary.ids
        if self.kind == "wordpiece":
            return [ids[role] for role in ("bos",) if role in ids], [
                ids[role] for role in ("seperator",) if role in ids
            ]
        return [ids["bos"]] if self.add_bos else [], [ids["eos"]] if self.add_eos else []

    def _encode_pieces(self, pieces: list[str | int]) -> list[int]:
        escape = self._vocabulary.escape_whitespaces and self.kind in ("spm", "bpe")
        prefix = " " if self.kind == "spm" and self._vocabulary.add_space_prefix else ""
        engine = self._ready()
        ids: list[int] = []
        after_special = True
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            text = prefix + piece if after_special else piece
            ids += engine(text.replace(" ", SPACE) if escape else text)
            after_special = False
        return ids

    def _ready(self) -> Callable[[str], list[int]]:
        with self._lock:
            if self._engine is None:
                self._engine = _ENGINES[self.kind](self._vocabulary)
            return self._engine

    def _cleans_up(self, clean_up: bool | None) -> bool:
        return self._vocabulary.clean_up_spaces if clean_up is None else flag(clean_up, "clean_up")

    def _piece(self, token: int, skip_special: bool, first: bool) -> bytes:
        """Return the bytes of a token in a text; if `first`, without the space that encode() puts before a text."""
        if (
            skip_special
            and token < len(self._vocabulary.types)
            and self._vocabulary.types[token] in _HIDDEN
        ):
            return b""
        data = self._bytes(token)
        return data[1:] if first and data.startswith(b" ") else data

    def _bytes(self, token: int) -> bytes:
        found = self._pieces[token]
        if found is None:
            found = self._pieces[token] = self._make_bytes(token)
        return found

    def _make_bytes(self, token: int) -> bytes:
        words = self._vocabulary
        text, kind = words.tokens[token], words.types[token]
        if words.kind == "rwkv":
            return unescape(text)
        if kind is TokenType.BYTE:
            return bytes([words.byte_of(token)])
        if kind is TokenType.NORMAL and words.kind == "bpe" and words.pre.byte_level:
            # Some files contain tokens with characters outside the alphabet by mistake; those stand for themselves.
            return b"".join(
                bytes([_BYTES[c]]) if c in _BYTES else c.encode("utf-8", "surrogateescape")
                for c in text
            )
        if kind is TokenType.NORMAL:
            shown = text if words.kind == "plamo2" else text.replace(SPACE, " ")
            return shown.encode("utf-8", "surrogateescape")
        return text.encode("utf-8", "surrogateescape") if kind in _SHOWN else b""

    def _checked_one(self, token: int, name: str) -> int:
        if isinstance(token, (bool, np.bool_)):
            raise TypeError(f"{name}: token: expected an integer, got a bool")
        index = integer(token, f"{name}: token")
        if not 0 <= index < self._n_vocab:
            raise IndexError(
                f"{name}: token {index} is outside the vocabulary of {self._n_vocab} tokens"
            )
        return index

    def _checked(self, ids: Ids) -> list[int]:
        if isinstance(ids, (str, bytes)):
            raise TypeError(f"decode: ids: expected integers, got {kind_of(ids)}")
        array = np.asarray(ids)
        if array.ndim == 0:
            raise TypeError(f"decode: ids: expected a sequence of integers, got {kind_of(ids)}")
        if array.ndim != 1:
            raise ValueError(f"decode: ids: expected the shape (n,), got {array.shape}")
        if array.dtype == object and all(isinstance(item, int) for item in array):
            return [self._checked_one(item, "decode") for item in array]
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"decode: ids: expected integers, got {array.dtype}")
        wrong = np.flatnonzero((array < 0) | (array >= self._n_vocab)) if array.size else array
        if wrong.size:
            at = int(wrong[0])
            raise IndexError(
                f"decode: ids[{at}] is {array[at]}, outside the vocabulary of {self._n_vocab} tokens"
            )
        tokens: list[int] = array.astype(np.int64).tolist()
        return tokens
