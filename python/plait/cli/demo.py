"""Run the demo model: one story, many questions."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait demo`."""
    from plait.demo import show

    show.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from plait.demo import show

    return show.show(args)
