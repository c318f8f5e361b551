"""Documents in files: each in a file of its own, which is replaced whole.

The file with the number of the newest version is replaced first, so that no version is given twice, even where a
document was deleted or its writer was killed. All changes happen under one lock; readers need none.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from limpet.errors import StoreUnavailable
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import Document
from limpet.stores.atomic_files import flush_directory, make_directory, replace_file
from limpet.stores.files.run_names import file_name_of

LOCK_NAME = "documents"
"""The lock of all documents is that of a run with files of this name."""

SUFFIX = ".document"
VERSION_FILE = "VERSION"
MARK = b"LMD1"
_PREFIX = Struct(">4sI")


class DocumentFiles:
    """The documents in `directory`, which is made with the first of them. Change them while holding their lock."""

    def __init__(self, directory: Path, flush: bool) -> None:
        self.directory = directory
        self._flush = flush
        self._read: dict[str, _ReadFile] = {}
        """The documents that were listed, so that a list reads those that have changed since."""

    def put(self, name: str, body: bytes, version: int, due: float | None) -> int | None:
        """Write a document that is still at `version`, and return its new one, else None."""
        if version != self._version(name):
            return None
        make_directory(self.directory, flush=self._flush)
        newest = self._newest_version() + 1
        replace_file(self.directory / VERSION_FILE, _framed([newest]), flush=self._flush)
        if due is not None:
            due = float(due)
        replace_file(self._path(name), _framed([name, newest, body, due]), flush=self._flush)
        return newest

    def delete(self, name: str, version: int) -> bool:
        """Delete a document that is still at `version`; False if it isn't."""
        if version == 0 or version != self._version(name):
            return False
        self._path(name).unlink()
        if self._flush:
            flush_directory(self.directory)
        return True

    def get(self, name: str) -> Document | None:
        """The document of this name, if there is one. Raises `StoreUnavailable` if it is damaged."""
        path = self._path(name)
        try:
            document = _document_in(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise StoreUnavailable(f"the document {name!r} in {path} can't be read: {problem}") from problem
        return document

    def all(self) -> list[Document]:
        """All documents, but for damaged ones: the log has a warning of each."""
        try:
            entries = [entry for entry in os.scandir(self.directory) if entry.name.endswith(SUFFIX)]
        except FileNotFoundError:
            return []
        found: dict[str, _ReadFile] = {}
        for entry in entries:
            with suppress(FileNotFoundError):  # deleted meanwhile
                stat = entry.stat()
                state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                before = self._read.get(entry.name)
                if before is None or before.state != state:
                    before = _ReadFile(state, _listed(Path(entry.path)))
                found[entry.name] = before
        self._read = found
        return [each.document for each in found.values() if each.document is not None]

    def _version(self, name: str) -> int:
        found = self.get(name)
        if found is None:
            return 0
        return found.version

    def _newest_version(self) -> int:
        path = self.directory / VERSION_FILE
        try:
            (newest,) = _unframed(path.read_bytes())
        except (FileNotFoundError, ValueError):
            newest = 0
        if type(newest) is int and newest > 0:
            return newest
        # There is none yet, or the file is damaged or was deleted. By the time of day, versions are likely to be new.
        if any(name.endswith(SUFFIX) for name in os.listdir(self.directory)):
            return max([time.time_ns() // 1000, *(document.version for document in self.all())])
        return 0

    def _path(self, name: str) -> Path:
        return self.directory / f"{file_name_of(name)}{SUFFIX}"


class _ReadFile(NamedTuple):
    """What identifies a file as one that was read before, and the document in it; None for a damaged one."""

    state: tuple[int, int, int]
    document: Document | None


def _listed(path: Path) -> Document | None:
    try:
        return _document_in(path.read_bytes())
    except ValueError as problem:
        from logging import getLogger

        getLogger("limpet.stores").warning("the document in %s is left out: %s", path, problem)
        return None


def _document_in(content: bytes) -> Document:
    name, version, body, due = _unframed(content)
    return Document(name, version, body, due)


def _framed(values: list[Any]) -> bytes:
    data = encode(values)
    return _PREFIX.pack(MARK, crc32(data)) + data


def _unframed(content: bytes) -> list[Any]:
    """The values in a file. Raises `ValueError` if it isn't what was written."""
    data = content[_PREFIX.size :]
    if len(content) < _PREFIX.size or _PREFIX.unpack_from(content) != (MARK, crc32(data)):
        raise ValueError("its checksum doesn't match its contents")
    values: list[Any] = decode(data)
    return values
