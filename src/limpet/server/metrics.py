"""Numbers about the server and its store, as text that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from time import monotonic
from typing import Final

from limpet.engine.operations.run_info import run_info
from limpet.errors import LimpetError
from limpet.journal.run_filter import RunFilter, list_in_pages
from limpet.runs import Runs
from limpet.server.endpoint import Service
from limpet.version import VERSION

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

COUNTS_LAST: Final = 15.0
"""Seconds for which the numbers of runs are good enough: of many runs, counting takes a moment."""


class Metrics:
    """Counts the requests of a server, and tells what its store has."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0
        self._streams = 0
        self._counted: tuple[float, dict[str, int]] | None = None

    def note_request(self, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[method, status] += 1
            self._seconds += seconds

    def note_stream(self, change: int) -> None:
        """A stream of live events began or ended."""
        with self._lock:
            self._streams += change

    def text(self) -> str:
        """All numbers."""
        runs = self._runs_by_status()
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
                [(f'{{status="{status}"}}', count) for status, count in sorted(runs.items())],
            ),
            *_workers(self._service.runs),
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

    def _runs_by_status(self) -> dict[str, int]:
        counted = self._counted
        if counted is None or monotonic() - counted[0] > COUNTS_LAST:
            found: Counter[str] = Counter()
            for head in list_in_pages(self._service.store, RunFilter()):
                try:
                    found[run_info(head).shown_status] += 1
                except LimpetError:
                    found["damaged"] += 1
            counted = self._counted = (monotonic(), dict(found))
        return counted[1]


def _workers(runs: Runs) -> list[str]:
    try:
        workers = runs.workers()
        unserved = runs.unserved()
    except LimpetError:
        return []  # a store without documents knows no workers
    live = [worker for worker in workers if worker.is_live]
    waiting = sum(lane.runs for lane in unserved)
    return [
        *_family("limpet_workers", "gauge", "Workers that are alive", [("", len(live))]),
        *_family("limpet_worker_runs", "gauge", "Runs under way", [("", sum(each.runs for each in live))]),
        *_family(
            "limpet_unserved_runs", "gauge", "Due runs that no live worker can continue", [("", waiting)]
        ),
    ]


def _family(name: str, kind: str, about: str, values: list[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP {name} {about}",
        f"# TYPE {name} {kind}",
        *(f"{name}{labels} {value}" for labels, value in values),
    ]
