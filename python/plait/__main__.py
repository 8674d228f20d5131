"""`python -m plait` is the command `plait`."""

from plait.cli import main

raise SystemExit(main())
