"""How many runs have each status, as people see it: counted by heads alone, and not more often than is worth it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.run_info import ABANDONED, expired_leases, list_all, status_for_people
from limpet.engine.operations.run_query import QUERY_STATUSES, RunQuery
from limpet.journal.store import DAMAGED, RUNNING, RunHead

COUNTING_SHARE: Final = 1 / 10
"""The part of the time that may be spent on counting the runs of a filter, however often they are asked for."""

COUNTED: Final = 500
"""Runs of a status that are counted: of more, it is only said that there are more."""

MAX_KEPT: Final = 32
"""Answers that are kept at the same time."""

T = TypeVar("T")


class StatusCounts(NamedTuple):
    """The numbers of runs by status, and the statuses of which there are more than were counted."""

    counts: dict[str, int]
    more: list[str]


def count_newest(client: LeaseClient, query: RunQuery) -> StatusCounts:
    """Count up to `COUNTED` runs of each status that match, the newest. The query has no text."""
    statuses: dict[str, str] = {}
    more: set[str] = set()
    for status in QUERY_STATUSES:
        if status in (DAMAGED, RUNNING):
            continue
        for which in replace(query, statuses=(status,)).filters():
            heads = [head for head, _ in list_all(client.store, which._replace(limit=COUNTED + 1))]
            newest = heads[:COUNTED]
            # By their ids, as two filters may find the same run.
            statuses.update(
                zip([head.run_id for head in newest], shown_statuses(client, newest), strict=True)
            )
            if len(heads) > COUNTED:
                # What finds abandoned runs finds all that a process holds.
                more.update((ABANDONED, RUNNING) if status == ABANDONED else (status,))
    return StatusCounts(dict(Counter(statuses.values())), sorted(more))


def shown_statuses(client: LeaseClient, heads: Sequence[RunHead]) -> list[str]:
    """The status of each of these runs, in the order of a list. What their summaries say isn't read."""
    expired = expired_leases(client, heads)
    now = client.now()
    return [status_for_people(head, head.error, head.run_id in expired, now) for head in heads]


class RecentAnswers(Generic[T]):
    """Answers that take a while to find, kept for `factor` times as long as that took, and for `least` seconds.

    So finding one of them takes a small part of the time at most, however often and by however many it is asked for.
    They are found one after another.
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
