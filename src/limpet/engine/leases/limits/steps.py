"""`LimitSteps`: the changes that this process makes to one limit, one compare-and-set at a time for all its threads.

A thread queues what it wants, and takes the lock. Whichever thread has the lock carries out all that is queued, as
one change of the limit's document. If another process was faster, it reads the document and decides again.

What happens besides the document happens in an order in which a crash loses nothing:

- A call gets the number of its ticket by a change of the document, then its own document in the line. Only then it
  looks again whether a slot became free meanwhile.
- A slot is reserved by a change of the document, then the run gets a post. If the process crashes in between, the
  reservation isn't used in time, and the process that notices posts to the run.
- A call takes its reservation by a change of the document, then it leaves the line.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import sleep
from typing import Final

from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.changes import (
    MOST_SERVED,
    RELEASE,
    TAKE,
    UNCOUNT,
    UNDO,
    Change,
    Pending,
    Step,
)
from limpet.engine.leases.limits.document import (
    RESERVED,
    LimitDocument,
    Values,
    new_ticket,
    ticket_number,
)
from limpet.engine.leases.limits.stored_limit import Evidence, Front, StoredLimit
from limpet.errors import StoreError, StoreUnavailable

FRESH: Final = 0.1
"""Seconds for which a refusal is decided by what this process has read or written before."""

FIRST_BACKOFF: Final = 0.002
LONGEST_BACKOFF: Final = 0.1
"""Seconds to wait, about, after another process was faster."""

SHORTEST_DELAY: Final = 0.05
"""Seconds that may pass between the decision to grant a slot and its being written."""

LOOKS_PER_LEASE: Final = 8
"""How often in the length of a lease the slots of a limit with a line are checked for dead holders."""


class LimitSteps:
    """The changes of this process to one limit. Threads share it. `now` is the time by the store's clock."""

    def __init__(self, stored: StoredLimit, now: Callable[[], float]) -> None:
        self._stored = stored
        self._now = now
        self._lock = Lock()
        self._queue: deque[Pending] = deque()
        self._owed: dict[tuple[str, int, str], Step] = {}
        """Slots to give back that couldn't be given back, as the store failed: by run, fence and call."""
        self._may_be_written = False
        """Whether the present change may have been written, although the store failed."""
        self._known: tuple[int, LimitDocument] | None = None
        self._known_at = 0.0
        self._checked_version = -1
        """The version whose slots were last checked for dead holders."""
        self._checked_at = 0.0

    @property
    def has_debts(self) -> bool:
        """Whether slots are to be given back that couldn't be."""
        return bool(self._owed)

    def carry_out(self, steps: Sequence[Step]) -> None:
        """Carry out these steps, together with those of other threads. Raises `StoreError`."""
        pending = Pending(steps)
        self._queue.append(pending)
        with self._lock:
            if not pending.is_done:
                self._carry_out_queued(pending)
        if pending.error is not None:
            raise pending.error

    def serve(self) -> float | None:
        """Hand free slots to those in line; first find out which holders are dead. Return when to look again.

        Raises `StoreError`.
        """
        with self._lock:
            self._known = None
            self._change([], checks=True)
            return self._due(self._document(), self._now())

    def edit(self, change: Callable[[LimitDocument], LimitDocument]) -> None:
        """Change the document by this function, and serve the line by the new values. Raises `StoreError`."""
        with self._lock:
            self._known = None
            backoff = FIRST_BACKOFF
            while True:
                before = self._document()
                after = change(before)
                if after == before or self._save(before, after, self._now()):
                    break
                backoff = self._back_off(backoff)
            if self._document().has_line or self._document().is_deleted:
                self._change([], checks=True)

    def give_back_later(self, steps: Sequence[Step]) -> None:
        """Have slots given back with the next change, as they couldn't be by this one."""
        for step in steps:
            if step.kind == UNCOUNT or (step.kind == TAKE and not self._may_be_written):
                continue
            key = step.ask[:3]
            if step.kind == UNDO:
                self._owed[key] = step
            else:
                # Without knowing whether it was granted, it can't be taken back from the rate.
                self._owed.setdefault(key, Step(RELEASE, step.ask))

    def is_turn(self, run_id: str, call: str, ticket: str) -> bool:
        """Whether a call that stands in line should ask: a slot is reserved for it, or it stands there no longer."""
        with self._lock:
            self._known = None
            document = self._document()
            slot = rules.slot_of(document, run_id, call)
            if slot is not None or not rules.is_limiting(document):
                return True
            entry = self._stored.entry(ticket)
            if entry is None:
                return True
            # The run had a post about its turn in this round, or it wouldn't ask. It needs another one.
            if not self._stored.stand(entry._replace(round=_unique())):
                return True  # another process has taken it out of the line just now
            self._known = None
            now = self._now()
            if rules.room(rules.normalised(self._document(), now), now) >= 1:
                self._change([], checks=True)
            return rules.slot_of(self._document(), run_id, call) is not None

    def has_room_at(self) -> float | None:
        """When the limit has room again, if it is full by its rate alone. Raises `StoreError`."""
        with self._lock:
            now = self._now()
            return rules.rate_has_room_at(rules.normalised(self._document(), now), now)

    def has_values(self) -> bool:
        """Whether it was declared or set, as far as this process knows. Raises `StoreError`."""
        with self._lock:
            document = self._document()
            return document.is_deleted or document.values != Values()

    def has_room(self) -> bool:
        """Whether the limit has room now, for what doesn't count for its rate. Raises `StoreError`."""
        with self._lock:
            document = self._document()
            return not document.has_line and rules.room(document, self._now(), counts=False) >= 1

    def _document(self) -> LimitDocument:
        """The document as this process knows it."""
        if self._known is None or abs(self._now() - self._known_at) > FRESH:
            self._known = self._stored.read()
            self._known_at = self._now()
        return self._known[1]

    def _carry_out_queued(self, own: Pending) -> None:
        # An interrupted thread may have taken it out of the queue.
        batch = [own]
        while self._queue:
            pending = self._queue.popleft()
            if pending is not own and not pending.is_done:
                batch.append(pending)
        self._may_be_written = False
        error: BaseException | None = StoreUnavailable("the process was interrupted while it asked for slots")
        try:
            steps = [step for pending in batch for step in pending.steps]
            if any(step.old_ticket for step in steps):
                self._known = None  # it may be their turn by now
            self._change(steps)
            error = None
        except StoreError as problem:
            error = problem
        finally:
            for pending in batch:
                pending.error = error
                if error is not None:
                    self.give_back_later(pending.steps)
                pending.is_done = True

    def _change(self, steps: list[Step], checks: bool = False) -> None:
        """Make changes of the document until none is left to make. The caller holds the lock.

        A grant counts for the rate as of when it was decided. If it took long to write it, the call would begin later
        than it counts, and others with it. So it is counted again, as of now. On a store that is always slow, more
        and more is accepted.
        """
        self._change_and_line_up(steps, checks)
        accepted = 1.0
        while late := [step for step in steps if self._is_late(step, accepted)]:
            for step in late:
                step.counted_at = step.granted_at
            self._change_and_line_up(late)
            accepted *= 2

    def _is_late(self, step: Step, accepted: float) -> bool:
        rate = self._document().values.rate
        if rate is None or not step.is_granted or not step.is_counted:
            return False
        slice_of_time = rate.seconds / rules.SLICES
        return self._now() - step.granted_at > accepted * max(slice_of_time, SHORTEST_DELAY)

    def _change_and_line_up(self, steps: list[Step], checks: bool = False) -> None:
        change = self._write(steps, checks)
        while change.standing or change.has_more_to_serve:
            # A slot may have become free before these were in the line.
            waiting = [step for step in steps if step.kind == TAKE and not step.is_granted]
            waiting = [step for step in waiting if step.ticket or step.ask.lane]
            for step in waiting:
                step.old_ticket = step.ticket
            self._known = None
            # Written even if it is the same: a process that saw the line without these may be about to close it.
            change = self._write(waiting, always=bool(change.standing))

    def _write(self, steps: list[Step], checks: bool = False, always: bool = False) -> Change:
        """Make one change of the document, and do what follows from it."""
        owed = dict(self._owed)
        backoff = FIRST_BACKOFF
        while True:
            was_known = self._known
            before = self._document()
            now = self._now()
            change = self._decide(before, [*owed.values(), *steps], now, checks)
            if self._known is was_known and change.only_confirms(before, steps):
                # Nothing is written, so only the store can say that it still has the slots.
                self._known = None
                continue
            always = always or (checks and change.document.has_line)
            if self._save(before, change.document, now, always):
                break
            backoff = self._back_off(backoff)
        for step in steps:
            step.counted_at = None
        for key, step in owed.items():
            if self._owed.get(key) is step:
                del self._owed[key]
        change.follow_up(self._stored)
        for step in steps:
            step.is_standing = bool(step.ticket) and not step.is_granted
        return change

    def _save(self, before: LimitDocument, after: LimitDocument, now: float, always: bool = False) -> bool:
        """Write the document; not if nothing has changed, unless `always`. False if another process was faster."""
        assert self._known is not None
        version, _ = self._known
        if after.is_deleted and not after.has_line and before.is_deleted:
            self._known = None
            return version == 0 or self._stored.delete(version)
        if after == before and not always:
            return True
        self._may_be_written = True
        written = self._stored.write(after, version, self._due(after, now))
        if written is None:
            return False
        self._known = (written, after)
        self._known_at = self._now()
        return True

    def _back_off(self, seconds: float) -> float:
        """Wait for about this long, as another process was faster, and return for how long to wait next time."""
        self._known = None
        sleep(seconds * random.uniform(0.5, 1.5))
        return min(seconds * 2, LONGEST_BACKOFF)

    def _due(self, document: LimitDocument, now: float) -> float | None:
        grace = self._stored.grace
        return rules.next_due(document, now, grace, grace / LOOKS_PER_LEASE)

    def _decide(self, before: LimitDocument, steps: list[Step], now: float, checks: bool) -> Change:
        """What the steps make of the document."""
        change = Change(rules.normalised(before, now))
        for step in steps:
            if not step.is_standing:
                step.ticket = ""  # an earlier try may have given it one, and another process was faster
            change.document = step.given_back(change.document, now)
        asked = [step for step in steps if step.kind == TAKE]
        refused = self._take(change, asked, now)
        if checks or (refused and self._needs_check(change.document, refused, now)):
            evidence = self._evidence(change.document, now)
            change.document = rules.remove(change.document, evidence.dead)
            change.document = rules.renew(change.document, evidence.renewed, now)
            refused = self._take(change, refused, now)
        standing = [
            step
            for step in refused
            if step.stands_in_line and not rules.is_claimed_by_another(change.document, step.ask)
        ]
        self._line_up(change, standing, now)
        if change.document.has_line and (checks or rules.room(change.document, now)):
            self._serve(change, standing, now)
            if change.is_line_served:
                others = [step for step in refused if step not in standing]
                self._take(change, others, now, line_is_served=True)
        return change

    def _take(
        self, change: Change, steps: Sequence[Step], now: float, line_is_served: bool = False
    ) -> list[Step]:
        """Give slots to steps that ask for them, and return those that don't get one."""
        refused = []
        for step in steps:
            change.document = rules.forget_earlier_leases(change.document, step.ask)
            saved = rules.slot_saved_for(change.document, step.ask)
            after = self._granted(change, step, now, line_is_served)
            step.is_granted = after is not None
            if after is None:
                refused.append(step)
                continue
            change.document = after
            step.granted_at = now
            tickets = {step.old_ticket}
            if saved is not None and saved.state == RESERVED:
                # Another one than its own, if a process that crashed had stood in line for the same call.
                tickets.add(saved.mark)
            for ticket in sorted(tickets - {""}):
                # As it is before the change: if another process stands in line with it later, that isn't undone.
                entry = self._stored.entry(ticket)
                if entry is None:
                    continue
                change.leaving.append(entry)
                if ticket != step.old_ticket:
                    # The run may know this one, and a process that has lost the run takes its slot here.
                    change.told.append(entry)
        return refused

    def _granted(self, change: Change, step: Step, now: float, line_is_served: bool) -> LimitDocument | None:
        """The document in which a step has its slot, counted as of now; None if it gets none."""
        if step.counted_at is not None:
            after = rules.recount(change.document, step.ask, step.counted_at, now)
            if after is not None:
                return after
            change.document = rules.undo(change.document, step.ask, step.counted_at)
        after = rules.take(change.document, step.ask, now, line_is_served)
        if after is None:
            step.is_counted = False
            return None
        step.is_counted = after.window != change.document.window
        return rules.confirm(after, step.ask, now, self._stored.grace / 2)

    def _needs_check(self, document: LimitDocument, refused: Sequence[Step], now: float) -> bool:
        """Whether to look for dead holders, as that may make room for a newcomer.

        Not if others stand in line: then supervisors look. And not again and again, while nothing changes.
        """
        if document.has_line:
            return False
        if rules.room(document, now, counts=False) and not any(
            rules.is_left_over(document, step.ask, now, self._stored.grace) for step in refused
        ):
            return False
        version = 0 if self._known is None else self._known[0]
        has_checked = version == self._checked_version and abs(now - self._checked_at) < FRESH
        return not has_checked

    def _evidence(self, document: LimitDocument, now: float) -> Evidence:
        self._checked_version = 0 if self._known is None else self._known[0]
        self._checked_at = now
        return self._stored.evidence(document, now)

    def _line_up(self, change: Change, steps: Sequence[Step], now: float) -> None:
        """Give tickets to those that have none. Calls that asked in vain get a new one, with the number of the old.

        The run had a post about its old ticket, or it wouldn't ask, and it needs another one. The new ticket is a
        document of another name, so it doesn't matter what other processes do with the old one meanwhile.
        """
        newcomers = [step for step in steps if not step.old_ticket]
        if newcomers:
            at_least = max(int(now * 1000), 1)
            change.document, numbers = rules.new_numbers(change.document, len(newcomers), at_least)
            for step, number in zip(newcomers, numbers, strict=True):
                step.ticket = new_ticket(number, _unique())
                change.standing.append(step.entry(_unique()))
        for step in steps:
            if not step.old_ticket:
                continue
            step.ticket = step.old_ticket
            entry = None if step.is_standing else self._stored.entry(step.old_ticket)
            # Supervisors ask for their lanes whenever they look, and get no posts.
            is_kept = step.is_standing or (step.ask.lane and entry is not None)
            if not is_kept:
                step.ticket = new_ticket(ticket_number(step.old_ticket), _unique())
                change.standing.append(step.entry(_unique()))
                if entry is not None:
                    change.leaving.append(entry)
            change.document = rules.open_line_at(change.document, ticket_number(step.ticket))

    def _serve(self, change: Change, standing: Sequence[Step], now: float) -> None:
        """Hand free slots to the first in line."""
        mine = {step.ticket: step for step in standing}
        front, is_whole_line, has_unreadable = self._front(
            change.document, min(rules.room(change.document, now), MOST_SERVED)
        )
        if not front and not change.standing:
            if not has_unreadable:
                change.document = rules.empty_line(change.document)
            return
        # A lane whose turn this change takes is still there, and none of its runs would use another slot for it.
        gone = {entry.ticket for entry in change.leaving if entry.is_of_lane}
        front = [entry for entry in front if entry.ticket not in gone]
        if not rules.is_limiting(change.document):
            change.told = front[:MOST_SERVED]
            change.leaving += change.told
            return
        # Their runs get posts, as the slot may be that of a process which has lost the run.
        needless = [entry for entry in front if rules.has_slot(change.document, entry)]
        change.told += needless
        change.leaving += needless
        change.document, chosen = rules.reserve(change.document, front, now)
        if is_whole_line and not change.standing:
            change.is_line_served = all(rules.is_served(change.document, entry) for entry in front)
        for entry in chosen:
            step = mine.get(entry.ticket)
            if step is None:
                change.told.append(entry)
            else:
                self._take(change, [step], now)

    def _front(self, document: LimitDocument, wanted: int) -> Front:
        """The first in line, with more than `wanted` that aren't served, unless that is the whole line.

        Each worker of a lane has a place for it, and one slot serves them all: they don't hide what is behind them.
        """
        count = wanted + sum(slot.state == RESERVED for slot in document.slots) + 1
        while True:
            front = self._stored.front(count)
            unserved = {entry[1:3] for entry in front.entries if not rules.is_served(document, entry)}
            if front.is_whole_line or len(unserved) > wanted:
                return front
            count *= 2


def _unique() -> str:
    return f"{random.getrandbits(32):08x}"
