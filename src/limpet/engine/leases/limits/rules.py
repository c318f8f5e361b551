"""The rules of a limit: what a step makes of its document. They know no clock, no store and no process.

1. A slot counts from the moment it is in the document until a step takes it out. So there are never more slots than
   the limit allows, whatever happens to its holders. A slot of a dead holder is taken out on evidence only,
   which the caller brings from the store.
2. A newcomer gets a slot only if nothing waits in line. Else free slots are *reserved*, in the order of the line.
3. For the rate, a grant counts from when it is taken. A reservation, or a slot that is kept while its call stands in
   line for another limit, counts as now until it is taken.
4. A time in the future, because the clock was set back, counts as now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import floor
from typing import Final, NamedTuple

from limpet.engine.leases.limits.document import (
    CLAIMING,
    HELD,
    KEPT,
    RESERVED,
    LimitDocument,
    LineEntry,
    Slot,
    Values,
)

SLICES: Final = 60
"""Into how many slices the period of a rate is divided. A grant counts until the end of its slice is that old."""

UNLIMITED: Final = 1_000_000_000
"""The room that a limit has which doesn't limit."""


class Ask(NamedTuple):
    """What asks for a slot. `owner` is the worker that is about to claim the run, "" if the run is claimed.

    `lane` is that of a run which stands in line, if it does, as the next one of its lane.
    """

    run_id: str
    fence: int
    call: str
    owner: str = ""
    counts: bool = True
    lane: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """As what it stands in line: the run and the call, or the lane."""
        return ("", self.lane) if self.lane else (self.run_id, self.call)


def is_limiting(document: LimitDocument) -> bool:
    """Whether it limits anything."""
    values = document.values
    return not document.is_deleted and (values.concurrency is not None or values.rate is not None)


def normalised(document: LimitDocument, now: float) -> LimitDocument:
    """The document with no time in the future, and without grants that are too old to count."""
    slots = document.slots
    if any(slot.since > now for slot in slots):
        slots = tuple(slot._replace(since=min(slot.since, now)) for slot in slots)
    rate = document.values.rate
    window = document.window
    if rate is None:
        return document._replace(slots=slots, window=())
    if window:
        newest = _slice_end(now, rate.seconds)
        counts: dict[float, int] = {}
        for end, count in window:
            if end > now - rate.seconds:
                counted_at = min(end, newest)
                counts[counted_at] = counts.get(counted_at, 0) + count
        window = tuple(sorted(counts.items()))
    return document._replace(slots=slots, window=window)


def room(document: LimitDocument, now: float, counts: bool = True) -> int:
    """How many slots are free: by the concurrency and, for those that count for it, by the rate."""
    if not is_limiting(document):
        return UNLIMITED
    values = document.values
    free = UNLIMITED
    if values.concurrency is not None:
        free = values.concurrency - len(document.slots)
    if values.rate is not None and counts:
        free = min(free, values.rate.number - _used(document, values, now))
    return max(free, 0)


def used_rate(document: LimitDocument, now: float) -> int:
    """How many grants count for the rate now."""
    return _used(document, document.values, now)


def forget_earlier_leases(document: LimitDocument, ask: Ask) -> LimitDocument:
    """Take out what the run held under earlier leases, as it asks under a newer one."""
    if ask.owner:
        return document  # it isn't claimed yet, so an earlier holder may be at work
    earlier = [
        slot
        for slot in document.slots
        if slot.run_id == ask.run_id and slot.state in (HELD, CLAIMING) and slot.fence < ask.fence
    ]
    return _without(document, earlier)


def take(document: LimitDocument, ask: Ask, now: float, line_is_served: bool = False) -> LimitDocument | None:
    """Give a slot to what asks for it; None if it doesn't get one now.

    It gets the one that it has, one that is reserved or kept for it, or a free one if nothing stands in line, or
    everything that does has its slot.
    """
    if not is_limiting(document):
        return document
    own = _slot_under_lease(document, ask)
    if own is not None:
        if _is_of_another_worker(own, ask):
            return None
        # A worker that is about to claim the run once more has as long for it as at first.
        return renew(document, (own,), now) if ask.owner else document
    saved = slot_saved_for(document, ask)
    if saved is not None:
        without = _without(document, (saved,))
        # The rate may have no room for it, if it was saved for another run of the lane that doesn't count.
        is_covered = saved.counts or not ask.counts or room(without, now) >= 1
        return _grant(without, ask, now) if is_covered else None
    if document.values.concurrency is None and not ask.counts:
        return document
    has_precedence = line_is_served or not document.has_line
    if not ask.counts and room(document, now) < 1:
        has_precedence = True  # the rate alone holds up the line, if there is room for this
    if not has_precedence or room(document, now, ask.counts) < 1:
        return None
    return _grant(document, ask, now)


def confirm(document: LimitDocument, ask: Ask, now: float, young: float) -> LimitDocument:
    """A worker has claimed the run, and still has the slot for it. If that took long, the slot begins now.

    Another process may be about to take out a slot that isn't `young` any more, as the run wasn't claimed when it
    looked. It can't, once the document is another one.
    """
    own = _slot_under_lease(document, ask)
    if own is None or ask.owner or own.state != CLAIMING or now - own.since < young:
        return document
    return renew(document, (own,), now)


def is_claimed_by_another(document: LimitDocument, ask: Ask) -> bool:
    """Whether another worker is about to claim the run, or was when it crashed: so this one gets no slot for it."""
    own = _slot_under_lease(document, ask)
    return own is not None and _is_of_another_worker(own, ask)


def slot_saved_for(document: LimitDocument, ask: Ask) -> Slot | None:
    """The slot that is reserved or kept for what asks."""
    for slot in document.slots:
        place = (slot.run_id, slot.call)
        if slot.state in (RESERVED, KEPT) and place in (ask.place, (ask.run_id, ask.call)):
            return slot
    return None


def is_left_over(document: LimitDocument, ask: Ask, now: float, grace: float) -> bool:
    """Whether another worker was about to claim the run, and has taken too long."""
    slot = slot_of(document, ask.run_id, ask.call)
    return slot is not None and slot.state == CLAIMING and now - slot.since >= grace


def turns_of(document: LimitDocument, run_id: str) -> set[str]:
    """The tickets of the calls of a run for which slots are reserved."""
    own = [slot for slot in document.slots if slot.run_id == run_id and slot.call]
    return {slot.mark for slot in own if slot.state == RESERVED}


def slot_of(document: LimitDocument, run_id: str, call: str) -> Slot | None:
    """The slot that a call has, or that is reserved or kept for it."""
    return next((slot for slot in document.slots if (slot.run_id, slot.call) == (run_id, call)), None)


def is_served(document: LimitDocument, entry: LineEntry) -> bool:
    """Whether a slot is reserved for what stands in line, or it has one."""
    return slot_of(document, entry.run_id, entry.call) is not None


def has_slot(document: LimitDocument, entry: LineEntry) -> bool:
    """Whether a call has its slot already, so that it needn't stand in line."""
    slot = slot_of(document, entry.run_id, entry.call)
    return slot is not None and slot.state == HELD


def release(document: LimitDocument, ask: Ask) -> LimitDocument:
    """Take out the slot that is held under this lease for this call."""
    found = [slot for slot in document.slots if _is_held_by(slot, ask)]
    return _without(document, found)


def undo(document: LimitDocument, ask: Ask, since: float) -> LimitDocument:
    """Take a grant back that was made at this time, as if it had never been: it doesn't count for the rate."""
    return _uncounted(release(document, ask), ask, since)


def uncount(document: LimitDocument, ask: Ask, since: float) -> LimitDocument:
    """Two workers were about to claim a run, and it counts for both: take the count of the one back that was later.

    Only where there are no slots: else the second of them had none, and didn't count.
    """
    if document.values.concurrency is not None:
        return document
    return _uncounted(document, ask, since)


def recount(document: LimitDocument, ask: Ask, since: float, now: float) -> LimitDocument | None:
    """Have a grant that was made at this time count for the rate as of now; None if the rate has no room for it.

    None too if the slot was taken out meanwhile.
    """
    values = document.values
    if values.concurrency is not None and not any(_is_held_by(slot, ask) for slot in document.slots):
        return None
    document = _uncounted(document, ask, since)
    if values.rate is not None and _used(document, values, now) >= values.rate.number:
        return None
    return _counted(document, ask, now)


def keep(document: LimitDocument, ask: Ask, since: float, mark: str, now: float) -> LimitDocument:
    """Keep a slot that was granted at this time for a call that stands in line for another limit, at `mark`."""
    if not is_limiting(document):
        return document
    if document.values.concurrency is not None and not any(_is_held_by(slot, ask) for slot in document.slots):
        return document
    document = undo(document, ask, since)
    run_id, call = ask.place
    return _with(document, Slot(run_id, 0, call, KEPT, now, mark, ask.counts))


def reserve(
    document: LimitDocument, front: Sequence[LineEntry], now: float
) -> tuple[LimitDocument, list[LineEntry]]:
    """Reserve free slots for the first in line, in order; return for whom."""
    reserved = []
    for entry in front:
        if is_served(document, entry):
            continue
        if room(document, now, entry.counts) < 1:
            break
        slot = Slot(entry.run_id, 0, entry.call, RESERVED, now, entry.ticket, entry.counts)
        document = _with(document, slot)
        reserved.append(entry)
    return document, reserved


def remove(document: LimitDocument, dead: Collection[Slot]) -> LimitDocument:
    """Take out slots whose holders are dead, or whose reservations have passed on."""
    return _without(document, dead) if dead else document


def without_reservations(document: LimitDocument, tickets: Collection[str]) -> LimitDocument:
    """Take out what is reserved for these tickets: they have left the line."""
    reserved = [each for each in document.slots if each.state == RESERVED and each.mark in tickets]
    return _without(document, reserved)


def renew(document: LimitDocument, slots: Collection[Slot], now: float) -> LimitDocument:
    """Have reservations, or slots of workers that are about to claim runs, begin now."""
    if not slots:
        return document
    changed = [slot._replace(since=now) if slot in slots else slot for slot in document.slots]
    return document._replace(slots=tuple(changed))


def overdue(document: LimitDocument, now: float, grace: float) -> list[Slot]:
    """The reservations that weren't used in time."""
    return [slot for slot in document.slots if slot.state == RESERVED and now - slot.since >= grace]


def new_numbers(document: LimitDocument, count: int, at_least: int) -> tuple[LimitDocument, range]:
    """Numbers for tickets, each above all before. The first ticket of a limit has the number `at_least`."""
    begin = document.last or at_least
    first = document.first
    if not document.has_line:
        first = begin
    return document._replace(first=first, last=begin + count), range(begin, begin + count)


def open_line_at(document: LimitDocument, number: int) -> LimitDocument:
    """A call stands in line with this number, although the line was taken for empty, or for shorter."""
    if document.first <= number < document.last:
        return document
    return document._replace(first=min(document.first, number), last=max(document.last, number + 1))


def empty_line(document: LimitDocument) -> LimitDocument:
    """No call stands in line."""
    return document._replace(first=document.last)


def next_due(document: LimitDocument, now: float, grace: float, interval: float) -> float | None:
    """When a supervisor has to look at the limit; None if no call stands in line.

    That is when a reservation passes on, or the rate has room again, and every `interval` seconds: a holder may be
    dead.
    """
    if not document.has_line:
        if document.is_deleted:
            return now
        return None
    found = [now + interval]
    found += [slot.since + grace for slot in document.slots if slot.state == RESERVED]
    has_room = rate_has_room_at(document, now)
    if has_room is not None:
        found.append(has_room)
    return min(found)


def rate_has_room_at(document: LimitDocument, now: float) -> float | None:
    """When a limit has room again that is full by its rate alone; None if it isn't."""
    rate = document.values.rate
    if rate is None or not document.window or not room(document, now) < 1 <= room(document, now, False):
        return None
    return document.window[0][0] + rate.seconds


def _grant(document: LimitDocument, ask: Ask, now: float) -> LimitDocument:
    values = document.values
    if values.concurrency is not None:
        state = CLAIMING if ask.owner else HELD
        slot = Slot(ask.run_id, ask.fence, ask.call, state, now, ask.owner, ask.counts)
        document = _with(document, slot)
    return _counted(document, ask, now)


def _counted(document: LimitDocument, ask: Ask, now: float) -> LimitDocument:
    rate = document.values.rate
    if rate is None or not ask.counts:
        return document
    counts = dict(document.window)
    end = _slice_end(now, rate.seconds)
    counts[end] = counts.get(end, 0) + 1
    return document._replace(window=tuple(sorted(counts.items())))


def _uncounted(document: LimitDocument, ask: Ask, since: float) -> LimitDocument:
    rate = document.values.rate
    if rate is None or not ask.counts:
        return document
    counts = dict(document.window)
    end = _slice_end(since, rate.seconds)
    if end in counts:
        counts[end] -= 1
    return document._replace(window=tuple((at, count) for at, count in counts.items() if count))


def _used(document: LimitDocument, values: Values, now: float) -> int:
    if values.rate is None:
        return 0
    granted = sum(count for end, count in document.window if end > now - values.rate.seconds)
    return granted + sum(slot.counts and slot.state in (RESERVED, KEPT) for slot in document.slots)


def _slice_end(at: float, period: float) -> float:
    width = period / SLICES
    return (floor(at / width) + 1) * width


def _slot_under_lease(document: LimitDocument, ask: Ask) -> Slot | None:
    """The slot of what asks, under the lease that it names."""
    for slot in document.slots:
        if slot.state in (HELD, CLAIMING) and slot[:3] == (ask.run_id, ask.fence, ask.call):
            return slot
    return None


def _is_of_another_worker(slot: Slot, ask: Ask) -> bool:
    # Only one worker at a time is about to claim a run: else one could take the slot of the other away.
    return bool(ask.owner) and slot.state == CLAIMING and slot.mark != ask.owner


def _is_held_by(slot: Slot, ask: Ask) -> bool:
    return (
        slot.state in (HELD, CLAIMING)
        and (slot.run_id, slot.call, slot.fence) == (ask.run_id, ask.call, ask.fence)
        and (slot.state == HELD or not ask.owner or slot.mark == ask.owner)
    )


def _with(document: LimitDocument, slot: Slot) -> LimitDocument:
    return document._replace(slots=(*document.slots, slot))


def _without(document: LimitDocument, slots: Collection[Slot]) -> LimitDocument:
    if not slots:
        return document
    return document._replace(slots=tuple(slot for slot in document.slots if slot not in slots))
