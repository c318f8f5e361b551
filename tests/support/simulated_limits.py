"""Limits in a fleet of simulated processes, whose threads take turns at every call of the store.

The processes execute runs as the engine does, as far as limits are concerned: they claim a run, ask for slots, make
its calls, save that these are done, and release the slots; or they save that the run waits, and release it. The
store, the leases and the limits are the real ones. Processes crash between any two calls of the store, freeze past
their leases, lose answers; clocks are set; limits are raised, lowered and deleted; runs are cancelled.
Then the faults stop, and every run has to end.

What has to hold is checked as it happens:

- never more calls are under way than the limit allows. A call is under way from when its process knows that it has a
  slot until it gives that back, whenever the lease of its run is valid.
- in no period more calls begin than the rate allows, by the store's clock; setting that back doesn't matter
- a slot is given to a call only if those that stand before it in line have one
- once the faults have stopped, each call gets its slot within a bounded time, and none is woken for nothing
- at the end no slot is taken, and the lines are empty
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from limpet import Limit
from limpet.engine.leases import limit_slots
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import LimitClient, SlotRequest, SlotWait, limits_of
from limpet.engine.leases.limits import steps
from limpet.engine.leases.limits.document import (
    KEPT,
    RESERVED,
    LimitDocument,
    Slot,
    Values,
    declared_values,
    read_entry,
    read_limit,
)
from limpet.errors import Conflict, RunNotFound, StoreError
from limpet.graphs.names import LIMITS, LINES
from limpet.journal.inbox import read_post
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    ENDED,
    RUNNING,
    Commit,
    Lease,
    NewRun,
    PostsWaiting,
    RunHead,
)
from support.exploration import Replacement, explore_worlds, replaced
from support.interleaving import Interleaving, ProcessStore, SharedLock

LEASE = 10.0
LENGTH = 400
"""How many things happen in a schedule before the faults stop."""
POLL = 1.0
"""How often a process looks for runs, once the faults have stopped."""
MOST_THREADS = 3
"""How many runs a process executes at once."""
TEST = "tests/models/test_simulated_limits.py"

Call = tuple[str, tuple[str, ...], float]
"""The key of a call, its limits, and the seconds that it takes."""


class RunPlan:
    """What a run does: steps of calls that are made in parallel. `limits` are those of the run as a whole."""

    def __init__(self, run_id: str, steps: list[list[Call]], limits: tuple[str, ...], stays: bool) -> None:
        self.run_id = run_id
        self.steps = steps
        self.limits = limits
        self.stays = stays
        """Whether a process that executes it keeps it while it waits, as it does without a supervisor."""


class Journal:
    """What a run has stored of itself."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.step: int = data["step"]
        self.done: list[str] = data["done"]
        self.waits: dict[str, list[str]] = data["waits"]
        """By the call: the limit, and the ticket in its line."""
        self.told: list[list[str]] = data["told"]
        """The limits and tickets whose turn it is, by the posts."""

    def encoded(self) -> bytes:
        """As a record."""
        return json.dumps(vars(self)).encode()


class Grant:
    """Slots that a process has, for a call or for a run."""

    def __init__(self, run_id: str, fence: int, call: str, limits: frozenset[str]) -> None:
        self.lease = Lease(run_id, fence, 0.0)
        self.call = call
        self.limits = limits
        """Those that it counts for: a limit that didn't limit when it was granted knows nothing of it."""


class Process:
    """A process that executes runs."""

    def __init__(self, world: LimitWorld, number: int) -> None:
        self.name = f"p{number}"
        self.store = ProcessStore(world)
        self.client = LeaseClient(self.store, LEASE)  # type: ignore[arg-type]
        self.limits: LimitClient = limits_of(self.client)
        self.leases: dict[str, Lease] = {}
        """What it executes, by run."""
        self.picked: set[str] = set()
        """The runs that it executes, or is about to claim: each in one thread."""
        self.frozen_until = 0.0
        self.next_look = 0.0


class LimitWorld(Interleaving):
    """One schedule."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        SharedLock.world = self
        self.values: dict[str, list[Values | None]] = {}
        """What a limit has allowed, in the order of the changes of its document. None: it wasn't there."""
        self.changed_at: dict[str, list[float]] = {}
        self.documents: dict[str, LimitDocument] = {}
        self.entries: dict[str, dict[str, tuple[str, str, int]]] = {}
        """Those in a limit's line, by ticket: the run, the call, and how often the limit had changed before."""
        self.begun: dict[str, list[tuple[float, int]]] = {}
        """The grants that count for a rate: when, and after how many changes of the limit's document."""
        self.rate_since: dict[str, int] = {}
        self.slots_since: dict[tuple[str, str, str], int] = {}
        """By limit, run and call: with which change of the limit it got its slot, or its reservation."""
        self.waiting: set[tuple[str, str, str]] = set()
        """By limit, run and call: those that wait. One that asked and got an error isn't passed."""
        self.held_at: dict[tuple[str, str, str, int], tuple[float, int]] = {}
        """By limit, run, call and fence: when the slot was granted, and with which change of the limit."""
        self.under_way: list[Grant] = []
        self.plans: dict[str, RunPlan] = {}
        self.numbers = 0
        self.wakes = self.idle_wakes = 0
        """How often a call asked because it was its turn, once the faults had stopped; and how often for nothing."""
        self.declared = [Limit("a", self.dice.choice((1, 2, 3)), self.dice.choice(RATES)), Limit("b", 1)]
        self.processes = [self.hire() for _ in range(self.dice.choice((1, 2, 2, 3)))]

    def run(self, length: int) -> None:
        """`length` things happen, then the faults stop, and every run ends."""
        for _ in range(self.dice.choice((3, 4, 6))):
            self.start_run()
        for _ in range(length):
            self.act()
        self.settle()

    def act(self) -> None:
        """One thing happens."""
        now = self.clock.monotonic()
        able = [thread for thread in self.able() if thread.process.frozen_until <= now]
        if able and self.dice.random() < 0.9:
            self.step(self.dice.choice(able))
            return
        getattr(self, self.dice.choices(NAMES, WEIGHTS)[0])()

    def hire(self) -> Process:
        """A new process."""
        self.numbers += 1
        return Process(self, self.numbers)

    def start_run(self) -> None:
        """A run is queued."""
        dice = self.dice
        run_id = f"r{len(self.plans)}"
        planned = []
        for number in range(dice.choice((1, 2, 2, 3))):
            width = dice.choice((1, 1, 1, 2, 3))
            planned.append([self.new_call(f"{number}.{each}") for each in range(width)])
        whole = dice.choice(((), (), (), ("c",)))
        self.plans[run_id] = RunPlan(run_id, planned, whole, dice.random() < 0.2)
        empty = Journal({"step": 0, "done": [], "waits": {}, "told": []})
        self.store.create(NewRun(run_id, "g", [empty.encoded()], due=0.0))
        self.note("start", run_id, planned, whole)

    def new_call(self, key: str) -> Call:
        """A call of a run."""
        limits = self.dice.choice((("a",), ("a",), ("a", "b"), ("b",)))
        return key, limits, self.dice.choice((0.0, 0.1, 1.0, LEASE / 2, 2 * LEASE))

    def look(self) -> None:
        """A process looks for something to do."""
        self.begin_look(self.dice.choice(self.processes))

    def begin_look(self, process: Process) -> None:
        """Unless it has enough to do."""
        if sum(thread.process is process for thread in self.threads) < MOST_THREADS:
            self.begin(process, lambda: self.do_look(process))

    def do_look(self, process: Process) -> None:
        """What a supervisor does: serve the lines, and execute a run that is ready."""
        with suppress(StoreError):
            process.limits.serve_lines()
        with suppress(StoreError):
            for head in process.store.heads(list(self.plans)):
                if not self.is_ready(head) or head.run_id in process.picked:
                    continue
                process.picked.add(head.run_id)
                try:
                    if self.take_on(process, head):
                        return
                finally:
                    process.picked.discard(head.run_id)

    def is_ready(self, head: RunHead) -> bool:
        """Whether a run needs a holder. All of them do so at once or not at all, whatever the clock is set to."""
        is_held = head.lease_until is not None and head.lease_until > self.clock.monotonic()
        return head.due is not None and head.status not in ENDED and not is_held

    def take_on(self, process: Process, head: RunHead) -> bool:
        """Claim a run and execute it, if a slot is free for it. False if it isn't."""
        plan = self.plans[head.run_id]
        wanted = Lease(head.run_id, head.fence + 1, 0.0)
        is_new = head.sequence == 1 and not head.taken
        whole = SlotRequest(wanted, "", plan.limits, is_claimed=False, counts=is_new)
        began = self.change_counts()
        if plan.limits:
            process.limits.declare([Limit("c", 2)])
            if process.limits.acquire([whole], stands_in_line=False) != [None]:
                return False
        try:
            lease = process.store.claim(head.run_id, process.name, LEASE)
        except (StoreError, Conflict, RunNotFound):
            process.limits.release([whole])
            return False
        if lease.fence != wanted.fence:
            process.limits.release([whole])
            with suppress(StoreError):
                process.store.release(lease)
            return True
        process.leases[lease.run_id] = lease
        self.note(process.name, "claims", lease)
        if plan.limits and not self.confirms(process, whole):
            del process.leases[lease.run_id]
            with suppress(StoreError):
                process.store.release(lease)
            return True
        grants = [self.granted(whole, began)] if plan.limits else []
        try:
            self.execute(process, plan, lease)
        except (StoreError, Conflict, RunNotFound) as problem:
            self.note(process.name, "gives up", lease, str(problem))
        finally:
            del process.leases[lease.run_id]
        for grant in grants:
            self.under_way.remove(grant)
        if plan.limits:
            process.limits.release([whole])
        with suppress(StoreError):
            process.store.release(lease)
        return True

    def confirms(self, process: Process, whole: SlotRequest) -> bool:
        """Whether a process still has the slots of a run, now that it has claimed it."""
        with suppress(StoreError):
            request = whole._replace(is_claimed=True, counts=False)
            return process.limits.acquire([request], stands_in_line=False) == [None]
        return False

    def execute(self, process: Process, plan: RunPlan, lease: Lease) -> None:
        """Advance a run until it waits or ends."""
        tail = process.store.read(plan.run_id)
        if tail.head.status in ENDED:
            return
        driver = Driver(self, process, plan, lease, tail.head, Journal(json.loads(tail.records[-1])))
        driver.drive()

    def granted(self, request: SlotRequest, began: dict[str, int]) -> Grant:
        """A process has got slots. `began` says after how many changes of each limit it asked."""
        thread = self.current
        assert thread is not None
        counts_for = set()
        allowed = {}
        for name in request.limits:
            since = self.slots_since.get((name, request.lease.run_id, request.call), began.get(name, 0))
            versions = self.values.get(name, [None])[min(since, began.get(name, 0)) :] or [None]
            allowed[name] = max(0 if values is None else values.concurrency or 0 for values in versions)
            if all(values is not None and values.concurrency is not None for values in versions):
                counts_for.add(name)
            if request.counts and all(values is not None and values.rate is not None for values in versions):
                slot = (name, request.lease.run_id, request.call, request.lease.fence)
                self.count_for_rate(name, self.held_at.get(slot, thread.granted_at.get(name)))
        grant = Grant(request.lease.run_id, request.lease.fence, request.call, frozenset(counts_for))
        self.note(thread.process.name, "has slots", *request[:3], request.wait)
        self.under_way.append(grant)
        for name in grant.limits:
            self.check_number(name, allowed[name])
        return grant

    def check_number(self, name: str, allowed: int) -> None:
        """Not too many calls are under way. Those that have lost their lease don't count, unless it is renewed."""
        valid = self.store.are_valid([grant.lease for grant in self.under_way])
        using = [
            grant
            for grant, is_valid in zip(self.under_way, valid, strict=True)
            if is_valid and name in grant.limits
        ]
        self.check(
            len(using) <= allowed,
            f"{len(using)} calls use {name!r}, which allows {allowed}: "
            + ", ".join(f"{grant.lease.run_id} {grant.call}" for grant in using),
        )

    def count_for_rate(self, name: str, at: tuple[float, int] | None) -> None:
        """A call begins that counts for a rate."""
        if at is None or at[1] <= self.rate_since.get(name, 0):
            return
        begun = self.begun.setdefault(name, [])
        begun.append(at)
        begun.sort()
        values = self.values[name][-1]
        if values is None or values.rate is None:
            return
        number, seconds = values.rate
        for first, last in zip(begun, begun[number:], strict=False):
            self.check(
                last[0] - first[0] >= seconds, f"{name!r}: more than {values.rate} in {first} to {last}"
            )

    @property
    def who(self) -> str:
        """The process at work."""
        return "" if self.current is None else self.current.process.name

    def change_counts(self) -> dict[str, int]:
        """How often each limit had changed a moment ago: a process may still know it as it was then."""
        before = self.clock.monotonic() - 2 * steps.FRESH
        return {name: sum(at < before for at in times) - 1 for name, times in self.changed_at.items()}

    def carried_out(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        document = str(args[0]) if args else ""
        if document.startswith(LINES):
            limit, _, ticket = document.removeprefix(LINES).rpartition("/")
            entries = self.entries.setdefault(limit, {})
            if name == "put_document" and answer is not None:
                entry = read_entry(document, args[1], 0)
                self.note("  ", self.who, entry, "stands in line for", limit)
                entries[ticket] = (entry.run_id, entry.call, len(self.values.get(limit, ())))
            elif name == "delete_document" and answer:
                self.note("  ", self.who, "takes out of the line", limit, ticket)
                run_id, call, _ = entries.pop(ticket)
                # It is there again when it has asked, and knows that it is.
                self.waiting.discard((limit, run_id, call))
        elif document.startswith(LIMITS):
            limit = document.removeprefix(LIMITS)
            if name == "put_document" and answer is not None:
                self.limit_changed(limit, read_limit(limit, args[1]))
            elif name == "delete_document" and answer:
                self.limit_changed(limit, None)

    def limit_changed(self, name: str, after: LimitDocument | None) -> None:
        """The store took a change of a limit."""
        before = self.documents.get(name, LimitDocument())
        is_there = after is not None and not after.is_deleted
        values = after.values if after is not None and is_there else None
        changes = self.values.setdefault(name, [None])
        self.changed_at.setdefault(name, [float("-inf")]).append(self.clock.monotonic())
        old = changes[-1]
        changes.append(values)
        if (old and old.rate) != (values and values.rate):
            self.begun[name] = []
            self.rate_since[name] = len(changes)
        self.documents[name] = after or LimitDocument()
        self.note("  ", self.who, "changes", name, after and shown(after), values and values[:2])
        if self.current is not None:
            at = self.current.granted_at[name] = (self.current.clock_read, len(changes))
            for slot in self.documents[name].slots:
                if slot.fence and slot not in before.slots:
                    self.held_at[name, slot.run_id, slot.call, slot.fence] = at
        self.slots_since.update(
            {
                (name, slot.run_id, slot.call): len(changes) - 1
                for slot in self.documents[name].slots
                if all(slot[:3:2] != each[:3:2] for each in before.slots)
            }
        )
        if after is None or values is None:
            for grant in self.under_way:
                grant.limits -= {name}
            return
        if values.concurrency is None:
            for grant in self.under_way:
                grant.limits -= {name}
        else:
            most = max(values.concurrency, len(before.slots))
            self.check(len(after.slots) <= most, f"{name!r} has {len(after.slots)} slots, and allows {most}")
        self.check_order(name, before, after)

    def check_order(self, name: str, before: LimitDocument, after: LimitDocument) -> None:
        """Who gets a slot passes no other in line that could be seen there."""
        entries = self.entries.get(name, {})
        had = {(slot.run_id, slot.call) for slot in before.slots}
        has = {(slot.run_id, slot.call) for slot in after.slots}
        for slot in after.slots:
            # What is kept was granted before. A limit without a concurrency has had no slot for it since.
            if (slot.run_id, slot.call) in had or slot.state == KEPT:
                continue
            place = self.place_of(entries, slot)
            for ticket, (run_id, call, since) in entries.items():
                was_there = since < len(self.values[name]) - 1 and (name, run_id, call) in self.waiting
                if ticket >= place or (run_id, call) in has or not was_there:
                    continue
                head = self.store.head(run_id)
                self.check(
                    head.status in ENDED,
                    f"{name!r}: {slot.run_id} {slot.call} has passed {run_id} {call} in line",
                )

    def place_of(self, entries: dict[str, tuple[str, str, int]], slot: Slot) -> str:
        """Where a call stands that gets a slot; at the end, if it doesn't."""
        if slot.state == RESERVED:
            return slot.mark
        mine = [ticket for ticket, (run_id, call, _) in entries.items() if (run_id, call) == slot[:3:2]]
        return min(mine, default="~")

    def crash(self) -> None:
        """A process is gone, and another begins."""
        process = self.dice.choice(self.processes)
        self.note(process.name, "crashes")
        mine = {(lease.run_id, lease.fence) for lease in process.leases.values()}
        self.end_threads(process)
        self.under_way = [
            grant for grant in self.under_way if (grant.lease.run_id, grant.lease.fence) not in mine
        ]
        self.processes[self.processes.index(process)] = self.hire()

    def freeze(self) -> None:
        """A process stands still, maybe for longer than its leases last; then it continues."""
        process = self.dice.choice(self.processes)
        process.frozen_until = self.clock.monotonic() + self.dice.choice((1.0, LEASE + 1, 3 * LEASE))
        self.note(process.name, "freezes")

    def renew(self) -> None:
        """The processes renew their leases."""
        for process in self.processes:
            if process.leases and process.frozen_until <= self.clock.monotonic():
                self.store.renew(list(process.leases.values()), LEASE)

    def jump(self) -> None:
        """Time passes."""
        seconds = self.dice.choice((0.01, 0.2, 1.0, LEASE / 4, LEASE / 2, LEASE + 1))
        self.advance(seconds)
        self.note("it is", self.clock.monotonic())

    def set_time(self) -> None:
        """The time of day is set."""
        seconds = self.dice.choice((-86400.0, -30.0, -1.0, 1.0, 30.0, 86400.0))
        self.note("the clock is set by", seconds)
        self.set_clock(seconds)

    def change(self) -> None:
        """A person changes a limit, in a process of its own."""
        name = self.dice.choice(("a", "a", "b", "c"))
        kind = self.dice.choice(("concurrency", "concurrency", "rate", "delete", "declare"))
        number = self.dice.choice((1, 2, 3, 4))
        rate = Limit("a", rate=self.dice.choice(RATES)).rate
        process = self.hire()

        def changed(document: LimitDocument) -> LimitDocument:
            if kind == "declare":
                return document._replace(declared=declared_values(Limit(name, number)), is_deleted=False)
            is_set = tuple(sorted({*document.is_set, kind}))
            value = number if kind == "concurrency" else rate
            return document._replace(
                changed=document.changed._replace(**{kind: value}), is_set=is_set, is_deleted=False
            )

        def job() -> None:
            with suppress(StoreError):
                if kind == "delete":
                    process.limits.delete(name)
                else:
                    process.limits.edit(name, changed)

        self.note("change", name, kind, number, rate)
        self.begin(process, job)

    def cancel(self) -> None:
        """A person cancels a run that no process holds."""
        run_id = self.dice.choice(list(self.plans))
        head = self.store.head(run_id)
        if head.status not in ENDED and head.holder is None:
            lease = self.store.claim(run_id, "person", LEASE)
            tail = self.store.read(run_id)
            end = Commit(run_id, lease.fence, head.sequence, [tail.records[-1]], status=CANCELLED)
            end.ignores_posts = True
            self.check(self.store.append([end]) == [None], "a cancel is refused")
            self.note("cancel", run_id)

    def settle(self) -> None:
        """No more faults: every run has to end."""
        self.faults = False
        self.note("no more faults")
        for process in self.processes:
            process.frozen_until = 0.0
        most = self.longest()
        began = self.clock.monotonic()
        while not self.is_over():
            waited = self.clock.monotonic() - began
            self.check(waited < most, f"runs don't end in {most} s: {self.left()}")
            self.settle_a_little()
        self.check_empty()

    def woken(self, was_told: list[bool], answers: list[SlotWait | None]) -> None:
        """Calls have asked, because it is their turn or not."""
        if not self.faults:
            for told, answer in zip(was_told, answers, strict=True):
                self.wakes += told
                self.idle_wakes += told and answer is not None and answer.limit == "a"

    def settle_a_little(self) -> None:
        """Half a second of work without faults."""
        for process in self.processes:
            if process.next_look <= self.clock.monotonic():
                process.next_look = self.clock.monotonic() + POLL
                for _ in range(MOST_THREADS):
                    self.begin_look(process)
        while able := self.able():
            self.step(self.dice.choice(able))
        self.advance(POLL / 2)
        self.renew()

    def is_over(self) -> bool:
        """Whether all runs have ended."""
        return all(self.store.head(run_id).status in ENDED for run_id in self.plans) and not self.threads

    def left(self) -> str:
        """The runs that haven't ended, for a message."""
        heads = [self.store.head(run_id) for run_id in self.plans]
        return ", ".join(
            f"{head.run_id} due {head.due} fence {head.fence} holder {head.holder} "
            f"{self.store.read(head.run_id).records[-1]!r}"
            for head in heads
            if head.status not in ENDED
        )

    def longest(self) -> float:
        """How long it takes at most until all runs have ended.

        All calls are made one after the other, and each has to be noticed. Before that, two leases may have to end:
        those of processes that crashed, and of those that freeze or lose an answer while they take a run over. A
        crashed process may also have had calls stand in line that no run knows of. For each, a slot is reserved in
        vain, for the length of a lease; in the worst case one after the other. Last, the rates.
        """
        calls = [call for plan in self.plans.values() for step in plan.steps for call in step]
        seconds = sum(call[2] + 4 * POLL for call in calls) + (2 + self.strays()) * LEASE
        rates = [values[-1].rate for values in self.values.values() if values[-1] is not None]
        for rate in [*rates, self.declared[0].rate]:
            if rate is not None:
                seconds += (len(calls) / rate.number + 1) * rate.seconds * 1.2
        return seconds

    def strays(self) -> int:
        """How many tickets stand in line that no run knows of."""
        known = set()
        for run_id in self.plans:
            waits = Journal(json.loads(self.store.read(run_id).records[-1])).waits
            known.update(tuple(wait) for wait in waits.values())
        in_line = [(limit, ticket) for limit, entries in self.entries.items() for ticket in entries]
        return sum(place not in known for place in in_line)

    def check_empty(self) -> None:
        """No slot is lost."""
        process = self.hire()
        for name in ("a", "b", "c"):
            process.limits.edit(name, lambda document: document._replace(is_deleted=False))
        for _ in range(4):
            self.advance(LEASE + 1)
            for name in ("a", "b", "c"):
                process.limits._limit(name).serve()
        for name, document in self.documents.items():
            self.check(not document.slots, f"slots are left: {name} {document.slots}")
            self.check(not document.has_line, f"{name!r} still has a line: {document}")


def shown(document: LimitDocument) -> str:
    """A limit's document, for the trace."""
    slots = [f"{slot.run_id} {slot.call} {slot.state} {slot.fence} {slot.mark}" for slot in document.slots]
    line = f"line {document.first}-{document.last}" if document.has_line else ""
    return f"{slots} {line} {document.window}"


class Driver:
    """Executes one run in a process, from when it is claimed until it waits or ends."""

    def __init__(
        self,
        world: LimitWorld,
        process: Process,
        plan: RunPlan,
        lease: Lease,
        head: RunHead,
        journal: Journal,
    ) -> None:
        self.world = world
        self.process = process
        self.plan = plan
        self.lease = lease
        self.sequence = head.sequence
        self.taken = head.taken
        self.journal = journal
        self.asks_anyway = world.faults and world.dice.random() < 0.1
        """Whether calls are to ask although it isn't known to be their turn."""

    def drive(self) -> None:
        """Raises what the store raises."""
        while self.journal.step < len(self.plan.steps):
            if len(self.journal.done) == len(self.plan.steps[self.journal.step]):
                self.journal.step += 1
                self.journal.done = []
                continue
            self.take_in()
            if self.asks_anyway:
                self.ask_again()
            able = [call for call in self.plan.steps[self.journal.step] if self.can_ask(call)]
            if able:
                self.ask(able)
            elif self.plan.stays:
                self.world.sleep(POLL / 2)
                self.process.limits.serve_lines()
                if self.process.store.head(self.plan.run_id).fence != self.lease.fence:
                    return
            elif self.save(RUNNING):
                self.world.note(self.process.name, "leaves", self.plan.run_id, self.journal.waits)
                return
        while not self.save(COMPLETED):
            self.take_in()
        self.world.note(self.process.name, "completes", self.plan.run_id)

    def take_in(self) -> None:
        """Note what was posted."""
        for post in self.process.store.inbox(self.plan.run_id):
            if post.number > self.taken:
                self.taken = post.number
                data = read_post(self.plan.run_id, post).data
                self.journal.told.append([data["name"], data["value"]])

    def ask_again(self) -> None:
        """A person resumes the run: calls ask although it isn't their turn. That is stored before they do."""
        self.asks_anyway = False
        self.journal.told += [wait for wait in self.journal.waits.values() if wait not in self.journal.told]
        while not self.save(None):
            self.take_in()

    def can_ask(self, call: Call) -> bool:
        """Whether a call isn't done, and doesn't wait."""
        key = call[0]
        if key in self.journal.done:
            return False
        wait = self.journal.waits.get(key)
        return wait is None or wait in self.journal.told

    def ask(self, calls: list[Call]) -> None:
        """Ask for the slots of calls, and make those that have them."""
        world = self.world
        self.process.limits.declare(world.declared)
        requests = [self.request(call) for call in calls]
        began = world.change_counts()
        was_told = [each.wait is not None and list(each.wait) in self.journal.told for each in requests]
        for each in requests:
            if each.wait is not None and list(each.wait) in self.journal.told:
                self.journal.told.remove(list(each.wait))
        answers = self.process.limits.acquire(requests, stands_in_line=True)
        grants = []
        granted = []
        for call, request, answer in zip(calls, requests, answers, strict=True):
            if answer is None:
                self.journal.waits.pop(call[0], None)
                grants.append(world.granted(request, began))
                granted.append(call)
            else:
                self.journal.waits[call[0]] = list(answer)
                world.waiting.add((answer.limit, request.lease.run_id, call[0]))
                world.note(self.process.name, "waits", *request[:3], request.wait, "now", answer)
        world.woken(was_told, answers)
        self.make(granted, grants)

    def make(self, calls: list[Call], grants: list[Grant]) -> None:
        """Make calls that have their slots; then give these back."""
        for call, grant in sorted(zip(calls, grants, strict=True), key=lambda each: each[0][2]):
            self.world.sleep(call[2])
            self.journal.done.append(call[0])
            self.world.under_way.remove(grant)
            self.process.limits.release([self.request(call)])
        while not self.save(None):
            self.take_in()

    def request(self, call: Call) -> SlotRequest:
        """What a call asks for."""
        wait = self.journal.waits.get(call[0])
        return SlotRequest(self.lease, call[0], call[1], wait=None if wait is None else SlotWait(*wait))

    def save(self, status: str | None) -> bool:
        """Store where the run is. False if posts have to be taken in first. Raises why it is refused otherwise."""
        record = self.journal.encoded()
        commit = Commit(
            self.plan.run_id, self.lease.fence, self.sequence, [record], self.sequence + 1, status
        )
        commit.takes = self.taken
        (refusal,) = self.process.store.append([commit])
        if isinstance(refusal, PostsWaiting):
            return False
        if refusal is not None:
            raise refusal
        self.sequence += 1
        return True


RATES = (None, None, "2/s", "3/10s", "5/min")
EVENTS = {
    "look": 30,
    "jump": 20,
    "renew": 14,
    "crash": 3,
    "freeze": 3,
    "set_time": 1,
    "change": 2,
    "cancel": 1,
    "start_run": 1,
}
"""What may happen besides the work of threads, and how often."""
NAMES = list(EVENTS)
WEIGHTS = list(EVENTS.values())


@contextmanager
def simulated() -> Iterator[None]:
    """Have limits live in the simulation: their clocks, their chance, their locks."""

    def world() -> LimitWorld:
        return SharedLock.world  # type: ignore[return-value]

    class Chance:
        """Stands for the module `random`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world().dice, name)

    patches: list[Replacement] = [
        (steps, "Lock", SharedLock),
        (steps, "random", Chance()),
        (steps, "sleep", lambda seconds: world().sleep(seconds)),
        (limit_slots, "monotonic", lambda: world().clock.monotonic()),
    ]
    with replaced(patches):
        yield


def explore(seeds: Iterable[int], kind: type[LimitWorld] = LimitWorld, length: int = LENGTH) -> int:
    """Run the schedules of these seeds; returns how many. Raises a `Violation` for the first that fails."""
    return explore_worlds(seeds, kind, length, simulated(), TEST)
