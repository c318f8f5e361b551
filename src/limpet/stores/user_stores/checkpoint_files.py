"""Checkpoint files: one paused run in one file that can be copied, mailed and read by other programs.

A file is a pickle of a dict: `state`, `node`, `config`, `timestamp`, `version` and, at a fan-in,
`parallel_results`. What else a run needs to go on exactly is under `__limpet__`, which other readers pass over; a
file without it goes on by running its node.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limpet.errors import (
    CheckpointError,
    CheckpointNotFound,
    DamagedCheckpoint,
    ForbiddenType,
    LimpetError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
)
from limpet.journal.encoding.codec import decode, encode
from limpet.stores.atomic_files import explained, make_directory, put, put_new
from limpet.stores.user_stores.checkpointer import KEY

VERSION = "1.0"
NEEDED = ("state", "node", "config", "version")
MOST_OF_A_NAME = 150
"""Bytes of a node's name that a file's name begins with, at most."""


class CheckpointFiles:
    """A checkpointer whose references are the paths of files: `{node}_{milliseconds}.pkl` in a directory.

    The directory is made when it is needed. Without one it can only load.
    """

    takes_results = True

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = None if directory is None else checkpoint_directory(directory)

    def __repr__(self) -> str:
        return f"CheckpointFiles({None if self.directory is None else str(self.directory)!r})"

    def save(
        self,
        state: dict[str, Any],
        node: str,
        config: dict[str, Any],
        parallel_results: list[dict[str, Any]] | None = None,
    ) -> str:
        """Write a new file, flushed and under a name that no other has; returns its path."""
        if self.directory is None:
            raise UsageError("there is no directory to save checkpoints in: compile(checkpoint_dir=…)")
        now = time.time()
        data = _content(state, node, config, now, parallel_results)
        stem = f"{_safe(node)}_{int(now * 1000)}"
        number = 0
        while True:
            path = self.directory / (f"{stem}_{number}.pkl" if number else f"{stem}.pkl")
            try:
                make_directory(self.directory)
                put_new(path, data)
            except FileExistsError as error:
                if not path.exists():
                    raise explained(error, path) from error
                number += 1
            except OSError as error:
                raise explained(error, path) from error
            else:
                return str(path)

    def load(self, ref: str) -> dict[str, Any]:
        """What is in the file at this path, with all that a run needs to go on under one key of its config."""
        found = read_checkpoint(ref)
        rest = {KEY: found[KEY]} if KEY in found else {}
        return {**found, "config": {**found["config"], **rest}}


def write_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, Any], node: str, config: Mapping[str, Any] | None
) -> str:
    """Write a checkpoint file, in place of one that is there; directories are made. Returns the path.

    Raises `UnstorableValue` for what couldn't be read again, `StoreUnavailable`, `UsageError`.
    """
    if not isinstance(state, Mapping):
        raise UsageError(f"a checkpoint's state is a dict, not {type(state).__name__}")
    if not isinstance(node, str) or not node:
        raise UsageError(f"a checkpoint's node is the name of one, not {node!r}")
    target = Path(_path(path))
    copied = [decode(encode(dict(part), name)) for name, part in (("", state), ("config", config or {}))]
    data = _content(copied[0], node, copied[1], time.time(), None)
    try:
        make_directory(target.parent)
        put(target, data)
    except OSError as error:
        raise explained(error, target) from error
    return str(target)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What is in a checkpoint file, whoever wrote it. Nothing that the file names is imported or run.

    Raises `CheckpointNotFound`, `DamagedCheckpoint`, `ForbiddenType`, `UnsupportedFormat`, `StoreUnavailable`.
    """
    from limpet.stores.user_stores import safe_pickle as pickled

    place = _path(path)
    try:
        found, sealed = pickled.loads(_bytes_of(place))
    except pickled.Damaged as problem:
        raise DamagedCheckpoint(place, f"{problem}; restore a copy of it, or use an earlier one") from problem
    except pickled.Forbidden as problem:
        raise ForbiddenType(
            place,
            str(problem),
            f"it asks for {problem}, which a checkpoint may not hold. If it is a class of yours, "
            "register_type() it before reading; if you don't know where the file is from, don't use it",
        ) from problem
    checked = _checked(place, found)
    if KEY in checked and not sealed:
        raise DamagedCheckpoint(place, "its end is missing; restore a copy of it, or use an earlier one")
    return checked


def _content(
    state: dict[str, Any],
    node: str,
    config: dict[str, Any],
    now: float,
    results: list[dict[str, Any]] | None,
) -> bytes:
    from limpet.stores.user_stores import safe_pickle as pickled

    given = dict(config)
    rest = {KEY: given.pop(KEY)} if KEY in given else {}
    checkpoint = {"state": state, "node": node, "config": given, "timestamp": now, "version": VERSION}
    if results is not None:
        checkpoint["parallel_results"] = results
    return pickled.dumps({**checkpoint, **rest})


def _bytes_of(place: str) -> bytes:
    path = Path(place)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointNotFound(
            place, f"there is none (looked in {path.absolute().parent}); check the path"
        ) from error
    except IsADirectoryError as error:
        raise CheckpointNotFound(place, "it is a directory; name a file in it") from error
    except OSError as error:
        raise explained(error, path, "read") from error


def _checked(place: str, found: Any) -> dict[str, Any]:
    """The checkpoint, as values that can be stored, if it is one that can be gone on from."""
    if not isinstance(found, dict):
        raise DamagedCheckpoint(place, f"it holds a {type(found).__name__} and no checkpoint")
    missing = [key for key in NEEDED if key not in found]
    if missing:
        raise DamagedCheckpoint(
            place, f"it is no checkpoint: it has no {', '.join(missing)}; it needs {', '.join(NEEDED)}"
        )
    version = found["version"]
    if not isinstance(version, str) or version.partition(".")[0] != VERSION.partition(".")[0]:
        raise UnsupportedFormat(
            f"checkpoint file {place!r} has the format {version!r}, and this Limpet reads {VERSION!r}: "
            "upgrade limpet, or read it with the program that wrote it"
        )
    try:
        known: dict[str, Any] = decode(encode({**found, "config": found["config"] or {}}))
    except Exception as problem:  # a value may be of a good type and yet be made of nonsense
        reason = problem if isinstance(problem, LimpetError) else f"{type(problem).__name__}: {problem}"
        raise CheckpointError(place, f"not all of it can be used: {reason}") from problem
    for key, kind in (("state", dict), ("node", str), ("config", dict)):
        if not isinstance(known[key], kind) or (kind is str and not known[key]):
            raise DamagedCheckpoint(place, f"its {key} is {known[key]!r:.60} and should be a {kind.__name__}")
    return known


def checkpoint_directory(given: str | os.PathLike[str]) -> Path:
    """The absolute path of a directory for checkpoint files. Raises `StoreUnavailable` if it is a file."""
    directory = Path(_path(given)).absolute()
    try:
        is_taken = directory.exists() and not directory.is_dir()
    except OSError as error:
        raise explained(error, directory) from error
    if is_taken:
        raise StoreUnavailable(f"{directory} can't be a checkpoint_dir: it is a file; use another path")
    return directory


def written_at(path: Path) -> tuple[int, int] | None:
    """When a run wrote a checkpoint file, by its name: the millisecond, and the number within it.

    None if the name wasn't given by a run.
    """
    found = re.fullmatch(r".+_(\d{13})(?:_(\d+))?\.pkl", path.name)
    if found is None:
        return None
    return int(found[1]), int(found[2] or 0)


def _path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a checkpoint file is named by its path, not {path!r}")
    return text


def _safe(node: str) -> str:
    """A node's name as part of a file's name: readable, and nothing that a path or a shell could stumble over."""
    readable = re.sub(r"[^\w.-]|^[.-]", "_", node)
    return readable.encode()[:MOST_OF_A_NAME].decode(errors="ignore")
