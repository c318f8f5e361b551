"""What a disk may hold after a power loss: all that was flushed, and any part of what wasn't.

The rules, stricter than any one file system is:

- A sector of 512 bytes is written whole or not at all. Sectors that were not flushed reach the disk in any order, or
  not; one that was written twice may be on the disk as it was in between.
- The size of a file changes apart from its content: sectors that the disk doesn't have yet read as zeros.
- A name that was created, linked, renamed or removed stays so once its directory was flushed. Before that, each such
  change happened on the disk or didn't. An fsync of the file itself says nothing of its name.
- Nothing that was flushed changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath
from random import Random
from typing import NamedTuple

from limpet.testing.power_loss.disk_operations import (
    DIRECTORY,
    Create,
    Flush,
    FlushAll,
    FlushDirectory,
    Image,
    Link,
    Operation,
    Rename,
    Resize,
    Unlink,
    Write,
    resize,
    write_into,
)

SECTOR_SIZE = 512

NameChange = Create | Link | Rename | Unlink
ContentChange = Write | Resize


class NameAtRisk(NamedTuple):
    """A change of a name that may not be on the disk yet: the change with this number."""

    number: int


class SizeAtRisk(NamedTuple):
    """The size that a file has had since the change with this number."""

    file: int
    number: int


class SectorAtRisk(NamedTuple):
    """A sector of a file as the change with this number left it."""

    file: int
    number: int
    sector: int


AtRisk = NameAtRisk | SizeAtRisk | SectorAtRisk


class DiskAtRisk:
    """What is safe on a disk, and what isn't yet. `apply` follows a program; `image` is a disk after a power loss."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytes] = {}
        self._name_changes: dict[int, NameChange] = {}
        self._content_changes: dict[int, dict[int, ContentChange]] = {}
        self._count = 0

    def apply(self, operation: Operation) -> None:
        """Follow an operation of a program."""
        self._count += 1
        match operation:
            case Create(file=file) | Link(file=file) | Rename(file=file) | Unlink(file=file):
                self._contents.setdefault(file, b"")
                self._name_changes[self._count] = operation
            case Write(file=file) | Resize(file=file):
                self._content_changes.setdefault(file, {})[self._count] = operation
            case Flush(file):
                self._contents[file] = self._content(file, lambda each: True)
                self._content_changes.pop(file, None)
            case FlushDirectory(path):
                for number, change in list(self._name_changes.items()):
                    if _directory_of(change.path) == path:
                        _rename(self._names, change)
                        del self._name_changes[number]
            case FlushAll():
                self._flush_all()

    def _flush_all(self) -> None:
        for change in self._name_changes.values():
            _rename(self._names, change)
        self._name_changes.clear()
        for file in list(self._content_changes):
            self.apply(Flush(file))

    def at_risk(self) -> list[AtRisk]:
        """All that a power loss may or may not leave, in the order in which it came to be; sizes before sectors."""
        found: list[tuple[int, AtRisk]] = [(number, NameAtRisk(number)) for number in self._name_changes]
        for file, changes in self._content_changes.items():
            current = bytearray(self._contents[file])
            for number, change in changes.items():
                size = len(current)
                sectors = _change_content(current, change)
                if len(current) != size:
                    found.append((number, SizeAtRisk(file, number)))
                found += [(number, SectorAtRisk(file, number, sector)) for sector in sectors]
        found.sort(key=lambda each: each[0])
        return [each for _, each in found]

    def image(self, survived: Callable[[AtRisk], bool]) -> Image:
        """The disk after a power loss that left, of what was at risk, that for which `survived` is true."""
        names = dict(self._names)
        for number, change in self._name_changes.items():
            if survived(NameAtRisk(number)):
                _rename(names, change)
        return {
            path: None if file == DIRECTORY else self._content(file, survived) for path, file in names.items()
        }

    def _content(self, file: int, survived: Callable[[AtRisk], bool]) -> bytes:
        """A file's content. A sector that survived has all that was written to it up to then."""
        changes = self._content_changes.get(file)
        content = self._contents[file]
        if not changes:
            return content
        current = bytearray(content)
        on_disk = bytearray(content)
        size = len(content)
        for number, change in changes.items():
            sectors = _change_content(current, change)
            if len(on_disk) < len(current):
                resize(on_disk, len(current))
            for sector in sectors:
                if survived(SectorAtRisk(file, number, sector)):
                    start = sector * SECTOR_SIZE
                    part = current[start : start + SECTOR_SIZE].ljust(SECTOR_SIZE, b"\0")
                    on_disk[start : start + SECTOR_SIZE] = part[: max(len(on_disk) - start, 0)]
            if survived(SizeAtRisk(file, number)):
                size = len(current)
        resize(on_disk, size)
        return bytes(on_disk)


def _change_content(content: bytearray, change: ContentChange) -> range:
    """Carry out a change of a file's content; gives the sectors that it changes."""
    size = len(content)
    match change:
        case Write(_, offset, data):
            write_into(content, offset, data)
            start = min(offset, size)
            stop = offset + len(data)
        case Resize(_, new_size):
            resize(content, new_size)
            start = min(size, new_size)
            stop = max(size, new_size)
    return range(start // SECTOR_SIZE, -(-stop // SECTOR_SIZE))


def _rename(names: dict[str, int], change: NameChange) -> None:
    match change:
        case Create(path, file) | Link(path, file):
            names[path] = file
        case Rename(source, path, file):
            if names.get(source) == file:
                del names[source]
            names[path] = file
        case Unlink(path, file):
            if names.get(path) == file:
                del names[path]


def _directory_of(path: str) -> str:
    parent = str(PurePath(path).parent)
    return "" if parent == "." else parent


def survivors(at_risk: list[AtRisk], chance: Random, limit: int) -> Iterator[frozenset[AtRisk]]:
    """Sets of what survives: the telling ones (all, nothing, all but one, the first few …), then random ones.

    At most `limit` and two; if the telling ones are more, a random choice of them.
    """
    everything = frozenset(at_risk)
    yield everything
    if not at_risk:
        return
    yield frozenset()
    telling = [(kind, place) for kind in _KINDS for place in range(len(at_risk))]
    chosen = chance.sample(telling, min(len(telling), limit))
    for kind, place in chosen:
        yield frozenset(kind(at_risk, place))
    for _ in range(limit - len(chosen)):
        share = chance.random()
        yield frozenset(each for each in at_risk if chance.random() < share)


def _only_one(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return [at_risk[place]]


def _all_but_one(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return at_risk[:place] + at_risk[place + 1 :]


def _the_first(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return at_risk[: place + 1]


def _the_last(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return at_risk[place:]


def _sizes_and_one(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return [*_sizes(at_risk), at_risk[place]]


def _sizes_and_the_last(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return [*_sizes(at_risk), *at_risk[place:]]


def _the_first_without_sizes(at_risk: list[AtRisk], place: int) -> list[AtRisk]:
    return [each for each in at_risk[: place + 1] if not isinstance(each, SizeAtRisk)]


def _sizes(at_risk: list[AtRisk]) -> list[AtRisk]:
    """Most file systems write these before the contents. A disk may have one without the other."""
    return [each for each in at_risk if isinstance(each, SizeAtRisk)]


_KINDS = (
    _only_one,
    _all_but_one,
    _the_first,
    _the_last,
    _sizes_and_one,
    _sizes_and_the_last,
    _the_first_without_sizes,
)
