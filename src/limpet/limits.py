"""`Limits`: the limits in a store, to look at and to change while programs run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.leases.limit_slots import LimitClient, limits_of
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.awaited_limits import (
    AwaitedLimit,
    damaged_limits,
    full_limits,
    limits_of_run_in_line,
    limits_of_waits,
)
from limpet.engine.leases.limits.document import (
    LimitDocument,
    LineEntry,
    Slot,
    Values,
    damage_advice,
    lane_in,
    lane_text,
    limit_name,
    read_limit,
)
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.engine.operations.run_info import ABANDONED, RunInfo
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import DamagedDocument, LimitNotFound, StoreError, UsageError
from limpet.graphs.limits import Rate, checked_concurrency, checked_queues, checked_rate
from limpet.graphs.names import LIMITS, checked_name
from limpet.journal.store import Document, Lane
from limpet.journal.writer import has_begun
from limpet.stores.opening import open_store
from limpet.stores.problem_log import ProblemLog
from limpet.threads.async_methods import async_version

UNCHANGED: Any = object()
"""What `Limits.set` isn't asked to change."""


class SlotHolder(NamedTuple):
    """What has a slot of a limit: a run, or a call in it, since a time by the store's clock.

    `state` is `held`; `claiming` while a worker claims the run; `reserved` for a call that was first in line, and is
    about to take it; or `kept` by a call that stands in line for another limit. If it is reserved or kept for the
    next queued run of a graph, whichever that is, `run_id` is "" and `graph` and `queue` say of which.
    """

    run_id: str
    call: str
    state: str
    since: float
    graph: str = ""
    queue: str = ""


class SlotWaiter(NamedTuple):
    """What stands in line for a slot: a call, or the next queued run of a graph, as in `SlotHolder`."""

    run_id: str
    call: str
    graph: str = ""
    queue: str = ""


class LimitInfo(NamedTuple):
    """A limit: what it allows, where each value comes from ("set", else "code"), and what uses it.

    `declared` are the values of the code, `changed` those that were set at run time; each has only what it gives.
    `begun` is how many have begun in the period of the rate that ends now, and `waiting` how many wait, where all
    queued runs of a graph and queue are one.
    """

    name: str
    concurrency: int | None
    rate: str | None
    queues: tuple[str, ...]
    declared: dict[str, Any]
    changed: dict[str, Any]
    held: tuple[SlotHolder, ...]
    begun: int
    waiting: int

    def source(self, value: str) -> str:
        """Where "concurrency", "rate" or "queues" comes from: "set", "code", or "" if there is none."""
        if value in self.changed:
            return "set"
        if value in self.declared:
            return "code"
        return ""


LimitList = list[LimitInfo]
Waiters = list[SlotWaiter]
Awaited = list[AwaitedLimit]
Entries = list[LineEntry]
Names = set[str]
Documents = dict[str, LimitDocument]


class Limits:
    """The limits in a store: list them, set their values, reset and delete them.

    `store` is whatever `open_store` takes. Programs declare limits as `Limit(…)`; what is set here wins over what
    they declare, until it is reset. Every method has an async version, whose name begins with an `a`.
    """

    def __init__(self, store: Any) -> None:
        self._client: LeaseClient = client_for(open_store(store))
        self._limits: LimitClient = limits_of(self._client)
        self._limits.check_store()
        self._problems = ProblemLog("limpet.limits")

    def list(self) -> LimitList:
        """All limits, by name. Raises `StoreError`.

        One that can't be read here is left out, and the log says why: it is damaged, or a newer version wrote it.
        """
        read = self._readable()
        return [self._info(name, document) for name, document in read.items() if not document.is_deleted]

    alist = async_version(list)

    def get(self, name: str) -> LimitInfo:
        """One limit. Raises `LimitNotFound` and `StoreError`."""
        return self._info(name, self._existing(name))

    aget = async_version(get)

    def waiting(self, name: str, limit: int | None = None) -> Waiters:
        """What stands in line for slots of a limit, first come first; at most `limit`.

        Raises `LimitNotFound` and `StoreError`.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise UsageError(f"limit must be a whole number of at least 0, not {limit!r}")
        found = self._waiting(name, self._existing(name))
        return [SlotWaiter(*_shown(entry)) for entry in islice(found, limit)]

    awaiting = async_version(waiting)

    def held_up_by(self, run: RunInfo, graph: CompiledGraph | None = None) -> Awaited:
        """The limits that hold a run up: its nodes stand in their lines, or they are full for the run as a whole.

        Or they are damaged: no run that needs a slot of such a limit begins. Its `problem` says so.

        A run as a whole waits for limits of its queue and of its graph. The latter are known by what
        `graph.compiled()` gives; without it, only if a worker stands in their lines for such runs. Raises
        `RunNotFound` and `StoreError`.
        """
        if run.waits:
            return limits_of_waits(self._client, run.waits)
        names = {*self._limits.limits_for_queue(run.queue)}
        unreadable: Awaited = []
        if graph is not None:
            names |= {limit.name for limit in graph.limits}
            of_nodes = {limit.name for limit in graph.plan.limits}
            names -= of_nodes  # its nodes need slots of these, not the run
            unreadable = damaged_limits(self._client, of_nodes)
        else:
            names |= self._limits_awaited_in(Lane(run.queue, run.graph, run.plan))
        if run.holder is not None and run.shown_status != ABANDONED:
            return limits_of_run_in_line(self._client, run.run_id, names)
        counts = not has_begun(self._client.head(run.run_id))
        return [*unreadable, *full_limits(self._client, names, counts)]

    aheld_up_by = async_version(held_up_by)

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = UNCHANGED,
        rate: str | None = UNCHANGED,
        queues: Iterable[str] = UNCHANGED,
    ) -> LimitInfo:
        """Set values of a limit, which win over those of the code; None is without a limit. Others stay as they are.

        A higher limit serves the line at once; a lower one holds as slots are given back. A limit that doesn't exist
        is created. One that is damaged is replaced, with a warning in the log: the calls in its line keep their
        places, and those that had slots aren't counted. Raises `UsageError` and `StoreError`.
        """
        checked_name("limit", name)
        given: dict[str, Any] = {}
        if concurrency is not UNCHANGED:
            given["concurrency"] = checked_concurrency(concurrency)
        if rate is not UNCHANGED:
            given["rate"] = checked_rate(rate)
        if queues is not UNCHANGED:
            given["queues"] = checked_queues(queues)
        if not given:
            raise UsageError(f"limit {name!r}: give what to set: concurrency, rate or queues")

        def changed(document: LimitDocument) -> LimitDocument:
            is_set = tuple(sorted({*document.is_set, *given}))
            values = document.changed._replace(**given)
            return document._replace(changed=values, is_set=is_set, is_deleted=False)

        self._limits.edit(name, changed, replaces_damaged=True)
        return self.get(name)

    aset = async_version(set)

    def reset(self, name: str) -> LimitInfo:
        """Go back to the values of the code. Raises `LimitNotFound` and `StoreError`."""
        self._existing(name)
        self._limits.edit(name, lambda document: document._replace(is_set=(), changed=Values()))
        return self.get(name)

    areset = async_version(reset)

    def delete(self, name: str) -> None:
        """Delete a limit, also one that can't be read: nothing is limited by it, and the calls in its line continue.

        A program that declares it makes it again when it starts. Raises `LimitNotFound` and `StoreError`.
        """
        with suppress(DamagedDocument):
            self._found(name)
        self._limits.delete(name)

    adelete = async_version(delete)

    def _existing(self, name: str) -> LimitDocument:
        found = self._found(name)
        document = read_limit(name, found.body, found.version)
        if document.is_deleted:
            raise LimitNotFound(name)
        return document

    def _found(self, name: str) -> Document:
        """The document of a limit. Raises `LimitNotFound` and `DamagedDocument`."""
        try:
            found = self._client.store.get_document(limit_name(name))
        except DamagedDocument as damage:
            damage.with_advice(damage_advice(name))
            raise
        if found is None:
            raise LimitNotFound(name, _by_name(self._client.store.list_documents(LIMITS)))
        return found

    def _info(self, name: str, document: LimitDocument) -> LimitInfo:
        now = self._limits.now()
        document = rules.normalised(document, now)
        values = document.values
        stored = StoredLimit(self._client, name)
        return LimitInfo(
            name,
            values.concurrency,
            _plain(values.rate),
            values.queues,
            _given(document.declared),
            {each: _plain(getattr(document.changed, each)) for each in document.is_set},
            tuple(
                SlotHolder(run_id, call, slot.state, slot.since, graph, queue)
                for slot in stored.live(document, now)
                for run_id, call, graph, queue in [_shown(slot)]
            ),
            rules.used_rate(document, now),
            len(self._waiting(name, document)),
        )

    def _limits_awaited_in(self, lane: Lane) -> Names:
        """The names of the limits in whose lines a worker stands for runs of this lane."""
        text = lane_text(lane)
        found: Names = set()
        for name, document in self._readable().items():
            entries = StoredLimit(self._client, name).waiting() if document.has_line else []
            if any(entry.is_of_lane and entry.call == text for entry in entries):
                found.add(name)
        return found

    def _readable(self) -> Documents:
        """The limits that can be read, by name. The log names the others, or the store did so when it listed them."""
        found: Documents = {}
        for name, document in _by_name(self._client.store.list_documents(LIMITS)).items():
            try:
                found[name] = read_limit(name, document.body)
            except StoreError as problem:
                self._problems.warn(f"limit {name} is left out of the list: {problem}")
        return found

    def _waiting(self, name: str, document: LimitDocument) -> Entries:
        """What stands in line and has no slot yet, in order. A lane is there once, for all of its workers."""
        if not document.has_line:
            return []
        places: dict[tuple[str, str], LineEntry] = {}
        for entry in StoredLimit(self._client, name).waiting():
            places.setdefault((entry.run_id, entry.call), entry)
        return [entry for entry in places.values() if not rules.is_served(document, entry)]


def _shown(each: Slot | LineEntry) -> tuple[str, str, str, str]:
    """The run and the call, or the graph and the queue, that have a slot or stand in line."""
    if each.run_id:
        return each.run_id, each.call, "", ""
    lane = lane_in(each.call)
    return "", "", lane.graph, lane.queue


def _by_name(documents: Iterable[Document]) -> dict[str, Document]:
    return {found.name.removeprefix(LIMITS): found for found in documents}


def _given(values: Values) -> dict[str, Any]:
    return {
        name: _plain(value) for name, value in values._asdict().items() if value is not None and value != ()
    }


def _plain(value: Any) -> Any:
    """A value as users give it."""
    if isinstance(value, Rate):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
