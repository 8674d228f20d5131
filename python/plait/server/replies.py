"""Replies in the forms of OpenAI's API."""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from plait.server.bodies import Job

if TYPE_CHECKING:
    from plait.evaluation.scoring import Score
    from plait.generation.events import Completion, Event
    from plait.tokenizer import Tokenizer
    from plait.tokenizer.stream import TokenStream

# Max bytes of a prompt that are in no token, between two tokens: characters that the vocabulary lacks.
_MAX_SKIPPED: Final = 64


class Replies:
    """Builds the objects of one request.

    Args:
        chat: Whether the request is to /v1/chat/completions.
        job: The request.
        model: Name of the model.
        tokenizer: The tokenizer of the model.
    """

    def __init__(self, chat: bool, job: Job, model: str, tokenizer: Tokenizer) -> None:
        self._chat = chat
        self._job = job
        self._tokenizer = tokenizer
        name = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl-" if chat else "cmpl-"
        self._head = {
            "id": prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model,
        }
        self._object = name
        self._n_calls: dict[int, int] = {}
        # The decoder of the generated tokens of each choice, and the characters of its text so far.
        self._streams: dict[int, TokenStream] = {}
        self._offsets: dict[int, int] = {}

    def whole(
        self, completions: list[Completion], scores: Sequence[Score | None] = ()
    ) -> dict[str, Any]:
        """Return the reply that has all choices; `scores` has those of their prompts, if requested."""
        choices = [
            self._chat_choice(i, one)
            if self._chat
            else self._text_choice(i, one, scores[i] if scores else None)
            for i, one in enumerate(completions)
        ]
        return self._head | {
            "object": self._object, "choices": choices, "usage": usage(completions, self._job.n)
        }  # fmt: skip

    def chunk(self, index: int, event: Event) -> dict[str, Any] | None:
        """Return the chunk of an event; None if it adds nothing."""
        reason = None if event.completion is None else _reason(event.completion)
        logprobs = None
        if self._job.logprobs is not None:
            logprobs = self._logprobs(index, [(event.token, event.logprob, event.top_logprobs)])
        if not self._chat:
            if not event.text and reason is None and logprobs is None:
                return None
            choice = {
                "index": index,
                "text": event.text,
                "finish_reason": reason,
                "logprobs": logprobs,
            }
        else:
            delta = self._delta(index, event.parts)
            if not delta and reason is None and logprobs is None:
                return None
            choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return self._chunk([choice])

    def first(self, index: int) -> dict[str, Any] | None:
        """Return the first chunk of a choice: its role, or the prompt that is echoed; None if there is none."""
        if not self._chat:
            text = self._echoed(index)
            choice = {"index": index, "text": text, "finish_reason": None, "logprobs": None}
            return self._chunk([choice]) if text else None
        delta = {"role": "assistant", "content": ""}
        return self._chunk(
            [{"index": index, "delta": delta, "finish_reason": None, "logprobs": None}]
        )

    def last(self, completions: list[Completion]) -> dict[str, Any]:
        """Return the chunk that has the number of tokens."""
        return self._chunk([]) | {"usage": usage(completions, self._job.n)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": self._object + ".chunk" * self._chat, "choices": choices}

    def _delta(self, index: int, parts: Iterable[Any]) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        for part in parts:
            if part.kind == "content":
                delta["content"] = delta.get("content", "") + part.text
            elif part.kind == "reasoning":
                delta["reasoning_content"] = delta.get("reasoning_content", "") + part.text
            else:
                number = self._n_calls.get(index, 0)
                self._n_calls[index] = number + 1
                delta.setdefault("tool_calls", []).append({"index": number, **part.call.to_dict()})
        return delta

    def _chat_choice(self, index: int, done: Completion) -> dict[str, Any]:
        message = done.message.to_dict()
        if done.message.tool_calls and not done.message.content:
            message["content"] = None
        return {
            "index": index, "message": message, "finish_reason": _reason(done),
            "logprobs": None if self._job.logprobs is None else self._logprobs(index, _triples(done)),
        }  # fmt: skip

    def _text_choice(self, index: int, done: Completion, score: Score | None) -> dict[str, Any]:
        logprobs, prompt = None, self._echoed(index)
        text = prompt + done.text
        if self._job.logprobs is not None:
            logprobs = self._logprobs(index, _triples(done))
            if self._job.scores_prompts:
                tokens = [(done.prompt_tokens[0], None, None), *_scored(score)]
                offsets = self._offsets_in(prompt, done.prompt_tokens)
                before = self._columns(tokens, offsets)
                logprobs = {key: before[key] + found for key, found in logprobs.items()}
            # The text ends before a stop string, the tokens after it.
            logprobs["text_offset"] = [min(at, len(text)) for at in logprobs["text_offset"]]
        return {
            "index": index, "text": text, "finish_reason": _reason(done), "logprobs": logprobs
        }  # fmt: skip

    def _echoed(self, index: int) -> str:
        """Return the prompt of a choice if the request asks for it; else an empty text."""
        return self._job.echoed[index // self._job.n] if self._job.echoed else ""

    def _logprobs(self, index: int, tokens: Iterable[tuple[int, Any, Any]]) -> dict[str, Any]:
        if self._chat:
            return {
                "content": [
                    self._token(token, logprob)
                    | {"top_logprobs": [self._token(*one) for one in top[: self._job.logprobs]]}
                    for token, logprob, top in tokens
                ]
            }
        found = list(tokens)
        return self._columns(found, [self._next_offset(index, token) for token, _, _ in found])

    def _columns(self, found: list[tuple[int, Any, Any]], offsets: list[int]) -> dict[str, Any]:
        """Return log-probabilities in the form of /v1/completions."""
        name: Callable[[int], str] = lambda token: self._token(token, 0.0)["token"]  # noqa: E731
        return {
            "tokens": [name(token) for token, _, _ in found],
            "token_logprobs": [
                None if logprob is None else _finite(logprob) for _, logprob, _ in found
            ],
            "top_logprobs": [
                # Of tokens with the same text, the most likely one counts.
                None if top is None else {name(one): _finite(value) for one, value in reversed(top)}
                for _, _, top in found
            ],
            "text_offset": offsets,
        }

    def _next_offset(self, index: int, token: int) -> int:
        """Return the offset of the next generated token in the text of a choice."""
        if index not in self._streams:
            self._streams[index] = self._tokenizer.stream(continuing=True)
            self._offsets[index] = len(self._echoed(index))
        offset = self._offsets[index]
        self._offsets[index] += len(self._streams[index].push(token))
        return offset

    def _offsets_in(self, prompt: str, tokens: Sequence[int]) -> list[int]:
        """Return the offsets of the tokens of a prompt; for one that is not in its text, that of the next one.

        The text lacks added control tokens and the space that encode() puts before it.
        """
        data, control = prompt.encode("utf-8", "replace"), self._tokenizer.control_ids
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets, end, n = [], 0, 0
        for token in tokens:
            piece = self._tokenizer.token_bytes(token)
            bare = piece.removeprefix(b" ")
            if not data.startswith(piece, end) and data.startswith(bare, end):
                piece = bare
            n_skipped = 0 if token in control else _MAX_SKIPPED
            begin = data.find(piece, end, end + n_skipped + len(piece))
            if begin < 0:
                begin, piece = end, b""
            n += len(decoder.decode(data[end:begin]))
            offsets.append(n)
            end = begin + len(piece)
            n += len(decoder.decode(data[begin:end]))
        return offsets

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        return {
            "token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)
        }  # fmt: skip


def usage(completions: list[Completion], n: int) -> dict[str, Any]:
    """Return the number of tokens; the prompt counts once for its `n` generations."""
    counts = [one.usage for one in completions if one.usage is not None]
    prompt = sum(one.n_prompt for one in counts[::n])
    generated = sum(one.n_generated for one in counts)
    return {
        "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(one.n_cached for one in counts[::n])},
    }  # fmt: skip


def error(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an error. Surrogates in its message, which may quote the request, are replaced."""
    message = message.encode("utf-8", "replace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _finite(logprob: float) -> float:
    """Return a log-probability that JSON can represent: -9999, as in OpenAI's API, for tokens that cannot occur."""
    return max(logprob, -9999.0)


def _reason(done: Completion) -> str | None:
    if done.message is not None and done.message.tool_calls and done.finish_reason == "stop":
        return "tool_calls"
    return done.finish_reason


def _scored(score: Score | None) -> list[tuple[int, Any, Any]]:
    """Return the tokens of a score with their log-probabilities and the most likely tokens."""
    if score is None:
        return []
    columns = (score.top_tokens.tolist(), score.top_logprobs.tolist())
    top = [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]
    return list(zip(score.tokens.tolist(), score.logprobs.tolist(), top, strict=True))


def _triples(done: Completion) -> Iterable[tuple[int, Any, Any]]:
    top = done.top_logprobs or [()] * len(done.tokens)
    return zip(done.tokens, done.logprobs, top, strict=True)
