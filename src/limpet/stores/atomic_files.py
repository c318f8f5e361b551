"""Files that exist whole or not at all, whatever happens while they are written.

A file is written under a temporary name in the same directory, flushed, and only then renamed; flushing the directory
makes the new name survive a power loss. `explain` turns errors of the system into a `StoreUnavailable` that says
what to do.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from limpet.errors import StoreUnavailable

TEMPORARY_SUFFIX = ".tmp"
"""How the names of unfinished files end: of those being written, and of those whose writer was killed."""
MAX_FLUSHED_DIRECTORIES = 1000
_flushed_directories: dict[Path, tuple[int, int]] = {}
"""The directories whose names this process has flushed, so that it does so once."""


def replace_file(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Make `data` the content of the file, in place of its earlier content."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, flush)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    if flush:
        flush_directory(path.parent)


def create_file(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Make a new file with this content. Raises `FileExistsError` if it already exists."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, flush)
        _rename_new(temporary, path)
    finally:
        _remove(temporary)
    if flush:
        try:
            flush_directory(path.parent)
        except BaseException:
            _remove(path)  # it isn't safe, so it wasn't made
            raise


def flush_directory(directory: Path) -> None:
    """Make files that were created, renamed or removed in a directory stay so after a power loss."""
    if os.name == "nt":  # Windows can't open directories
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems can't flush a directory
            raise
    finally:
        os.close(descriptor)


def make_directory(directory: Path, *, flush: bool = True) -> None:
    """Make a directory, and those above it, unless it exists; after that it survives a power loss.

    One that exists may have been made by a process that was killed before it flushed the name. So what this process
    uses for the first time is flushed, up to the root.
    """
    path = directory.absolute()
    try:
        found = path.stat()
    except FileNotFoundError:
        make_directory(path.parent, flush=flush)
        path.mkdir(exist_ok=True)
        if flush:
            flush_directory(path.parent)
        return
    if not stat.S_ISDIR(found.st_mode):
        path.mkdir()  # raises, as the name is taken
    identity = (found.st_dev, found.st_ino)
    if not flush or _flushed_directories.get(path) == identity:
        return
    if path != path.parent:
        make_directory(path.parent)
        with suppress(OSError):  # it may be another user's; then it was hardly made by a process of this one
            flush_directory(path.parent)
    if len(_flushed_directories) >= MAX_FLUSHED_DIRECTORIES:
        _flushed_directories.clear()
    _flushed_directories[path] = identity


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turn errors of the system into `StoreUnavailable` that names the file, or else `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, Path(error.filename) if error.filename else path, "used") from error


def explain(error: OSError, path: Path, doing: str = "written to") -> StoreUnavailable:
    """An error of the system as one that says what it means for the file, and what to do."""
    advice = _ADVICE.get(error.errno or 0, "{error}")
    if doing == "read" and error.errno == errno.ENOENT:
        advice = "it doesn't exist; check the path"
    reason = advice.format(error=error.strerror or error, directory=path.parent)
    return StoreUnavailable(f"{path} can't be {doing}: {reason}")


def _temporary(path: Path) -> Path:
    """In the same directory, since a rename can't cross file systems. Short, so that its name is always allowed."""
    return path.parent / f".{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"


def _write(path: Path, data: bytes, flush: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        write_all(descriptor, data)
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; one call of the system may write less."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of `data` at this place of a file."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    write_all(descriptor, data)


def replace_end(path: Path, data: bytes, at: int, *, create: bool = False, flush: bool = False) -> None:
    """Write `data` into a file from byte `at` on. It ends there then: what a killed writer left goes."""
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0)
    if create:
        flags |= os.O_CREAT
    descriptor = os.open(path, flags, 0o600)
    try:
        os.ftruncate(descriptor, at)
        write_at(descriptor, data, at)
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(path: str) -> bytes:
    """The content of a small file, as `Path.read_bytes` gives it, in half the time."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Read this many bytes from this place of a file, or what there is of them."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    parts = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    if len(parts) == 1:  # the usual case, without a copy
        return parts[0]
    return b"".join(parts)


def _rename_new(temporary: Path, path: Path) -> None:
    """Give a file its name unless another file has it: a link fails then, where a rename would replace the other."""
    if os.name == "nt":  # a rename fails there too
        os.rename(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links, an empty file reserves the name first. A reader in between finds it empty, not wrong.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(temporary, path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_WRITABLE = "let this user read and write {directory} and what is in it"
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space. What was saved before is safe",
    errno.EDQUOT: "this user's share of the disk is used up; free some space. What was saved before is safe",
    errno.EFBIG: "it would be larger than a file may be here",
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: "its file system is read-only; use a directory elsewhere",
    errno.EIO: "its disk fails; check it, and restore earlier data from a copy",
    errno.ENOTDIR: "a part of the path is a file, not a directory; use another path",
    errno.EEXIST: "a part of the path is a file, not a directory; use another path",
    errno.EISDIR: "it is a directory; name a file in it",
    errno.ENOENT: "{directory} doesn't exist; create it first",
    errno.ENAMETOOLONG: "its name is longer than the file system allows; use a shorter one",
    errno.EMFILE: "this process has too many files open; close some, or allow more (ulimit -n)",
    errno.ENFILE: "the system has too many files open; close some",
    errno.ENOLCK: "the file system has no locks; use a directory on a local disk",
}
