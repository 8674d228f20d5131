"""Show the embedded model at work: one story, many questions."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demonstration's own."""
    from plait.demo import show

    show.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """The demonstration."""
    from plait.demo import show

    return show.show(args)
