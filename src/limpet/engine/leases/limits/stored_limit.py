"""`StoredLimit`: one limit as a store has it. It reads and writes its documents, and finds out which holders died."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from limpet.engine.leases.lease_client import LeaseClient, held_in_this_process, nudge_supervisors
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.document import (
    CLAIMING,
    HELD,
    KEPT,
    LimitDocument,
    LineEntry,
    Slot,
    entry_body,
    limit_body,
    limit_name,
    line_name,
    line_prefix,
    read_entry,
    read_limit,
)
from limpet.errors import AlreadyCompleted, RunNotFound, StoreError
from limpet.journal.inbox import letter_post
from limpet.journal.store import ENDED, Lease, RunHead
from limpet.journal.waits import SLOT


class Evidence(NamedTuple):
    """What the store says of a limit's slots: whose holders are dead, and which reservations begin now."""

    dead: Sequence[Slot] = ()
    renewed: Sequence[Slot] = ()


class StoredLimit:
    """One limit in a store. `grace` is for how many seconds a reservation, or a worker that claims, is waited for."""

    def __init__(self, client: LeaseClient, name: str) -> None:
        self._client = client
        self._store = client.store
        self.name = name
        self.grace = client.ttl

    def read(self) -> tuple[int, LimitDocument]:
        """The version of its document, and what is in it. Version 0 has no values, so it limits nothing."""
        found = self._store.get_document(limit_name(self.name))
        if found is None:
            return 0, LimitDocument()
        return found.version, read_limit(self.name, found.body)

    def write(self, document: LimitDocument, version: int, due: float | None) -> int | None:
        """Write its document, if that is still at `version`; return its new version, else None."""
        return self._store.put_document(limit_name(self.name), limit_body(self.name, document), version, due)

    def delete(self, version: int) -> bool:
        """Delete its document, if that is still at `version`."""
        return self._store.delete_document(limit_name(self.name), version)

    def delete_damaged(self) -> None:
        """Delete a document that can't be read, and have the calls in line continue."""
        found = self._store.get_document(limit_name(self.name))
        if found is not None:
            self._store.delete_document(found.name, found.version)
        for entry in self._entries(None):
            self.tell(entry)
            self.leave(entry)

    def front(self, count: int) -> list[LineEntry]:
        """The first in line, in order. Those whose runs have ended or are gone drop out."""
        entries = self._entries(count)
        heads = self._heads([entry.run_id for entry in entries])
        waiting = []
        for entry in entries:
            if _is_under_way(heads[entry.run_id]):
                waiting.append(entry)
            else:
                self.leave(entry)
        if entries and not waiting:
            return self.front(count)
        return waiting

    def waiting(self, count: int | None = None) -> list[LineEntry]:
        """Those that stand in line, in order, as they are; at most `count`."""
        return self._entries(count)

    def live(self, document: LimitDocument, now: float) -> list[Slot]:
        """The slots whose holders aren't known to be dead. Changes nothing."""
        heads = self._heads([slot.run_id for slot in document.slots if slot.state != HELD])
        dead = [*self._dead(document, heads, now), *rules.overdue(document, now, self.grace)]
        return [slot for slot in document.slots if slot not in dead]

    def entry(self, ticket: str) -> LineEntry | None:
        """The call that stands in line with this ticket; None if none does."""
        found = self._store.get_document(line_name(self.name, ticket))
        return None if found is None else read_entry(found.name, found.body, found.version)

    def stand(self, entry: LineEntry) -> None:
        """Have a call stand in line: newly, or for another round instead of the version that this entry has."""
        name = line_name(self.name, entry.ticket)
        self._store.put_document(name, entry_body(self.name, entry), entry.version)

    def leave(self, entry: LineEntry) -> None:
        """Have a call leave the line, unless it stands there for another round by now."""
        self._store.delete_document(line_name(self.name, entry.ticket), entry.version)

    def tell(self, entry: LineEntry) -> bool | None:
        """Post to a run that it is the turn of its ticket: False if that was done before, None if it has ended.

        The post makes the run due, so a worker resumes it.
        """
        run_id = entry.run_id
        key = f"{entry.ticket}.{entry.round}"
        post = letter_post(run_id, SLOT, self.name, entry.ticket, self._client.now(), key)
        try:
            is_new = self._store.post(run_id, post.key, post.body)
        except (RunNotFound, AlreadyCompleted):
            return None
        if is_new:
            held_here = held_in_this_process(self._store, run_id)
            if held_here is not None:
                held_here.stop.notice_posts()
            else:
                nudge_supervisors(self._store)
        return is_new

    def evidence(self, document: LimitDocument, now: float) -> Evidence:
        """Find the slots that are no longer in use. Reservations that have passed on leave the line."""
        # The heads first: a run that is claimed in between is then found valid.
        heads = self._heads([slot.run_id for slot in document.slots if slot.state != HELD])
        dead = self._dead(document, heads, now)
        renewed = []
        for slot in rules.overdue(document, now, self.grace):
            entry = self.entry(slot.mark)
            # The process that reserved it may have crashed before it posted to the run.
            if entry is not None and _is_under_way(heads[slot.run_id]) and self.tell(entry):
                renewed.append(slot)
                continue
            if entry is not None:
                self.leave(entry)
            dead.append(slot)
        return Evidence(dead, renewed)

    def _dead(self, document: LimitDocument, heads: dict[str, RunHead | None], now: float) -> list[Slot]:
        dead = self._without_lease(
            [slot for slot in document.slots if slot.state == HELD or self._is_unclaimed(slot, heads, now)]
        )
        for slot in document.slots:
            if slot.state == KEPT and not self._is_kept(slot, heads):
                dead.append(slot)
        return dead

    def _is_unclaimed(self, slot: Slot, heads: dict[str, RunHead | None], now: float) -> bool:
        """Whether a worker that was about to claim a run has taken too long, or the run has been claimed."""
        if slot.state != CLAIMING:
            return False
        head = heads[slot.run_id]
        if head is None or head.status in ENDED or head.fence != slot.fence - 1:
            return True
        return now - slot.since >= self.grace

    def _without_lease(self, slots: Sequence[Slot]) -> list[Slot]:
        if not slots:
            return []
        leases = [Lease(slot.run_id, slot.fence, 0.0) for slot in slots]
        answers = self._store.are_valid(leases)
        return [slot for slot, is_valid in zip(slots, answers, strict=True) if not is_valid]

    def _is_kept(self, slot: Slot, heads: dict[str, RunHead | None]) -> bool:
        return _is_under_way(heads[slot.run_id]) and self._store.get_document(slot.mark) is not None

    def _heads(self, run_ids: Collection[str]) -> dict[str, RunHead | None]:
        unique = list(dict.fromkeys(run_ids))
        if not unique:
            return {}
        return dict(zip(unique, self._store.heads(unique), strict=True))

    def _entries(self, count: int | None) -> list[LineEntry]:
        entries = []
        for found in self._store.list_documents(line_prefix(self.name), limit=count):
            try:
                entries.append(read_entry(found.name, found.body, found.version))
            except StoreError as problem:
                _log_damage(str(problem))
                with suppress(StoreError):
                    self._store.delete_document(found.name, found.version)
        return entries


def _is_under_way(head: RunHead | None) -> bool:
    return head is not None and head.status not in ENDED


def _log_damage(problem: str) -> None:
    from logging import getLogger

    getLogger("limpet.limits").warning("%s", problem)
