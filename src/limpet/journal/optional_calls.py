"""What a store may offer beside the calls that every store has. Each is a protocol that `provides` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeGuard, TypeVar, runtime_checkable

from limpet.errors import DamagedDocument, DamagedRecord
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead

T = TypeVar("T")

CLOCK_KNOWN = 5.0
"""Seconds for which what a store has told of its time is good enough, where it is asked for often."""


@runtime_checkable
class Notifying(Protocol):
    """A store that declares `abilities.notifies`: a caller that waits for a run doesn't have to poll."""

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until something changes, for at most `timeout` seconds; False if nothing changed.

        A change is that any process creates a run without a holder, posts to a run, releases, deletes or expires it,
        or gives it another status. Returns True also if there was a change since this thread's last call, so that
        none is missed between two calls, and sometimes without a change. Any number of threads may wait. An expired
        lease is not a change. A store that can't be reached is not an error here: it counts as a change.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A store that can check itself for damage that no single run shows. Few need to; `verify` asks them."""

    def faults(self) -> Sequence[str]:
        """Descriptions of what is wrong with the files or tables that hold the runs; empty if nothing is."""
        ...


@runtime_checkable
class Salvaging(Protocol):
    """A store that can give the records of a run whose head can't be read. `verify`, `state_at` and `fork` ask it."""

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """All records that are left of a run, by their numbers; for a damaged one, the error. Raises `RunNotFound`.

        The head isn't used, so records that were pruned may be among them, and newest ones may be missing.
        """
        ...


@runtime_checkable
class FindsDamagedDocuments(Protocol):
    """A store that notices when documents aren't what was written. `limpet store verify` asks it."""

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """What is wrong with documents whose names begin with `prefix`, which `list_documents` leaves out."""
        ...


@runtime_checkable
class ReportsUndeleted(Protocol):
    """A store without results of completed runs (`abilities.keeps_results`) that may fail to delete such a run."""

    def undeleted(self, run_id: str) -> Exception | None:
        """Why a run that completed is still there; None if it isn't."""
        ...


@runtime_checkable
class ListsUnreadable(Protocol):
    """A store whose `list` leaves out runs that it can't read, such as those whose key is missing."""

    def list_all(self, which: RunFilter) -> Sequence[tuple[RunHead, Exception | None]]:
        """All runs that match, newest first, with the reason for those that can't be read."""
        ...


@runtime_checkable
class MarksChanges(Protocol):
    """A store that can tell quickly whether any of its runs has changed. Who shows lists of runs asks it."""

    def change_mark(self) -> object:
        """Something that differs from what was given last, once a run has changed since, by any process.

        A change is at least that a run is created, claimed, released, posted to or deleted, or gets another status.
        Sometimes it differs without a change. What it costs doesn't depend on the number of runs, or hardly.
        """
        ...


@runtime_checkable
class TellsTime(Protocol):
    """A store whose clock is that of another machine, such as a database server."""

    def store_time(self) -> float:
        """The time by the clock that decides when runs and documents are due. Raises `StoreError`."""
        ...


def provides(target: object, protocol: Callable[..., T]) -> TypeGuard[T]:
    """Whether an object has all that a protocol names, itself or through its `__getattr__`.

    `isinstance` says the same up to Python 3.11. Later versions don't ask `__getattr__`, so a wrapper that passes
    most calls on to a store would no longer be a store.
    """
    if isinstance(target, type):
        return False
    kinds = getattr(protocol, "__mro__", ())
    return all(hasattr(target, name) for kind in kinds for name in vars(kind) if not name.startswith("_"))
