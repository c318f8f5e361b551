"""Stores that aren't there yet: a look at their runs must not create them, as a misspelt path would otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from limpet.errors import StoreUnavailable, UsageError
from limpet.stores.opening import ENCRYPTED, SQLITE_SUFFIXES, environment_choice


def path_of(store: Any) -> Path | None:
    """The SQLite file or the directory that a store's URL, path or name means, if it means one of these."""
    if isinstance(store, os.PathLike):
        store = os.fspath(store)
    if store == "env":
        try:
            store = environment_choice().target
        except UsageError:  # opening it raises the same
            return None
    if not isinstance(store, str):
        return None
    target = store.removeprefix(ENCRYPTED).partition("?")[0]
    if target.startswith("sqlite:///"):
        return Path(unquote(target.removeprefix("sqlite:///")))
    if target.startswith("file://./"):
        return Path(unquote(target.removeprefix("file://./")))
    if target.startswith("file:///"):
        return Path(unquote(target.removeprefix("file://")))
    if target.lower().endswith(SQLITE_SUFFIXES) and "://" not in target:
        return Path(target)
    return None


def is_absent(path: object) -> bool:
    """Whether there is nothing at the path of a store. Whatever else is wrong with it, opening the store says.

    A user's own store may call anything its `path`: only a `Path` is one here.
    """
    if not isinstance(path, Path):
        return False
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def refuse_absent(path: object, named_by: str, wanted: str = "runs") -> None:
    """Raise `StoreUnavailable` if there is nothing at the path of a store, rather than create it for a look."""
    if is_absent(path):
        raise StoreUnavailable(f"there is no store at {path}, so there are no {wanted}; check {named_by}")
