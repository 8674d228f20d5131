"""A conversation that keeps what it has computed."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np

from plait import _core
from plait._core import Batch
from plait.closeable import Closeable
from plait.context import Context, model_of
from plait.errors import CacheFull, UnsupportedError
from plait.generation.events import Event
from plait.generation.sampler import Sampler
from plait.generation.scheduler import Stop, stops_of
from plait.generation.stops import StopStrings

if TYPE_CHECKING:
    import numpy.typing as npt

    from plait.model import Model
    from plait.tokenizer.chat_template import ChatTemplate

    Row = npt.NDArray[np.float32]

Message = dict[str, Any]

_POLICIES: Final = ("error", "truncate", "shift")
_SINKS: Final = 4  # tokens at the start that attention leans on: Xiao et al. 2023, arXiv:2309.17453
_log = logging.getLogger("plait")


class Chat(Closeable):
    """One conversation on a sequence of its own.

    `messages` is the conversation, a list of {"role": ..., "content": ...}; edit it as you like. Each turn writes it
    out with the model's chat template and computes only what comes after the beginning that the cache still has, so a
    turn costs its own tokens, and an edit what follows it.

    `model` is a Model, for which a context is made, or a Context with a sequence left. `system`: the first message.
    Where the template refuses that role, its text is put before the first user's, with an empty line between. `tools`:
    JSON schemas of functions, for the template; an answer of one is a message of role "tool". `template`: the text of
    a template (Jinja) in place of the file's, or for a file that has none. More arguments are variables of the
    template. `sampler`, `stop`: as in generate().

    `full` says what happens when a conversation has more than n_ctx tokens:

    - "error": a turn that does not fit raises CacheFull, and nothing has changed.
    - "truncate": where an answer of max_tokens, or of a quarter of n_ctx, has no room, the model no longer sees the
      oldest messages after the system's: so many that the next is a user's and a quarter of n_ctx is left.
      `n_left_out` counts them; they stay in `messages`.
    - "shift": half of the cached tokens after the system message are forgotten and those behind move up, also in the
      middle of an answer (Sequence.shift()); `n_forgotten` counts the tokens. For caches that can shift.

    With "error" and "truncate" an answer that reaches n_ctx ends ("length"). What is left out or forgotten is logged
    ("plait", WARNING) too.

    Raises ValueError for another policy, UnsupportedError for "shift" where positions cannot change and where there is
    no template, ModelError for one that is wrong.
    """

    def __init__(
        self,
        model: Model | Context,
        system: str | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        full: str = "error",
        max_tokens: SupportsIndex = 512,
        sampler: Callable[..., int] | None = None,
        stop: Stop = (),
        template: str | None = None,
        **variables: Any,
    ) -> None:
        source = model_of(model, "Chat")
        if full not in _POLICIES:
            raise ValueError(f"Chat: full is {full!r}, expected one of {', '.join(_POLICIES)}")
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.tools = None if tools is None else [dict(tool) for tool in tools]
        self.full = full
        self.max_tokens = operator.index(max_tokens)
        self.sampler = sampler
        self.n_left_out = 0
        self.n_forgotten = 0
        self.n_reused = 0
        self.finish_reason: str | None = None
        self._variables = variables
        self._strings, self._stop_ids = stops_of(stop)
        self._template = source.chat_template if template is None else _template(source, template)
        self._tokenizer = source.tokenizer
        self._own = not isinstance(model, Context)
        self._ctx = model if isinstance(model, Context) else Context(source)
        if full == "shift" and not self._ctx.kv.can_shift:
            raise UnsupportedError(
                f"Chat: a {self._ctx.kv.kind} memory cannot change positions, so it cannot shift"
            )
        self._seq = self._ctx.sequence()
        # What was read, of which the tokens [gap[0], gap[1]) have been forgotten.
        self._read: list[int] = []
        self._gap = (0, 0)
        self._turn = 0
        if isinstance(sampler, Sampler):
            sampler.bind(self._tokenizer)

    def say(self, text: str | None = None, *, max_tokens: SupportsIndex | None = None) -> str:
        """The answer to a user's message; None: to `messages` as they are. See stream()."""
        return "".join(event.text for event in self.stream(text, max_tokens=max_tokens))

    def stream(
        self, text: str | None = None, *, max_tokens: SupportsIndex | None = None
    ) -> Iterator[Event]:
        """The same, token by token. The answer becomes a message when it ends, also when it is broken off.

        `finish_reason` tells why it ended, `n_reused` how many tokens the cache had already. Raises CacheFull as the
        policy says, ValueError for messages that the template refuses; then `messages` are as before.
        """
        limit = self.max_tokens if max_tokens is None else operator.index(max_tokens)
        if limit < 1:
            raise ValueError(f"Chat: max_tokens is {limit}, expected at least 1")
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        try:
            prompt = self._prompt(limit)
            row = self._take(prompt)
        except BaseException:
            if text is not None:
                self.messages.pop()
            raise
        return self._answer(prompt, row, limit)

    def close(self) -> None:
        """Free the cells. Harmless when closed."""
        self._seq.close()
        if self._own:
            self._ctx.close()

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<plait.Chat of {len(self)} messages, full={self.full!r}>"

    # -- from messages to tokens -----------------------------------------------------------------------

    def _prompt(self, limit: int) -> list[int]:
        """The conversation as the policy lets the model see it, before an answer of at most `limit` tokens."""
        ids = self._rendered(self.messages)
        room = self._ctx.n_ctx
        if self.full == "truncate":
            return self._truncated(ids, min(limit, room // 4))
        if self.full == "error" and len(ids) >= room:
            raise CacheFull(
                f"Chat: the conversation has {len(ids)} tokens, the context holds n_ctx = {room}",
                len(ids), room,
            )  # fmt: skip
        return ids

    def _truncated(self, ids: list[int], n_answer: int) -> list[int]:
        """Without the oldest turns; what is left out stays so while it can, for the cache begins with the rest."""
        room = self._ctx.n_ctx
        if len(ids) + n_answer <= room:
            self.n_left_out = 0
            return ids
        first = 1 if self.messages and self.messages[0]["role"] == "system" else 0
        turns = [
            i for i, message in enumerate(self.messages) if i > first and message["role"] == "user"
        ]
        now = first + self.n_left_out
        for start in turns[turns.index(now) :] if now in turns else turns:
            ids = self._rendered([*self.messages[:first], *self.messages[start:]])
            most = room - n_answer if start == now else room - room // 4
            if len(ids) <= most or (start == turns[-1] and len(ids) < room):
                if start != now:
                    self.n_left_out = start - first
                    _log.warning("chat: the oldest %d messages are left out", self.n_left_out)
                return ids
        raise CacheFull(
            f"Chat: the last message alone does not fit into n_ctx = {room}", len(ids), room
        )

    def _rendered(self, messages: list[Message], **more: Any) -> list[int]:
        variables = {**self._variables, **more}
        try:
            text = self._template.render(messages, self.tools, **variables)
        except ValueError:
            merged = _system_in_user(messages)
            if merged is None:
                raise
            text = self._template.render(merged, self.tools, **variables)
        ids: list[int] = self._tokenizer.encode(text, add_special=False).tolist()
        if not ids:
            raise ValueError("Chat: the template makes nothing of these messages")
        return ids

    def _n_system(self, prompt: list[int]) -> int:
        """Tokens at the start that are never forgotten: the system message, and what attention leans on."""
        n = 0
        if self.messages and self.messages[0]["role"] == "system":
            try:
                alone = self._rendered(self.messages[:1], add_generation_prompt=False)
                n = _agree(alone, prompt)
            except ValueError:
                n = 0  # the template knows no conversation of a system message alone
        return min(max(n, _SINKS), self._ctx.n_ctx // 2)

    # -- from tokens to the cache ----------------------------------------------------------------------

    def _take(self, prompt: list[int]) -> Row:
        """Read what the cache does not have of a prompt; the logits after it."""
        n = min(_agree(self._read, prompt), len(prompt) - 1)
        begin, end = self._gap
        if begin < n < end or (n <= begin < end):
            n, self._gap = min(n, begin), (0, 0)
        gone = self._gap[1] - self._gap[0]
        lost = self._seq.rewind(n - gone) if n - gone < self._seq.pos else 0
        n -= lost
        self._read = prompt[:n]
        self.n_reused = n - gone
        self._keep = self._n_system(prompt)
        row: Row | None = None
        while n < len(prompt):
            self._make_room()
            piece = prompt[n : n + min(self._ctx.n_batch, self._ctx.n_ctx - self._seq.pos)]
            row = self._feed(piece)
            n += len(piece)
        assert row is not None
        return row

    def _feed(self, tokens: list[int]) -> Row:
        batch = Batch()
        batch.add_sequence(tokens, seq=self._seq, logits="last")
        row: Row = self._ctx.decode(batch).logits[0]
        self._read += tokens
        return row

    def _make_room(self) -> None:
        """Forget some tokens where none fits any more and the policy is to shift."""
        if self._seq.pos < self._ctx.n_ctx or self.full != "shift":
            return
        discard = max(1, (self._seq.pos - self._keep) // 2)
        self._seq.shift(self._keep, discard)
        begin, end = self._gap if self._gap[1] else (self._keep, self._keep)
        self._gap = (begin, end + discard)
        self.n_forgotten += discard
        _log.warning("chat: %d tokens after the first %d are forgotten", discard, self._keep)

    # -- the answer ------------------------------------------------------------------------------------

    def _answer(self, prompt: list[int], row: Row, limit: int) -> Iterator[Event]:
        turn, self._turn = self._turn, self._turn + 1
        if isinstance(self.sampler, Sampler):
            self.sampler.start(turn, prompt)
        stream, stops = self._tokenizer.stream(continuing=True), StopStrings(self._strings)
        ends = self._tokenizer.eog | self._stop_ids
        told: list[str] = []
        self.finish_reason = None
        try:
            for n in range(1, limit + 1):
                token = self._draw(row, turn)
                logprob = float(_core.token_logprobs(row[np.newaxis], [token])[0])
                over = token in ends
                text, stopped = stops.push(stream.flush() if over else stream.push(token))
                full = self._seq.pos >= self._ctx.n_ctx and self.full != "shift"
                if over or stopped:
                    self.finish_reason = "stop"
                elif n == limit or full:
                    rest, stopped = stops.push(stream.flush())
                    text += rest
                    self.finish_reason = "stop" if stopped else "length"
                if self.finish_reason is not None and not stopped:
                    text += stops.flush()
                told.append(text)
                yield Event(turn, token, text, logprob, self.finish_reason)
                if self.finish_reason is not None:
                    return
                self._make_room()
                row = self._feed([token])
        finally:
            self.messages.append({"role": "assistant", "content": "".join(told)})

    def _draw(self, row: Row, turn: int) -> int:
        return int(row.argmax()) if self.sampler is None else int(self.sampler(row, seq=turn))


def _template(model: Model, text: str) -> ChatTemplate:
    from plait.tokenizer.chat_template import KEY, ChatTemplate  # and with it Jinja

    return ChatTemplate({KEY: text}, model.tokenizer)


def _system_in_user(messages: list[Message]) -> list[Message] | None:
    """The conversation with the system's text before the first user's; None where there is no such pair."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    said = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{**messages[1], "content": said}, *messages[2:]]


def _agree(a: list[int], b: list[int]) -> int:
    most = min(len(a), len(b))
    return most if a[:most] == b[:most] else next(i for i in range(most) if a[i] != b[i])
