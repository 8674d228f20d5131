"""List the devices that a context can run on."""

from __future__ import annotations

import argparse

from plait.cli.arguments import add_json
from plait.cli.terminal import size, write_json, write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait devices`."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write a description of each device and its features."""
    from plait import devices

    found = devices()
    if args.json:
        names = ("name", "description", "memory", "features")
        write_json([{name: getattr(device, name) for name in names} for device in found])
        return 0
    rows = []
    for device in found:
        free = f", {size(device.memory)} free" if device.memory else ""
        rows += [(device.name, device.description + free), ("", " ".join(device.features))]
    write_table(("device", "description and features"), rows, left=2)
    return 0
