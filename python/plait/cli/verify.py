"""Verify a receipt.

Computes the calls of a receipt again and compares every result bit by bit. The exit status is 0 if all are equal, and 1
if one differs or the receipt cannot be verified with this model on this machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from plait.cli.arguments import add_json, open_model
from plait.cli.terminal import Progress, size, write_json, write_table

if TYPE_CHECKING:
    from plait import Receipt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait verify`."""
    parser.add_argument("receipt", metavar="RECEIPT", help="file that Receipt.save() wrote")
    parser.add_argument("model", metavar="MODEL", help="GGUF file, hf:owner/name, or demo")
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="FILE",
        help="adapter that is not at the recorded path; can be repeated",
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and write what was computed. Differences are errors."""
    from plait import Receipt, verify

    receipt = Receipt.load(args.receipt)
    model = open_model(args.model)
    adapters = [model.load_lora(path) for path in args.adapter]
    with Progress("verify") as progress:
        verify(receipt, model, adapters=adapters, progress=progress)
    if args.json:
        write_json(_facts(receipt))
        return 0
    facts = _facts(receipt)
    files = facts.pop("model")
    rows = [
        ("model", f"{file['name']}, {size(file['size'])}, SHA-256 {file['sha256']}")
        for file in files
    ]
    rows += [(name.replace("_", " "), _text(value)) for name, value in facts.items()]
    write_table(("", ""), rows, left=2)
    return 0


def _facts(receipt: Receipt) -> dict[str, Any]:
    build = receipt.build
    return {
        "model": receipt.model["files"],
        "recorded_by": f"plait {build.get('version')}, commit {build.get('commit')}, {build.get('compiler')}",
        "instruction_set": receipt.isa,
        "options": {name: value for name, value in receipt.options.items() if name != "isa"},
        "calls": dict(Counter(call["call"] for call in receipt.calls)),
        "tokens": receipt.n_tokens,
        "equal_results": sum("sha256" in call or "result" in call for call in receipt.calls),
    }


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    return str(value)
