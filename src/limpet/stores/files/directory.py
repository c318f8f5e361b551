"""The directory of a file store: making it one, and removing what killed writers left in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.stores.atomic_files import (
    TEMPORARY_SUFFIX,
    create_file,
    flush_directory,
    make_directory,
    replace_file,
)
from limpet.stores.files.documents import rename_older
from limpet.stores.files.locks import LockBusy, Locks
from limpet.stores.files.run_names import (
    HEAD_SUFFIX,
    INBOX_SUFFIX,
    JOURNAL_SUFFIX,
    OUTPUT_SUFFIX,
    parse_head_file,
)

FORMAT = b"limpet files 4\n"
EARLIER_FORMATS = (b"limpet files 1\n", b"limpet files 2\n", b"limpet files 3\n")
"""Without posts, without queues, and with other names for the files of documents. All else is used as it is."""
DOCUMENTS = "documents"
FORMAT_FILE = "FORMAT"
STALE_AFTER = 3600.0
"""Seconds after which a temporary file is taken for one that a killed writer left."""


def prepare_directory(path: Path, flush: bool) -> None:
    """Make the directory a store, unless it is one. Raises `StoreUnavailable` if it is something else."""
    make_directory(path, flush=flush)
    format_file = path / FORMAT_FILE
    if not format_file.exists():
        others = [name for name in os.listdir(path) if not name.startswith(".") and name != FORMAT_FILE]
        # Another process may be preparing the directory just now. It writes the format first, so look for that again.
        if others and not format_file.exists():
            raise StoreUnavailable(
                f"{path} has something else in it ({sorted(others)[0]!r}): give Limpet a directory of its own"
            )
        with suppress(FileExistsError):  # another process prepares the directory, too
            create_file(format_file, FORMAT, flush=flush)
    found = format_file.read_bytes()
    if found in EARLIER_FORMATS:
        rename_older(path / DOCUMENTS, flush)
        # So that an earlier version, which couldn't read what is written from here on, says so.
        replace_file(format_file, FORMAT, flush=flush)
    elif found != FORMAT:
        raise StoreUnavailable(
            f"{path} was written by a newer Limpet, or isn't a store ({FORMAT_FILE} has {found[:40]!r}): "
            "upgrade limpet, or use another directory"
        )
    parts = [path / name for name in ("locks", "runs")]
    # The name of the format file first: without it, a directory that has the others isn't taken for a store.
    if flush and not all(part.is_dir() for part in parts):
        flush_directory(path)
    for part in parts:
        make_directory(part, flush=flush)


def remove_stale_files(runs: Path) -> None:
    """Remove temporary files that killed writers left long ago."""
    with suppress(OSError):
        for entry in os.scandir(runs):
            if not entry.name.endswith(TEMPORARY_SUFFIX):
                continue
            if entry.stat().st_mtime < time.time() - STALE_AFTER:
                os.unlink(entry.path)


def remove_stray_files(runs: Path, locks: Locks, flush: bool) -> None:
    """Remove journals, inboxes and outputs that killed writers left and that belong to no head."""
    for path, name, token in _files_beside_heads(runs):

        def work(path: Path = path, name: str = name, token: str = token) -> None:
            _remove_if_stray(path, runs / f"{name}{HEAD_SUFFIX}", token, flush)

        lock = locks.lock_of(name)
        with suppress(FileNotFoundError, DamagedRecord, LockBusy):
            locks.holding([lock], work, locks.reading_timeout(lock))


def _files_beside_heads(runs: Path) -> Iterator[tuple[Path, str, str]]:
    """The files of runs but for head files, each with the name of its run and its token, if it has one."""
    for entry in os.scandir(runs):
        path = Path(entry.path)
        if path.suffix in (JOURNAL_SUFFIX, INBOX_SUFFIX):
            name, _, token = path.stem.rpartition(".")
            yield path, name, token
        elif path.suffix == OUTPUT_SUFFIX:
            yield path, path.stem, ""


def _remove_if_stray(path: Path, head_path: Path, token: str, flush: bool) -> None:
    """Remove a file unless there is this head, and it names the token."""
    if head_path.exists():
        _, place = parse_head_file(None, head_path.read_bytes())
        if not token or token in (place.token, place.inbox):
            return
    # First, so that no power loss brings back a head that names it: it may have been removed and not flushed.
    if flush:
        flush_directory(path.parent)
    path.unlink()
