"""Talk with a model through the file's own chat template.

A line is a message, an empty one ends the conversation; /new begins another, /undo takes the last exchange back.
What the cache holds of the conversation is kept between turns.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from plait.cli.arguments import (
    add_context,
    add_model,
    add_sampling,
    make_context,
    make_sampler,
    open_model,
)
from plait.cli.terminal import flush, write

if TYPE_CHECKING:
    from plait import Context, Sampler, Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who the model is to be."""
    add_model(parser)
    parser.add_argument("-s", "--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=512, metavar="N", help="of an answer"
    )
    add_sampling(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Messages from standard input, answers to standard output."""
    model = open_model(args.model)
    system = [{"role": "system", "content": args.system}] if args.system else []
    sampler = make_sampler(args)
    model.chat_template  # noqa: B018 - a model without one says so now
    with make_context(model, args) as ctx, ctx.sequence() as seq:
        talk = _Talk(ctx, seq, sampler, args.max_tokens)
        messages = list(system)
        while line := _ask():
            if line == "/new":
                messages = list(system)
            elif line == "/undo":
                del messages[max(len(system), len(messages) - 2) :]
            else:
                messages.append({"role": "user", "content": line})
                messages.append({"role": "assistant", "content": talk.answer(messages)})
    return 0


def _ask() -> str:
    if sys.stdin.isatty():
        sys.stdout.write("> ")
        flush()
    return sys.stdin.readline().strip()


class _Talk:
    """A conversation in one sequence; `held` are the tokens that it has."""

    def __init__(self, ctx: Context, seq: Sequence, sampler: Sampler, max_tokens: int) -> None:
        self._ctx, self._seq, self._sampler, self._max_tokens = ctx, seq, sampler, max_tokens
        self._held: list[int] = []

    def answer(self, messages: list[dict[str, Any]]) -> str:
        """The model's next message, written as it comes."""
        model = self._ctx.model
        prompt = model.chat_template.render(messages)
        tokens = [int(token) for token in model.tokenizer.encode(prompt, add_special=False)]
        stream, text = model.tokenizer.stream(), ""
        row = self._read(tokens)
        for _ in range(self._max_tokens):
            token = self._sampler(row, seq=0)
            if token in model.tokenizer.eog:
                break
            piece = stream.push(token)
            text += piece
            sys.stdout.write(piece)
            flush()
            row = self._read([*self._held, token])
        rest = stream.flush()
        write(rest)
        return text + rest

    def _read(self, tokens: list[int]) -> Any:
        """Make the sequence hold `tokens`, and give the logits after them."""
        from plait import Batch

        same = next(
            (i for i, (a, b) in enumerate(zip(self._held, tokens, strict=False)) if a != b),
            min(len(self._held), len(tokens)),
        )
        same = min(same, len(tokens) - 1)
        if same < len(self._held):
            same -= self._seq.rewind(same)
        self._held = self._held[:same]
        row = None
        for begin in range(same, len(tokens), self._ctx.n_batch):
            part = tokens[begin : begin + self._ctx.n_batch]
            batch = Batch()
            batch.add_sequence(part, seq=self._seq)
            row = self._ctx.decode(batch).logits[0]
            self._held += part
        return row
