"""Measure Limpet and hand-written code, and print the ratios: `python benchmarks/run.py [name …]`."""

from __future__ import annotations

import platform
import sqlite3
import sys

from cases import CASES
from measure import Result


def main(names: list[str]) -> int:
    """Run the named cases, or all; the exit status says whether every goal was met."""
    unknown = set(names) - {case.__name__ for case in CASES}
    if unknown:
        print(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(c.__name__ for c in CASES)}")
        return 2
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.machine()}\n")
    print(f"{'what':40} {'by hand':>18} {'Limpet':>18} {'ratio':>8}  goal")
    results: list[Result] = []
    for case in CASES:
        if not names or case.__name__ in names:
            for result in case():
                results.append(result)
                print(_line(result), flush=True)
    return 0 if all(result.met for result in results) else 1


def _line(result: Result) -> str:
    mark = "" if result.met else "   MISSED"
    return (
        f"{result.what:40} {result.by_hand:>18} {result.limpet:>18} {result.ratio:>8.2f}  {result.goal}{mark}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
