"""`Limits`: the limits in a store, to look at and to change while programs run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.leases.limit_slots import LimitClient, limits_of
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.document import RESERVED, LimitDocument, Values, read_limit
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.errors import LimitNotFound, UsageError
from limpet.graphs.limits import Rate, checked_concurrency, checked_queues, checked_rate
from limpet.graphs.names import LIMITS, checked_name
from limpet.journal.store import Document
from limpet.stores.opening import open_store
from limpet.threads.async_methods import async_version

UNCHANGED: Any = object()
"""What `Limits.set` isn't asked to change."""


class SlotHolder(NamedTuple):
    """What has a slot of a limit: a run, or a call in it, since a time by the store's clock.

    `state` is `held`; `claiming` while a worker claims the run; `reserved` for a call that was first in line, and is
    about to take it; or `kept` by a call that stands in line for another limit.
    """

    run_id: str
    call: str
    state: str
    since: float


class SlotWaiter(NamedTuple):
    """A call that stands in line for a slot."""

    run_id: str
    call: str


class LimitInfo(NamedTuple):
    """A limit: what it allows, where each value comes from ("set", else "code"), and what uses it.

    `declared` are the values of the code, `changed` those that were set at run time; each has only what it gives.
    `begun` is how many have begun in the period of the rate that ends now.
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


class Limits:
    """The limits in a store: list them, set their values, reset and delete them.

    `store` is whatever `open_store` takes. Programs declare limits as `Limit(…)`; what is set here wins over what
    they declare, until it is reset. Every method has an async version, whose name begins with an `a`.
    """

    def __init__(self, store: Any) -> None:
        self._client: LeaseClient = client_for(open_store(store))
        self._limits: LimitClient = limits_of(self._client)
        self._limits.check_store()

    def list(self) -> LimitList:
        """All limits, by name. Raises `StoreError`."""
        documents = self._client.store.list_documents(LIMITS)
        read = {name: read_limit(name, found.body) for name, found in _by_name(documents).items()}
        return [self._info(name, document) for name, document in read.items() if not document.is_deleted]

    alist = async_version(list)

    def get(self, name: str) -> LimitInfo:
        """One limit. Raises `LimitNotFound` and `StoreError`."""
        return self._info(name, self._existing(name))

    aget = async_version(get)

    def waiting(self, name: str, limit: int | None = None) -> Waiters:
        """The calls that stand in line for slots of a limit, first come first; at most `limit`.

        Raises `LimitNotFound` and `StoreError`.
        """
        self._existing(name)
        entries = StoredLimit(self._client, name).waiting(limit)
        return [SlotWaiter(entry.run_id, entry.call) for entry in entries]

    awaiting = async_version(waiting)

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
        is created. Raises `UsageError` and `StoreError`.
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

        self._limits.edit(name, changed)
        return self.get(name)

    aset = async_version(set)

    def reset(self, name: str) -> LimitInfo:
        """Go back to the values of the code. Raises `LimitNotFound` and `StoreError`."""
        self._existing(name)
        self._limits.edit(name, lambda document: document._replace(is_set=(), changed=Values()))
        return self.get(name)

    areset = async_version(reset)

    def delete(self, name: str) -> None:
        """Delete a limit: nothing is limited by it, and the calls in its line continue.

        A program that declares it makes it again when it starts. Raises `LimitNotFound`
        and `StoreError`.
        """
        self._found(name)
        self._limits.delete(name)

    adelete = async_version(delete)

    def _existing(self, name: str) -> LimitDocument:
        document = read_limit(name, self._found(name).body)
        if document.is_deleted:
            raise LimitNotFound(name)
        return document

    def _found(self, name: str) -> Document:
        found = _by_name(self._client.store.list_documents(LIMITS))
        if name not in found:
            raise LimitNotFound(name, found)
        return found[name]

    def _info(self, name: str, document: LimitDocument) -> LimitInfo:
        now = self._limits.now()
        document = rules.normalised(document, now)
        values = document.values
        stored = StoredLimit(self._client, name)
        waiting = stored.waiting() if document.has_line else []
        reserved = {slot.mark for slot in document.slots if slot.state == RESERVED}
        return LimitInfo(
            name,
            values.concurrency,
            _plain(values.rate),
            values.queues,
            _given(document.declared),
            {each: _plain(getattr(document.changed, each)) for each in document.is_set},
            tuple(
                SlotHolder(slot.run_id, slot.call, slot.state, slot.since)
                for slot in stored.live(document, now)
            ),
            rules.used_rate(document, now),
            sum(entry.ticket not in reserved for entry in waiting),
        )


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
