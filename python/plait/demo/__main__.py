"""`python -m plait.demo`."""

from plait.demo.show import main

raise SystemExit(main())
