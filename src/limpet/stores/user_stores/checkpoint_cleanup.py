"""Which checkpoint files of a directory are deleted: those that a run no longer needs, and those that have expired.

A file's age is by the time in the name that a run gave it. Which run a file is of, and how that run stopped, is in
the file: each is read once. Files that runs of this library didn't write stay.
"""

from __future__ import annotations

from base64 import b64decode
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from limpet.errors import LimpetError
from limpet.journal.encoding.codec import decode
from limpet.journal.store import RUNNING
from limpet.stores.user_stores.checkpoint_files import read_checkpoint, written_at
from limpet.stores.user_stores.checkpointer import KEY


class CheckpointFile(NamedTuple):
    """A file that a run wrote where it stopped."""

    written: tuple[int, int]
    """The millisecond, and the number within it."""
    path: Path
    run_id: str
    graph: str
    status: str


class WrittenFiles:
    """The files that runs have written to a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, CheckpointFile | None] = {}
        """What each file is, by its name; None for one that no run wrote."""
        self._lock = Lock()

    def newest_first(self) -> list[CheckpointFile]:
        """All of them. A file that was deleted meanwhile, or can't be read, isn't among them."""
        with self._lock:
            before = self._known
            self._known = {}
            for path in self.directory.glob("*.pkl"):
                written = written_at(path)
                if written is not None:
                    self._known[path.name] = before.get(path.name) or _describe(path, written)
            found = [each for each in self._known.values() if each is not None]
        return sorted(found, reverse=True)

    def keep_newest(self, path: str, keep: int) -> None:
        """Delete the files of the run that wrote `path`, except its newest. One that can't be deleted is logged."""
        files = self.newest_first()
        runs = {each.run_id for each in files if each.path == Path(path)}
        for each in [each for each in files if each.run_id in runs][keep:]:
            try:
                each.path.unlink(missing_ok=True)
            except OSError as error:
                getLogger("limpet.upkeep").warning("couldn't delete checkpoint file %s: %s", each.path, error)


def _describe(path: Path, written: tuple[int, int]) -> CheckpointFile | None:
    try:
        fields = _fields_in(read_checkpoint(path).get(KEY))
        return CheckpointFile(
            written, path, str(fields["run_id"]), str(fields["graph"]), fields.get("status", RUNNING)
        )
    except (LimpetError, ValueError, TypeError, LookupError):
        return None


def _fields_in(packed: Any) -> dict[str, Any]:
    """The fields of the run in a file, which are base64 after an optional word and a colon."""
    fields: dict[str, Any] = decode(b64decode(packed.rpartition(":")[2]))[4]
    return fields
