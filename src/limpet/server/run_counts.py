"""How many runs have each status, as people see it: counted by heads alone, and not more often than is worth it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.run_info import LISTED_STATUSES, expired_leases, status_for_people
from limpet.engine.operations.run_query import RunQuery
from limpet.journal.store import DAMAGED, RunHead

COUNTING_SHARE: Final = 1 / 10
"""The part of the time that may be spent on counting runs, however often the numbers are asked for."""

COUNTED: Final = 500
"""Runs of a stored status that are counted: of more, it is only said that there are more."""

MAX_KEPT: Final = 32
"""Answers that are kept at the same time."""

T = TypeVar("T")


class StatusCounts(NamedTuple):
    """The numbers of runs by status, and the statuses of which there are more than were counted."""

    counts: dict[str, int]
    more: list[str]


def count_newest(client: LeaseClient, query: RunQuery) -> StatusCounts:
    """Count up to `COUNTED` runs of each stored status that match, the newest. The query has no text."""
    counts: Counter[str] = Counter()
    more: set[str] = set()
    for status in LISTED_STATUSES:
        if status == DAMAGED:
            continue
        (which,) = replace(query, statuses=(status,)).filters()
        heads = client.store.list(which._replace(limit=COUNTED + 1))
        found = count_shown(client, heads[:COUNTED])
        counts += found
        if len(heads) > COUNTED:
            more.update(found)
    return StatusCounts(dict(counts), sorted(more))


def count_shown(client: LeaseClient, heads: Sequence[RunHead]) -> Counter[str]:
    """How many of these runs, in the order of a list, have each status. What their summaries say isn't read."""
    expired = expired_leases(client, heads)
    now = client.now()
    return Counter(status_for_people(head, head.error, head.run_id in expired, now) for head in heads)


class RecentAnswers(Generic[T]):
    """Answers that take a while to find, kept for `factor` times as long as that took, and for `least` seconds.

    So finding them takes a small part of the time at most, however often and by however many they are asked for.
    """

    def __init__(self, factor: float, least: float = 0.0) -> None:
        self._factor = factor
        self._least = least
        self._lock = Lock()
        self._kept: OrderedDict[Any, tuple[float, T]] = OrderedDict()

    def get(self, key: Any, find: Callable[[], T]) -> T:
        """The answer for a key. Others that ask meanwhile wait: for this one, or until it is their turn."""
        with self._lock:
            began = monotonic()
            kept = self._kept.get(key)
            if kept is not None and began < kept[0]:
                return kept[1]
            answer = find()
            now = monotonic()
            self._kept[key] = (now + max(self._factor * (now - began), self._least), answer)
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return answer
