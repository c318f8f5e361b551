"""Looking for runs in the directory: one lock after the other is held, never all at once but to learn the names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from limpet.journal.store import Heads, Lane, RunHead
from limpet.stores.files.locks import LockBusy, LockFile, Locks
from limpet.stores.files.run_cache import RunCache


class Holding(Protocol):
    """How the store does something while locks are held. Raises `LockBusy` after `timeout` seconds."""

    def __call__(self, locks: Sequence[LockFile], work: Callable[[], Any], timeout: float) -> Any: ...


class RunSearch:
    """Finds runs under `locks`, by what `cache` remembers and reads again."""

    def __init__(self, locks: Locks, cache: RunCache, holding: Holding) -> None:
        self._locks = locks
        self._cache = cache
        self._holding = holding

    def heads(
        self, wanted: Callable[[RunHead], bool] = lambda head: True, *, only_changeable: bool = False
    ) -> Heads:
        """The heads of all runs, or of the wanted ones.

        Runs whose lock another process doesn't release are read without it; with `only_changeable` they are left
        out, as a call that changes one would wait for that process.
        """
        self._learn_names(lambda lock: lock.knows_all_names)
        found: Heads = []
        seen = self._cache.names_by_lock()
        for lock in self._locks.files:
            timeout = self._locks.reading_timeout(lock)
            try:
                read = partial(self._cache.heads_under, lock, wanted, seen[lock.path])
                found += self._holding([lock], read, timeout)
            except LockBusy:
                if not only_changeable:
                    found += filter(wanted, self._cache.unlocked_heads_under(lock))
        return found

    def lanes(self) -> list[Lane]:
        """The lanes of the runs that have a due time."""
        found: set[Lane] = set()
        for lanes in self._under_each_lock(lambda lock: self._cache.current_index(lock).lanes()):
            found.update(lanes)
        return list(found)

    def ready(
        self, lanes: Collection[Lane], now: tuple[float, float], limit: int, without: Collection[str]
    ) -> Heads:
        """The most urgent runs that are ready, as they are remembered: up to `limit` under each lock.

        Files that changed without their lock go unnoticed, so a caller looks at each run that it chooses once more.
        Those that it found to be otherwise than they are remembered are the ones to search `without`.
        """
        found: Heads = []
        for under_lock in self._under_each_lock(
            lambda lock: self._cache.ready_under(lock, lanes, now, limit, without)
        ):
            found += under_lock
        return found

    def _under_each_lock(self, look: Callable[[LockFile], Any]) -> list[Any]:
        """What a look at the index of each lock gives, but for locks that other processes don't release."""
        self._learn_names(lambda lock: lock.index_is_complete)
        found = []
        for lock in self._locks.files:
            timeout = self._locks.reading_timeout(lock)
            with suppress(LockBusy):
                found.append(self._holding([lock], partial(look, lock), timeout))
        return found

    def _learn_names(self, knows: Callable[[LockFile], bool]) -> None:
        """Read the directory once for all locks under which the names aren't known, and not once for each."""
        unknown = [
            lock
            for lock in self._locks.files
            if (not knows(lock) or lock.has_missed_changes()) and self._locks.reading_timeout(lock) > 0
        ]
        if len(unknown) > 1:
            timeout = self._locks.reading_timeout(unknown[0])
            with suppress(LockBusy):  # then each lock that isn't busy is looked at by itself
                self._holding(unknown, partial(self._cache.learn_names, unknown), timeout)
