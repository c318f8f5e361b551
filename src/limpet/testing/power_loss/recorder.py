"""Recording what this process does to the files of a directory: by functions of `os`, and by SQLite.

Nothing is flushed for real: the recording says what was flushed, and no power is lost while it is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from limpet.testing.power_loss.disk_operations import (
    DIRECTORY,
    Acknowledge,
    Change,
    Create,
    Disk,
    Flush,
    FlushDirectory,
    Link,
    Operation,
    Rename,
    Resize,
    Unlink,
    Write,
    read_image,
)

IGNORED_SUFFIXES = ("-shm",)
"""Files that hold nothing: SQLite makes its index of the write-ahead log again when a machine has been off."""


class Recorder:
    """The operations on the files in `root`, which begins as `disk` says. Use `recording` to fill it."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = os.path.realpath(root)
        self.disk = disk
        self.operations: list[Operation] = []
        self.lock = RLock()
        self._last_file = max(disk.contents, default=0)

    def acknowledge(self, what: Any) -> None:
        """Note that the program has reported that `what` is saved."""
        with self.lock:
            self.operations.append(Acknowledge(what))

    def note(self, change: Change) -> None:
        """Add an operation."""
        self.operations.append(change)
        self.disk.apply(change)

    def path_of(self, path: Any) -> str | None:
        """The path inside the directory; None if it is elsewhere, or isn't recorded."""
        if isinstance(path, int):
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        directory, name = os.path.split(absolute)
        absolute = os.path.join(os.path.realpath(directory), name)
        if absolute == self.root:
            return ""
        if not absolute.startswith(self.root + os.sep) or absolute.endswith(IGNORED_SUFFIXES):
            return None
        return absolute[len(self.root) + 1 :]

    def opened(self, path: str, exists: bool, cut: bool) -> int:
        """Note that a file was opened, and maybe created or emptied; gives its number."""
        if not exists or path not in self.disk.names:
            self._last_file += 1
            self.note(Create(path, self._last_file))
        file = self.disk.names[path]
        if cut and self.disk.contents[file]:
            self.note(Resize(file, 0))
        return file

    def check(self) -> None:
        """Check that nothing was written by other means. Raises `AssertionError`."""
        expected = self.disk.image()
        found = read_image(Path(self.root))
        found = {path: data for path, data in found.items() if not path.endswith(IGNORED_SUFFIXES)}
        different = [path for path in {**expected, **found} if expected.get(path, 0) != found.get(path, 0)]
        if different:
            raise AssertionError(f"not all that was written to {sorted(different)} was recorded")


@contextmanager
def recording(root: Path, disk: Disk | None = None) -> Iterator[Recorder]:
    """Record what this process does in a directory. `disk` is what is there; without it, nothing is."""
    from limpet.testing.power_loss import sqlite_recorder

    recorder = Recorder(root, disk or Disk())
    calls = _RecordedCalls(recorder)
    originals = {name: getattr(os, name) for name in calls.by_name}
    try:
        for name, function in calls.by_name.items():
            setattr(os, name, function)
        with sqlite_recorder.recording(recorder):
            yield recorder
    finally:
        for name, function in originals.items():
            setattr(os, name, function)
    recorder.check()


class _RecordedCalls:
    """Functions in place of those of `os`: they do the same, and note what they did."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[int, int] = {}
        self._directories: dict[int, str] = {}
        self._close = os.close
        self.by_name: dict[str, Callable[..., Any]] = {
            "open": self._opening(os.open),
            "close": self._closing(os.close),
            "write": self._writing(os.write),
            "pwrite": self._writing_at(os.pwrite),
            "ftruncate": self._resizing(os.ftruncate),
            "fsync": self._flushing(os.fsync),
            "replace": self._renaming(os.replace),
            "rename": self._renaming(os.rename),
            "link": self._linking(os.link),
            "unlink": self._unlinking(os.unlink),
            "remove": self._unlinking(os.remove),
            "mkdir": self._making_directory(os.mkdir),
        }
        if hasattr(os, "fdatasync"):
            self.by_name["fdatasync"] = self._flushing(os.fdatasync)

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            place = self._recorder.path_of(path)
            if place is None:
                return call(path, flags, *args, **options)
            with self._recorder.lock:
                exists = os.path.exists(path)
                descriptor = call(path, flags, *args, **options)
                if place == "" or self._recorder.disk.names.get(place) == DIRECTORY:
                    self._directories[descriptor] = place
                else:
                    self._files[descriptor] = self._recorder.opened(place, exists, bool(flags & os.O_TRUNC))
            return descriptor

        return open

    def _closing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def close(descriptor: int) -> None:
            with self._recorder.lock:
                self._files.pop(descriptor, None)
                self._directories.pop(descriptor, None)
                call(descriptor)

        return close

    def _writing(self, call: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any) -> int:
            file = self._files.get(descriptor)
            if file is None:
                return call(descriptor, data)
            with self._recorder.lock:
                written = call(descriptor, data)
                # Where the write began, also for a file that is opened to append.
                offset = os.lseek(descriptor, 0, os.SEEK_CUR) - written
                self._recorder.note(Write(file, offset, bytes(data[:written])))
            return written

        return write

    def _writing_at(self, call: Callable[..., int]) -> Callable[..., int]:
        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            file = self._files.get(descriptor)
            if file is None:
                return call(descriptor, data, offset)
            with self._recorder.lock:
                written = call(descriptor, data, offset)
                self._recorder.note(Write(file, offset, bytes(data[:written])))
            return written

        return pwrite

    def _resizing(self, call: Callable[..., None]) -> Callable[..., None]:
        def ftruncate(descriptor: int, length: int) -> None:
            with self._recorder.lock:
                call(descriptor, length)
                file = self._files.get(descriptor)
                if file is not None:
                    self._recorder.note(Resize(file, length))

        return ftruncate

    def _flushing(self, call: Callable[..., None]) -> Callable[..., None]:
        def fsync(descriptor: Any) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            with self._recorder.lock:
                if number in self._files:
                    self._recorder.note(Flush(self._files[number]))
                elif number in self._directories:
                    self._recorder.note(FlushDirectory(self._directories[number]))
                else:
                    call(descriptor)

        return fsync

    def _renaming(self, call: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **options: Any) -> None:
            old = self._recorder.path_of(source)
            new = self._recorder.path_of(target)
            with self._recorder.lock:
                call(source, target, **options)
                if old is not None and new is not None:
                    self._recorder.note(Rename(old, new, self._recorder.disk.names[old]))

        return rename

    def _linking(self, call: Callable[..., None]) -> Callable[..., None]:
        def link(source: Any, target: Any, **options: Any) -> None:
            old = self._recorder.path_of(source)
            new = self._recorder.path_of(target)
            with self._recorder.lock:
                call(source, target, **options)
                if old is not None and new is not None:
                    self._recorder.note(Link(new, self._recorder.disk.names[old]))

        return link

    def _unlinking(self, call: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Any, **options: Any) -> None:
            place = self._recorder.path_of(path)
            with self._recorder.lock:
                call(path, **options)
                if place is not None:
                    self._recorder.note(Unlink(place, self._recorder.disk.names[place]))

        return unlink

    def _making_directory(self, call: Callable[..., None]) -> Callable[..., None]:
        def mkdir(path: Any, *args: Any, **options: Any) -> None:
            place = self._recorder.path_of(path)
            with self._recorder.lock:
                call(path, *args, **options)
                if place is not None:
                    self._recorder.note(Create(place, DIRECTORY))

        return mkdir
