#!/usr/bin/env python3
"""Print what tests skipped, by reason, with counts. In CI, fail if they lacked something that CI must offer.

    skips.py REPORT.xml...

The reports are those of pytest (--junitxml) and GoogleTest (--gtest_output=xml:). With CI=true in the environment, a
skip for lack of a Vulkan driver or of the reference data is an error: a machine without them shows less than it seems.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

REQUIRED = {
    "a Vulkan driver (Debian: mesa-vulkan-drivers)": re.compile(r"^no Vulkan device"),
    "the reference data (PLAIT_TEST_DATA)": re.compile(
        r"^no reference data|PLAIT_TEST_DATA (is|does) not"
    ),
}


def reasons(report: Path) -> Counter[str]:
    """Count the skipped cases of a report by their reason."""
    found: Counter[str] = Counter()
    cases = list(ET.parse(report).getroot().iter("testcase"))
    if not cases:
        raise SystemExit(f"{report} has no test case: nothing ran")
    for case in cases:
        skip = case.find("skipped")
        if skip is None and case.get("result") != "skipped":
            continue
        message = (skip.get("message") or "") if skip is not None else ""
        # GoogleTest writes the place in front; the last line has the reason.
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        reason = (lines or ["no reason"])[-1]
        found[re.sub(r"/\S+/", "", reason)] += 1
    return found


def lacking(found: Counter[str]) -> list[str]:
    """Return what CI must offer and tests did not find."""
    return [what for what, words in REQUIRED.items() if any(map(words.search, found))]


def main(names: list[str]) -> int:
    """Print the table; return 1 if CI lacks something."""
    found: Counter[str] = Counter()
    for name in names:
        found += reasons(Path(name))
    print(f"skipped: {found.total()} cases")
    for reason, n in found.most_common():
        print(f"{n:6}  {reason[:150]}")
    missing = lacking(found) if os.environ.get("CI") else []
    for what in missing:
        print(f"CI lacks {what}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
