"""Grammars: which texts a generation may become, as a mask over tokens at every step. Needs llguidance.

Source: https://github.com/guidance-ai/llguidance; the dialect of Lark is described in its docs/syntax.md.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from plait.errors import UnsupportedError

try:
    import llguidance
    import llguidance.gbnf_to_lark
    import llguidance.numpy
except ImportError as error:
    raise UnsupportedError("grammars need llguidance: pip install plait[grammar]") from error

if TYPE_CHECKING:
    from plait.tokenizer import Tokenizer

Masks = npt.NDArray[np.uint32]

_RULES: Final = re.compile(r"^\s*start\s*:", re.MULTILINE)
_GBNF: Final = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_tokenizers: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()


class Grammar:
    """A set of texts. Made by json(), regex(), lark() or gbnf(); checked when it is made.

    A generation under a grammar is one of its texts when it ends by itself; one that `max_tokens` ends is the
    beginning of one. Raises ValueError, with llguidance's message, for what it cannot read.
    """

    def __init__(self, source: str) -> None:
        """`source`: llguidance's own form."""
        self.source = source
        problem = llguidance.LLMatcher.validate_grammar(source)
        if problem and not problem.startswith("WARNING"):
            raise ValueError(f"grammar: {problem}")

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | bool) -> Grammar:
        """JSON documents of a schema (json-schema.org, draft 2020-12), as a dict or as JSON text.

        White space is free where JSON lets it be, but no more than a space or a line break with its indent.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            source = llguidance.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_pattern": r"[ ]?|\n[ ]{0,16}"}
            )
        except ValueError as error:
            raise ValueError(f"grammar: {error}") from error
        return cls(source)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that a regular expression matches from beginning to end. No back references, no looking around."""
        return cls(llguidance.LLMatcher.grammar_from_regex(pattern))

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Texts of a context-free grammar in Lark's notation; its rule `start` is where they begin."""
        return cls(llguidance.LLMatcher.grammar_from_lark(rules))

    @classmethod
    def gbnf(cls, rules: str) -> Grammar:
        """Texts of a grammar in llama.cpp's notation (GBNF), by way of Lark's; `root` is where they begin."""
        try:
            translated = llguidance.gbnf_to_lark.gbnf_to_lark(rules)
        except Exception as error:  # its parser raises the plain class
            raise ValueError(f"grammar: {error}") from error
        return cls.lark(translated)

    @classmethod
    def of(cls, grammar: Grammar | Mapping[str, Any] | str) -> Grammar:
        """The grammar that this seems to be.

        A dict, and text that begins with "{", is a JSON schema; text with a rule `start:` is Lark, with a rule
        `root ::=` GBNF; other text is a regular expression.
        """
        if isinstance(grammar, Grammar):
            return grammar
        if isinstance(grammar, Mapping):
            return cls.json(grammar)
        if not isinstance(grammar, str):
            raise TypeError(
                f"grammar: expected a Grammar, a dict or a str, got {type(grammar).__name__}"
            )
        if grammar.lstrip().startswith("{"):
            return cls.json(grammar)
        if _GBNF.search(grammar):
            return cls.gbnf(grammar)
        return cls.lark(grammar) if _RULES.search(grammar) else cls.regex(grammar)

    def __repr__(self) -> str:
        return f"<plait.Grammar of {len(self.source)} characters>"


class Matchers:
    """Where each of any number of sequences stands in a grammar. Sequences are named by any number."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer) -> None:
        self._ends = sorted(tokenizer.eog)
        self._n_words = (tokenizer.n_vocab + 31) // 32
        self._first = llguidance.LLMatcher(_tokens_of(tokenizer), grammar.source, log_level=0)
        self._check(self._first)
        self._executor = llguidance.LLExecutor()
        self._matchers: dict[int, Any] = {}

    def masks(self, keys: Sequence[int]) -> Masks:
        """The tokens that each sequence may go on with: uint32 (n, (n_vocab + 31) // 32), a bit for each.

        A sequence that has come to the end of its text may only end.
        """
        masks: Masks = np.zeros((len(keys), self._n_words), np.uint32)
        open_ones = []
        for row, key in enumerate(keys):
            matcher = self._matchers.get(key)
            if matcher is None:
                matcher = self._matchers[key] = self._first.deep_copy()
            if matcher.is_stopped():
                for token in self._ends:
                    masks[row, token // 32] |= np.uint32(1 << token % 32)
            else:
                open_ones.append((matcher, row))
        if open_ones:
            signed = masks.view(np.int32)
            if len(open_ones) == 1:
                matcher, row = open_ones[0]
                llguidance.numpy.fill_next_token_bitmask(matcher, signed, row)
            else:
                llguidance.numpy.fill_next_token_bitmask_par(self._executor, open_ones, signed)
            for matcher, _ in open_ones:
                self._check(matcher)
        return masks

    def accept(self, key: int, token: int) -> None:
        """The sequence goes on with this token."""
        matcher = self._matchers.get(key)
        if matcher is None:
            matcher = self._matchers[key] = self._first.deep_copy()
        if not matcher.is_stopped() and not matcher.consume_token(token):
            raise ValueError(f"grammar: token {token} is not allowed here")

    def reset(self, key: int | None = None) -> None:
        """Back to the beginning; None: every sequence."""
        if key is None:
            self._matchers.clear()
        else:
            self._matchers.pop(key, None)

    def _check(self, matcher: Any) -> None:
        if matcher.is_error():
            raise ValueError(f"grammar: {matcher.get_error()}")


class _Wrapped:
    """A tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eog)
        self.bos_token_id = tokenizer.bos
        self.special_token_ids = sorted(tokenizer.control_ids | tokenizer.eog)
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        self._ids: dict[bytes, int] | None = None

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model would write a text in the middle of another: without the space that some put in front."""
        data = text.encode() if isinstance(text, str) else text
        written = "\n" + data.decode("utf-8", "replace")
        ids: list[int] = self._tokenizer.encode(
            written, add_special=False, parse_special=False
        ).tolist()
        while ids and len(data) < sum(len(self.tokens[token]) for token in ids):
            ids = ids[1:]
        return ids if b"".join(self.tokens[token] for token in ids) == data else self._longest(data)

    def _longest(self, data: bytes) -> list[int]:
        """The longest token at each place; bytes that no token covers are left out."""
        if self._ids is None:
            self._ids = {token: i for i, token in enumerate(self.tokens) if token}
        most = max(map(len, self._ids))
        ids, at = [], 0
        while at < len(data):
            ends = range(min(at + most, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is not None:
                ids.append(self._ids[data[at:end]])
            at = end or at + 1
        return ids


def _tokens_of(tokenizer: Tokenizer) -> Any:
    found = _tokenizers.get(tokenizer)
    if found is None:
        if not tokenizer.eog:
            raise UnsupportedError("grammar: the vocabulary has no token that ends a text")
        found = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Wrapped(tokenizer)),
            n_vocab=tokenizer.n_vocab,
            eos_token=sorted(tokenizer.eog),
        )
        _tokenizers[tokenizer] = found
    return found
