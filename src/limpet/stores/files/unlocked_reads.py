"""Reading a run without its lock: another process holds that and doesn't release it, as when it was stopped.

The head file is replaced whole, and the journal that it names only grows. So what is read is right if the head file
is still the same afterwards. Nothing is changed and nothing remembered. A commit that is being written may be seen or
not; it isn't acknowledged yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.stores.files.run_files import RunFiles
from limpet.stores.files.run_names import read_head_file
from limpet.stores.files.run_opening import open_run

Outcome = TypeVar("Outcome")

MAX_ATTEMPTS = 10
"""How often a run is read that changes meanwhile."""
ATTEMPT_DELAY = 0.002


def read_unlocked(directory: Path, run_id: str, use: Callable[[RunFiles], Outcome]) -> Outcome:
    """What `use` gives for a run. Raises `RunNotFound`, `DamagedRecord`, and what `use` does."""
    problem: Exception = StoreUnavailable(f"run {run_id!r} in {directory.parent} changes too fast to be read")
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(ATTEMPT_DELAY)
        before = read_head_file(directory, run_id)
        try:
            outcome = _read_once(directory, run_id, use)
        except DamagedRecord as damage:  # or a journal that was replaced in between, or is being written
            problem = damage
            continue
        if read_head_file(directory, run_id) == before:
            return outcome
    raise problem


def _read_once(directory: Path, run_id: str, use: Callable[[RunFiles], Outcome]) -> Outcome:
    run = open_run(directory, False, run_id, cut=False)
    try:
        return use(run)
    finally:
        run.close()
