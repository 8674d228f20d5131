"""The command `plait`. Each subcommand is a module with its arguments and a function run().

Exit status: 0 for success; 1 for a failure, with the reason on standard error; 2 for invalid
arguments; 130 if interrupted; 141 if the reader of the output closed it. PLAIT_TRACEBACK=1 shows
tracebacks.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from plait.cli.terminal import flush, write
from plait.errors import Error

COMMANDS = (
    "demo",
    "inspect",
    "generate",
    "chat",
    "serve",
    "embed",
    "perplexity",
    "quantize",
    "bench",
    "devices",
)
_FUNCTIONS = r"^(generate|quantize_file|embed|token_logprobs|from_hub|Sampler|Chat): "


def parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a subcommand; its namespace has the function `run`.

    Args:
        command: Name of the subcommand.
    """
    module = importlib.import_module(f"plait.cli.{command}")
    made = argparse.ArgumentParser(
        prog=f"plait {command}",
        description=_paragraphs(module.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(made)
    made.set_defaults(run=module.run)
    return made


def _paragraphs(text: str) -> str:
    """Fill each paragraph to the width of the terminal; argparse would join them into one."""
    columns = shutil.get_terminal_size().columns
    filled = (textwrap.fill(" ".join(part.split()), columns) for part in text.split("\n\n"))
    return "\n\n".join(filled)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status.

    Args:
        argv: The arguments. None: those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        _help()
        return 0 if arguments else 2
    if command == "--version":
        _version()
        return 0
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        sys.stderr.write(f"plait: unknown command {command!r}{hint} see plait --help\n")
        return 2
    # Intermixed, so that options can come before, between and after prompts.
    made = parser(command)
    args = made.parse_intermixed_args(arguments[1:])
    try:
        status: int = args.run(args)
        flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The rest of the buffer has no reader. Without this, Python would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (Error, OSError, ValueError, MemoryError, ModuleNotFoundError) as error:
        if os.environ.get("PLAIT_TRACEBACK"):
            raise
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        text = _with_options(text, made)
        sys.stderr.write(f"plait {command}: {text}\n")
        return 1
    return status


def _with_options(text: str, command: argparse.ArgumentParser) -> str:
    """Remove the name of the Python function from a message, and replace those of arguments by options."""
    text = re.sub(_FUNCTIONS, "", text)
    for action in command._actions:
        if action.option_strings:
            name = re.escape(action.dest)
            # A name without an underscore could be an ordinary word, unless it is followed like an argument.
            after = (
                r"(=True)?"
                if "_" in action.dest
                else r"(?=:? (?:is|expected)\b)|\b" + name + r"=(True)?"
            )
            text = re.sub(rf"(?<![-\w])\b{name}\b{after}(?!\w)", action.option_strings[-1], text)
    return text


def _help() -> None:
    write("usage: plait COMMAND ...\n\nLanguage models from GGUF files.\n")
    for name in COMMANDS:
        module = importlib.import_module(f"plait.cli.{name}")
        write(f"  {name:12}{(module.__doc__ or '').splitlines()[0].rstrip('.')}")
    write("\n`plait COMMAND --help` shows its arguments; `plait --version` the build.")


def _version() -> None:
    from plait import build_info

    facts = build_info()
    built = "vulkan" if facts["vulkan"] else "no options"
    commit = f", commit {facts['commit']}" if facts["commit"] else ""
    write(f"plait {facts['version']} ({facts['compiler']}, {built}{commit})")
