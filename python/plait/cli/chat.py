"""Chat with a model, using its chat template or another one.

Each line is a message. /new starts a new conversation, /undo removes the last message and its
answer, /help lists the commands; // at the start of a line stands for one /. Ctrl-C ends an answer,
and Ctrl-D or an empty line the conversation. Cached tokens are reused between turns.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

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
from plait.errors import CacheFull

if TYPE_CHECKING:
    from plait import Chat

_COMMANDS = {
    "/new": "start a new conversation",
    "/undo": "remove the last message and its answer",
    "/help": "list the commands",
}


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
            if line.startswith("/") and not line.startswith("//"):
                _command(line, chat, first)
            else:
                _answer(chat, line.removeprefix("/") if line.startswith("//") else line)
    return 0


def _answer(chat: Chat, text: str) -> None:
    """Write the answer to a message. Ctrl-C ends it; what was generated until then stays in the conversation."""
    try:
        with closing(chat.stream(text)) as answer:
            for event in answer:
                sys.stdout.write(event.text)
                flush()
        write()
    except KeyboardInterrupt:
        write()
        _tell("interrupted")
    except CacheFull as error:
        if not sys.stdin.isatty():
            raise
        problem = str(error).removeprefix("Chat: ").replace("n_ctx", "--n-ctx")
        _tell(f"{problem}; /undo and /new make room")


def _command(line: str, chat: Chat, first: int) -> None:
    """Run a command and confirm it. The first `first` messages are not part of the conversation."""
    n = len(chat) - first
    if line == "/new":
        del chat.messages[first:]
        _tell(f"new conversation; {n} message{'s' if n != 1 else ''} removed")
    elif line == "/undo" and not n:
        _tell("nothing to undo")
    elif line == "/undo":
        start = max(i for i in range(first, len(chat)) if chat.messages[i]["role"] == "user")
        text = chat.messages[start]["content"]
        del chat.messages[start:]
        _tell(f"removed {text!r:.60} and its answer")
    elif line == "/help":
        _tell("; ".join(f"{name}: {what}" for name, what in _COMMANDS.items()))
    else:
        _tell(
            f"unknown command {line!r:.60}; expected {', '.join(_COMMANDS)}, or // for a message that starts with /"
        )


def _tell(text: str) -> None:
    sys.stderr.write(f"({text})\n")
    sys.stderr.flush()


def _ask() -> str:
    """Return the next line; an empty one at the end of the input. On a terminal, with line editing and history.

    An empty line ends the conversation on a terminal; elsewhere it is skipped.
    """
    if not sys.stdin.isatty():
        while (line := sys.stdin.readline()) and not line.strip():
            pass
        return line.strip()
    with suppress(ImportError):
        import readline  # noqa: F401  # changes input()
    while True:
        try:
            return input("> ").strip()
        except EOFError:
            write()
            return ""
        except KeyboardInterrupt:
            write()
            _tell("press Ctrl-D to end the conversation")
