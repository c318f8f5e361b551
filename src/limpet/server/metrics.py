"""What monitors ask for: numbers for Prometheus about the server and its store, and whether the store answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.workers import WorkerInfo, doubtful_lanes, why_unserved
from limpet.engine.operations.run_info import ABANDONED, QUEUED, list_all
from limpet.errors import UsageError
from limpet.journal.run_filter import PAGE_SIZE, RunFilter
from limpet.server.endpoint import Service
from limpet.server.run_counts import RecentAnswers, shown_statuses
from limpet.threads.workers import start_thread
from limpet.version import VERSION

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""The methods of requests that are counted by name."""

COUNTS_LAST: Final = 15.0
"""Seconds for which the numbers of runs are good enough, at least."""

COUNTING_SHARE: Final = 1 / 30
"""The part of the time that may be spent on counting runs."""

CHECK_LASTS: Final = 1.0
"""Seconds for which it is taken as known whether the store answers."""


class _RunNumbers(NamedTuple):
    """The numbers of all runs: by status, and of those that are due and that no live worker can continue."""

    by_status: dict[str, int]
    unserved: int


class Metrics:
    """Counts the requests of a server, and tells what its store has."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0
        self._streams = 0
        self._counts: RecentAnswers[_RunNumbers] = RecentAnswers(1 / COUNTING_SHARE, COUNTS_LAST)

    def note_request(self, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        known = method if method in METHODS else "other"  # else clients could make any number of lines
        with self._lock:
            self._requests[known, status] += 1
            self._seconds += seconds

    def note_stream(self, change: int) -> None:
        """A stream of live events began or ended."""
        with self._lock:
            self._streams += change

    def text(self) -> str:
        """All numbers."""
        workers = self._workers()
        runs = self._counts.get(None, lambda: self._count_runs(workers or ()))
        with self._lock:
            requests = sorted(self._requests.items())
            seconds = self._seconds
            streams = self._streams
        lines = [
            *_family("limpet_build_info", "gauge", "The version", [(f'{{version="{VERSION}"}}', 1)]),
            *_family(
                "limpet_runs",
                "gauge",
                "Runs in the store, by status",
                [(f'{{status="{status}"}}', count) for status, count in sorted(runs.by_status.items())],
            ),
            *([] if workers is None else _worker_lines(workers, runs.unserved)),
            *_family(
                "limpet_http_requests_total",
                "counter",
                "Requests that were answered",
                [(f'{{method="{method}",status="{status}"}}', count) for (method, status), count in requests],
            ),
            *_family("limpet_http_seconds_total", "counter", "Time spent on requests", [("", seconds)]),
            *_family("limpet_event_streams", "gauge", "Clients that follow a run", [("", streams)]),
        ]
        return "\n".join(lines) + "\n"

    def _workers(self) -> list[WorkerInfo] | None:
        """The workers; None for a store without documents, which knows none."""
        try:
            return self._service.runs.workers()
        except UsageError:
            return None

    def _count_runs(self, workers: Sequence[WorkerInfo]) -> _RunNumbers:
        client = client_for(self._service.store)
        lanes = set(doubtful_lanes(client, workers))
        by_status: Counter[str] = Counter()
        unserved = 0
        which = RunFilter(limit=PAGE_SIZE)
        while page := [head for head, _ in list_all(client.store, which)]:
            for head, status in zip(page, shown_statuses(client, page), strict=True):
                by_status[status] += 1
                is_due = status in (QUEUED, ABANDONED)
                if is_due and head.lane in lanes and why_unserved(head.lane, head.run_id, workers):
                    unserved += 1
            which = which._replace(after=page[-1].cursor)
        return _RunNumbers(dict(by_status), unserved)


class StoreCheck:
    """Whether the store answers: one look at a time, however many ask, and none for a moment after it."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._lock = Lock()
        self._found: Future[None] | None = None
        self._outdated_at = 0.0

    async def result(self) -> None:
        """Return if the store answers. Raises what it has raised."""
        await asyncio.wrap_future(self._newest())

    def _newest(self) -> Future[None]:
        with self._lock:
            found = self._found
            if found is None or (found.done() and monotonic() >= self._outdated_at):
                found = Future()
                found.set_running_or_notify_cancel()  # so that a client that leaves doesn't end it for the others
                start_thread(lambda: self._find(found), "limpet-store-check")
                self._found = found
            return found

    def _find(self, found: Future[None]) -> None:
        try:
            self._look()
        except BaseException as problem:
            self._outdated_at = monotonic() + CHECK_LASTS
            found.set_exception(problem)
        else:
            self._outdated_at = monotonic() + CHECK_LASTS
            found.set_result(None)


def _worker_lines(workers: Sequence[WorkerInfo], unserved: int) -> list[str]:
    live = [worker for worker in workers if worker.is_live]
    return [
        *_family("limpet_workers", "gauge", "Workers that are alive", [("", len(live))]),
        *_family("limpet_worker_runs", "gauge", "Runs under way", [("", sum(each.runs for each in live))]),
        *_family(
            "limpet_unserved_runs", "gauge", "Due runs that no live worker can continue", [("", unserved)]
        ),
    ]


def _family(name: str, kind: str, about: str, values: list[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP {name} {about}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {value}" for labels, value in values),
    ]
