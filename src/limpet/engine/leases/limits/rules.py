"""The rules of a limit: what a step makes of its document. They know no clock, no store and no process.

1. A slot counts from the moment it is in the document until a step takes it out. So there are never more slots than
   the limit allows, whatever happens to those who have them. A slot of a dead holder is taken out on evidence only,
   which the caller brings from the store.
2. Who comes new gets a slot only if no call stands in line. Else free slots are *reserved*, in the order of the line.
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
    """What asks for a slot. `owner` is the worker that is about to claim the run, "" if the run is claimed."""

    run_id: str
    fence: int
    call: str
    owner: str = ""
    counts: bool = True


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


def take(document: LimitDocument, ask: Ask, now: float) -> LimitDocument | None:
    """Give a slot to what asks for it; None if it doesn't get one now.

    It gets the one that it has, one that is reserved or kept for it, or a free one if no call stands in line.
    """
    if not is_limiting(document):
        return document
    for slot in document.slots:
        if (slot.run_id, slot.call) != (ask.run_id, ask.call):
            continue
        if slot.state in (RESERVED, KEPT):
            return _grant(_without(document, (slot,)), ask, now)
        if slot.fence == ask.fence:
            # Only one worker at a time is about to claim a run: else one could take the slot of the other away.
            is_another = bool(ask.owner) and slot.state == CLAIMING and slot.mark != ask.owner
            return None if is_another else document
    if document.values.concurrency is None and not ask.counts:
        return document
    if document.has_line or room(document, now, ask.counts) < 1:
        return None
    return _grant(document, ask, now)


def is_left_over(document: LimitDocument, ask: Ask, now: float, grace: float) -> bool:
    """Whether another worker was about to claim the run, and has taken too long."""
    slot = slot_of(document, ask.run_id, ask.call)
    return slot is not None and slot.state == CLAIMING and now - slot.since >= grace


def slot_of(document: LimitDocument, run_id: str, call: str) -> Slot | None:
    """The slot that a call has, or that is reserved or kept for it."""
    return next((slot for slot in document.slots if (slot.run_id, slot.call) == (run_id, call)), None)


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
    return _with(document, Slot(ask.run_id, 0, ask.call, KEPT, now, mark, ask.counts))


def reserve(
    document: LimitDocument, front: Sequence[LineEntry], now: float
) -> tuple[LimitDocument, list[LineEntry]]:
    """Reserve free slots for the first in line, in order; return for whom."""
    reserved = []
    for entry in front:
        if slot_of(document, entry.run_id, entry.call) is not None:
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


def renew(document: LimitDocument, slots: Collection[Slot], now: float) -> LimitDocument:
    """Have reservations begin now."""
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
    values = document.values
    if values.rate is not None and document.window and room(document, now) < 1 <= room(document, now, False):
        found.append(document.window[0][0] + values.rate.seconds)
    return min(found)


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
