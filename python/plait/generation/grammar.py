"""Grammars: constraints on generated text, applied as a mask over tokens at every step.

Needs llguidance.

Source: https://github.com/guidance-ai/llguidance; its docs/syntax.md describes its dialect of Lark.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from plait.arguments import kind, string
from plait.errors import UnsupportedError
from plait.generation.gbnf import to_lark
from plait.generation.grammar_depth import depth_of

try:
    import llguidance
    import llguidance.numpy
except ImportError as error:
    raise UnsupportedError("grammars need llguidance: pip install 'plait[grammar]'") from error

if TYPE_CHECKING:
    from plait.tokenizer import Tokenizer

Masks = npt.NDArray[np.uint32]

# White space between the parts of JSON. Unlimited, some models would write nothing else.
WHITESPACE: Final = r"[ ]?|\n[ ]{0,16}"
_RULES: Final = re.compile(r"^\s*[?!]?start\s*:", re.MULTILINE)
_GBNF: Final = re.compile(r"^\s*root\s*::=", re.MULTILINE)
# The vocabularies in the form of llguidance, and the compiled grammars. No value refers to its keys.
_tokenizers: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()
_compiled: weakref.WeakKeyDictionary[Grammar, weakref.WeakKeyDictionary[Tokenizer, Any]] = (
    weakref.WeakKeyDictionary()
)

# llguidance follows references by recursion, with up to 5 KiB of the stack per level; see depth_of(). Threads of
# callers may have 8 MiB (Linux), 1 MiB (Windows) or less, so grammars are compiled in threads with a larger stack.
_MAX_DEPTH: Final = 2000  # levels
_STACK: Final = 64 << 20  # bytes of address space
_starting = threading.Lock()


class Grammar:
    """A set of texts, created by json(), regex(), lark() or gbnf(), and validated on creation.

    A generation under a grammar that ends by itself is one of these texts; output cut off by
    `max_tokens` is still a valid prefix of one.

    Args:
        source: The grammar in llguidance's internal format.

    Raises:
        ValueError: Rules and references are nested more than 2000 levels deep, or llguidance cannot parse the
            grammar; then the message is its own.
    """

    def __init__(self, source: str) -> None:
        self.source = string(source, "Grammar: source")
        if (depth := depth_of(source)) > _MAX_DEPTH:
            raise ValueError(
                f"grammar: rules and references are nested up to {depth} levels deep, where each rule of a cycle and "
                f"each bracket is a level; the limit is {_MAX_DEPTH}"
            )
        problem = _with_large_stack(llguidance.LLMatcher.validate_grammar, source)
        if problem and not problem.startswith("WARNING"):
            raise ValueError(f"grammar: {problem}")

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | bool) -> Grammar:
        """Create a grammar of the JSON documents that satisfy a schema (json-schema.org, draft 2020-12).

        White space is allowed where JSON allows it, limited to one space, or one line break with
        indentation.

        Args:
            schema: The schema, as a dict or as JSON text. True allows every document.

        Returns:
            The grammar.

        Raises:
            TypeError: The schema is neither a dict nor text.
            ValueError: The schema is invalid.
        """
        if not isinstance(schema, str | bool | Mapping):
            raise TypeError(
                f"Grammar: schema: expected a dict, JSON text or a bool, got {kind(schema)}"
            )
        if schema is False:
            raise ValueError("Grammar: schema is False, which allows no document")
        try:
            text = (
                schema if isinstance(schema, str) else json.dumps({} if schema is True else schema)
            )
        except (TypeError, RecursionError) as error:
            raise ValueError(f"Grammar: schema is not JSON: {error}") from None
        try:
            source = llguidance.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_pattern": WHITESPACE}
            )
        except ValueError as error:
            raise ValueError(f"grammar: {error}") from error
        return cls(source)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Create a grammar of the texts that a regular expression matches as a whole.

        Args:
            pattern: The expression. Back references and look-around are not supported.

        Returns:
            The grammar.

        Raises:
            ValueError: The expression is invalid.
        """
        return cls(llguidance.LLMatcher.grammar_from_regex(string(pattern, "Grammar: pattern")))

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Create a grammar from context-free rules in Lark's notation.

        Args:
            rules: The rules. The start symbol is `start`.

        Returns:
            The grammar.

        Raises:
            ValueError: The rules are invalid.
        """
        return cls(llguidance.LLMatcher.grammar_from_lark(string(rules, "Grammar: rules")))

    @classmethod
    def gbnf(cls, rules: str) -> Grammar:
        """Create a grammar from rules in llama.cpp's notation (GBNF), which are converted to Lark.

        They are matched character by character, so masks take longer than those of json(), regex() and lark(): about
        2 ms instead of 0.1 ms for a vocabulary of 50,000 tokens.

        Args:
            rules: The rules. The start symbol is `root`.

        Returns:
            The grammar.

        Raises:
            ValueError: The rules are invalid.
        """
        return cls.lark(to_lark(string(rules, "Grammar: rules")))

    @classmethod
    def of(cls, grammar: Grammar | Mapping[str, Any] | str) -> Grammar:
        """Create a grammar, detecting its notation.

        Args:
            grammar: A Grammar, which is returned as it is. A dict, or text that starts with "{", is
                a JSON schema. Text with a rule `start:` is Lark, and with a rule `root ::=` GBNF.
                Other text is a regular expression.

        Returns:
            The grammar.

        Raises:
            TypeError: The value is none of these.
            ValueError: The grammar is invalid.
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
    """States of any number of sequences in a grammar. Sequences are identified by integers.

    Compiles the grammar, which may take seconds, unless it was compiled before for the same tokenizer.

    Args:
        grammar: The grammar.
        tokenizer: The model's tokenizer.

    Raises:
        ValueError: The grammar cannot be compiled.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer  # llguidance calls it, but does not keep it alive
        self._ends = sorted(tokenizer.eog)
        self._n_words = (tokenizer.n_vocab + 31) // 32
        self._first = _compiled_for(grammar, tokenizer)
        self._executor = llguidance.LLExecutor()
        self._matchers: dict[int, Any] = {}

    def masks(self, keys: Sequence[int]) -> Masks:
        """Return the tokens that may come next, one row per sequence.

        A sequence whose text is complete may only end.

        Returns:
            uint32 (n, (n_vocab + 31) // 32), one bit per token.
        """
        masks: Masks = np.zeros((len(keys), self._n_words), np.uint32)
        unfinished = []
        for row, key in enumerate(keys):
            matcher = self._matchers.get(key)
            if matcher is None:
                matcher = self._matchers[key] = self._first.deep_copy()
            if matcher.is_stopped():
                for token in self._ends:
                    masks[row, token // 32] |= np.uint32(1 << token % 32)
            else:
                unfinished.append((matcher, row))
        if unfinished:
            signed = masks.view(np.int32)
            if len(unfinished) == 1:
                matcher, row = unfinished[0]
                llguidance.numpy.fill_next_token_bitmask(matcher, signed, row)
            else:
                llguidance.numpy.fill_next_token_bitmask_par(self._executor, unfinished, signed)
            for matcher, _ in unfinished:
                _check(matcher)
        return masks

    def accept(self, key: int, token: int) -> None:
        """Advance a sequence by a token.

        Raises:
            ValueError: The grammar does not allow the token here.
        """
        matcher = self._matchers.get(key)
        if matcher is None:
            matcher = self._matchers[key] = self._first.deep_copy()
        if not matcher.is_stopped() and not matcher.consume_token(token):
            if matcher.is_error():
                raise ValueError(f"grammar: token {token}: {matcher.get_error().splitlines()[0]}")
            raise ValueError(f"grammar: token {token} is not allowed here")

    def reset(self, key: int | None = None) -> None:
        """Return a sequence to the start of the grammar; None resets all sequences."""
        if key is None:
            self._matchers.clear()
        else:
            self._matchers.pop(key, None)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise ValueError(f"grammar: {matcher.get_error()}")


def _compiled_for(grammar: Grammar, tokenizer: Tokenizer) -> Any:
    """Return a matcher at the start of a grammar. It is shared and must only be copied, never changed."""
    by_tokenizer = _compiled.setdefault(grammar, weakref.WeakKeyDictionary())
    found = by_tokenizer.get(tokenizer)
    if found is None:
        found = by_tokenizer[tokenizer] = _compile(grammar, tokenizer)
    return found


def _compile(grammar: Grammar, tokenizer: Tokenizer) -> Any:
    made = _with_large_stack(
        llguidance.LLMatcher, _tokens_of(tokenizer), grammar.source, log_level=0
    )
    _check(made)
    return made


def _with_large_stack(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function in a thread whose stack is large enough for any grammar within the limit."""
    executor = ThreadPoolExecutor(1, "plait-grammar")
    with _starting:  # the size applies to the whole process; a thread that starts meanwhile gets more than it needs
        before = threading.stack_size(_STACK)
        try:
            running = executor.submit(function, *arguments, **options)  # starts the thread
        finally:
            threading.stack_size(before)
    executor.shutdown(wait=False)
    return running.result()


class _Wrapped:
    """Adapter from Tokenizer to the interface that llguidance requires. Does not keep the tokenizer alive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = weakref.ref(tokenizer)
        self.eos_token_id = min(tokenizer.eog)
        self.bos_token_id = tokenizer.bos
        self.special_token_ids = sorted(tokenizer.control_ids | tokenizer.eog)
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        self._ids: dict[bytes, int] | None = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Encode a text as in the middle of a longer one: without the space that some tokenizers put first."""
        data = text.encode() if isinstance(text, str) else text
        written = "\n" + data.decode("utf-8", "replace")
        tokenizer = self._tokenizer()
        assert tokenizer is not None  # the Matchers that call this keep it alive
        ids: list[int] = tokenizer.encode(written, add_special=False, parse_special=False).tolist()
        while ids and len(data) < sum(len(self.tokens[token]) for token in ids):
            ids = ids[1:]
        return ids if b"".join(self.tokens[token] for token in ids) == data else self._longest(data)

    def _longest(self, data: bytes) -> list[int]:
        """Encode greedily with the longest token at each position; bytes that no token covers are skipped."""
        if self._ids is None:
            self._ids = {token: i for i, token in enumerate(self.tokens) if token}
        longest = max(map(len, self._ids))
        ids, at = [], 0
        while at < len(data):
            ends = range(min(at + longest, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is not None:
                ids.append(self._ids[data[at:end]])
            at = end or at + 1
        return ids


def _tokens_of(tokenizer: Tokenizer) -> Any:
    found = _tokenizers.get(tokenizer)
    if found is None:
        if not tokenizer.eog:
            raise UnsupportedError("grammar: the vocabulary has no end-of-generation token")
        found = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Wrapped(tokenizer)),
            n_vocab=tokenizer.n_vocab,
            eos_token=sorted(tokenizer.eog),
        )
        _tokenizers[tokenizer] = found
    return found
