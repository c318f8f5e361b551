"""What waits in a store, in numbers: runs that are due, and questions of paused runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Final

from limpet.journal.record_shapes import read_summary
from limpet.journal.run_filter import RunFilter, list_in_pages
from limpet.journal.store import PAUSED, Store
from limpet.observe.opentelemetry.places import WaitingInStore

MAX_COUNTED: Final = 10_000
"""Runs that are counted, at most: of those that are due, and of those that are paused."""

COUNTING_SHARE: Final = 1 / 30
"""The part of the time that may be spent on counting, however often the numbers are asked for."""

NUMBERS_LAST: Final = 1.0
"""Seconds for which the numbers are good enough, at least: several metrics ask for them in a row."""


class WaitingRuns:
    """Counts what waits in a store, for metrics. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self.is_stopped = False
        """Whether its supervisor has stopped, so that it has nothing to report."""
        self._store = store
        self._lock = Lock()
        self._found: list[WaitingInStore] = []
        self._outdated_at = 0.0
        self._known: set[tuple[str, str]] = set()
        """The queues and graphs that had something once: they are reported with 0, too."""

    def waiting(self) -> list[WaitingInStore]:
        """What waits, by queue and graph; nothing once the supervisor has stopped. Raises what the store raises."""
        if self.is_stopped:
            return []
        with self._lock:
            began = monotonic()
            if began >= self._outdated_at:
                self._found = self._count()
                now = monotonic()
                self._outdated_at = now + max((now - began) / COUNTING_SHARE, NUMBERS_LAST)
            return self._found

    def _count(self) -> list[WaitingInStore]:
        due: Counter[tuple[str, str]] = Counter()
        questions: Counter[tuple[str, str]] = Counter()
        lanes = self._store.lanes()
        for head in self._store.ready(lanes, MAX_COUNTED):
            due[head.queue, head.graph] += 1
        for head in islice(list_in_pages(self._store, RunFilter(statuses=(PAUSED,))), MAX_COUNTED):
            with suppress(ValueError):  # a summary that can't be read
                questions[head.queue, head.graph] += len(read_summary(head.note).get("questions") or ())
        self._known.update(due, questions, ((lane.queue, lane.graph) for lane in lanes))
        return [
            WaitingInStore(queue, graph, due[queue, graph], questions[queue, graph])
            for queue, graph in sorted(self._known)
        ]
