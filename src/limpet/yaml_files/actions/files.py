"""The actions that read and write files: `file.read`, `file.write`, `checkpoint.save`, `checkpoint.load`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from limpet.errors import ActionFailed
from limpet.observe.events import CHECKPOINT_LOAD, CHECKPOINT_SAVE
from limpet.observe.log import log_checkpoint
from limpet.stores.atomic_files import TEMPORARY_SUFFIX, make_directory, replace_file
from limpet.stores.user_stores.checkpoint_files import read_checkpoint, write_checkpoint
from limpet.stores.user_stores.checkpointer import KEY


def read_file(ctx: Any, path: str, format: str = "text") -> Any:
    """The content of a file as text, bytes, or the data of its JSON. Raises `ActionFailed`."""
    try:
        data = Path(path).read_bytes()
        if format == "bytes":
            return data
        text = data.decode("utf-8-sig")
        if format == "json":
            return json.loads(text)
        return text
    except (OSError, ValueError) as problem:
        message = f"{path} can't be read as {format}: {_reason(problem)}"
        raise ActionFailed("file.read", message) from problem


def write_file(ctx: Any, path: str, content: Any, format: str = "text") -> str:
    """Write a file, completely or not at all, and give its path. Raises `ActionFailed`."""
    target = Path(path)
    try:
        data = _encoded(content, format)
        make_directory(target.absolute().parent)
        mode = _mode_for(target)
        replace_file(target, data)
        os.chmod(target, mode)
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        message = f"{path} can't be written as {format}: {_reason(problem)}"
        raise ActionFailed("file.write", message) from problem
    return str(target)


def save_checkpoint(ctx: Any, path: str, node: str | None = None) -> dict[str, Any]:
    """Write the state to a checkpoint file; gives its `path`, and the `node` that a resume from it runs."""
    next_node = node or ctx.node
    written = write_checkpoint(path, dict(ctx.state), next_node, ctx.config)
    log_checkpoint(CHECKPOINT_SAVE, node=next_node, path=written, run_id=ctx.run_id)
    return {"path": written, "node": next_node}


def load_checkpoint(ctx: Any, path: str) -> dict[str, Any]:
    """The content of a checkpoint file: `state`, `node`, `config`, `timestamp`, `version`, and more at a fan-in."""
    found = {key: value for key, value in read_checkpoint(path).items() if key != KEY}
    log_checkpoint(CHECKPOINT_LOAD, node=found["node"], path=path, run_id=ctx.run_id)
    return found


def _encoded(content: Any, format: str) -> bytes:
    if format == "json":
        return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    raise ActionFailed(
        "file.write", f"content must be a text, not {type(content).__name__}; write data with format: json"
    )


def _mode_for(target: Path) -> int:
    """The permissions of an existing file; for a new one, those that this process gives to its files."""
    with suppress(OSError):
        return target.stat().st_mode & 0o7777
    # The umask can only be read by changing it, which would affect other threads: so a file is created to see.
    probe = target.parent / f".{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return os.fstat(descriptor).st_mode & 0o7777
    finally:
        os.close(descriptor)
        probe.unlink()


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    return f"{type(problem).__name__}: {problem}"
