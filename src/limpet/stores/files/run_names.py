"""The names of a run's files in the directory of all runs, and the head file behind the first of them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from limpet.errors import DamagedRecord, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores.atomic_files import read_whole
from limpet.stores.files.frames import JournalPlace, decode_head_file

HEAD_SUFFIX = ".head"
JOURNAL_SUFFIX = ".log"
CUT_SUFFIX = ".cut"
"""Of the file with what was cut off at the end of a journal."""
INBOX_SUFFIX = ".posts"
OUTPUT_SUFFIX = ".output"
MAX_READABLE = 40
"""Characters of a name that the names of its files show."""


@lru_cache(4096)
def file_name_of(run_id: str) -> str:
    """What the files of a run are called: readable, safe on every file system, and different for each id."""
    return f"{readable_part(run_id)}.{digest_of(run_id)}"


def readable_part(text: str) -> str:
    """What of a name is in the names of its files for people to read."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:MAX_READABLE]


def digest_of(text: str) -> str:
    """What makes the name of a file different from that of any other text."""
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def new_token() -> str:
    """What makes the name of another file of a run unlike all earlier ones."""
    return os.urandom(6).hex()


def read_head_file(directory: Path, run_id: str) -> bytes:
    """The bytes of a run's head file. Raises `RunNotFound`."""
    try:
        return read_whole(f"{directory}{os.sep}{file_name_of(run_id)}{HEAD_SUFFIX}")
    except FileNotFoundError:
        raise RunNotFound(run_id) from None


def parse_head_file(run_id: str | None, content: bytes) -> tuple[RunHead, JournalPlace]:
    """The head and the place in a head file, of this run if its id is given. Raises `DamagedRecord`."""
    try:
        head, place = decode_head_file(content)
        if run_id is not None and head.run_id != run_id:
            raise ValueError(f"its head file is that of run {head.run_id!r}")
    except (ValueError, TypeError, IndexError) as problem:
        raise DamagedRecord(run_id or "?", 0, str(problem)) from problem
    return head, place


def remove_files(directory: Path, name: str) -> None:
    """Remove what a run has beside its head, which is gone: journals, what was cut off of them, posts and output."""
    for entry in os.scandir(directory):
        if entry.name.startswith(f"{name}.") and not entry.name.endswith(HEAD_SUFFIX):
            with suppress(OSError):
                os.unlink(entry.path)
