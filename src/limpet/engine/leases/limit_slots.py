"""`LimitClient`: asks for slots of limits for the calls and runs of this process, and gives them back.

A slot is held under the lease of its run: it is the run's as long as the store says that the lease is valid. So no
slot has to be renewed, and one whose holder is dead is free as soon as the run's lease ends.

A call that gets no slot stands in line, if it is asked to: it has a *ticket*. When it is its turn, a slot is reserved
for it, and its run gets a post, which makes it due: a letter of the kind `SLOT`, with the limit as its name and the
ticket as its value. Then the call asks again, and tells where it stood. A reservation that isn't used for the length
of a lease passes on. The call keeps its place, and stands there again when it asks.

Of several limits, slots are taken in the order of their names. A call that stands in line for one keeps those that it
has. As all calls do so in the same order, none of them waits for another in a circle.

The folder `limits` has what is stored, the rules, and how this process changes a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple
from uuid import uuid4

from limpet.engine.leases.lease_client import LeaseClient, nudge_supervisors
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.changes import KEEP, RELEASE, TAKE, UNCOUNT, UNDO, Step
from limpet.engine.leases.limits.document import (
    LimitDocument,
    Values,
    declared_values,
    line_name,
    read_limit,
)
from limpet.engine.leases.limits.rules import Ask
from limpet.engine.leases.limits.steps import LimitSteps
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.errors import DamagedDocument, StoreError, StoreUnavailable, UsageError
from limpet.graphs.limits import Limit
from limpet.graphs.names import LIMITS
from limpet.journal.optional_calls import CLOCK_KNOWN
from limpet.journal.store import Lease
from limpet.stores.problem_log import ProblemLog

QUEUES_KNOWN: Final = 1.0
"""Seconds for which it is known which limits hold for a queue."""

SOUND_FOR: Final = 1.0
"""Seconds for which a limit is known not to be damaged."""


class SlotRequest(NamedTuple):
    """A call, or a run as a whole, that needs a slot of each of its limits.

    `lease` is that of the run, under which the slots are held: its id and fence. `call` is the key of the call in the
    run, "" for the run as a whole. `counts` says whether it counts for the rates. `wait` is where the call stood in
    line, if it did.

    `is_claimed` is false if the worker is about to claim the run: then the fence is that which the claim will give.
    After the claim the worker asks once more, with `is_claimed` and without `counts`: should it have taken longer
    than a lease to claim the run, it may have lost the slots.

    With a `lane`, the run stands in line as the next one of this lane. When it is its turn, any run of the lane may
    have the slot, whichever is the most urgent by then, and any worker may ask for it.
    """

    lease: Lease
    call: str
    limits: tuple[str, ...]
    is_claimed: bool = True
    counts: bool = True
    wait: SlotWait | None = None
    lane: str = ""


class SlotWait(NamedTuple):
    """It has no slot of this limit, and stands in line with this ticket; with "", it doesn't."""

    limit: str
    ticket: str


def limits_of(client: LeaseClient) -> LimitClient:
    """The limits of a store, as this process uses them; the same object for the same client."""
    found = client.limits
    if found is None:
        with _lock:
            found = client.limits
            if found is None:
                found = client.limits = LimitClient(client)
    return found


_lock = Lock()


class LimitClient:
    """The limits of one store, as this process uses them. Threads share it. Get it with `limits_of(client)`."""

    def __init__(self, client: LeaseClient) -> None:
        self._client = client
        self.has_limits = False
        """Whether the store had limits when its lines were last served, or this process has used some since."""
        self._steps: dict[str, LimitSteps] = {}
        self._declared: dict[str, Values] = {}
        self._checked: set[str] = set()
        """The limits that were found to have values, or were reported."""
        self._owner = uuid4().hex
        self._counted: dict[tuple[str, int, str], list[float]] = {}
        """When runs that workers are about to claim were counted for a rate, by run, fence and limit."""
        self._counted_lock = Lock()
        self._queues: dict[str, tuple[str, ...]] = {}
        self._queues_known_at = float("-inf")
        self._read_at: dict[str, float] = {}
        """When limits were last read without an error, by `monotonic`."""
        self._problems = ProblemLog("limpet.limits")

    def declare(self, limits: Iterable[Limit]) -> None:
        """Store the values that the code gives, where they differ. What was set at run time wins over them.

        Raises `UsageError` for a store that can't have limits, and `StoreError`.
        """
        for limit in limits:
            values = declared_values(limit)
            if not limit.has_values or self._declared.get(limit.name) == values:
                continue
            self.check_store()

            before = Values()

            def declared(document: LimitDocument, values: Values = values) -> LimitDocument:
                nonlocal before
                before = document.declared
                return document._replace(declared=values, is_deleted=False)

            self.edit(limit.name, declared)
            self._declared[limit.name] = values
            if before not in (Values(), values):
                _warn(f"limit {limit.name!r}: this program declares {values}; before, it was {before}")

    def acquire(self, requests: Sequence[SlotRequest], stands_in_line: bool) -> list[SlotWait | None]:
        """Ask for the slots of these calls; for each return None if it has all its slots, else what it waits for.

        A call that is refused stands in line, or else leaves no trace. Of several runs of a lane, one stands in line.
        To ask again for what is held already does no harm, and counts once. Raises `StoreError`; then none of them
        has a slot for long.
        """
        answers: list[SlotWait | None] = [None] * len(requests)
        granted: list[list[tuple[str, Step]]] = [[] for _ in requests]
        for number, request in enumerate(requests):
            has_ticket = request.wait is not None and bool(request.wait.ticket)
            if has_ticket and not request.lane and not self._is_turn(request):
                answers[number] = request.wait
        try:
            for name in sorted({limit for request in requests for limit in request.limits}):
                self._take(name, requests, answers, granted, stands_in_line)
        except BaseException:
            self._take_back_later(granted)
            raise
        for request, answer, taken in zip(requests, answers, granted, strict=True):
            if answer is not None:
                self._leave(taken, answer)
            elif not request.is_claimed:
                self._note_counted(taken)
        return answers

    def release(self, requests: Sequence[SlotRequest], were_used: bool = True) -> None:
        """Give slots back, and hand them to the first in line. If the store fails, that is tried again later.

        A slot for a run that was about to be claimed stays if the run has been claimed: it is another worker's now.
        Unless they `were_used`, runs don't count for rates: a worker wasn't the one to execute them.
        """
        others = self._claimed_by_others(requests)
        for name in sorted({limit for request in requests for limit in request.limits}):
            steps = []
            for request in requests:
                counted_at = self._take_count(request, name)
                is_undone = counted_at is not None and not were_used
                if name not in request.limits or (request in others and not is_undone):
                    continue
                step = Step(RELEASE, self._ask(request))
                if counted_at is not None and is_undone:
                    kind = UNCOUNT if request in others else UNDO
                    step = Step(kind, self._ask(request._replace(counts=True)))
                    step.granted_at = counted_at
                steps.append(step)
            if steps:
                with suppress(StoreError):  # they are owed now
                    self._limit(name).carry_out(steps)
        nudge_supervisors(self._client.store)

    def leave_line(self, limit: str, ticket: str) -> None:
        """A call doesn't need a slot any more: it leaves the line. If the store fails, its turn passes on in time."""
        stored = StoredLimit(self._client, limit)
        with suppress(StoreError):
            entry = stored.entry(ticket)
            if entry is not None:
                stored.leave(entry)
            self._limit(limit).edit(partial(rules.without_reservations, tickets=[ticket]))

    def give_up_turns(self, limit: str, run_id: str, tickets: Collection[str]) -> None:
        """The calls of a run wait with these tickets alone: it needs no other turn that has come.

        A process that crashed stood there before that was stored, and the call has had its slot since.
        """
        with suppress(StoreError):
            _, document = StoredLimit(self._client, limit).read()
            for ticket in rules.turns_of(document, run_id).difference(tickets):
                self.leave_line(limit, ticket)
                nudge_supervisors(self._client.store)

    def serve_lines(self) -> float | None:
        """Hand free slots to those in line, wherever a limit is due; return when to look again, by the store's clock.

        Slots become free as holders die, as reservations pass on, and as rates have room. None means that no call
        stands in line. A limit that can't be read is left out, with a warning in the log. Raises `StoreUnavailable`.
        """
        if not self._can_have_limits:
            return None
        for name, steps in list(self._steps.items()):
            if steps.has_debts:
                self._leaving_out_unreadable(name, lambda limit: limit.carry_out([]))
        next_looks = []
        documents = self._client.store.list_documents(LIMITS)
        self.has_limits = bool(documents)
        for found in documents:
            due = found.due
            # No look is further away than this, unless the clock was set back.
            if due is not None and not 0 < due - self.now() <= self._client.ttl:
                due = self._leaving_out_unreadable(found.name.removeprefix(LIMITS), LimitSteps.serve)
            if due is not None:
                next_looks.append(due)
        return min(next_looks, default=None)

    @property
    def has_debts(self) -> bool:
        """Whether slots are to be given back that couldn't be, as the store failed. `serve_lines` does so."""
        return any(steps.has_debts for steps in list(self._steps.values()))

    def has_room_at(self, name: str) -> float | None:
        """When a limit has room again, by the store's clock; None if that depends on the holders of its slots."""
        with suppress(StoreError):
            return self._limit(name).has_room_at()
        return None

    def has_room(self, name: str) -> bool:
        """Whether a limit has room now by its concurrency, as far as that is known."""
        with suppress(StoreError):
            return self._limit(name).has_room()
        return False

    def edit(
        self, name: str, change: Callable[[LimitDocument], LimitDocument], replaces_damaged: bool = False
    ) -> None:
        """Change what is stored of a limit, and serve its line by the new values. Raises `StoreError`.

        With `replaces_damaged`, a limit that is damaged is replaced, with a warning in the log.
        """
        try:
            self._limit(name).edit(change)
        except DamagedDocument as damage:
            if not replaces_damaged:
                raise
            stored = StoredLimit(self._client, name)
            # In one write: without its values, it would limit nothing meanwhile.
            if stored.write(change(stored.without_document()), damage.version, None) is not None:
                _warn(
                    f"limit {name!r} was damaged, and is replaced: what was declared and held before is lost"
                )
            self._limit(name).edit(change)  # which serves the line
        self._queues_known_at = float("-inf")
        nudge_supervisors(self._client.store)

    def delete(self, name: str) -> None:
        """Delete a limit, and have the calls in its line continue. Raises `StoreError`."""
        stored = StoredLimit(self._client, name)
        try:
            stored.read()
        except StoreUnavailable:
            raise
        except StoreError:
            if not stored.delete_unreadable():
                raise
            nudge_supervisors(self._client.store)
            return
        self.edit(name, lambda known: LimitDocument(first=known.first, last=known.last, is_deleted=True))

    def check_readable(self, limits: Iterable[str]) -> None:
        """Raise `StoreError` if one of these limits can't be read, as of a moment ago."""
        if not self._can_have_limits:
            return
        for name in limits:
            if monotonic() - self._read_at.get(name, float("-inf")) > SOUND_FOR:
                StoredLimit(self._client, name).read()
                self._read_at[name] = monotonic()

    def limits_for_queue(self, queue: str) -> tuple[str, ...]:
        """The names of the limits that hold for all runs in a queue, sorted.

        A limit that can't be read is left out, with a warning in the log. Raises `StoreUnavailable`.
        """
        if not self._can_have_limits:
            return ()
        if monotonic() - self._queues_known_at > QUEUES_KNOWN:
            queues: dict[str, tuple[str, ...]] = {}
            for found in self._client.store.list_documents(LIMITS):
                name = found.name.removeprefix(LIMITS)
                try:
                    document = read_limit(name, found.body)
                except StoreError as problem:
                    self._problems.warn(problem)
                    continue
                for each in () if document.is_deleted else document.values.queues:
                    queues[each] = (*queues.get(each, ()), name)
            self._queues = queues
            self._queues_known_at = monotonic()
        return self._queues.get(queue, ())

    def now(self) -> float:
        """The time by the store's clock, which is asked for every few seconds if it is that of another machine."""
        with suppress(StoreError):  # then what is decided by this time can't be written either
            return self._client.store_time(CLOCK_KNOWN)
        return self._client.now()

    def check_store(self) -> None:
        """Raise `UsageError` for a store that can't have limits."""
        if not self._can_have_limits:
            raise UsageError(f"{self._client.store} can't keep limits").with_advice(
                "use one of Limpet's own stores: SQLite, PostgreSQL, Redis, files or memory"
            )

    @property
    def _can_have_limits(self) -> bool:
        abilities = self._client.store.abilities
        return abilities.takes_part and abilities.leases

    def _leaving_out_unreadable(self, name: str, do: Callable[[LimitSteps], float | None]) -> float | None:
        """Do this to a limit. One that can't be read, damaged or of a newer version, concerns no other."""
        try:
            return do(self._limit(name))
        except StoreUnavailable:
            raise
        except StoreError as problem:
            self._problems.warn(problem)
            return None

    def _limit(self, name: str) -> LimitSteps:
        found = self._steps.get(name)
        if found is None:
            self.has_limits = True
            # Of two threads that do so at once, both get the same.
            found = self._steps.setdefault(name, LimitSteps(StoredLimit(self._client, name), self.now))
        return found

    def _note_counted(self, taken: Sequence[tuple[str, Step]]) -> None:
        with self._counted_lock:
            for name, step in taken:
                if step.is_counted:
                    self._counted.setdefault((*step.ask[:2], name), []).append(step.granted_at)

    def _take_count(self, request: SlotRequest, name: str) -> float | None:
        """When a request was counted for a rate by this process, which is forgotten; None if it wasn't."""
        key = (request.lease.run_id, request.lease.fence, name)
        with self._counted_lock:
            times = self._counted.pop(key, [])
            if len(times) > 1:  # several workers of this process were about to claim the run
                self._counted[key] = times[1:]
        return times[0] if times else None

    def _claimed_by_others(self, requests: Sequence[SlotRequest]) -> Sequence[SlotRequest]:
        """The requests for runs that this worker was about to claim, and that another one has claimed."""
        unclaimed = [each for each in requests if not each.is_claimed]
        if not unclaimed:
            return []
        try:
            answers = self._client.store.are_valid([each.lease for each in unclaimed])
        except StoreError:
            return unclaimed  # their slots pass on by themselves
        return [each for each, is_valid in zip(unclaimed, answers, strict=True) if is_valid]

    def _ask(self, request: SlotRequest) -> Ask:
        owner = "" if request.is_claimed else self._owner
        return Ask(
            request.lease.run_id, request.lease.fence, request.call, owner, request.counts, request.lane
        )

    def _is_turn(self, request: SlotRequest) -> bool:
        assert request.wait is not None
        limit, ticket = request.wait
        if limit not in request.limits:
            return True
        return self._limit(limit).is_turn(request.lease.run_id, request.call, ticket)

    def _take(
        self,
        name: str,
        requests: Sequence[SlotRequest],
        answers: list[SlotWait | None],
        granted: Sequence[list[tuple[str, Step]]],
        stands_in_line: bool,
    ) -> None:
        """Ask for the slots of one limit, for those that have got those of the limits before."""
        steps: dict[int, Step] = {}
        lanes: set[str] = set()
        for number, request in enumerate(requests):
            if answers[number] is None and name in request.limits:
                step = steps[number] = Step(TAKE, self._ask(request))
                step.stands_in_line = stands_in_line and request.lane not in lanes
                if request.lane:
                    lanes.add(request.lane)
                if step.stands_in_line and request.wait is not None and request.wait.limit == name:
                    step.old_ticket = request.wait.ticket
        if not steps:
            return
        self._limit(name).carry_out(list(steps.values()))
        if name not in self._checked:
            self._checked.add(name)
            if not self._limit(name).has_values():
                _warn(f"limit {name!r} has no values, so it limits nothing: declare it in code, or set it")
        for number, step in steps.items():
            if step.is_granted:
                granted[number].append((name, step))
            else:
                answers[number] = SlotWait(name, step.ticket)

    def _leave(self, taken: Sequence[tuple[str, Step]], wait: SlotWait) -> None:
        """Keep the slots of a call that stands in line for another limit; or give them back."""
        for name, step in taken:
            back = Step(KEEP if wait.ticket else UNDO, step.ask)
            back.granted_at = step.granted_at
            back.mark = line_name(wait.limit, wait.ticket)
            with suppress(StoreError):  # they are owed now
                self._limit(name).carry_out([back])

    def _take_back_later(self, granted: Sequence[Sequence[tuple[str, Step]]]) -> None:
        for taken in granted:
            for name, step in taken:
                back = Step(UNDO, step.ask)
                back.granted_at = step.granted_at
                self._limit(name).give_back_later([back])


def _warn(problem: str) -> None:
    from logging import getLogger

    getLogger("limpet.limits").warning("%s", problem)
