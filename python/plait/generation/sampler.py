"""Drawing the next token from logits."""

from __future__ import annotations

import inspect
import math
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait import _core

if TYPE_CHECKING:
    from plait.generation.grammar import Grammar, Matchers
    from plait.tokenizer import Tokenizer

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
RowFunction = Callable[[Rows, npt.NDArray[np.int32]], "Rows | None"]


class Sampler:
    """Chooses tokens from rows of logits: methods that narrow or change them, in order, then a draw.

    Each method works on what the one before left over, on the probabilities softmax(logits) of the tokens that are
    still there; the token is drawn from those that are left at the end. The methods, in the order that they have unless
    `order` says otherwise, with the values that switch them off in brackets:

    - "bias": `logit_bias` (token id to a number that is added; -inf forbids), `banned` ids, and `allowed` ids, beside
      which every other is forbidden [none].
    - "penalties": for tokens among the last `penalty_last_n` (None: all). `repetition_penalty` divides a positive
      logit and multiplies another [1] (Keskar et al. 2019, arXiv:1909.05858); `frequency_penalty` is subtracted for
      each time [0], `presence_penalty` once [0] (OpenAI's API reference).
    - "dry": a token that would continue a repetition of n tokens, n at least `dry_allowed_length`, loses
      dry_multiplier * dry_base ** (n - dry_allowed_length) [dry_multiplier 0]. It looks `dry_last_n` tokens back (None:
      all) and not across `dry_breakers`, ids or texts that a token contains (p-e-w 2024,
      github.com/oobabooga/text-generation-webui/pull/5677).
    - "top_n_sigma": logits at most `top_n_sigma` standard deviations below the highest [0] (Tang et al. 2024,
      arXiv:2411.07641).
    - "top_k": the k highest, lower ids first among equals [0] (Fan et al. 2018, arXiv:1805.04833).
    - "typical": the fewest tokens with at least `typical_p` together whose surprise is nearest to the entropy [1]
      (Meister et al. 2022, arXiv:2202.00666).
    - "top_p": the fewest most likely tokens with at least p together [1] (Holtzman et al. 2020, arXiv:1904.09751).
    - "min_p": tokens at least p times as likely as the likeliest [0] (Nguyen et al. 2024, arXiv:2407.01082).
    - "xtc": with `xtc_probability` [0], of the tokens at least `xtc_threshold` likely all go but the least likely one
      (p-e-w 2024, github.com/oobabooga/text-generation-webui/pull/6335).
    - "temperature": logits / temperature; 0 is greedy, the highest logit, the lowest id of equals. With
      `dynamic_range` r [0] the temperature is between t - r and t + r, as (entropy / log n) ** `dynamic_exponent` is
      between 0 and 1 (kalomaze 2023, github.com/ggml-org/llama.cpp/pull/4972).
    - "mirostat": version 2, which keeps the surprise of tokens near `mirostat_tau` bits [0], learning at the rate
      `mirostat_eta` (Basu et al. 2021, arXiv:2007.14966). Where it is on, the order is bias, penalties, dry,
      temperature, mirostat.

    `order`: names of methods and functions, each at most once; what it leaves out does not apply. A function is called
    as f(row, tokens) with a float32 row (n_vocab,) of its own, -inf where a token has gone, and the int32 ids (n,) that
    the sequence holds as far as the sampler knows; it changes the row or returns another. `Sampler.ORDER` is the usual
    order: order=(f, *Sampler.ORDER).

    `forced`: the first tokens of every sequence. `grammar`: a plait.Grammar, or what Grammar.of() makes one of: a JSON
    schema, a regular expression, or rules in Lark's or GBNF's notation; needs llguidance (plait[grammar]). `tokenizer`:
    the model's, which a grammar and texts among `dry_breakers` need; generate() gives it by itself.

    Every sequence has a state of its own, named by any number: the tokens that it knows (start(), accept() and what was
    drawn), mirostat's and the grammar's. Random numbers are a function of (seed, sequence, how many were drawn of it),
    so the tokens of a sequence depend on `seed` and its own logits, not on what else is sampled in between. `seed` None
    draws one; the attribute tells it.

    All is fixed when it is made; attributes tell what was given. Raises ValueError for parameters out of range. Calls
    from several threads take turns.
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
        self.top_p = _number("top_p", top_p, _SHARE)
        self.min_p = _number("min_p", min_p, _PROBABILITY)
        self.typical_p = _number("typical_p", typical_p, _SHARE)
        self.top_n_sigma = _number("top_n_sigma", top_n_sigma, _at_least(0))
        self.dynamic_range = _number("dynamic_range", dynamic_range, _at_least(0))
        self.dynamic_exponent = _number("dynamic_exponent", dynamic_exponent, _at_least(0))
        self.xtc_probability = _number("xtc_probability", xtc_probability, _PROBABILITY)
        self.xtc_threshold = _number("xtc_threshold", xtc_threshold, _SHARE)
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
            for text in dry_breakers
        )
        self.logit_bias = {
            _integer("logit_bias", token, 0): _number("logit_bias", added, _BIAS)
            for token, added in dict(logit_bias or {}).items()
        }
        self.banned = frozenset(_integer("banned", token, 0) for token in banned)
        self.allowed = (
            None
            if allowed is None
            else frozenset(_integer("allowed", token, 0) for token in allowed)
        )
        self.forced = tuple(_integer("forced", token, 0) for token in forced)
        self.order = self._checked_order(order)
        self.seed = (
            secrets.randbits(64) if seed is None else _integer("seed", seed, 0, (1 << 64) - 1)
        )
        if self.allowed is not None and not self.allowed - self.banned:
            raise ValueError("Sampler: allowed is without a token that is not banned")
        self.grammar: Grammar | None = None
        if grammar is not None:
            from plait.generation.grammar import Grammar

            self.grammar = Grammar.of(grammar)
        self._tokenizer: Tokenizer | None = None
        self._matchers: Matchers | None = None
        self._made = None if self._needs_text() else self._make()
        if tokenizer is not None:
            self.bind(tokenizer)

    def __call__(self, logits_row: npt.ArrayLike, seq: SupportsIndex = 0) -> int:
        """The next token of sequence `seq`.

        `logits_row`: float32 of shape (n_vocab,), of which -inf forbids a token. Raises TypeError for another dtype,
        ValueError for another shape, NaN, +inf, and where no token is left.
        """
        row = _checked(logits_row, 1)
        return int(self.sample(row[np.newaxis], [_sequence(seq)])[0])

    def sample(self, logits: npt.ArrayLike, seqs: Iterable[SupportsIndex]) -> npt.NDArray[np.int32]:
        """The next tokens of several sequences, int32 (n,), without the GIL where no function is in the order.

        `logits`: float32 of shape (n, n_vocab). Raises as the call for one does, and ValueError for a sequence that is
        there twice; then no sequence has changed.
        """
        keys = [_sequence(seq) for seq in seqs]
        chain, _ = self._chain()
        rows, masks, first = self._prepared(_checked(logits, 2), keys)
        tokens = chain.sample(rows, keys, masks, first)
        if self._matchers is not None:
            for key, token in zip(keys, tokens.tolist(), strict=True):
                self._matchers.accept(key, token)
        return tokens

    def probabilities(self, logits_row: npt.ArrayLike, seq: SupportsIndex = 0) -> Floats:
        """What the next token of `seq` would be drawn from: float64 (n_vocab,). Nothing is drawn.

        Raises what the call for a draw does.
        """
        keys = [_sequence(seq)]
        chain, _ = self._chain()
        rows, masks, first = self._prepared(_checked(logits_row, 1)[np.newaxis], keys)
        probabilities: Floats = chain.probabilities(rows, keys, masks, first)[0]
        return probabilities

    def start(self, seq: SupportsIndex, tokens: Iterable[SupportsIndex] = ()) -> None:
        """Sequence `seq` begins anew, with these tokens (a prompt) for penalties to see; its random numbers go on."""
        key = _sequence(seq)
        self._chain()[0].start(key, [_integer("a token", token, 0) for token in tokens])
        if self._matchers is not None:
            self._matchers.reset(key)

    def accept(self, seq: SupportsIndex, tokens: Iterable[SupportsIndex]) -> None:
        """Sequence `seq` goes on with tokens that somebody else chose. ValueError where the grammar forbids them."""
        key = _sequence(seq)
        chosen = [_integer("a token", token, 0) for token in tokens]
        if self._matchers is not None:
            for token in chosen:
                self._matchers.accept(key, token)
        self._chain()[0].accept(key, chosen)

    def tokens(self, seq: SupportsIndex = 0) -> npt.NDArray[np.int32]:
        """What the sampler knows sequence `seq` to hold, int32 (n,)."""
        return self._chain()[0].tokens(_sequence(seq))

    def reset(self, seq: SupportsIndex | None = None) -> None:
        """Forget all about `seq`, about all sequences for None: random numbers start again."""
        key = None if seq is None else _sequence(seq)
        if self._made is not None:
            self._made[0].reset(key)
        if self._matchers is not None:
            self._matchers.reset(key)

    def bind(self, tokenizer: Tokenizer) -> None:
        """Say whose ids it draws, which a grammar and texts among `dry_breakers` need to know.

        Raises ValueError where it is another vocabulary than before.
        """
        if tokenizer is self._tokenizer or not self._needs_text():
            return
        if self._tokenizer is not None:
            raise ValueError("Sampler: it is bound to another model's tokenizer; make one for each")
        if self.grammar is not None:
            from plait.generation.grammar import Matchers

            self._matchers = Matchers(self.grammar, tokenizer)
        self._tokenizer = tokenizer
        self._made = self._make()

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
        given = tuple(order)
        for i, stage in enumerate(given):
            if not callable(stage) and stage not in known:
                raise ValueError(
                    f"Sampler: order has {stage!r}, expected functions and {', '.join(sorted(known))}"
                )
            if stage in given[:i]:
                raise ValueError(f"Sampler: order has {stage!r} twice")
        return given

    def _stage(self, name: str) -> tuple[Any, ...] | None:
        """What SamplerChain calls a method; None where it changes nothing."""
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

    def _breakers(self) -> set[int]:
        texts = [text.encode() for text in self.dry_breakers if isinstance(text, str)]
        ids = {breaker for breaker in self.dry_breakers if not isinstance(breaker, str)}
        if texts and self._tokenizer is not None:
            for token in range(self._tokenizer.n_vocab):
                data = self._tokenizer.token_bytes(token)
                if any(text in data for text in texts):
                    ids.add(token)
        return ids

    def _chain(self) -> tuple[_core.SamplerChain, list[RowFunction | int]]:
        if self._made is None:
            what = "a grammar needs" if self.grammar is not None else "texts of dry_breakers need"
            raise ValueError(f"Sampler: {what} tokenizer=, or bind()")
        return self._made

    def _make(self) -> tuple[_core.SamplerChain, list[RowFunction | int]]:
        """The methods, and functions with how many of the methods come before each of them."""
        stages: list[tuple[Any, ...]] = []
        plan: list[RowFunction | int] = []
        greedy = self.temperature == 0 and self.dynamic_range == 0 and "temperature" in self.order
        simple = self.xtc_probability == 0 and self.typical_p == 1
        for name in self.order:
            if callable(name):
                plan += [len(stages), name]
            elif greedy and simple and name in _KEEP_THE_BEST:
                continue  # the best token is left whatever they do
            else:
                stage = self._stage(name)
                stages += [stage] if stage is not None else []
        return _core.SamplerChain(stages, list(self.forced), self.seed), plan

    def _prepared(
        self, rows: Rows, keys: list[int]
    ) -> tuple[Rows, npt.NDArray[np.uint32] | None, int]:
        """The rows after the last function of the order, the mask that is still to be applied, and the stage then."""
        chain, plan = self._chain()
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


_MOST: Final = (1 << 31) - 1
_Check = tuple[str, Callable[[float], bool]]
_FINITE: Final[_Check] = ("finite", math.isfinite)
_POSITIVE: Final[_Check] = ("finite and above 0", lambda x: 0 < x < math.inf)
_SHARE: Final[_Check] = ("in (0, 1]", lambda x: 0 < x <= 1)
_PROBABILITY: Final[_Check] = ("in [0, 1]", lambda x: 0 <= x <= 1)
_BIAS: Final[_Check] = ("finite or -inf", lambda x: x < math.inf)

# Stage to parameter, and the value that switches it off.
_FILTERS: Final = {
    "top_n_sigma": ("top_n_sigma", 0),
    "top_k": ("top_k", 0),
    "typical": ("typical_p", 1),
    "top_p": ("top_p", 1),
    "min_p": ("min_p", 0),
}
_KEEP_THE_BEST: Final = {"top_n_sigma", "top_k", "top_p", "min_p"}


def _at_least(least: float) -> _Check:
    return f"finite and at least {least}", lambda x: least <= x < math.inf


def _number(name: str, value: SupportsFloat, check: _Check) -> float:
    expected, valid = check
    number = float(value)
    if not valid(number):
        raise ValueError(f"Sampler: {name} is {value}, expected {expected}")
    return number


def _integer(name: str, value: SupportsIndex, least: int, most: int = _MOST) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"Sampler: {name} is {number}, expected {least} to {most}")
    return number


def _last_n(name: str, value: SupportsIndex | None) -> int | None:
    return None if value is None else _integer(name, value, 0)


def _backwards(last_n: int | None) -> int:
    return -1 if last_n is None else last_n


def _sequence(seq: SupportsIndex) -> int:
    key = operator.index(seq)
    if not 0 <= key < 1 << 64:
        raise ValueError(f"Sampler: seq is {key}, expected 0 to 2**64 - 1")
    return key


def _checked(logits: npt.ArrayLike, axes: int) -> Rows:
    rows = np.asarray(logits)
    if rows.dtype != np.float32:
        raise TypeError(f"Sampler: expected float32 logits, got {rows.dtype}")
    if rows.ndim != axes or rows.shape[-1] == 0:
        shape = "(n_vocab,)" if axes == 1 else "(n, n_vocab)"
        raise ValueError(f"Sampler: expected logits of shape {shape}, got {rows.shape}")
    return np.ascontiguousarray(rows)
