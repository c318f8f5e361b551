"""What is left of a run whose head file is damaged: its id, and the records in its journal."""

from __future__ import annotations

from pathlib import Path

from limpet.errors import DamagedRecord, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores.files.frames import (
    UnfinishedFrame,
    checksum_seed,
    claimed_run_id,
    first_record_in,
    records_in,
    scan_frames,
)
from limpet.stores.files.run_names import HEAD_SUFFIX, JOURNAL_SUFFIX, file_name_of
from limpet.stores.heads import unreadable

Records = dict[int, bytes | DamagedRecord]


def listed_head(path: Path) -> RunHead:
    """The head of the run with this damaged head file, for a list. Raises `FileNotFoundError`."""
    return unreadable(run_id_by_name(path, path.read_bytes()), path.stat().st_mtime)


def run_id_by_name(path: Path, content: bytes) -> str:
    """The id that gives a damaged head file its name; the name itself, if no such id can be found."""
    name = path.name.removesuffix(HEAD_SUFFIX)
    candidates = (name.partition(".")[0], claimed_run_id(content))
    return next((each for each in candidates if each is not None and file_name_of(each) == name), name)


def salvaged_records(directory: Path, run_id: str) -> Records:
    """The records of a run by their numbers, read without its head file. Raises `RunNotFound`.

    A journal that was replaced may still be there. The one that goes furthest counts.
    """
    name = file_name_of(run_id)
    if not (directory / f"{name}{HEAD_SUFFIX}").exists():
        raise RunNotFound(run_id)
    journals = [_records_in(path, run_id) for path in directory.glob(f"{name}.*{JOURNAL_SUFFIX}")]
    return max(journals, key=lambda records: max(records, default=0), default={})


def _records_in(path: Path, run_id: str) -> Records:
    """The records in a journal file, up to where its frames can't be found any more."""
    found: Records = {}
    data = path.read_bytes()
    token = path.name.removesuffix(JOURNAL_SUFFIX).rpartition(".")[2]
    seed = checksum_seed(run_id, token)
    number = 1
    try:
        for frame in scan_frames(data, 0, first_record_in(data), seed):
            number = frame.first + frame.record_count
            try:
                records = records_in(frame.kind, frame.body(data, 0))
            except ValueError as problem:
                for each in range(frame.first, number):
                    found[each] = DamagedRecord(run_id, each, str(problem))
                continue
            found.update(enumerate(records, frame.first))
    except UnfinishedFrame:
        pass  # its commit was never acknowledged
    except ValueError as problem:
        found[number] = DamagedRecord(run_id, number, str(problem))
    return found
