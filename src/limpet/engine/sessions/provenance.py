"""Where a checkpoint was made: the versions of the library and of Python, and the commit of the user's code."""

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
    """What is stored with every run that is started or resumed here.

    Read once, for the first run: the code that is loaded doesn't change when another commit is checked out later.
    """
    python = ".".join(map(str, sys.version_info[:3]))
    return {"limpet": VERSION, "python": python, "git": git_commit(os.getcwd())}


def git_commit(folder: str) -> str | None:
    """The commit that is checked out in `folder`, read from git's files; None outside of a repository.

    Git itself isn't run: that takes longer than to start a run, and it may not be installed.
    """
    try:
        place = folder
        while not exists(join(place, ".git")):
            if dirname(place) == place:
                return None
            place = dirname(place)
        return _head_commit(_git_dir(join(place, ".git")))
    except OSError:
        return None


def _git_dir(dot_git: str) -> str:
    """The directory of git's files. In a linked work tree, and in a submodule, `.git` is a file that names it."""
    if isdir(dot_git):
        return dot_git
    return join(dirname(dot_git), _read(dot_git).removeprefix("gitdir:").strip())


def _head_commit(git_dir: str) -> str | None:
    head = _read(join(git_dir, "HEAD"))
    if not head.startswith("ref:"):
        return head or None
    ref = head.removeprefix("ref:").strip()
    roots = [git_dir]
    common_dir = join(git_dir, "commondir")
    if exists(common_dir):
        # A linked work tree shares the branches of the main one.
        roots.append(join(git_dir, _read(common_dir)))
    for root in roots:
        if exists(join(root, ref)):
            return _read(join(root, ref)) or None
        commit = _packed_commit(join(root, "packed-refs"), ref)
        if commit is not None:
            return commit
    return None


def _packed_commit(packed_refs: str, ref: str) -> str | None:
    if not exists(packed_refs):
        return None
    for line in _read(packed_refs).splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()
