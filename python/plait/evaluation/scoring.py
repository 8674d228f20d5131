"""Log-likelihoods of continuations and texts, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import integer, renamed
from plait.context import Context, SharedContext, model_of
from plait.errors import CacheFull, UnsupportedError
from plait.evaluation.replay import recorded
from plait.evaluation.texts import Text, checked_ids, text_list, token_ids
from plait.generation.prefix_store import PrefixStore, store_of
from plait.generation.stored_prefixes import MAX_SEGMENT, StoredPrefixes
from plait.interrupts import keeping
from plait.numerics import log_softmax
from plait.progress import Progress, ProgressOption, check_progress

if TYPE_CHECKING:
    from os import PathLike

    from plait.cache.sequence import Sequence
    from plait.model import Model

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
Row = npt.NDArray[np.float32]

_MAX_SEQUENCES = 16  # of the context that score() creates
_MAX_LOGITS = 1 << 25  # numbers that one call of decode() returns at most


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Log-probabilities of the tokens of a text.

    Logarithms are natural. float(score) is the log-likelihood of the whole.

    Attributes:
        tokens: int32 (n,), the token ids.
        logprobs: float64 (n,), log p(token | all tokens before it).
        greedy: bool (n,), True where the token is the most likely one; of equally likely tokens, the one with the
            lowest id.
        top_tokens: int32 (n, top), the most likely tokens at each place, highest first.
        top_logprobs: float64 (n, top), their log-probabilities.
    """

    tokens: Ids
    logprobs: Floats
    greedy: npt.NDArray[np.bool_]
    top_tokens: Ids
    top_logprobs: Floats

    @property
    def logprob(self) -> float:
        """Log-likelihood of all tokens."""
        return math.fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """True if greedy decoding generates exactly these tokens."""
        return bool(self.greedy.all())

    def __float__(self) -> float:
        return self.logprob

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        greedy = ", greedy" if self.is_greedy else ""
        return f"<plait.Score of {len(self)} tokens: {self.logprob:.4f}{greedy}>"

    def _repr_html_(self) -> str:
        from plait.display.tables import score_html

        return score_html(
            repr(self), self.tokens.tolist(), self.logprobs.tolist(), self.greedy.tolist()
        )


def score(
    model: Model | Context | SharedContext,
    context: Text,
    continuations: Iterable[Text],
    *,
    top_logprobs: SupportsIndex = 0,
    prefixes: PrefixStore | None = None,
    add_special: bool = True,
    parse_special: bool = True,
    receipt: str | PathLike[str] | None = None,
    top: SupportsIndex | None = None,
) -> list[Score]:
    """Compute the log-likelihood of each continuation of a context.

    The context is computed once and forked.

    Context and continuation are tokenised together. A continuation is scored from the first token
    that differs from the tokens of the context alone, so a token that spans the boundary counts as
    a whole. The log-likelihoods are those of decoding the full text in one call; in an invariant
    context, they have the same bits.

    Args:
        model: A Model or an Engine, for whose model a context is created; or a Context, whose other sequences are not
            touched.
        context: Text or token ids before each continuation.
        continuations: Texts or token ids.
        top_logprobs: Number of most likely tokens to report at each place.
        prefixes: A plait.PrefixStore, from which a prefix of the context is loaded and where the context is saved.
        add_special: As in Tokenizer.encode(), for the context. A token that the tokenizer appends
            is omitted.
        parse_special: As in Tokenizer.encode().
        receipt: Path of a receipt of the computation, for plait.verify(); see Context.record(). None writes none.
        top: Deprecated name of `top_logprobs`.

    Returns:
        A Score per continuation, in their order.

    Raises:
        TypeError: `continuations` is a single text, or a text is neither str nor token ids.
        ValueError: The context has no tokens, or a continuation adds none or does not fit into
            n_ctx.
        CacheFull: The context has no room for a continuation.
        KeyboardInterrupt: Ctrl-C. Its attribute `partial` is the list of the Scores of the first
            continuations, as many as are computed.
    """
    source = model_of(model, "score")
    n_top = renamed(top_logprobs, top, "top_logprobs", "top", "score")
    n_top = _checked_top(n_top, source.n_vocab)
    store = store_of(prefixes, "score")
    items = text_list(continuations, "score: continuations")
    texts = _pairs(source, context, items, add_special, parse_special)
    if not texts:
        return []
    shared = min(text.n_context for text in texts)
    tails = [len(text.tokens) - 1 - shared for text in texts]
    with ExitStack() as resources:
        if isinstance(model, Context):
            ctx = model
        else:
            n_ctx = shared + max(max(tails), 1)
            at_once = min(len(texts), _MAX_SEQUENCES)
            cells = shared + sum(sorted(tails)[-at_once:]) + 1
            if store is not None:  # an entry may be longer than the prefix that is used
                n_ctx, cells = n_ctx + MAX_SEGMENT, cells + MAX_SEGMENT
            ctx = Context(
                source, n_ctx=n_ctx, n_seq_max=at_once + 1 + (store is not None), kv_cells=max(cells, n_ctx)
            )  # fmt: skip
            resources.enter_context(closing(ctx))
        for i, text in enumerate(texts):
            if len(text.tokens) - 1 > ctx.n_ctx:
                raise ValueError(
                    f"score: the context with continuation {i} has {len(text.tokens)} tokens, but n_ctx is {ctx.n_ctx}"
                )
        resources.enter_context(recorded(ctx, receipt))
        stored = None if store is None else resources.enter_context(StoredPrefixes(store, ctx))
        root, epoch = resources.enter_context(ctx.sequence()), ctx._epoch
        start = _read_context(root, texts[0].tokens[:shared].tolist(), 0, ctx, stored, epoch)
        done: list[Score] = []
        with keeping(lambda: done):
            _score_group(ctx, root, shared, start, texts, n_top, done)
        return done


def score_pairs(
    ctx: Context,
    pairs: Iterable[tuple[Items[int], Items[int]]],
    *,
    top_logprobs: SupportsIndex = 0,
    prefixes: PrefixStore | None = None,
    progress: ProgressOption = None,
) -> list[Score]:
    """Compute the log-likelihood of each continuation of its context, for many pairs of token ids.

    The contexts are processed in an order in which each reuses the prefix it shares with the
    previous one. A context with several continuations is computed once and forked.

    Args:
        ctx: The context to compute in.
        pairs: Pairs (context, continuation) of token ids.
        top_logprobs: Number of most likely tokens to report at each place.
        prefixes: As in score().
        progress: Called with (done, total), in pairs. True shows a tqdm progress bar; None shows it for 16 or more
            pairs when stderr is a terminal or a notebook.

    Returns:
        One Score per pair, in the given order, equal to that of score().

    Raises:
        TypeError: A token id is not an integer.
        ValueError: A side of a pair has no tokens, or a pair does not fit into n_ctx.
        IndexError: A token id is outside the vocabulary.
        CacheFull: The context has no room for a pair.
    """
    n_top = _checked_top(top_logprobs, ctx.model.n_vocab)
    texts = [_pair_of_ids(ctx, *pair, f"score_pairs: pair {i}") for i, pair in enumerate(pairs)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, text in enumerate(texts):
        groups.setdefault(tuple(text.tokens[: text.n_context].tolist()), []).append(i)
    scores: dict[int, Score] = {}
    held: tuple[int, ...] = ()
    check_progress(progress, "score_pairs")
    store = store_of(prefixes, "score_pairs")
    with ExitStack() as resources:
        stored = None if store is None else resources.enter_context(StoredPrefixes(store, ctx))
        root, epoch = resources.enter_context(ctx.sequence()), ctx._epoch
        bar = resources.enter_context(Progress(progress, len(texts), "pair"))
        for context in sorted(groups):
            same = 0
            while same < min(len(held), len(context) - 1) and held[same] == context[same]:
                same += 1
            if same < len(held):
                same -= root.rewind(same)
            start = _read_context(root, list(context), same, ctx, stored, epoch)
            held = context
            members = groups[context]
            found: list[Score] = []
            _score_group(ctx, root, len(context), start, [texts[i] for i in members], n_top, found)
            scores.update(zip(members, found, strict=True))
            bar.update(len(members))
    return [scores[i] for i in range(len(texts))]


def token_logprobs(
    model: Model | Context | SharedContext,
    text: Text,
    *,
    window: SupportsIndex | None = None,
    stride: SupportsIndex | None = None,
    top_logprobs: SupportsIndex = 0,
    add_special: bool = True,
    parse_special: bool = True,
    progress: ProgressOption = None,
    top: SupportsIndex | None = None,
) -> Score:
    """Compute the log-probability of every token of a text after the first.

    A text longer than `window` is computed in windows of that length, `stride` tokens apart. Each
    window starts from an empty cache, and each token is scored in the first window that contains
    it. After the first window, every token thus has at least window - stride tokens of context.

    Args:
        model: A Model or an Engine, for whose model a context is created; or a Context, whose other sequences are not
            touched.
        text: Text or token ids.
        window: Length of a window in tokens. None: the training length of a Model, n_ctx of a
            Context.
        stride: Distance between windows in tokens. None: half of the window.
        top_logprobs: Number of most likely tokens to report at each place.
        add_special: As in Tokenizer.encode().
        parse_special: As in Tokenizer.encode().
        progress: Called after each window with (done, total), in tokens. True shows a tqdm progress bar; None shows it
            for 16 or more tokens when stderr is a terminal or a notebook.
        top: Deprecated name of `top_logprobs`.

    Returns:
        The Score of the tokens after the first; its arrays have one row per token.

    Raises:
        TypeError: The text is neither str nor token ids.
        ValueError: The text has fewer than two tokens, the window is below 2 or exceeds n_ctx, or
            the stride is not between 1 and window - 1.
        CacheFull: The context has no room for a window.
        KeyboardInterrupt: Ctrl-C. Its attribute `partial` is the Score of the tokens in the windows
            computed so far, or None.
    """
    source = model_of(model, "token_logprobs")
    n_top = renamed(top_logprobs, top, "top_logprobs", "top", "token_logprobs")
    n_top = _checked_top(n_top, source.n_vocab)
    check_progress(progress, "token_logprobs")
    ids = token_ids(source, text, "text", add_special, parse_special)
    score = None
    with keeping(lambda: score), Progress(progress, len(ids) - 1, "token") as bar:
        for score in partial_scores(model, ids, window, stride, n_top):
            bar.update(len(score) - bar.done)
    assert score is not None
    return score


def partial_scores(
    model: Model | Context | SharedContext,
    ids: list[int],
    window: SupportsIndex | None,
    stride: SupportsIndex | None,
    n_top: int = 0,
) -> Iterator[Score]:
    """Yield after each window the Score of the tokens so far; see token_logprobs().

    Args:
        model: As in token_logprobs().
        ids: The token ids.
        window: As in token_logprobs().
        stride: As in token_logprobs().
        n_top: Number of most likely tokens to report at each place.

    Raises:
        ValueError: As in token_logprobs().
    """
    source = model_of(model, "token_logprobs")
    size, step = window_of(model, ids, window, stride, "token_logprobs")
    table = _Table(_Pair(np.array(ids, np.int32), 1), 0, None, n_top)
    with ExitStack() as resources:
        ctx = model if isinstance(model, Context) else Context(source, n_ctx=min(size, len(ids)))
        if ctx is not model:
            resources.enter_context(closing(ctx))
        for begin, end, scored in windows(len(ids), size, step):
            with ctx.sequence() as seq:
                for _, row in decoded_rows(ctx, [(seq, ids[begin : end - 1], scored - 1 - begin)]):
                    table.add(row)
            yield table.score()


def window_of(
    model: Model | Context | SharedContext,
    ids: list[int],
    window: SupportsIndex | None,
    stride: SupportsIndex | None,
    function: str,
) -> tuple[int, int]:
    """Return the length of the windows of a text and their distance; see token_logprobs().

    Args:
        model: As in token_logprobs().
        ids: The token ids.
        window: As in token_logprobs().
        stride: As in token_logprobs().
        function: The name of the calling function, for messages.

    Raises:
        ValueError: As in token_logprobs().
    """
    if len(ids) < 2:
        raise ValueError(f"{function}: the text has {len(ids)} tokens; it must have at least 2")
    trained = model_of(model, function).n_ctx_train
    longest = model.n_ctx if isinstance(model, Context) else trained or len(ids)
    size = longest if window is None else integer(window, f"{function}: window")
    if size < 2 or (isinstance(model, Context) and size > longest):
        limit = f" and at most n_ctx = {longest}" if isinstance(model, Context) else ""
        raise ValueError(f"{function}: window is {size}; it must be at least 2{limit}")
    step = size // 2 if stride is None else integer(stride, f"{function}: stride")
    if not 1 <= step < size:
        default = (
            f"n_ctx = {size} of the context" if isinstance(model, Context) else f"{size} by default"
        )
        note = f" (the window is {default})" if window is None else ""
        raise ValueError(
            f"{function}: stride is {step}; it must be between 1 and window - 1 = {size - 1}{note}"
        )
    return size, step


def windows(n: int, size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yield the begin and end of each window of a text, and the first token that it scores.

    Args:
        n: Tokens of the text.
        size: Tokens of a window.
        step: Distance between windows.
    """
    scored, begin = 1, 0
    while scored < n:
        end = min(begin + size, n)
        yield begin, end, scored
        scored, begin = end, begin + step


def perplexity(
    model: Model | Context | SharedContext,
    text: Text,
    *,
    window: SupportsIndex | None = None,
    stride: SupportsIndex | None = None,
    add_special: bool = True,
    parse_special: bool = True,
) -> float:
    """Compute the perplexity of a text: exp(-mean log-probability) of the tokens after the first.

    Progress is shown as in token_logprobs() with progress=None.

    Args:
        model: As in token_logprobs().
        text: As in token_logprobs().
        window: As in token_logprobs().
        stride: As in token_logprobs().
        add_special: As in token_logprobs().
        parse_special: As in token_logprobs().

    Returns:
        The perplexity, at least 1.

    Raises:
        ValueError: As in token_logprobs(), like its other exceptions.
        CacheFull: As in token_logprobs().
        KeyboardInterrupt: Ctrl-C. Its attribute `partial` is the perplexity of the tokens in the
            windows computed so far, or None.
    """
    try:
        scores = token_logprobs(
            model, text, window=window, stride=stride, add_special=add_special, parse_special=parse_special
        )  # fmt: skip
    except KeyboardInterrupt as interrupt:
        done = getattr(interrupt, "partial", None)
        interrupt.partial = None if done is None else _perplexity(done)  # type: ignore[attr-defined]
        raise
    return _perplexity(scores)


def _perplexity(scores: Score) -> float:
    return math.exp(-scores.logprob / len(scores))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The tokens of a context and a continuation; the first `n_context` are those of the context."""

    tokens: Ids
    n_context: int


def _pair_of_ids(ctx: Context, context: Items[int], continuation: Items[int], name: str) -> _Pair:
    """Check the token ids of a pair for score_pairs(). `name` begins the messages of errors."""
    tokens = checked_ids(ctx.model, (*context, *continuation), name)
    if not 0 < len(context) < len(tokens) <= ctx.n_ctx + 1:
        raise ValueError(
            f"{name} has {len(context)} and {len(continuation)} tokens; each side must have at least 1, and both "
            f"together at most n_ctx + 1 = {ctx.n_ctx + 1}"
        )
    return _Pair(np.array(tokens, np.int32), len(context))


class _Table:
    """Collects the Score of a pair row by row.

    Attributes:
        tail: The tokens to decode after the first `held`. The last token of the pair is never
            decoded.
        first_wanted: Index in `tail` of the first token whose logits are required.
    """

    def __init__(self, pair: _Pair, held: int, start: Row | None, n_top: int) -> None:
        self.tail: list[int] = pair.tokens[held:-1].tolist()
        self.first_wanted = max(pair.n_context - 1 - held, 0)
        self._tokens = pair.tokens[pair.n_context :]
        n = len(self._tokens)
        self._logprobs = np.empty(n)
        self._greedy = np.empty(n, np.bool_)
        self._top_tokens = np.empty((n, n_top), np.int32)
        self._top_logprobs = np.empty((n, n_top))
        self._n = 0
        if start is not None and pair.n_context == held:
            self.add(start)

    def add(self, row: Row) -> None:
        """Add the logits that predict the next token."""
        at, self._n = self._n, self._n + 1
        logprobs = log_softmax(row)
        token = self._tokens[at]
        self._logprobs[at] = logprobs[token]
        self._greedy[at] = row.argmax() == token
        n_top = self._top_tokens.shape[1]
        if n_top:
            least = np.partition(row, -n_top)[-n_top]
            best = np.flatnonzero(row >= least)
            best = best[np.argsort(-row[best], kind="stable")][:n_top]
            self._top_tokens[at], self._top_logprobs[at] = best, logprobs[best]

    def score(self) -> Score:
        """Return the Score of the tokens whose logits were added."""
        n = self._n
        return Score(
            self._tokens[:n],
            self._logprobs[:n],
            self._greedy[:n],
            self._top_tokens[:n],
            self._top_logprobs[:n],
        )


def _checked_top(top_logprobs: SupportsIndex, n_vocab: int) -> int:
    return integer(top_logprobs, "top_logprobs", 0, n_vocab)


def _pairs(
    model: Model, context: Text, continuations: list[Text], add_special: bool, parse_special: bool
) -> list[_Pair]:
    alone = token_ids(model, context, "context", add_special, parse_special)
    ends = isinstance(context, str) and add_special and model.tokenizer.add_eos
    alone = _without_end(model, alone) if ends else alone
    if not alone:
        raise ValueError(
            "score: the context has no tokens; it must have at least one, which predicts the continuation"
        )
    pairs = []
    for i, text in enumerate(continuations):
        if isinstance(text, str) and isinstance(context, str):
            tokens = token_ids(model, context + text, "context", add_special, parse_special)
            tokens = _without_end(model, tokens) if ends else tokens
        else:
            tokens = alone + token_ids(model, text, f"continuation {i}", False, parse_special)
        n_context = next(
            (n for n, (a, b) in enumerate(zip(alone, tokens, strict=False)) if a != b),
            min(len(alone), len(tokens)),
        )
        if n_context == len(tokens):
            raise ValueError(f"score: continuation {i} adds no token to the context")
        if n_context == 0:
            raise ValueError(
                f"score: continuation {i} changes the first token of the context, which has no log-probability"
            )
        pairs.append(_Pair(np.array(tokens, np.int32), n_context))
    return pairs


def _without_end(model: Model, ids: list[int]) -> list[int]:
    """Remove the token that the tokenizer appends to every text."""
    return ids[:-1] if ids and ids[-1] == model.tokenizer.eos else ids


def _read_context(
    root: Sequence,
    context: list[int],
    held: int,
    ctx: Context,
    stored: StoredPrefixes | None,
    epoch: int,
) -> Row:
    """Append the rest of a context to a sequence that holds its first `held` tokens. Returns the last logits."""
    if stored is not None:
        before = context[:-1]
        if stored.find(before) > held:
            ctx.kv.seq_rm(root)
            held = stored.load(root, before)
        for _ in decoded_rows(ctx, [(root, before[held:], len(before) - held)]):
            pass
        stored.save(root, before, epoch)
        held = len(before)
    ((_, start),) = decoded_rows(ctx, [(root, context[held:], len(context) - held - 1)])
    return start


def _score_group(
    ctx: Context, root: Sequence, shared: int, start: Row, texts: list[_Pair], n_top: int,
    scores: list[Score],
) -> None:  # fmt: skip
    """Append the scores of pairs whose first `shared` tokens are in `root`, as many at a time as there is room for."""
    at_once = max(1, min(len(texts), ctx.n_seq_max - 1))
    while len(scores) < len(texts):
        wave = texts[len(scores) : len(scores) + at_once]
        try:
            scores += _score_wave(ctx, root, shared, start, wave, n_top)
        except CacheFull:
            if len(wave) == 1:
                scores.append(_score_alone(ctx, root, shared, start, wave[0], n_top))
            at_once = max(1, len(wave) // 2)


def _score_wave(
    ctx: Context, root: Sequence, shared: int, start: Row, wave: list[_Pair], n_top: int
) -> list[Score]:
    """Score pairs in one wave; `start` holds the logits after the shared tokens."""
    with ExitStack() as forks:
        tables = [_Table(pair, shared, start, n_top) for pair in wave]
        reading = [table for table in tables if table.tail]
        reads = [
            (forks.enter_context(root.fork()), table.tail, table.first_wanted) for table in reading
        ]
        for which, row in decoded_rows(ctx, reads):
            reading[which].add(row)
    return [table.score() for table in tables]


def _score_alone(
    ctx: Context, root: Sequence, shared: int, start: Row, pair: _Pair, n_top: int
) -> Score:
    """Score one pair without a fork: decode it in `root`, then rewind."""
    table = _Table(pair, shared, start, n_top)
    for _, row in decoded_rows(ctx, [(root, table.tail, table.first_wanted)]):
        table.add(row)
    lost = root.rewind(shared)
    for _ in decoded_rows(ctx, [(root, pair.tokens[shared - lost : shared].tolist(), lost)]):
        pass
    return table.score()


def decoded_rows(
    ctx: Context, reads: list[tuple[Sequence, list[int], int]]
) -> Iterator[tuple[int, Row]]:
    """Decode (sequence, tokens, first) in as few calls as possible.

    Args:
        ctx: The context.
        reads: Sequences, the tokens to append, and the first of these whose logits are needed.

    Yields:
        (index into `reads`, logits) for the tokens from `first` on, in order.
    """
    rows = max(1, min(ctx.n_batch, _MAX_LOGITS // ctx.model.n_vocab))
    batch, asked, n_rows = Batch(), list[int](), 0
    for which, (seq, tokens, first) in enumerate(reads):
        done = 0
        while done < len(tokens):
            room = ctx.n_batch - len(batch)
            unasked = max(first - done, 0)
            take = min(len(tokens) - done, room, unasked + rows - n_rows)
            if take <= 0:
                yield from _decoded(ctx, batch, asked)
                batch, asked, n_rows = Batch(), [], 0
                continue
            wants = np.arange(done, done + take) >= first
            batch.add_sequence(tokens[done : done + take], seq=seq, logits=wants)
            asked += [which] * int(wants.sum())
            n_rows += int(wants.sum())
            done += take
    if len(batch):
        yield from _decoded(ctx, batch, asked)


def _decoded(ctx: Context, batch: Batch, asked: list[int]) -> Iterator[tuple[int, Row]]:
    logits = ctx.decode(batch).logits
    if asked and logits is None:
        raise UnsupportedError(f"a {ctx.model.arch} model gives no logits")
    if logits is not None:
        yield from zip(asked, logits, strict=True)
