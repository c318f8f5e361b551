"""Files that are there whole or not at all, whatever happens while they are written.

A file is written under a temporary name beside its place, flushed, and only then given its name; flushing the
directory makes the name last. Errors of the system come out as `StoreUnavailable` that says what to mend.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from limpet.errors import StoreUnavailable

TEMPORARY = ".tmp"
"""How the names of files end that are being written, or were when their writer was killed."""


def put(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Make `data` the content of the file, in place of what was there."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, flush)
        os.replace(temporary, path)
    except BaseException:
        _forget(temporary)
        raise
    if flush:
        flush_directory(path.parent)


def put_new(path: Path, data: bytes, *, flush: bool = True) -> None:
    """The same for a file that must not be there yet. Raises `FileExistsError` if it is."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, flush)
        _name(temporary, path)
    finally:
        _forget(temporary)
    if flush:
        flush_directory(path.parent)


def flush_directory(directory: Path) -> None:
    """Make names that were given or taken away in a directory last."""
    if os.name == "nt":  # directories can't be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise
    finally:
        os.close(descriptor)


def make_directory(directory: Path, *, flush: bool = True) -> None:
    """Make a directory, and those above it, unless it is there."""
    if directory.is_dir():
        return
    make_directory(directory.parent, flush=flush)
    directory.mkdir(exist_ok=True)
    if flush:
        flush_directory(directory.parent)


def explained(error: OSError, path: Path, doing: str = "written to") -> StoreUnavailable:
    """What an error of the system means for whoever wants to use the file."""
    meaning = _MEANINGS.get(error.errno or 0, "{error}")
    reason = meaning.format(error=error.strerror or error, directory=path.parent)
    return StoreUnavailable(f"{path} can't be {doing}: {reason}")


def _temporary(path: Path) -> Path:
    """Beside the file, so that it can be renamed; never longer than the file's name may be."""
    return path.with_name(f".{os.urandom(8).hex()}{TEMPORARY}")


def _write(path: Path, data: bytes, flush: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        write_all(descriptor, data)
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a system may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _name(temporary: Path, path: Path) -> None:
    """Give the file its name if no other has it."""
    if os.name == "nt":
        os.rename(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links, the name is taken first; whoever looks in between finds an empty file, not a wrong one.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(temporary, path)


def _forget(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_WRITABLE = "let this user read and write {directory} and what is in it"
_MEANINGS = {
    errno.ENOSPC: "the disk is full; free some space. What was saved before is safe",
    errno.EDQUOT: "this user's share of the disk is used up; free some space. What was saved before is safe",
    errno.EFBIG: "it would be larger than a file may be here",
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: "its file system is read-only; use a directory elsewhere",
    errno.EIO: "its disk fails; check it. What was saved before may be read from a copy",
    errno.ENOTDIR: "a part of the path is a file, not a directory; use another path",
    errno.EEXIST: "a part of the path is a file, not a directory; use another path",
    errno.EISDIR: "it is a directory; name a file in it",
    errno.ENOENT: "{directory} is gone; make it again",
    errno.ENAMETOOLONG: "its name is longer than the file system allows; use a shorter one",
    errno.EMFILE: "this process has too many files open; close some, or allow more (ulimit -n)",
    errno.ENFILE: "the system has too many files open; close some",
    errno.ENOLCK: "the file system has no locks; use a directory on a local disk",
}
