"""How much something costs, as a number that doesn't depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_of(work: Callable[[], object]) -> int:
    """How many functions a call calls, those written in C included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
