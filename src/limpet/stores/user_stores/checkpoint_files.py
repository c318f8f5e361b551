"""Checkpoint files: one paused run in one file that can be copied, mailed and read by other programs.

A file is a pickle of a dict: `state`, `node`, `config`, `timestamp`, `version` and, at a fan-in,
`parallel_results`. What else a run needs to resume exactly where it was is under `__limpet__`, which other readers
ignore. A run from a file without it resumes by executing the file's node.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from limpet.stores.atomic_files import create_file, explain, make_directory, replace_file
from limpet.stores.user_stores.checkpointer import KEY

if TYPE_CHECKING:
    from limpet.stores.user_stores.checkpoint_cleanup import WrittenFiles

VERSION = "1.0"
REQUIRED_KEYS = ("state", "node", "config", "version")
MAX_NAME_SIZE = 150
"""How many bytes of a node's name a file's name begins with, at most."""


class CheckpointFiles:
    """A checkpointer whose references are the paths of files: `{node}_{milliseconds}.pkl` in a directory.

    The directory is made when it is needed. Without one it can only load. Of each run the newest `keep` files are
    kept, or all.
    """

    takes_results = True
    """That `save` takes the results of branches as well, which other checkpointers don't."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, keep: int | None = None) -> None:
        self.directory: Path | None = None
        if directory is not None:
            self.directory = checkpoint_directory(directory)
        self.keep = keep
        self._written: WrittenFiles | None = None

    def __repr__(self) -> str:
        if self.directory is None:
            return "CheckpointFiles(None)"
        return f"CheckpointFiles({str(self.directory)!r})"

    def save(
        self,
        state: dict[str, Any],
        node: str,
        config: dict[str, Any],
        parallel_results: list[dict[str, Any]] | None = None,
    ) -> str:
        """Write a new file, flushed and under a name that no other file has; returns its path."""
        if self.directory is None:
            raise UsageError(
                "CheckpointFiles has no directory to save checkpoints in: compile(checkpoint_dir=…)"
            )
        now = time.time()
        data = _content(state, node, config, now, parallel_results)
        stem = f"{_safe_name(node)}_{int(now * 1000)}"
        name = stem
        number = 0
        while True:
            path = self.directory / f"{name}.pkl"
            try:
                make_directory(self.directory)
                create_file(path, data)
            except FileExistsError as error:
                if not path.exists():  # it is the directory's path that is taken, by a file
                    raise explain(error, path) from error
                number += 1
                name = f"{stem}_{number}"
            except OSError as error:
                raise explain(error, path) from error
            else:
                break
        if self.keep is not None:
            self.written.keep_newest(str(path), self.keep)
        return str(path)

    @property
    def written(self) -> WrittenFiles:
        """The files in the directory that runs have written."""
        from limpet.stores.user_stores.checkpoint_cleanup import WrittenFiles

        if self._written is None:
            assert self.directory is not None
            self._written = WrittenFiles(self.directory)
        return self._written

    def load(self, ref: str) -> dict[str, Any]:
        """The checkpoint in the file at this path. What a run needs to resume is under one key of its config."""
        found = read_checkpoint(ref)
        config = found["config"]
        if KEY in found:
            config = {**config, KEY: found[KEY]}
        return {**found, "config": config}


def write_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, Any], node: str, config: Mapping[str, Any] | None
) -> str:
    """Write a checkpoint file, in place of an earlier one; missing directories are made. Returns the path.

    Raises `UnstorableValue` for a value that couldn't be read back, `StoreUnavailable`, `UsageError`.
    """
    if not isinstance(state, Mapping):
        raise UsageError(f"a checkpoint's state must be a dict, not {type(state).__name__}")
    if not isinstance(node, str) or not node:
        raise UsageError(f"a checkpoint's node must be the name of a node, not {node!r}")
    target = Path(_path(path))
    # Through the codec and back: what it can't store is refused here, with its key path.
    stored_state = decode(encode(dict(state), ""))
    stored_config = decode(encode(dict(config or {}), "config"))
    results = _plain_results(stored_state)
    data = _content(stored_state, node, stored_config, time.time(), results)
    try:
        make_directory(target.parent)
        replace_file(target, data)
    except OSError as error:
        raise explain(error, target) from error
    return str(target)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What is in a checkpoint file, of any program. Nothing that the file names is imported or executed.

    Raises `CheckpointNotFound`, `DamagedCheckpoint`, `ForbiddenType`, `UnsupportedFormat`, `StoreUnavailable`.
    """
    from limpet.stores.user_stores import safe_pickle

    place = _path(path)
    try:
        found, sealed = safe_pickle.loads(_bytes_of(place))
    except safe_pickle.Damaged as problem:
        raise DamagedCheckpoint(place, f"{problem}; restore a copy of it, or use an earlier one") from problem
    except safe_pickle.Forbidden as problem:
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
    from limpet.stores.user_stores import safe_pickle

    own_config = {name: value for name, value in config.items() if name != KEY}
    checkpoint = {"state": state, "node": node, "config": own_config, "timestamp": now, "version": VERSION}
    if results is not None:
        checkpoint["parallel_results"] = results
    if KEY in config:
        checkpoint[KEY] = config[KEY]
    return safe_pickle.dumps(checkpoint)


def _plain_results(state: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The results of branches in the state of a fan-in, or None. They become dicts, which any program can read."""
    results = state.get("parallel_results")
    if not isinstance(results, list) or not all(isinstance(each, Mapping) for each in results):
        return None
    plain = [decode(encode(dict(each))) for each in results]
    state["parallel_results"] = plain
    return plain


def _bytes_of(place: str) -> bytes:
    path = Path(place)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointNotFound(
            place, f"the file doesn't exist (looked in {path.absolute().parent}); check the path"
        ) from error
    except IsADirectoryError as error:
        raise CheckpointNotFound(place, "it is a directory; name a file in it") from error
    except OSError as error:
        raise explain(error, path, "read") from error


def _checked(place: str, found: Any) -> dict[str, Any]:
    """The checkpoint, as values that can be stored, if a run can be resumed from it."""
    if not isinstance(found, dict):
        raise DamagedCheckpoint(place, f"it holds a {type(found).__name__} instead of a checkpoint")
    missing = [key for key in REQUIRED_KEYS if key not in found]
    if missing:
        raise DamagedCheckpoint(
            place, f"it isn't a checkpoint: {', '.join(missing)} missing; it needs {', '.join(REQUIRED_KEYS)}"
        )
    version = found["version"]
    if not isinstance(version, str) or version.partition(".")[0] != VERSION.partition(".")[0]:
        raise UnsupportedFormat(
            f"checkpoint file {place!r} has the format {version!r}, and this Limpet reads {VERSION!r}: "
            "upgrade limpet, or read it with the program that wrote it"
        )
    try:
        known: dict[str, Any] = decode(encode({**found, "config": found["config"] or {}}))
    except Exception as problem:  # a value of an allowed type may still hold nonsense, and raise anything
        reason = str(problem)
        if not isinstance(problem, LimpetError):
            reason = f"{type(problem).__name__}: {problem}"
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
        raise explain(error, directory) from error
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
        raise UsageError(f"a checkpoint file must be given by its path, not {path!r}")
    return text


def _safe_name(node: str) -> str:
    """A node's name as part of a file's name: readable, and without special characters of paths and shells."""
    readable = re.sub(r"[^\w.-]|^[.-]", "_", node)
    return readable.encode()[:MAX_NAME_SIZE].decode(errors="ignore")
