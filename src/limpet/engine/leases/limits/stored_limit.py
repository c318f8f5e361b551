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
    RESERVED,
    LimitDocument,
    LineEntry,
    Slot,
    damage_advice,
    entry_body,
    limit_body,
    limit_name,
    line_name,
    line_prefix,
    read_entry,
    read_limit,
    ticket_number,
)
from limpet.engine.leases.process_identity import is_dead
from limpet.errors import AlreadyCompleted, DamagedDocument, RunNotFound, StoreError, UnsupportedFormat
from limpet.journal.inbox import letter_post
from limpet.journal.store import ENDED, Document, Lease, RunHead, document_version
from limpet.journal.waits import SLOT
from limpet.stores.problem_log import ProblemLog

_problems = ProblemLog("limpet.limits")


class Evidence(NamedTuple):
    """What the store says of a limit's slots: whose holders are dead, and which reservations begin now."""

    dead: Sequence[Slot] = ()
    renewed: Sequence[Slot] = ()


class Front(NamedTuple):
    """The first in line, in order, whether that is the whole line, and whether some in it can't be read here."""

    entries: list[LineEntry]
    is_whole_line: bool
    has_unreadable: bool = False


class StoredLimit:
    """One limit in a store. `grace` is for how many seconds a reservation, or a worker that claims, is waited for."""

    def __init__(self, client: LeaseClient, name: str) -> None:
        self._client = client
        self._store = client.store
        self.name = name
        self.grace = client.ttl

    def read(self) -> tuple[int, LimitDocument]:
        """The version of its document, and what is in it. Version 0 has no values, so it limits nothing.

        Raises `DamagedDocument`.
        """
        try:
            found = self._store.get_document(limit_name(self.name))
        except DamagedDocument as damage:
            damage.with_advice(damage_advice(self.name))
            raise
        if found is None:
            return 0, LimitDocument()
        return found.version, read_limit(self.name, found.body, found.version)

    def without_document(self) -> LimitDocument:
        """What is known of a limit whose document is lost: only who stands in its line, not who has its slots."""
        line = self._entries(None)
        if not line:
            return LimitDocument()
        first, last = (ticket_number(entry.ticket) for entry in (line[0], line[-1]))
        return LimitDocument(first=first, last=last + 1)

    def write(self, document: LimitDocument, version: int, due: float | None) -> int | None:
        """Write its document, if that is still at `version`; return its new version, else None."""
        return self._store.put_document(limit_name(self.name), limit_body(self.name, document), version, due)

    def delete(self, version: int) -> bool:
        """Delete its document, if that is still at `version`."""
        return self._store.delete_document(limit_name(self.name), version)

    def delete_unreadable(self) -> bool:
        """Delete a document that can't be read, and have the calls in line continue; False if it was changed."""
        name = limit_name(self.name)
        if not self._store.delete_document(name, document_version(self._store, name)):
            return False
        for entry in self._entries(None):
            self.tell(entry)
            self.leave(entry)
        return True

    def front(self, count: int) -> Front:
        """The first in line, in order; about `count`. Those whose runs have ended or are gone drop out.

        If none can be read, all are looked at: a store leaves out what is damaged, and one that is of a newer version
        stays in line.
        """
        limit: int | None = count
        while True:
            documents = self._store.list_documents(line_prefix(self.name), limit=limit)
            entries = self._read_entries(documents)
            heads = self._heads([entry.run_id for entry in entries])
            waiting = []
            for entry in entries:
                if entry.is_of_lane or _is_under_way(heads[entry.run_id]):
                    waiting.append(entry)
                else:
                    self.leave(entry)
            if waiting or limit is None:
                is_whole_line = limit is None or len(documents) < limit
                return Front(waiting, is_whole_line, len(entries) < len(documents))
            # Those that have left are gone, so there are others next time.
            limit = limit * 2 if entries and len(documents) == limit else None

    def waiting(self, count: int | None = None) -> list[LineEntry]:
        """Those that stand in line, in order, as they are; at most `count`."""
        return self._entries(count)

    def live(self, document: LimitDocument, now: float) -> list[Slot]:
        """The slots whose holders aren't known to be dead. Changes nothing. Those of claimed runs are held."""
        heads = self._heads([slot.run_id for slot in document.slots])
        dead = [*self._dead(document, heads, now), *rules.overdue(document, now, self.grace)]
        found = []
        for slot in document.slots:
            if slot in dead:
                continue
            head = heads.get(slot.run_id)
            is_claimed = slot.state == CLAIMING and head is not None and head.fence == slot.fence
            found.append(slot._replace(state=HELD) if is_claimed else slot)
        return found

    def entry(self, ticket: str) -> LineEntry | None:
        """The call that stands in line with this ticket; None if none does, or if its document is damaged."""
        try:
            found = self._store.get_document(line_name(self.name, ticket))
            return None if found is None else read_entry(found.name, found.body, found.version)
        except DamagedDocument as damage:
            _problems.warn(damage)
            self._store.delete_document(damage.name, damage.version)
            return None

    def stand(self, entry: LineEntry) -> bool:
        """Have a call stand in line: newly, or for another round instead of the version that this entry has.

        False if the line doesn't have that version any more.
        """
        name = line_name(self.name, entry.ticket)
        return self._store.put_document(name, entry_body(self.name, entry), entry.version) is not None

    def leave(self, entry: LineEntry) -> None:
        """Have a call leave the line, unless it stands there for another round by now."""
        self._store.delete_document(line_name(self.name, entry.ticket), entry.version)

    def tell(self, entry: LineEntry) -> bool | None:
        """Post to a run that it is the turn of its ticket: False if that was done before, None if it has ended.

        The post makes the run due, so a worker resumes it. Where it is the turn of a lane, supervisors find out when
        they look: those of this process do so now.
        """
        if entry.is_of_lane:
            nudge_supervisors(self._store)
            return None
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
        """Find the slots that are no longer in use. Reservations that have passed on leave the line.

        Leases that have expired, or whose holders are known to be dead, are broken: see `_is_out_of_use`.
        """
        # The heads first: a run that is claimed in between is then found valid.
        heads = self._heads([slot.run_id for slot in document.slots])
        dead = self._out_of_use(self._dead(document, heads, now))
        renewed = []
        for slot in rules.overdue(document, now, self.grace):
            entry = self.entry(slot.mark)
            # The process that reserved it may have crashed before it posted to the run.
            if entry is not None and self._is_under_way(slot, heads) and self.tell(entry):
                renewed.append(slot)
                continue
            if entry is not None:
                self._leave_with_lane(entry, heads)
            dead.append(slot)
        return Evidence(dead, renewed)

    def _leave_with_lane(self, entry: LineEntry, heads: dict[str, RunHead | None]) -> None:
        """Have a call leave whose turn wasn't used in time, and all others of its lane that no process executes.

        Likely no worker serves the lane, or it has no room: so a slot isn't kept for each of them in turn. Their runs
        get their posts. When a worker resumes one, its call stands in line with its number again.
        """
        self.leave(entry)
        if entry.is_of_lane:
            others = [
                each for each in self._entries(None) if (each.run_id, each.call) == (entry.run_id, entry.call)
            ]
            for each in others:
                self.leave(each)
            return
        head = heads[entry.run_id]
        if head is None or head.holder is not None:
            return
        others = [each for each in self._entries(None) if not each.is_of_lane]
        found = self._heads([each.run_id for each in others])
        for each in others:
            other = found[each.run_id]
            if other is not None and other.lane == head.lane and other.holder is None:
                self.tell(each)
                self.leave(each)

    def _dead(self, document: LimitDocument, heads: dict[str, RunHead | None], now: float) -> list[Slot]:
        under_lease = [
            slot for slot in document.slots if slot.state == HELD or self._is_unclaimed(slot, heads, now)
        ]
        dead = self._without_lease(under_lease)
        holders = {head.holder for head in heads.values() if head is not None and head.holder is not None}
        dead_holders = {holder for holder in holders if is_dead(holder)}
        for slot in under_lease:
            head = heads[slot.run_id]
            is_held = head is not None and head.fence == slot.fence and head.holder in dead_holders
            if is_held and slot not in dead:
                dead.append(slot)
        for slot in document.slots:
            is_dropped = slot.state == KEPT and not self._is_kept(slot, heads, now)
            # It was cancelled, say, when it was its turn.
            has_ended = slot.state == RESERVED and not self._is_under_way(slot, heads)
            if is_dropped or has_ended:
                dead.append(slot)
        return dead

    def _out_of_use(self, dead: Sequence[Slot]) -> list[Slot]:
        """Those of these slots that no holder will use any more."""
        under_lease = [slot for slot in dead if slot.state in (HELD, CLAIMING)]
        heads = self._heads([slot.run_id for slot in under_lease])
        return [slot for slot in dead if slot not in under_lease or self._is_out_of_use(slot, heads)]

    def _is_out_of_use(self, slot: Slot, heads: dict[str, RunHead | None]) -> bool:
        """Whether the holder of a slot can't use it any more. Leases of dead holders, and expired ones, are broken.

        A holder that was suspended, or cut off from the store, would else renew its lease when it is back, and
        continue although another call has its slot by then.
        """
        head = heads[slot.run_id]
        if head is None or head.fence != slot.fence or head.holder is None:
            return True  # the lease was released, or broken by another process
        mine = self._client.held.get(slot.run_id)
        if mine is not None and mine.is_in_use and mine.lease.fence == slot.fence:
            # This process was suspended itself.
            self._client.renew([mine])
            return mine.lost
        return self._client.break_lease(head)

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

    def _is_kept(self, slot: Slot, heads: dict[str, RunHead | None], now: float) -> bool:
        if not slot.run_id and now - slot.since >= self.grace:
            return False  # a supervisor asks for its lanes whenever it looks
        return self._is_under_way(slot, heads) and document_version(self._store, slot.mark) != 0

    def _is_under_way(self, slot: Slot, heads: dict[str, RunHead | None]) -> bool:
        return not slot.run_id or _is_under_way(heads[slot.run_id])

    def _heads(self, run_ids: Collection[str]) -> dict[str, RunHead | None]:
        unique = [run_id for run_id in dict.fromkeys(run_ids) if run_id]
        if not unique:
            return {}
        return dict(zip(unique, self._store.heads(unique), strict=True))

    def _entries(self, count: int | None) -> list[LineEntry]:
        return self._read_entries(self._store.list_documents(line_prefix(self.name), limit=count))

    def _read_entries(self, documents: Sequence[Document]) -> list[LineEntry]:
        """The calls in these documents. One that is damaged is deleted: its run asks again by itself, later."""
        entries = []
        for found in documents:
            try:
                entries.append(read_entry(found.name, found.body, found.version))
            except StoreError as problem:
                _problems.warn(problem)
                if not isinstance(problem, UnsupportedFormat):
                    with suppress(StoreError):
                        self._store.delete_document(found.name, found.version)
        return entries


def _is_under_way(head: RunHead | None) -> bool:
    return head is not None and head.status not in ENDED
