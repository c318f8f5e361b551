"""Documents in files: each in a file of its own, which is replaced whole.

The file with the number of the newest version is replaced first, so that no version is given twice, even where a
document was deleted or its writer was killed. All changes happen under the locks of documents.

A reader of one document needs no lock. A list is made from an index, under a lock that says which documents others
have changed: so it reads these, and not the directory. The first list of a process reads the names of all documents,
and a document with the first list to which it belongs by its file name.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

from limpet.errors import DamagedDocument
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import Document
from limpet.stores.atomic_files import flush_directory, make_directory, read_whole, replace_file
from limpet.stores.files.locks import LockFile
from limpet.stores.files.run_names import MAX_READABLE, digest_of, readable_part
from limpet.stores.indexes import DocumentIndex, SortedEntries, beginning_with
from limpet.stores.problem_log import ProblemLog

LOCK_NAME = "documents"
"""Beside their own lock, documents have that of a run with files of this name: earlier versions know no other."""

SUFFIX = ".document"
VERSION_FILE = "VERSION"
MARK = b"LMD1"
UNREADABLE = -1
"""The version at which a document is that can't be read."""
_PREFIX = Struct(">4sI")


class DocumentFiles:
    """The documents in `directory`, which is made with the first of them. Change and list them while holding `lock`.

    Which files have changed since they were read is in `lock.unindexed`, if `lock.index_is_complete`.
    """

    def __init__(self, directory: Path, flush: bool, lock: LockFile) -> None:
        self.directory = directory
        self._flush = flush
        self._lock = lock
        self._index = DocumentIndex()
        self._read: dict[str, Document] = {}
        """The documents that are in the index, by the names of their files."""
        self._unread: SortedEntries[str] = SortedEntries()
        """The names of the files of the others."""
        self._problems = ProblemLog("limpet.stores")

    def put(self, name: str, body: bytes, version: int, due: float | None) -> int | None:
        """Write a document that is still at `version`, and return its new one, else None."""
        if version != self._version(name):
            return None
        make_directory(self.directory, flush=self._flush)
        self._lock.count_change(document_file(name))
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
        self._lock.count_change(document_file(name))
        self._path(name).unlink()
        if self._flush:
            flush_directory(self.directory)
        self._forget(document_file(name))
        return True

    def get(self, name: str) -> Document | None:
        """The document of this name, if there is one. Raises `DamagedDocument`."""
        path = self._path(name)
        try:
            return _document_in(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise DamagedDocument(name, UNREADABLE, f"{problem} ({path})") from problem

    def find(self, prefix: str, due_by: float | None, limit: int | None) -> list[Document]:
        """The first documents whose names begin with `prefix`; with a time, of those that are due by then.

        Damaged ones are left out: the log has a warning of each. Files that changed without the lock go unnoticed.
        """
        self._learn_changes()
        for file_name in list(beginning_with(readable_name(prefix), self._unread)):
            self._read_again(file_name)
        found = self._index.find(prefix, due_by, limit)
        return [self._read[document_file(name)] for name in found]

    def all_unlocked(self) -> list[Document]:
        """All documents but for damaged ones, read without the lock."""
        found = [self._listed(file_name) for file_name in self._file_names()]
        return [document for document in found if document is not None]

    def damaged(self, prefix: str) -> list[DamagedDocument]:
        """What is wrong with documents whose names begin with `prefix`, by what their files are called."""
        found = []
        for file_name in sorted(self._file_names()):
            path = self.directory / f"{file_name}{SUFFIX}"
            if file_name.startswith(readable_name(prefix)):
                try:
                    _document_in(path.read_bytes())
                except FileNotFoundError:
                    continue
                except ValueError as problem:
                    found.append(DamagedDocument(_likely_name(path), UNREADABLE, f"{problem} ({path})"))
        return found

    def _learn_changes(self) -> None:
        """Find out which documents are to be read, or read again."""
        lock = self._lock
        if not lock.index_is_complete:
            self._index = DocumentIndex()
            self._read.clear()
            self._unread = SortedEntries(self._file_names())
            lock.unindexed.clear()
            lock.index_is_complete = True
        for file_name in list(lock.unindexed):
            is_there = (self.directory / f"{file_name}{SUFFIX}").exists()
            self._forget(file_name)
            if is_there:
                self._unread.add(file_name)
        lock.unindexed.clear()

    def _read_again(self, file_name: str) -> None:
        document = self._listed(file_name)
        if document is not None:
            self._read[file_name] = document
            self._index.put(document.name, document.due)
        self._unread.discard(file_name)

    def _forget(self, file_name: str) -> None:
        document = self._read.pop(file_name, None)
        if document is not None:
            self._index.remove(document.name)
        self._unread.discard(file_name)
        self._lock.unindexed.discard(file_name)

    def _file_names(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]

    def _listed(self, file_name: str) -> Document | None:
        """The document in a file. None if it is damaged, with a warning in the log, or was deleted meanwhile."""
        path = self.directory / f"{file_name}{SUFFIX}"
        try:
            return _document_in(read_whole(str(path)))
        except FileNotFoundError:
            return None
        except ValueError as problem:
            self._problems.warn(f"the document in {path} is left out: {problem}")
            return None

    def _version(self, name: str) -> int:
        try:
            found = self.get(name)
        except DamagedDocument as damage:
            return damage.version
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
        if not self._file_names():
            return 0
        return max([time.time_ns() // 1000, *(document.version for document in self.all_unlocked())])

    def _path(self, name: str) -> Path:
        return self.directory / f"{document_file(name)}{SUFFIX}"


@lru_cache(4096)
def document_file(name: str) -> str:
    """What the file of a document is called, but for its suffix: different for each name."""
    return f"{readable_name(name)}.{digest_of(name)}"


def readable_name(text: str) -> str:
    """How the file names begin of all documents whose names begin with this text.

    The parts of a name stay apart: no file of a document "line of/…" begins as those of "line/…" do.
    """
    return "+".join(map(readable_part, text.split("/")))[:MAX_READABLE]


def rename_older(directory: Path, flush: bool) -> None:
    """Give the files of documents their present names. In earlier formats, the parts of a name didn't stay apart."""
    if not directory.exists():
        return
    for path in directory.glob(f"*{SUFFIX}"):
        # A damaged one stays as it is. One that is gone was renamed by another process.
        with suppress(FileNotFoundError, ValueError):
            document = _document_in(read_whole(str(path)))
            os.rename(path, directory / f"{document_file(document.name)}{SUFFIX}")
    if flush:
        flush_directory(directory)


def _likely_name(path: Path) -> str:
    """The name of a damaged document, if its file still says so; otherwise what that is called."""
    with suppress(Exception):  # what is damaged may be anything
        name = decode(path.read_bytes()[_PREFIX.size :])[0]
        if f"{document_file(name)}{SUFFIX}" == path.name:
            return str(name)
    readable = path.name.removesuffix(SUFFIX).rpartition(".")[0].replace("+", "/")
    return readable if f"{document_file(readable)}{SUFFIX}" == path.name else path.name


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
