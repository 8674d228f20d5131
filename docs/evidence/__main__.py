"""`python -m evidence`, with docs/ in PYTHONPATH; see __init__.py."""

from __future__ import annotations

import argparse
import sys

import evidence

from . import check, reports
from .parts import PARTS
from .run import run


def main() -> int:
    """Run the command line. Return 1 if a part failed or the check found a problem."""
    parser = argparse.ArgumentParser(
        prog="./dev evidence",
        description=evidence.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help="parts to run; without any, all that show goals")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="run nothing; find what does not agree")
    what.add_argument("--render", action="store_true", help="run nothing; write the pages")
    what.add_argument("--list", action="store_true", help="print the parts")
    args = parser.parse_args()
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    if args.list:
        for name, part in PARTS.items():
            print(f"{name:14} {part.about}: {', '.join(part.goals) or 'figures'}")
        return 0
    if args.check:
        return say(*check.check())
    failed = False
    if not args.render:
        failed = run_all(args.parts or [name for name, part in PARTS.items() if part.goals])
    for path in check.render(reports.read_all()):
        print(f"wrote {path.relative_to(reports.ROOT)}")
    return int(failed)


def run_all(names: list[str]) -> bool:
    """Run parts, each whatever became of the one before; return whether one failed."""
    failed = False
    for name in names:
        print(f"{name} ... ", end="", flush=True)
        report = run(name)
        print(f"{report['status']}, {report['seconds']} s")
        if report["status"] != "passed":
            failed = True
            print("\n".join(report["log"].splitlines()[-20:]))
    return failed


def say(problems: list[str], notes: list[str]) -> int:
    """Print what the check found; return its exit status."""
    for line in [*notes, *problems]:
        print(line)
    print(f"evidence: {len(problems)} problems, {len(notes)} stale reports")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
