"""`python -m plait` runs the command `plait`."""

from plait.cli import main

raise SystemExit(main())
