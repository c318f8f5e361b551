"""What programs do to the files of a directory, as far as it matters to a power loss; and what processes then see.

A file is a number: it keeps it under whatever names it has. Paths are relative to the directory that is recorded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

DIRECTORY = 0
"""The number that stands for every directory. Files begin at 1."""


class Create(NamedTuple):
    """A name for a file that didn't exist, or a new directory."""

    path: str
    file: int


class Link(NamedTuple):
    """One more name for a file."""

    path: str
    file: int


class Rename(NamedTuple):
    """Another name for a file, in place of what had it."""

    source: str
    path: str
    file: int


class Unlink(NamedTuple):
    """A name that is removed."""

    path: str
    file: int


class Write(NamedTuple):
    """Bytes written to a file at an offset."""

    file: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    """A file cut off, or extended by zeros."""

    file: int
    size: int


class Flush(NamedTuple):
    """An fsync of a file: its content and size are safe, its name isn't."""

    file: int


class FlushDirectory(NamedTuple):
    """An fsync of a directory: the names in it are safe, the contents of its files aren't."""

    path: str


class FlushAll(NamedTuple):
    """Everything is safe, as after a shutdown in order."""


class Acknowledge(NamedTuple):
    """No operation of the disk: the program has reported that `what` is saved."""

    what: Any


Change = Create | Link | Rename | Unlink | Write | Resize | Flush | FlushDirectory
Operation = Change | FlushAll | Acknowledge
Image = dict[str, bytes | None]
"""The files of a directory by their paths; None is a directory."""


class Disk:
    """The files as processes see them: every operation has been carried out, flushed or not."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.contents: dict[int, bytearray] = {}

    def apply(self, operation: Operation) -> None:
        """Carry out an operation."""
        match operation:
            case Create(path, file) | Link(path, file):
                self.names[path] = file
                if file != DIRECTORY:
                    self.contents.setdefault(file, bytearray())
            case Rename(source, path, file):
                self.names[path] = file
                del self.names[source]
            case Unlink(path):
                del self.names[path]
            case Write(file, offset, data):
                write_into(self.contents[file], offset, data)
            case Resize(file, size):
                resize(self.contents[file], size)

    def image(self) -> Image:
        """All files, by their paths."""
        return {
            path: None if file == DIRECTORY else bytes(self.contents[file])
            for path, file in self.names.items()
        }


def write_into(content: bytearray, offset: int, data: bytes) -> None:
    """Write into a file's content as the system does: a gap before the offset becomes zeros."""
    if offset > len(content):
        resize(content, offset)
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut off a file's content, or extend it by zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def operations_for(image: Image) -> list[Operation]:
    """Operations that make an empty directory this image, flushed."""
    operations: list[Operation] = []
    for number, path in enumerate(sorted(image), 1):
        content = image[path]
        if content is None:
            operations.append(Create(path, DIRECTORY))
        else:
            operations += [Create(path, number), Write(number, 0, content)]
    return [*operations, FlushAll()]


def write_image(image: Image, directory: Path) -> None:
    """Make an image the content of an empty directory."""
    for path in sorted(image):
        content = image[path]
        target = directory / path
        if not target.parent.is_dir():
            continue  # its directory was lost, and all that was in it
        if content is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)


def read_image(directory: Path) -> Image:
    """The content of a directory."""
    found: Image = {}
    for place, directories, files in os.walk(directory):
        for name in directories:
            found[os.path.relpath(os.path.join(place, name), directory)] = None
        for name in files:
            path = Path(place, name)
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found
