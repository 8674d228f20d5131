"""Sampler: chooses the next token from logits."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core
from plait.arguments import expect, integer, items, shown, to_float

if TYPE_CHECKING:
    from plait.generation.grammar import Grammar, Matchers
    from plait.tokenizer import Tokenizer

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
RowFunction = Callable[[Rows, npt.NDArray[np.int32]], "Rows | None"]


class Sampler:
    """Chooses tokens from rows of logits: a chain of methods that filter or change the logits, then a draw.

    Each method works on the probabilities softmax(logits) of the tokens that the previous methods
    kept. The methods in their default order, each with the values that disable it:

    - "bias": adds `logit_bias`, forbids `banned`, and forbids all but `allowed`. Disabled if none
      is given.
    - "penalties": penalises the last `penalty_last_n` tokens of the sequence. Disabled if
      `repetition_penalty` is 1 and the others are 0.
    - "dry": a token that would continue a repetition of n >= dry_allowed_length tokens loses
      dry_multiplier * dry_base ** (n - dry_allowed_length). Disabled if `dry_multiplier` is 0.
      (p-e-w 2024, github.com/oobabooga/text-generation-webui/pull/5677)
    - "top_n_sigma": keeps logits at most `top_n_sigma` standard deviations below the highest.
      Disabled by 0. (Tang et al. 2024, arXiv:2411.07641)
    - "top_k": keeps the k highest logits; of equal ones the lower ids. Disabled by 0. (Fan et al.
      2018, arXiv:1805.04833)
    - "typical": keeps the fewest tokens with a total probability of at least `typical_p` whose
      surprise is closest to the entropy. Disabled by 1. (Meister et al. 2022, arXiv:2202.00666)
    - "top_p": keeps the fewest most likely tokens with a total probability of at least `top_p`.
      Disabled by 1. (Holtzman et al. 2020, arXiv:1904.09751)
    - "min_p": keeps tokens at least `min_p` times as likely as the most likely one. Disabled by 0.
      (Nguyen et al. 2024, arXiv:2407.01082)
    - "xtc": with probability `xtc_probability`, removes all tokens with a probability of at least
      `xtc_threshold` except the least likely of them. Disabled by 0. (p-e-w 2024,
      github.com/oobabooga/text-generation-webui/pull/6335)
    - "temperature": divides logits by `temperature`; 0 is greedy (the highest logit, of equal ones
      the lowest id). If `dynamic_range` r is not 0, the temperature lies between t - r and t + r,
      in proportion to (entropy / log n) ** dynamic_exponent. Disabled if `temperature` is 1 and
      `dynamic_range` is 0. (kalomaze 2023, github.com/ggml-org/llama.cpp/pull/4972)
    - "mirostat": version 2, keeps the surprise of tokens near `mirostat_tau` bits. Disabled by 0.
      When enabled, the default order is bias, penalties, dry, temperature, mirostat. (Basu et al.
      2021, arXiv:2007.14966)

    The sampler stores a state per sequence: its tokens, and the states of mirostat and the grammar.
    Random numbers are a function of `seed`, the sequence and the number of draws for that sequence,
    so the tokens of a sequence do not depend on what else is sampled. A copy has the same
    parameters and seed, and no sequences; an unpickled one has no tokenizer either.

    Parameters are available as attributes and cannot be changed. Calls from several threads are
    serialised.

    Args:
        temperature: Temperature, at least 0.
        top_k: Number of tokens that "top_k" keeps.
        top_p: Probability mass that "top_p" keeps.
        min_p: Threshold of "min_p" relative to the most likely token.
        typical_p: Probability mass that "typical" keeps.
        top_n_sigma: Threshold of "top_n_sigma" in standard deviations.
        dynamic_range: Half the width of the range of dynamic temperatures.
        dynamic_exponent: Exponent of dynamic temperatures.
        xtc_probability: Probability of applying "xtc" to a token.
        xtc_threshold: Min probability of the tokens that "xtc" removes.
        mirostat_tau: Target surprise in bits.
        mirostat_eta: Learning rate of mirostat.
        repetition_penalty: Divides positive logits of repeated tokens and multiplies negative ones
            (Keskar et al. 2019, arXiv:1909.05858).
        presence_penalty: Subtracted from the logits of repeated tokens (OpenAI's API reference).
        frequency_penalty: Subtracted from the logits once per repetition (OpenAI's API reference).
        penalty_last_n: Number of tokens that penalties consider. None: all.
        dry_multiplier: Strength of "dry".
        dry_base: Growth of the "dry" penalty per repeated token.
        dry_allowed_length: Length of repetitions that "dry" allows, in tokens.
        dry_last_n: Number of tokens that "dry" considers. None: all.
        dry_breakers: Token ids, and texts within tokens, across which "dry" finds no repetition. Such tokens are never
            penalised.
        logit_bias: Maps token ids to numbers that are added to their logits; -inf forbids a token.
        banned: Ids of forbidden tokens.
        allowed: Ids of the only tokens that are allowed. None: all.
        forced: The first tokens of every sequence.
        order: Names of methods and functions in the order of their application, each at most once;
            a method that is not listed does not apply. None: the order above, which is
            Sampler.ORDER. A function is called as f(row, tokens), with a float32 row (n_vocab,) in
            which removed tokens are -inf, and the int32 ids (n,) of the sequence. It changes the
            row, or returns another.
        grammar: A plait.Grammar, or a schema or text as in Grammar.of(). Needs llguidance
            (plait[grammar]).
        tokenizer: The model's tokenizer, which a grammar and texts in `dry_breakers` require.
            generate() passes it itself.
        seed: Seed of the random numbers. None: a random seed, available as the attribute `seed`.

    Raises:
        ValueError: A parameter is out of range.
    """

    ORDER: ClassVar[tuple[str, ...]] = (
        "bias", "penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature",
    )  # fmt: skip
    ORDER_OF_MIROSTAT: ClassVar[tuple[str, ...]] = (
        "bias", "penalties", "dry", "temperature", "mirostat",
    )  # fmt: skip

    def __init__(
        self,
        temperature: SupportsFloat = 0.8,
        top_k: SupportsIndex = 40,
        top_p: SupportsFloat = 0.95,
        min_p: SupportsFloat = 0.05,
        *,
        typical_p: SupportsFloat = 1.0,
        top_n_sigma: SupportsFloat = 0.0,
        dynamic_range: SupportsFloat = 0.0,
        dynamic_exponent: SupportsFloat = 1.0,
        xtc_probability: SupportsFloat = 0.0,
        xtc_threshold: SupportsFloat = 0.1,
        mirostat_tau: SupportsFloat = 0.0,
        mirostat_eta: SupportsFloat = 0.1,
        repetition_penalty: SupportsFloat = 1.0,
        presence_penalty: SupportsFloat = 0.0,
        frequency_penalty: SupportsFloat = 0.0,
        penalty_last_n: SupportsIndex | None = 64,
        dry_multiplier: SupportsFloat = 0.0,
        dry_base: SupportsFloat = 1.75,
        dry_allowed_length: SupportsIndex = 2,
        dry_last_n: SupportsIndex | None = None,
        dry_breakers: Iterable[int | str] = ("\n", ":", '"', "*"),
        logit_bias: Mapping[int, SupportsFloat] | None = None,
        banned: Iterable[SupportsIndex] = (),
        allowed: Iterable[SupportsIndex] | None = None,
        forced: Iterable[SupportsIndex] = (),
        order: Iterable[str | RowFunction] | None = None,
        grammar: Grammar | Mapping[str, Any] | str | None = None,
        tokenizer: Tokenizer | None = None,
        seed: SupportsIndex | None = None,
    ) -> None:
        self.temperature = _number("temperature", temperature, _at_least(0))
        self.top_k = _integer("top_k", top_k, 0)
        self.top_p = _number("top_p", top_p, _FRACTION)
        self.min_p = _number("min_p", min_p, _PROBABILITY)
        self.typical_p = _number("typical_p", typical_p, _FRACTION)
        self.top_n_sigma = _number("top_n_sigma", top_n_sigma, _at_least(0))
        self.dynamic_range = _number("dynamic_range", dynamic_range, _at_least(0))
        self.dynamic_exponent = _number("dynamic_exponent", dynamic_exponent, _at_least(0))
        self.xtc_probability = _number("xtc_probability", xtc_probability, _PROBABILITY)
        self.xtc_threshold = _number("xtc_threshold", xtc_threshold, _FRACTION)
        self.mirostat_tau = _number("mirostat_tau", mirostat_tau, _at_least(0))
        self.mirostat_eta = _number("mirostat_eta", mirostat_eta, _at_least(0))
        self.repetition_penalty = _number("repetition_penalty", repetition_penalty, _POSITIVE)
        self.presence_penalty = _number("presence_penalty", presence_penalty, _FINITE)
        self.frequency_penalty = _number("frequency_penalty", frequency_penalty, _FINITE)
        self.penalty_last_n = _last_n("penalty_last_n", penalty_last_n)
        self.dry_multiplier = _number("dry_multiplier", dry_multiplier, _at_least(0))
        self.dry_base = _number("dry_base", dry_base, _at_least(1))
        self.dry_allowed_length = _integer("dry_allowed_length", dry_allowed_length, 1)
        self.dry_last_n = _last_n("dry_last_n", dry_last_n)
        self.dry_breakers = tuple(
            text if isinstance(text, str) else _integer("dry_breakers", text, 0)
            for text in items(dry_breakers, "Sampler: dry_breakers", "texts and token ids")
        )
        self._set_token_ids(logit_bias, banned, allowed, forced)
        self.order = self._checked_order(order)
        self._has_default_order = order is None
        self.seed = (
            secrets.randbits(64) if seed is None else _integer("seed", seed, 0, (1 << 64) - 1)
        )
        self.grammar: Grammar | None = None
        if grammar is not None:
            from plait.generation.grammar import Grammar

            self.grammar = Grammar.of(grammar)
        self._breaker_ids: set[int] | None = None
        self._in_use: set[int] = set()
        self._clones: list[Sampler] = []
        self._acquiring = threading.RLock()  # shared with the clones; re-entered by finalizers
        self._tokenizer: Tokenizer | None = None
        self._matchers: Matchers | None = None
        self._made = None if self._needs_text() else self._make()
        if tokenizer is not None:
            self.bind(tokenizer)

    def _set_token_ids(
        self,
        logit_bias: Mapping[int, SupportsFloat] | None,
        banned: Iterable[SupportsIndex],
        allowed: Iterable[SupportsIndex] | None,
        forced: Iterable[SupportsIndex],
    ) -> None:
        if logit_bias is not None:
            expect(logit_bias, Mapping, "Sampler: logit_bias", "a dict of numbers by token id")
        self.logit_bias = {
            _integer("logit_bias", token, 0): _number("logit_bias", added, _BIAS)
            for token, added in dict(logit_bias or {}).items()
        }
        self.banned = frozenset(_token_ids("banned", banned))
        self.allowed = None if allowed is None else frozenset(_token_ids("allowed", allowed))
        self.forced = tuple(_token_ids("forced", forced))
        if self.allowed is not None and not self.allowed - self.banned:
            raise ValueError("Sampler: every allowed token is banned")
        ids = {*self.logit_bias, *self.banned, *(self.allowed or ()), *self.forced}
        self._max_id = max(ids, default=-1)

    def __call__(self, logits_row: npt.ArrayLike, seq: SupportsIndex = 0) -> int:
        """Choose the next token of a sequence.

        Args:
            logits_row: float32 (n_vocab,); -inf forbids a token.
            seq: The sequence.

        Returns:
            The id of the token.

        Raises:
            TypeError: The dtype is not float32.
            ValueError: The shape is wrong, the row holds NaN or +inf, or no token is left.
            IndexError: A parameter holds a token id that is not below n_vocab.
        """
        row = _checked(logits_row, 1)
        return int(self.sample(row[np.newaxis], [_sequence(seq)])[0])

    def sample(self, logits: npt.ArrayLike, seqs: Iterable[SupportsIndex]) -> npt.NDArray[np.int32]:
        """Choose the next tokens of several sequences.

        Releases the GIL unless the order contains functions.

        Args:
            logits: float32 (n, n_vocab); -inf forbids a token.
            seqs: The n sequences, all different.

        Returns:
            int32 (n,), the token ids.

        Raises:
            TypeError: The dtype is not float32.
            ValueError: As for a call, or a sequence occurs twice. No sequence has changed.
            IndexError: A parameter holds a token id that is not below n_vocab.
        """
        keys = [_sequence(seq) for seq in items(seqs, "Sampler: seqs", "sequences")]
        chain, _ = self._chain()
        rows, masks, first = self._prepared(_checked(logits, 2), keys)
        tokens = chain.sample(rows, keys, masks, first)
        if self._matchers is not None:
            for key, token in zip(keys, tokens.tolist(), strict=True):
                self._matchers.accept(key, token)
        return tokens

    def probabilities(self, logits_row: npt.ArrayLike, seq: SupportsIndex = 0) -> Floats:
        """Return the distribution from which the next token of a sequence would be drawn.

        Nothing is drawn.

        Args:
            logits_row: float32 (n_vocab,).
            seq: The sequence.

        Returns:
            float64 (n_vocab,).

        Raises:
            ValueError: As for a call, like its other exceptions.
        """
        keys = [_sequence(seq)]
        chain, _ = self._chain()
        rows, masks, first = self._prepared(_checked(logits_row, 1)[np.newaxis], keys)
        probabilities: Floats = chain.probabilities(rows, keys, masks, first)[0]
        return probabilities

    def start(self, seq: SupportsIndex, tokens: Iterable[SupportsIndex] = ()) -> None:
        """Restart a sequence with a prompt, which penalties consider. Its random numbers continue.

        Args:
            seq: The sequence.
            tokens: Token ids of the prompt.
        """
        key = _sequence(seq)
        self._chain()[0].start(key, _token_ids("tokens", tokens))
        if self._matchers is not None:
            self._matchers.reset(key)

    def accept(self, seq: SupportsIndex, tokens: Iterable[SupportsIndex]) -> None:
        """Append tokens that were not drawn by this sampler.

        Args:
            seq: The sequence.
            tokens: The token ids.

        Raises:
            ValueError: The grammar does not allow a token. Until start() or reset(), the sequence can then only end.
        """
        key = _sequence(seq)
        chosen = _token_ids("tokens", tokens)
        if self._matchers is not None:
            for token in chosen:
                self._matchers.accept(key, token)
        self._chain()[0].accept(key, chosen)

    def tokens(self, seq: SupportsIndex = 0) -> npt.NDArray[np.int32]:
        """Return the tokens of a sequence, int32 (n,).

        Args:
            seq: The sequence.
        """
        return self._chain()[0].tokens(_sequence(seq))

    def reset(self, seq: SupportsIndex | None = None) -> None:
        """Forget a sequence, so that its random numbers start over.

        Args:
            seq: The sequence. None: all sequences.
        """
        key = None if seq is None else _sequence(seq)
        if self._made is not None:
            self._made[0].reset(key)
        if self._matchers is not None:
            self._matchers.reset(key)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Set the tokenizer, which a grammar and texts in `dry_breakers` require.

        Compiles the grammar, which may take seconds.

        Args:
            tokenizer: The model's tokenizer.

        Raises:
            ValueError: The sampler is bound to another tokenizer, or the grammar cannot be compiled.
        """
        if not self._is_unbound(tokenizer):
            return
        with self._acquiring:  # a second thread waits instead of compiling the grammar again
            if not self._is_unbound(tokenizer):
                return
            if self.grammar is not None:
                from plait.generation.grammar import Matchers

                self._matchers = Matchers(self.grammar, tokenizer)
            self._tokenizer = tokenizer
            # Last, because other threads then use the sampler without the lock.
            self._made = self._make()

    def _is_unbound(self, tokenizer: Tokenizer) -> bool:
        """Return whether the sampler still has to be bound. Raise ValueError if it is bound to another tokenizer."""
        if not self._needs_text():
            return False
        if self._tokenizer is not None and self._tokenizer is not tokenizer:
            raise ValueError(
                "Sampler: it is bound to the tokenizer of another model; create one sampler per model"
            )
        return self._made is None

    def replace(self, **changes: Any) -> Sampler:
        """Return a sampler with some parameters changed, and without sequences.

        Args:
            changes: New values of parameters, by name.

        Raises:
            TypeError: A name is unknown.
            ValueError: As for Sampler.
        """
        changed = type(self)(**{**self._arguments(), **changes})
        if self._tokenizer is not None and "tokenizer" not in changes:
            changed.bind(self._tokenizer)
        return changed

    def __copy__(self) -> Sampler:
        copied = type(self)(**self._arguments())
        if self._tokenizer is not None:
            copied.bind(self._tokenizer)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Sampler:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that create an equal sampler."""
        left_out = {"tokenizer", "order"} if self._has_default_order else {"tokenizer"}
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if name not in left_out}

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        shown = ["temperature", "top_k", "top_p", "min_p"]
        shown += [
            name
            for name in defaults
            if name not in (*shown, "seed", "order", "tokenizer", "grammar")
            and getattr(self, name) not in (defaults[name].default, {}, frozenset())
        ]
        values = [f"{name}={getattr(self, name)}" for name in (*shown, "seed")]
        if self.grammar is not None:
            values.append(f"grammar={self.grammar}")
        return f"Sampler({', '.join(values)})"

    def _refuse_ids(self, n_vocab: int) -> NoReturn:
        for name in ("logit_bias", "banned", "allowed", "forced"):
            for token in sorted(getattr(self, name) or ()):
                if token >= n_vocab:
                    raise IndexError(
                        f"Sampler: {name} has the token id {token}, which is outside the vocabulary of {n_vocab} tokens"
                    )
        raise AssertionError

    def _needs_text(self) -> bool:
        return self.grammar is not None or (
            "dry" in self.order
            and self.dry_multiplier > 0
            and any(isinstance(breaker, str) for breaker in self.dry_breakers)
        )

    def _checked_order(
        self, order: Iterable[str | RowFunction] | None
    ) -> tuple[str | RowFunction, ...]:
        if order is None:
            return self.ORDER_OF_MIROSTAT if self.mirostat_tau > 0 else self.ORDER
        known = {*self.ORDER, *self.ORDER_OF_MIROSTAT}
        given = tuple(items(order, "Sampler: order", "names and functions"))
        for i, stage in enumerate(given):
            if not callable(stage) and (not isinstance(stage, str) or stage not in known):
                raise ValueError(
                    f"Sampler: order has {stage!r}; expected functions and {', '.join(sorted(known))}"
                )
            if stage in given[:i]:
                raise ValueError(f"Sampler: order has {stage!r} twice")
        return given

    def _stage(self, name: str) -> tuple[Any, ...] | None:
        """Return the arguments of SamplerChain for a method, or None if the method is disabled."""
        if name == "bias":
            added = {**self.logit_bias, **dict.fromkeys(self.banned, -math.inf)}
            on = bool(added) or self.allowed is not None
            return (name, added, self.allowed or frozenset()) if on else None
        if name == "penalties":
            strengths = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
            on = strengths != (1, 0, 0) and self.penalty_last_n != 0
            return (name, *strengths, _backwards(self.penalty_last_n)) if on else None
        if name == "dry":
            if self.dry_multiplier == 0:
                return None
            return (
                name, self.dry_multiplier, self.dry_base, self.dry_allowed_length,
                _backwards(self.dry_last_n), self._breakers(),
            )  # fmt: skip
        if name == "xtc":
            on = self.xtc_probability > 0
            return (name, self.xtc_probability, self.xtc_threshold) if on else None
        if name == "temperature":
            on = self.temperature != 1 or self.dynamic_range > 0
            if self.temperature == 0 and self.dynamic_range == 0:
                return "top_k", 1
            values = (self.temperature, self.dynamic_range, self.dynamic_exponent)
            return (name, *values) if on else None
        if name == "mirostat":
            return (name, self.mirostat_tau, self.mirostat_eta) if self.mirostat_tau > 0 else None
        parameter, off = _FILTERS[name]
        value = getattr(self, parameter)
        return None if value == off else (name, value)

    def acquire(self, prompt: Iterable[SupportsIndex], sample: int = 0) -> tuple[Sampler, int]:
        """Start a sequence whose random numbers depend only on the seed, the prompt and the sample.

        Args:
            prompt: Token ids of the prompt.
            sample: Index among the generations of the prompt.

        Returns:
            The sampler to call, and the sequence to pass to it. The sampler is a copy if another sequence with the same
            prompt and sample is in use. Pass both to release() at the end.

        Raises:
            ValueError: The index is negative or above 2^31 - 1.
        """
        ids = _token_ids("prompt", prompt)
        number = _integer("sample", sample, 0)
        data = np.array([*ids, number], np.int64).tobytes()
        key = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        with self._acquiring:
            sampler = next((one for one in (self, *self._clones) if key not in one._in_use), None)
            if sampler is None:
                sampler = self._clone()
                self._clones.append(sampler)
            sampler._in_use.add(key)
            sampler.reset(key)
            sampler.start(key, ids)
        return sampler, key

    def release(self, key: int) -> None:
        """End a sequence that acquire() started.

        Args:
            key: The sequence.
        """
        with self._acquiring:
            self.reset(key)
            self._in_use.discard(key)

    def _clone(self) -> Sampler:
        """Return a copy without sequences that shares the tables of this sampler."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._in_use, clone._clones = set(), []
        if self.grammar is not None and self._tokenizer is not None:
            from plait.generation.grammar import Matchers

            clone._matchers = Matchers(self.grammar, self._tokenizer)
        clone._made = None if self._made is None else clone._make()
        return clone

    def _breakers(self) -> set[int]:
        if self._breaker_ids is not None:
            return self._breaker_ids
        texts = [text.encode() for text in self.dry_breakers if isinstance(text, str)]
        ids = {breaker for breaker in self.dry_breakers if not isinstance(breaker, str)}
        if texts and self._tokenizer is not None:
            for token in range(self._tokenizer.n_vocab):
                data = self._tokenizer.token_bytes(token)
                if any(text in data for text in texts):
                    ids.add(token)
        self._breaker_ids = ids
        return ids

    def _chain(self) -> tuple[_core.SamplerChain, list[RowFunction | int]]:
        if self._made is None:
            what = "a grammar needs" if self.grammar is not None else "texts in dry_breakers need"
            raise ValueError(f"Sampler: {what} a tokenizer; pass tokenizer= or call bind()")
        return self._made

    def _make(self) -> tuple[_core.SamplerChain, list[RowFunction | int]]:
        """Create the chain.

        Returns:
            The chain, and each function, preceded by the number of chain stages before the function.
        """
        stages: list[tuple[Any, ...]] = []
        plan: list[RowFunction | int] = []
        greedy = self.temperature == 0 and self.dynamic_range == 0 and "temperature" in self.order
        simple = self.xtc_probability == 0 and self.typical_p == 1
        for i, name in enumerate(self.order):
            if callable(name):
                plan += [len(stages), name]
            elif greedy and simple and name in _KEEP_BEST and not _changes_logits(self.order[i:]):
                continue  # the draw takes the most likely token, which this method would keep
            else:
                stage = self._stage(name)
                stages += [stage] if stage is not None else []
        return _core.SamplerChain(stages, list(self.forced), self.seed), plan

    def _prepared(
        self, rows: Rows, keys: list[int]
    ) -> tuple[Rows, npt.NDArray[np.uint32] | None, int]:
        """Apply all functions.

        Returns:
            The rows, the masks that are still to be applied, and the next stage of the chain.
        """
        chain, plan = self._chain()
        if self._max_id >= rows.shape[1]:
            self._refuse_ids(rows.shape[1])
        masks = None if self._matchers is None else self._matchers.masks(keys)
        done = 0
        for before, function in zip(plan[::2], plan[1::2], strict=True):
            assert isinstance(before, int)
            assert callable(function)
            rows = chain.apply(rows, keys, masks, done, before)
            done, masks = before, None
            for i, key in enumerate(keys):
                changed = function(rows[i], chain.tokens(key))
                if changed is not None:
                    rows[i] = changed
        return rows, masks, done


_MAX_INT32: Final = (1 << 31) - 1
_Check = tuple[str, Callable[[float], bool]]
_FINITE: Final[_Check] = ("finite", math.isfinite)
_POSITIVE: Final[_Check] = ("finite and above 0", lambda x: 0 < x < math.inf)
_FRACTION: Final[_Check] = ("in (0, 1]", lambda x: 0 < x <= 1)
_PROBABILITY: Final[_Check] = ("in [0, 1]", lambda x: 0 <= x <= 1)
_BIAS: Final[_Check] = ("finite or -inf", lambda x: x < math.inf)

# Maps a method to its parameter and the value that disables it.
_FILTERS: Final = {
    "top_n_sigma": ("top_n_sigma", 0),
    "top_k": ("top_k", 0),
    "typical": ("typical_p", 1),
    "top_p": ("top_p", 1),
    "min_p": ("min_p", 0),
}
_KEEP_BEST: Final = {"top_n_sigma", "top_k", "top_p", "min_p"}
_CHANGE_LOGITS: Final = {
    "bias",
    "penalties",
    "dry",
}  # so that another token may be the most likely one


def binds_slowly(sampler: object, seed: SupportsIndex | None) -> bool:
    """Return whether bind() may take long: it compiles a grammar or reads the whole vocabulary.

    Args:
        sampler: A sampler of any kind.
        seed: A seed for a copy of the sampler, which is then to be bound. None: the sampler itself is.
    """
    return (
        isinstance(sampler, Sampler)
        and sampler._needs_text()
        and (sampler._made is None or seed is not None)
    )


def _at_least(low: float) -> _Check:
    return f"finite and at least {low}", lambda x: low <= x < math.inf


def _changes_logits(order: tuple[str | RowFunction, ...]) -> bool:
    return any(callable(name) or name in _CHANGE_LOGITS for name in order)


def _number(name: str, value: SupportsFloat, check: _Check) -> float:
    expected, valid = check
    result = to_float(value, f"Sampler: {name}")
    if not valid(result):
        raise ValueError(f"Sampler: {name} is {shown(value)}; it must be {expected}")
    return result


def _integer(name: str, value: SupportsIndex, low: int, high: int = _MAX_INT32) -> int:
    return integer(value, f"Sampler: {name}", low, high)


def _token_ids(name: str, tokens: Iterable[SupportsIndex]) -> list[int]:
    return [_integer(name, token, 0) for token in items(tokens, f"Sampler: {name}", "token ids")]


def _last_n(name: str, value: SupportsIndex | None) -> int | None:
    return None if value is None else _integer(name, value, 0)


def _backwards(last_n: int | None) -> int:
    return -1 if last_n is None else last_n


def _sequence(seq: SupportsIndex) -> int:
    return integer(seq, "Sampler: seq", 0, (1 << 64) - 1)


def _checked(logits: npt.ArrayLike, axes: int) -> Rows:
    rows = np.asarray(logits)
    if rows.dtype != np.float32:
        raise TypeError(f"Sampler: expected float32 logits, got {rows.dtype}")
    if rows.ndim != axes or rows.shape[-1] == 0:
        shape = "(n_vocab,)" if axes == 1 else "(n, n_vocab)"
        raise ValueError(f"Sampler: expected logits of shape {shape}, got {rows.shape}")
    return np.ascontiguousarray(rows)
