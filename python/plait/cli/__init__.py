"""The command `plait`. Each subcommand is a module with its arguments and a function run().

Exit status: 0 for success; 1 for a failure, with the reason on standard error; 2 if an argument is
unknown, missing or has an invalid value; 130 if interrupted; 141 if the reader of the output closed
it. PLAIT_TRACEBACK=1 shows tracebacks. `plait --completion bash` writes a completion script for a shell.
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
from typing import NoReturn

from plait.cli.terminal import flush, write, write_error, write_table
from plait.errors import BackendError, CacheFull, Error

COMMANDS = (
    "demo",
    "inspect",
    "generate",
    "chat",
    "serve",
    "embed",
    "perplexity",
    "compare",
    "verify",
    "quantize",
    "imatrix",
    "bench",
    "devices",
)
_FUNCTIONS = (
    r"^(generate|quantize_file|choose_types|importance_matrix|embed|token_logprobs|compare|kl_divergence|from_hub|verify"
    r"|Sampler|Chat|Engine): "
)
_SMALLER = ("n_ctx", "kv_cells", "n_seq_max")  # what a message suggests if memory is short

SHELLS = ("bash", "zsh")
_FILES = ("MODEL", "REFERENCE", "CANDIDATE", "FILE", "OUTPUT", "RECEIPT")
_EXAMPLES = """
To begin:
  plait demo
  plait generate demo 'Tom lives in'

Arguments of a command:    plait COMMAND --help
Completion in bash, zsh:   eval "$(plait --completion bash)"
Version and compiler:      plait --version"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the next command instead of repeating all options."""

    def error(self, message: str) -> NoReturn:
        write_error(self.prog, message, f"{self.prog} --help")
        sys.exit(2)


def parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a subcommand; its namespace has the function `run`.

    Args:
        command: Name of the subcommand.
    """
    module = importlib.import_module(f"plait.cli.{command}")
    made = _Parser(
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

    Returns:
        The exit status; see the module.

    Raises:
        SystemExit: The arguments are invalid, or help was requested.
    """  # noqa: DOC501 - PLAIT_TRACEBACK lets any error pass
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        _help()
        return 0 if arguments else 2
    if command == "--version":
        _version()
        return 0
    if command == "--completion":
        return _completion(arguments[1:])
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        write_error("plait", f"unknown command {command!r}{hint}", "plait --help")
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
        write_error(f"plait {command}", text, _hint(error, args))
        return 2 if _is_usage(error, text, made) else 1
    return status


def _is_usage(error: Exception, text: str, command: argparse.ArgumentParser) -> bool:
    """Return whether an error is due to the value of an argument, with which its message begins."""
    names = [
        name for action in command._actions for name in (*action.option_strings, action.metavar)
    ]
    return (
        isinstance(error, ValueError)
        and not isinstance(error, Error)
        and text.partition(" ")[0].removesuffix(":") in names
    )


def _hint(error: BaseException, args: argparse.Namespace) -> str | None:
    """Return the command or the options that are likely to help, or None."""
    model = getattr(args, "model", None)
    if isinstance(error, CacheFull):
        return "a larger --n-ctx"
    if isinstance(error, MemoryError):
        return f"plait inspect {model} --plan, which shows the memory; --type-k q8_0 --type-v q8_0 halve the cache"
    if isinstance(error, BackendError) or "backend" in str(error):
        return "plait devices"
    if "No such file" in str(error) and model is not None and str(error).startswith(model):
        return "demo as MODEL, for the model in the package, or hf:owner/name"
    if "chat template" in str(error):
        return "--template FILE, or plait generate, which needs no template"
    return None


def _completion(shells: Sequence[str]) -> int:
    """Write a completion script for a shell to standard output, and return the exit status."""
    if len(shells) != 1 or shells[0] not in SHELLS:
        expected = f"expected one of {', '.join(SHELLS)}"
        write_error("plait --completion", expected, 'eval "$(plait --completion bash)"')
        return 2
    try:
        import shtab
    except ModuleNotFoundError:
        write_error("plait --completion", "shtab is not installed", "pip install 'plait[terminal]'")
        return 1
    whole = argparse.ArgumentParser(prog="plait", description="Language models from GGUF files.")
    whole.add_argument("--version", action="store_true", help="show the build")
    commands = whole.add_subparsers()
    for name in COMMANDS:
        module = importlib.import_module(f"plait.cli.{name}")
        command = commands.add_parser(name, help=_summary(name))
        module.add_arguments(command)
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    write(shtab.complete(whole, shells[0]))
    return 0


def _summary(command: str) -> str:
    doc = importlib.import_module(f"plait.cli.{command}").__doc__ or ""
    return doc.splitlines()[0].rstrip(".")


def _with_options(text: str, command: argparse.ArgumentParser) -> str:
    """Adapt a message of a Python function to a command.

    Returns:
        The message without the name of the function, with options instead of arguments, and without suggestions of
        arguments that the command does not have.
    """
    text = re.sub(_FUNCTIONS, "", text)
    names = {action.dest for action in command._actions if action.option_strings}
    offered = " or ".join(name for name in _SMALLER if name in names)
    text = text.replace(f"{', '.join(_SMALLER[:-1])} or {_SMALLER[-1]}", offered or _SMALLER[0])
    for action in command._actions:
        if action.option_strings:
            name = re.escape(action.dest)
            # A name without an underscore could be an ordinary word, unless what is around it is as at an argument.
            after = (
                r"(=True)?"
                if "_" in action.dest
                else r"(?=:? (?:is|expected)\b)|\b" + name + r"=(True)?"
            )
            text = re.sub(
                rf"(?<![-\w])(?<!whose )\b{name}\b{after}(?!\w)", action.option_strings[-1], text
            )
    return text


def _help() -> None:
    write("usage: plait COMMAND ...\n\nLanguage models from GGUF files.\n")
    write_table(("", ""), [(f"  {name}", _summary(name)) for name in COMMANDS], left=2)
    write(_EXAMPLES)


def _version() -> None:
    from plait import build_info

    facts = build_info()
    built = "vulkan" if facts["vulkan"] else "no options"
    commit = f", commit {facts['commit']}" if facts["commit"] else ""
    write(f"plait {facts['version']} ({facts['compiler']}, {built}{commit})")
