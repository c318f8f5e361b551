"""What stands in for named stores while the code of a graph is only looked at: no file is made, no server asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from limpet.stores.memory import MemoryStore


class UnopenedStore(MemoryStore):
    """Stands for a store of this kind. It is in memory, and says of secrets what that store would."""

    def __init__(self, kind: str, keeps_secrets: bool) -> None:
        super().__init__()
        self.abilities = self.abilities._replace(keeps_secrets=keeps_secrets)
        self.kind = kind

    def __repr__(self) -> str:
        return f"<the {self.kind} store>"


@contextmanager
def without_opening() -> Iterator[None]:
    """Stores that are named by a URL, a path or a registered name aren't opened in here, but stood in for.

    A store object that code makes by itself is that object.
    """
    token = _stands_in.set(True)
    try:
        yield
    finally:
        _stands_in.reset(token)


def stand_in(kind: str, keeps_secrets: bool = False) -> UnopenedStore | None:
    """What stands in for a store of this kind; None if stores are to be opened."""
    if not _stands_in.get():
        return None
    return UnopenedStore(kind, keeps_secrets or kind == "memory")


_stands_in: ContextVar[bool] = ContextVar("stands_in", default=False)
