"""Stores that a test damages from outside, past the store, and opens again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from limpet import open_store
from limpet.journal.store import Store
from support.postgres import needed

KEY = bytes(range(32)).hex()

Damage = Callable[[str], object]
"""Damages what has this name, in the way of one kind of store."""


class Place(NamedTuple):
    """A store, how to open it again, and what damages a part of it past the store."""

    url: str
    damage: Damage
    options: dict[str, Any]

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with closing(open_store(self.url, **self.options)) as store:
            yield store


def local_place(kind: str, path: Path, sqlite_damage: Damage, file_damage: Damage) -> Place:
    """A store of this kind at a path: of files, or in an SQLite file, plain or behind another store."""
    if kind == "files":
        return Place(f"file://{path}", file_damage, {})
    if kind == "encrypted":
        needed("cryptography")
        return Place(f"sqlite:///{path}", sqlite_damage, {"encryption": KEY})
    if kind == "tiered":
        return Place(f"tiered://?hot=memory://&cold=sqlite:///{path}", sqlite_damage, {})
    return Place(f"sqlite:///{path}", sqlite_damage, {})
