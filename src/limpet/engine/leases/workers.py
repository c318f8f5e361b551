"""The list of workers: what each says of itself, whether it lives, and which runs none of them can continue.

Each worker keeps a document in the store, which it renews every few seconds (`supervisor/worker_list.py` writes it).
Here they are read: by other workers, and for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.process_identity import describe_holder, is_dead, place_of
from limpet.errors import LimpetError
from limpet.graphs.names import WORKERS
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import Document, Lane, RunHead

RENEWAL_INTERVAL = 5.0
"""Every how many seconds a worker renews its document."""
MAX_COUNTED = 1000
"""Runs of a lane without a worker that are counted, at most."""
SHOWN_PLAN = 8
"""How many characters of a plan's fingerprint are shown."""


class LeftLane(NamedTuple):
    """Runs that a worker leaves alone, although it serves their queue and knows their graph: their plan is another.

    `run_ids` are those that it has looked at; if there are many such runs, it leaves the `whole` lane alone.
    """

    lane: Lane
    reason: str
    run_ids: tuple[str, ...] = ()
    whole: bool = False


class WorkerInfo(NamedTuple):
    """What a worker says of itself, and whether it lives.

    `graphs` has the fingerprint of each graph's plan by the graph's name, or None if the graph is imported when the
    first run of it is found. `queues` are those that it serves, None for all. `run_ids` are the runs that it
    executes, of many only some; `runs` is how many they are, of `concurrency` at most. `left` says which runs it
    can't continue, and why. Times are by the store's clock.
    """

    name: str
    host: str
    pid: int
    since: float
    seen: float
    version: str
    graphs: Mapping[str, str | None]
    queues: tuple[str, ...] | None
    runs: int
    run_ids: tuple[str, ...]
    concurrency: int
    lease: float
    is_live: bool = True
    left: tuple[LeftLane, ...] = ()

    @property
    def process(self) -> str:
        """The process, in words."""
        return describe_holder(self.name.partition("/")[0])

    @property
    def patience(self) -> float:
        """Seconds after which a worker that hasn't renewed its document counts as gone."""
        return 2 * max(self.lease, RENEWAL_INTERVAL)

    def serves_queue(self, queue: str) -> bool:
        """Whether it takes runs of this queue."""
        return self.queues is None or queue in self.queues

    def has_plan(self, lane: Lane) -> bool:
        """Whether the graph of this lane is the same there, as far as that is known."""
        return lane.graph in self.graphs and (not lane.plan or self.graphs[lane.graph] in (None, lane.plan))

    def why_left(self, lane: Lane, run_id: str) -> str:
        """Why it leaves a run of this lane alone, whose graph it knows; empty if it doesn't, as far as is known."""
        if self.has_plan(lane):
            return ""
        for left in self.left:
            if left.lane == lane and (left.whole or run_id in left.run_ids):
                # Of each lane, the reason of one run is kept.
                if repr(run_id) in left.reason:
                    return left.reason
                return f"as with others of its version: {left.reason}"
        return ""


class UnservedLane(NamedTuple):
    """Runs of one queue, graph and plan that are due, and that no live worker can continue.

    `runs` is how many there are, at least if `has_more`. The first is due `since` then.
    """

    queue: str
    graph: str
    plan: str
    runs: int
    has_more: bool
    since: float
    reason: str


def list_workers(client: LeaseClient) -> list[WorkerInfo]:
    """All workers that the store knows, the oldest first. Raises `UsageError` for a store without documents."""
    now = client.store_time()
    found = [read_worker(document, now) for document in client.store.list_documents(WORKERS)]
    return sorted((each for each in found if each is not None), key=lambda each: (each.since, each.name))


def worker_document(info: WorkerInfo) -> bytes:
    """What a worker stores of itself."""
    return encode(
        {
            "since": info.since,
            "seen": info.seen,
            "version": info.version,
            "graphs": dict(info.graphs),
            "queues": None if info.queues is None else list(info.queues),
            "runs": info.runs,
            "run_ids": list(info.run_ids),
            "concurrency": info.concurrency,
            "lease": info.lease,
            "left": [[*left.lane, left.reason, list(left.run_ids), left.whole] for left in info.left],
        }
    )


def read_worker(document: Document, now: float) -> WorkerInfo | None:
    """The worker that a document is of; None if it can't be read, as a later version may have written it."""
    name = document.name.removeprefix(WORKERS)
    try:
        data = decode(document.body)
        info = _worker_of(name, data)
    except (LimpetError, LookupError, TypeError, ValueError, AttributeError):
        return None
    is_recent = abs(now - info.seen) <= info.patience
    return info._replace(is_live=is_recent and not is_dead(name.partition("/")[0]))


def _worker_of(name: str, data: Mapping[str, Any]) -> WorkerInfo:
    host, pid = place_of(name.partition("/")[0])
    queues = data["queues"]
    return WorkerInfo(
        name=name,
        host=host,
        pid=pid,
        since=float(data["since"]),
        seen=float(data["seen"]),
        version=str(data["version"]),
        graphs={str(graph): plan and str(plan) for graph, plan in data["graphs"].items()},
        queues=None if queues is None else tuple(map(str, queues)),
        runs=int(data["runs"]),
        run_ids=tuple(map(str, data["run_ids"])),
        concurrency=int(data["concurrency"]),
        lease=float(data["lease"]),
        left=tuple(
            LeftLane(Lane(str(queue), str(graph), str(plan)), str(reason), tuple(map(str, ids)), bool(whole))
            for queue, graph, plan, reason, ids, whole in data.get("left", ())
        ),
    )


def why_unserved(lane: Lane, run_id: str, workers: Iterable[WorkerInfo]) -> str:
    """Why no live worker takes a run of this lane; empty if one does."""
    live = [each for each in workers if each.is_live]
    if not live:
        return "no worker is running"
    of_queue = [each for each in live if each.serves_queue(lane.queue)]
    if not of_queue:
        return f"no worker serves queue {lane.queue!r}"
    of_graph = [each for each in of_queue if lane.graph in each.graphs]
    if not of_graph:
        return f"no worker of queue {lane.queue!r} knows graph {lane.graph!r}"
    reasons = [each.why_left(lane, run_id) for each in of_graph]
    if not all(reasons):
        return ""
    return f"no worker has its plan, {short_plan(lane.plan)}: {reasons[0]}"


def short_plan(plan: str) -> str:
    """The fingerprint of a plan, short enough to be shown."""
    return plan[:SHOWN_PLAN] or "unknown"


def unserved_lanes(client: LeaseClient, workers: Sequence[WorkerInfo]) -> list[UnservedLane]:
    """The lanes with due runs that no live worker can continue."""
    found = []
    for lane in doubtful_lanes(client, workers):
        heads = client.store.ready([lane], MAX_COUNTED)
        reasons = {head.run_id: why_unserved(lane, head.run_id, workers) for head in heads}
        unserved = [head for head in heads if reasons[head.run_id]]
        if unserved:
            since = min(_due_since(head) for head in unserved)
            has_more = len(heads) == MAX_COUNTED
            reason = reasons[unserved[0].run_id]
            found.append(UnservedLane(*lane, len(unserved), has_more, since, reason))
    return found


def doubtful_lanes(client: LeaseClient, workers: Sequence[WorkerInfo]) -> list[Lane]:
    """The lanes that may have runs which no live worker can continue."""
    live = [each for each in workers if each.is_live]
    return sorted(
        lane
        for lane in client.store.lanes()
        if not any(each.serves_queue(lane.queue) and each.has_plan(lane) for each in live)
    )


def _due_since(head: RunHead) -> float:
    """From when on a run is due. A due time of 0, of a run whose process crashed, means at once."""
    return head.due or head.updated
