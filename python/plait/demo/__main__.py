"""`python -m plait.demo`, which is `plait demo`."""

import sys

from plait.cli import main

raise SystemExit(main(["demo", *sys.argv[1:]]))
