"""The metrics of runs: names, units, and what they are about. None has an attribute with more than a few values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from limpet.observe.opentelemetry.guard import guarded
from limpet.observe.opentelemetry.places import LOST, WaitingInStore
from limpet.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SCOPE: Final = "limpet"
"""The name of the instrumentation scope of all spans and metrics."""

SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BYTES: Final = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""The bounds of the buckets of histograms, unless the program chooses others with a view."""

MAX_NODES: Final = 500
"""How many nodes are measured by name, at most: a workflow may add tasks while it runs, under any name."""
OTHER: Final = "_other"
"""Stands for the nodes beyond that."""


class StoreNumbers(Protocol):
    """What knows what waits in a store. It is asked for as long as it exists."""

    def waiting(self) -> Iterable[WaitingInStore]:
        """What waits now; nothing once its worker has stopped."""
        ...


class Metrics:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._runs = meter.create_counter(
            "limpet.run.count", "{run}", "Stretches of runs that have ended here, by how they ended"
        )
        self._steps = meter.create_histogram(
            "limpet.step.duration",
            "s",
            "How long calls of nodes took",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._commits = meter.create_histogram(
            "limpet.commit.duration",
            "s",
            "How long commits to the store took",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._sizes = meter.create_histogram(
            "limpet.checkpoint.size",
            "By",
            "How many bytes commits added to journals",
            explicit_bucket_boundaries_advisory=BYTES,
        )
        self._lost = meter.create_counter(
            "limpet.lease.lost", "{lease}", "Leases of runs that another process has claimed meanwhile"
        )
        self._delays = meter.create_histogram(
            "limpet.queue.delay",
            "s",
            "How long queued runs that were due waited for a worker",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._stores: WeakSet[StoreNumbers] = WeakSet()
        self._nodes: set[tuple[str, str]] = set()
        self._lock = Lock()
        self._meter = meter
        self._has_gauges = False

    def run_stopped(self, graph: str, status: str) -> None:
        """A stretch of a run has ended."""
        self._runs.add(1, {"limpet.graph.name": graph, "limpet.run.status": status})
        if status == LOST:
            self._lost.add(1, {"limpet.graph.name": graph})

    def step(self, graph: str, node: str, seconds: float, outcome: str, error_type: str) -> None:
        """A call has ended."""
        attributes = {
            "limpet.graph.name": graph,
            "limpet.node.name": self._known(graph, node),
            "limpet.step.outcome": outcome,
        }
        if error_type:
            attributes["error.type"] = error_type
        self._steps.record(seconds, attributes)

    def commit(self, graph: str, seconds: float, size: int, refusal: str) -> None:
        """A commit was made, or refused."""
        attributes = {"limpet.graph.name": graph}
        if refusal:
            attributes["error.type"] = refusal
        else:
            self._sizes.record(size, attributes)
        self._commits.record(seconds, attributes)

    def queue_delay(self, graph: str, queue: str, seconds: float) -> None:
        """A queued run has begun."""
        self._delays.record(seconds, {"limpet.graph.name": graph, "limpet.queue.name": queue})

    def observe_store(self, numbers: StoreNumbers) -> None:
        """Report what waits in a store, whenever the metrics are read."""
        with self._lock:
            self._stores.add(numbers)
            if self._has_gauges:
                return
            self._has_gauges = True
        # Only now: a process without a worker has nothing to report under these names.
        self._meter.create_observable_gauge(
            "limpet.queue.depth",
            [self._depths],
            "{run}",
            "Runs in the store that are due, and wait for a worker",
        )
        self._meter.create_observable_gauge(
            "limpet.questions.open",
            [self._questions],
            "{question}",
            "Open questions of paused runs in the store",
        )

    def _depths(self, options: CallbackOptions) -> Iterable[Observation]:
        for each in self._waiting():
            attributes = {"limpet.graph.name": each.graph, "limpet.queue.name": each.queue}
            yield Observation(each.due_runs, attributes)

    def _questions(self, options: CallbackOptions) -> Iterable[Observation]:
        for each in self._waiting():
            attributes = {"limpet.graph.name": each.graph, "limpet.queue.name": each.queue}
            yield Observation(each.open_questions, attributes)

    def _waiting(self) -> Iterator[WaitingInStore]:
        with self._lock:
            stores = list(self._stores)
        for numbers in stores:
            yield from guarded(numbers.waiting)() or ()

    def _known(self, graph: str, node: str) -> str:
        with self._lock:
            if (graph, node) in self._nodes:
                return node
            if len(self._nodes) >= MAX_NODES:
                return OTHER
            self._nodes.add((graph, node))
        return node


_default_metrics: list[Metrics] = []
"""Those of the provider of the process, once a graph needs them. While none is set, the API has a stand-in for it."""
_metrics: WeakKeyDictionary[MeterProvider, Metrics] = WeakKeyDictionary()
_metrics_lock = Lock()


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """The instruments of a provider, or of that of the process: all graphs share them, as each exists but once."""
    with _metrics_lock:
        if provider is None:
            if not _default_metrics:
                _default_metrics.append(Metrics(get_meter(SCOPE, VERSION)))
            return _default_metrics[0]
        found = _metrics.get(provider)
        if found is None:
            found = Metrics(provider.get_meter(SCOPE, VERSION))
            _metrics[provider] = found
        return found
