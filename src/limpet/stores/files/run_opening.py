"""Opening a run in files, creating one, and reading one without its lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.journal.store import RunHead
from limpet.stores.atomic_files import flush_directory
from limpet.stores.files.frames import JournalPlace
from limpet.stores.files.run_files import RunFiles
from limpet.stores.files.run_names import new_token, parse_head_file, read_head_file

Outcome = TypeVar("Outcome")

MAX_ATTEMPTS = 10
"""How often a run is read without its lock that changes meanwhile."""
ATTEMPT_DELAY = 0.002


def open_run(directory: Path, flush: bool, run_id: str, cut: bool = True) -> RunFiles:
    """A run, as it is now. Raises `RunNotFound`, and `DamagedRecord` for a damaged head file.

    Without `cut`, the files aren't changed.
    """
    content = read_head_file(directory, run_id)
    head, place = parse_head_file(run_id, content)
    run = RunFiles(directory, flush, head, place)
    open_further(run, content, cut)
    return run


def open_further(run: RunFiles, head_bytes: bytes, cut: bool = True) -> None:
    """Read what the run has beside its head file, which was read just now."""
    run.head_bytes = head_bytes
    try:
        run.read_further(cut)
    except BaseException:
        run.close()
        raise


def create_run(directory: Path, flush: bool, head: RunHead, records: list[bytes]) -> RunFiles:
    """A new run with its first records. It exists once its head file does, so that comes last."""
    run = RunFiles(directory, flush, head._replace(sequence=0), JournalPlace(new_token()))
    try:
        if records:
            frame = run.write_frame(records, None)
            run.flush_journal()
            run.accept_frame(frame, len(records), None)
        run.replace_head(head._replace(sequence=len(records)))
    except BaseException:
        run.close()
        # The head may be there already, if only its name couldn't be flushed. It goes first; the journal stays if
        # the head may come back with a power loss, and goes with the next `expire`.
        with suppress(OSError):
            run.head_path.unlink(missing_ok=True)
            if flush:
                flush_directory(directory)
            run.journal_path.unlink()
        raise
    return run


def read_unlocked(directory: Path, run_id: str, use: Callable[[RunFiles], Outcome]) -> Outcome:
    """What `use` gives for a run whose lock another process holds and doesn't release, as when it was stopped.

    The head file is replaced whole, and the journal that it names only grows. So what is read is right if the head
    file is still the same afterwards. Nothing is changed and nothing remembered. A commit that is being written may
    be seen or not; it isn't acknowledged yet. Raises `RunNotFound`, `DamagedRecord`, and what `use` does.
    """
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
