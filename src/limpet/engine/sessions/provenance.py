"""Where a checkpoint was made: versions of the library and of Python, and the commit of the user's code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from os.path import dirname, exists, isdir, join
from typing import Any

from limpet.version import VERSION


@cache
def environment() -> Mapping[str, Any]:
    """What goes with every run that is started or resumed here: as it was when the first one was."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"limpet": VERSION, "python": python, "git": git_commit(os.getcwd())}


def git_commit(folder: str) -> str | None:
    """The commit that is checked out where `folder` is, read from the files of git; None if there is none."""
    try:
        place = folder
        while not exists(join(place, ".git")):
            if dirname(place) == place:
                return None
            place = dirname(place)
        return _head(_git_dir(join(place, ".git")))
    except OSError:
        return None


def _git_dir(dot_git: str) -> str:
    """A work tree beside the main one, and a submodule, have a file that says where to look."""
    if isdir(dot_git):
        return dot_git
    return join(dirname(dot_git), _read(dot_git).removeprefix("gitdir:").strip())


def _head(git: str) -> str | None:
    head = _read(join(git, "HEAD"))
    if not head.startswith("ref:"):
        return head or None
    name = head.removeprefix("ref:").strip()
    shared = join(git, "commondir")
    for root in [git, join(git, _read(shared))] if exists(shared) else [git]:
        if exists(join(root, name)):
            return _read(join(root, name)) or None
        if exists(join(root, "packed-refs")):
            for line in _read(join(root, "packed-refs")).splitlines():
                commit, _, ref = line.partition(" ")
                if ref == name:
                    return commit
    return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
