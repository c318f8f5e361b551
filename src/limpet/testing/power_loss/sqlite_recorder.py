"""Recording what SQLite does to files: by a VFS of ours in front of its own, in the library that `sqlite3` uses.

SQLite does all its input and output through a table of functions, a VFS. Ours is a copy of the default one with a few
functions replaced: they note the call and make it. The index of the write-ahead log (`-shm`) is shared memory; what
is in it doesn't survive a power loss and needn't.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

from limpet.testing.power_loss.disk_operations import Flush, FlushDirectory, Resize, Unlink, Write

if TYPE_CHECKING:
    from limpet.testing.power_loss.recorder import Recorder

NAME = b"limpet-power-loss"
SQLITE_OK = 0

_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_Delete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_OpenDirectory = CFUNCTYPE(c_int, c_char_p, POINTER(c_int))
_SetSystemCall = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
_GetSystemCall = CFUNCTYPE(c_void_p, c_void_p, c_char_p)
_Close = CFUNCTYPE(c_int, c_void_p)
_Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = CFUNCTYPE(c_int, c_void_p, c_int)


class _VFS(Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        ("other_functions", c_void_p * 11),
        ("xSetSystemCall", c_void_p),
        ("xGetSystemCall", c_void_p),
        ("xNextSystemCall", c_void_p),
    )


class _FileMethods(Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        ("other_functions", c_void_p * 13),
    )


class _File(Structure):
    """`sqlite3_file`: what follows it is the VFS's own."""

    _fields_ = (("pMethods", POINTER(_FileMethods)),)


def why_unavailable() -> str | None:
    """Why SQLite can't be recorded here; None if it can."""
    try:
        _recording_vfs()
    except (OSError, AttributeError, LookupError) as problem:
        return f"SQLite can't be recorded: {problem}"
    return None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have every connection that is opened from here on recorded, where SQLite can be."""
    if why_unavailable() is not None:
        yield  # a program that does use SQLite is then found out by the check at the end
        return
    vfs = _recording_vfs()
    vfs.start(recorder)
    try:
        yield
    finally:
        vfs.stop()


@cache
def _recording_vfs() -> _RecordingVFS:
    return _RecordingVFS(_library())


def _library() -> ctypes.CDLL:
    """The library that the module `sqlite3` is linked with. Raises `LookupError` if it can't be reached."""
    import _sqlite3
    import sqlite3

    # A symbol is looked up in the module and in the libraries that it is linked with.
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_libversion.restype = c_char_p
    found = library.sqlite3_libversion().decode()
    if found != sqlite3.sqlite_version:
        raise LookupError(f"found version {found}, and Python uses {sqlite3.sqlite_version}")
    library.sqlite3_vfs_find.restype = POINTER(_VFS)
    library.sqlite3_vfs_find.argtypes = [c_char_p]
    library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
    return library


class _RecordingVFS:
    """A copy of the default VFS whose functions tell the recorder. It exists as long as the process does."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._recorder: Recorder | None = None
        self._original = library.sqlite3_vfs_find(None)
        original: _VFS = self._original.contents
        if original.iVersion < 3 or original.zName != b"unix":
            raise LookupError(f"its VFS is {original.zName!r}, not that of Unix")
        self._paths: dict[int, str] = {}
        self._methods: dict[int, _FileMethods] = {}
        self._callbacks: list[Any] = []
        self._open = _Open(original.xOpen)
        self._delete = _Delete(original.xDelete)
        self._set_system_call = _SetSystemCall(original.xSetSystemCall)
        get_system_call = _GetSystemCall(original.xGetSystemCall)
        address = get_system_call(ctypes.addressof(original), b"openDirectory")
        if not address:
            raise LookupError("its VFS doesn't tell when it flushes a directory")
        self._open_directory = _OpenDirectory(address)
        self._on_open_directory = _OpenDirectory(self._directory_opened)
        self._vfs = _VFS.from_buffer_copy(original)
        self._vfs.pNext = None
        self._vfs.zName = NAME
        self._vfs.xOpen = self._address_of(_Open(self._opened))
        self._vfs.xDelete = self._address_of(_Delete(self._deleted))

    def start(self, recorder: Recorder) -> None:
        """Become the default, and tell this recorder."""
        self._recorder = recorder
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        hook = ctypes.cast(self._on_open_directory, c_void_p)
        self._set_system_call(ctypes.addressof(self._original.contents), b"openDirectory", hook)

    def stop(self) -> None:
        """Make the original the default again. Connections that are still open go on, and are not recorded."""
        self._recorder = None
        self._library.sqlite3_vfs_register(self._original, 1)
        self._set_system_call(ctypes.addressof(self._original.contents), b"openDirectory", None)

    def _address_of(self, callback: Any) -> int | None:
        self._callbacks.append(callback)
        return ctypes.cast(callback, c_void_p).value

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out_flags: Any) -> int:
        path = ctypes.string_at(name) if name else None
        exists = path is not None and os.path.exists(path)
        result: int = self._open(vfs, name, file, flags, out_flags)
        recorder = self._recorder
        if result != SQLITE_OK or path is None or recorder is None:
            return result
        place = recorder.path_of(path)
        if place is not None:
            with recorder.lock:
                recorder.opened(place, exists, cut=False)
            self._paths[file] = place
            opened = ctypes.cast(file, POINTER(_File)).contents
            opened.pMethods = ctypes.pointer(self._recorded(opened.pMethods.contents))
        return result

    def _deleted(self, vfs: int, path: bytes, flush_directory: int) -> int:
        recorder = self._recorder
        place = None if recorder is None else recorder.path_of(path)
        if recorder is None or place is None:
            return int(self._delete(vfs, path, flush_directory))
        # The name goes first, and then the directory is flushed. So the name is removed and noted without the flush.
        result: int = self._delete(vfs, path, 0)
        if result == SQLITE_OK:
            with recorder.lock:
                recorder.note(Unlink(place, recorder.disk.names[place]))
                if flush_directory:
                    recorder.note(FlushDirectory(os.path.dirname(place)))
        return result

    def _directory_opened(self, path: bytes, descriptor: Any) -> int:
        """SQLite opens a directory in order to flush it, and for nothing else."""
        recorder = self._recorder
        place = None if recorder is None else recorder.path_of(path)
        if recorder is not None and place is not None:
            with recorder.lock:
                recorder.note(FlushDirectory(os.path.dirname(place)))
        return int(self._open_directory(path, descriptor))

    def _recorded(self, original: _FileMethods) -> _FileMethods:
        """The methods of a file, with those replaced that change it."""
        address = ctypes.addressof(original)
        if address not in self._methods:
            methods = _FileMethods.from_buffer_copy(original)
            methods.xClose = self._address_of(_Close(self._closing(_Close(original.xClose))))
            methods.xWrite = self._address_of(_Write(self._writing(_Write(original.xWrite))))
            methods.xTruncate = self._address_of(_Truncate(self._resizing(_Truncate(original.xTruncate))))
            methods.xSync = self._address_of(_Sync(self._flushing(_Sync(original.xSync))))
            self._methods[address] = methods
        return self._methods[address]

    def _closing(self, close: Callable[[int], int]) -> Callable[[int], int]:
        def closed(file: int) -> int:
            self._paths.pop(file, None)
            return close(file)

        return closed

    def _writing(self, write: Callable[..., int]) -> Callable[..., int]:
        def written(file: int, data: int, size: int, offset: int) -> int:
            result = write(file, data, size, offset)
            if result == SQLITE_OK:
                self._note(file, lambda number: Write(number, offset, ctypes.string_at(data, size)))
            return result

        return written

    def _resizing(self, resize: Callable[..., int]) -> Callable[..., int]:
        def resized(file: int, size: int) -> int:
            result = resize(file, size)
            if result == SQLITE_OK:
                self._note(file, lambda number: Resize(number, size))
            return result

        return resized

    def _flushing(self, flush: Callable[..., int]) -> Callable[..., int]:
        def flushed(file: int, flags: int) -> int:
            # Before the call: SQLite flushes the file, and then the directory if the file is new.
            self._note(file, Flush)
            return flush(file, flags)

        return flushed

    def _note(self, file: int, change: Callable[[int], Any]) -> None:
        recorder = self._recorder
        place = self._paths.get(file)
        if recorder is None or place is None:
            return
        with recorder.lock:
            number = recorder.disk.names.get(place)
            if number is not None:
                recorder.note(change(number))
