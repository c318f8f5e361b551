"""The actions that read and write files: `file.read`, `file.write`, `checkpoint.save`, `checkpoint.load`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from limpet.errors import ActionFailed
from limpet.stores.atomic_files import TEMPORARY_SUFFIX, make_directory, replace_file
from limpet.stores.user_stores.checkpoint_files import read_checkpoint, write_checkpoint
from limpet.stores.user_stores.checkpointer import KEY


def read(ctx: Any, path: str, format: str = "text") -> Any:
    """What is in a file: its text, its bytes, or the data that it has as JSON. Raises `ActionFailed`."""
    try:
        data = Path(path).read_bytes()
        if format == "bytes":
            return data
        text = data.decode("utf-8-sig")
        return json.loads(text) if format == "json" else text
    except (OSError, ValueError) as problem:
        raise ActionFailed("file.read", f"{path} can't be read as {format}: {_said(problem)}") from problem


def write(ctx: Any, path: str, content: Any, format: str = "text") -> str:
    """Write a file, whole or not at all, and give its path. Raises `ActionFailed`."""
    target = Path(path)
    try:
        if format == "json":
            data = (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()
        elif isinstance(content, (str, bytes)):
            data = content if isinstance(content, bytes) else content.encode()
        else:
            raise ActionFailed(
                "file.write", f"content is a text, not {type(content).__name__}; write data with format: json"
            )
        make_directory(target.absolute().parent)
        mode = _mode(target)
        replace_file(target, data)
        os.chmod(target, mode)
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        raise ActionFailed(
            "file.write", f"{path} can't be written as {format}: {_said(problem)}"
        ) from problem
    return str(target)


def save(ctx: Any, path: str, node: str | None = None) -> dict[str, Any]:
    """Write the state to a checkpoint file; gives its `path`, and the `node` that a resume from it runs."""
    named = node or ctx.node
    return {"path": write_checkpoint(path, dict(ctx.state), named, ctx.config), "node": named}


def load(ctx: Any, path: str) -> dict[str, Any]:
    """What is in a checkpoint file: `state`, `node`, `config`, `timestamp`, `version`, and more at a fan-in."""
    return {key: value for key, value in read_checkpoint(path).items() if key != KEY}


def _mode(target: Path) -> int:
    """The rights that a file has; of a new one, those that this process gives its files."""
    with suppress(OSError):
        return target.stat().st_mode & 0o7777
    probe = target.with_name(f".{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return os.fstat(descriptor).st_mode & 0o7777
    finally:
        os.close(descriptor)
        probe.unlink()


def _said(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    return f"{type(problem).__name__}: {problem}"
