"""Where a checkpoint was made: versions of the library and of Python, and the commit of the user's code."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.version import VERSION


def environment() -> dict[str, Any]:
    """What goes with every run that is started or resumed here."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"holdfast": VERSION, "python": python, "git": git_commit(os.getcwd())}


@lru_cache(maxsize=8)
def git_commit(folder: str) -> str | None:
    """The commit that is checked out where `folder` is, read from the files of git; None if there is none."""
    try:
        for place in (Path(folder), *Path(folder).parents):
            dot_git = place / ".git"
            if dot_git.exists():
                return _head(_git_dir(dot_git))
    except OSError:
        pass
    return None


def _git_dir(dot_git: Path) -> Path:
    if dot_git.is_dir():
        return dot_git
    pointer = dot_git.read_text().removeprefix("gitdir:").strip()
    return dot_git.parent / pointer


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head or None
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    roots = [git, git / shared.read_text().strip()] if shared.exists() else [git]
    for root in roots:
        loose = root / name
        if loose.exists():
            return loose.read_text().strip() or None
        packed = root / "packed-refs"
        if packed.exists():
            for line in packed.read_text().splitlines():
                commit, _, ref = line.partition(" ")
                if ref == name:
                    return commit
    return None
