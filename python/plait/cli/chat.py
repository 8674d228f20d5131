"""Chat with a model, using its chat template or another one.

Each line is a message; an empty line ends the conversation. /new starts a new conversation, /undo
removes the last message and its answer. Cached tokens are reused between turns.
"""

from __future__ import annotations

import argparse
import sys

from plait.cli.arguments import (
    add_context,
    add_model,
    add_sampling,
    make_context,
    make_sampler,
    open_model,
    read_text,
)
from plait.cli.terminal import flush, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait chat`."""
    add_model(parser)
    parser.add_argument("-s", "--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--template", metavar="FILE", help="Jinja template to use instead of that of the model"
    )
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="max tokens per answer (default 512)",
    )
    parser.add_argument(
        "--full",
        choices=("error", "truncate", "shift"),
        default="truncate",
        help="what to do if the conversation exceeds n_ctx (default truncate: omit the oldest messages)",
    )
    add_sampling(parser)
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Read messages from standard input and write the answers to standard output."""
    from plait import Chat

    template = read_text(args.template) if args.template else None
    with (
        make_context(open_model(args.model), args) as ctx,
        Chat(
            ctx,
            args.system,
            full=args.full,
            max_tokens=args.max_tokens,
            sampler=make_sampler(args),
            template=template,
        ) as chat,
    ):
        first = len(chat)
        while line := _ask():
            if line == "/new":
                del chat.messages[first:]
            elif line == "/undo":
                del chat.messages[max(first, len(chat) - 2) :]
            else:
                for event in chat.stream(line):
                    sys.stdout.write(event.text)
                    flush()
                write()
    return 0


def _ask() -> str:
    if sys.stdin.isatty():
        sys.stdout.write("> ")
        flush()
    return sys.stdin.readline().strip()
