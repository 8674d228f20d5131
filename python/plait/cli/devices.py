"""List the devices that a context can run on."""

from __future__ import annotations

import argparse

from plait.cli.arguments import add_json
from plait.cli.terminal import size, table, write, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments but --json."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """A line a device."""
    from plait import devices

    found = devices()
    if args.json:
        names = ("name", "description", "memory", "features")
        write_json([{name: getattr(device, name) for name in names} for device in found])
        return 0
    rows = [
        (d.name, d.description, " ".join(d.features), size(d.memory) if d.memory else "")
        for d in found
    ]
    write(table(("device", "description", "features", "free memory"), rows, left=3))
    return 0
