"""The command `plait`: one module a subcommand, which says what it takes and runs it.

Exit status: 0, done; 1, it could not be done, and the reason is on standard error; 2, arguments that make no sense;
130, interrupted; 141, whoever read the output went away. PLAIT_TRACEBACK=1 shows where an error comes from.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
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
    "embed",
    "perplexity",
    "quantize",
    "bench",
    "devices",
)


def parser(command: str) -> argparse.ArgumentParser:
    """The parser of a subcommand; its namespace has `run`, which does it."""
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
    """Filled to the terminal's width, which argparse would do to all of them as one."""
    columns = shutil.get_terminal_size().columns
    filled = (textwrap.fill(" ".join(part.split()), columns) for part in text.split("\n\n"))
    return "\n\n".join(filled)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, sys.argv's by default; returns the exit status."""
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
        hint = f"; {near[0]}?" if near else ""
        sys.stderr.write(f"plait: no command {command!r}{hint} `plait --help` lists them\n")
        return 2
    # Intermixed: options may stand before, between and after a list of prompts.
    args = parser(command).parse_intermixed_args(arguments[1:])
    try:
        status: int = args.run(args)
        flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # What is left in the buffer has no reader; without this Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (Error, OSError, ValueError, MemoryError, ModuleNotFoundError) as error:
        if os.environ.get("PLAIT_TRACEBACK"):
            raise
        text = str(error) or type(error).__name__
        sys.stderr.write(f"plait {command}: {text}\n")
        return 1
    return status


def _help() -> None:
    write("usage: plait COMMAND ...\n\nLanguage models from GGUF files.\n")
    for name in COMMANDS:
        module = importlib.import_module(f"plait.cli.{name}")
        write(f"  {name:12}{(module.__doc__ or '').splitlines()[0].rstrip('.')}")
    write("\n`plait COMMAND --help` says more; `plait --version` what is built in.")


def _version() -> None:
    from plait import build_info

    facts = build_info()
    built = "vulkan" if facts["vulkan"] else "no options"
    commit = f", commit {facts['commit']}" if facts["commit"] else ""
    write(f"plait {facts['version']} ({facts['compiler']}, {built}{commit})")
