"""Queues, priorities and limits in the simulation of the whole engine: H18.

The world, its workers and its faults are those of `simulation.py`. Here workers serve different queues, calls and
whole runs need slots of limits by concurrency and by rate, the documents of limits can't be reached at times either,
and people change limits while all of that happens. In addition to what `simulation.py` checks, this has to hold:

- whenever a call or a run gets a slot, not more than the limit allows have one under a valid lease
- in no period more calls, or runs, begin than the rate allows, by the store's clock, even if that is set back
- no call begins without its slots, nor is a run executed without those of its graph
- a worker takes no run of a queue that it doesn't serve
- a worker picks no run of a graph that has more in progress than another one of which it found a run that could be
  executed; and of a graph, urgent runs come first
- once the faults have stopped, no slot that a call stands in line for, or that a ready run needs, stays free for
  more than `LOOKS_UNTIL_USED` looks of all workers, and all runs end
- at the end no slot is taken
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from limpet.engine.leases.limit_slots import LimitClient, limits_of
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.document import LimitDocument, Values, limit_name, read_limit
from limpet.engine.leases.limits.steps import FRESH
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import StoreError
from limpet.graphs.limits import Limit
from limpet.journal.store import ENDED, FAILED, Document, Lease, RunHead
from limpet.journal.writer import has_begun
from limpet.stores.memory import MemoryStore
from support.limited_graphs import LIMITED_CASES, LIMITS, QUEUES
from support.simulated_workers import Drive, Worker
from support.simulated_world import LEASE, MANY, Store
from support.simulation import EVENTS, Simulation

LIMIT_DOCUMENTS = limit_name("")
TICK = 0.5
"""Seconds between two looks of a worker, once the faults have stopped."""
LOOKS_UNTIL_USED = 6
"""How often all workers look, at most, while a slot is free that something waits for. Supervisors look for slots
whose holders are dead eight times in the length of a lease, which is every third look here; and a run that got
a post, or has become ready, is resumed by the next look that finds room for it."""
LONGEST = 800.0
"""Seconds in which all runs end: each has a few calls, which begin at the slowest rate of a limit one after the
other, and may sleep, or wait for another attempt, in between."""
VALUES: dict[str, tuple[tuple[int | None, str | None], ...]] = {
    "api": ((1, None), (2, None), (3, "5/10s"), (None, "2/s"), (None, None)),
    "db": ((1, None), (2, None), (1, "3/10s")),
    "paced": ((None, "3/10s"), (None, "2/s"), (1, "3/10s"), (None, None)),
    "whole": ((1, None), (2, None), (3, "4/10s"), (None, None)),
    "often": ((None, "4/10s"), (1, "2/10s"), (2, None)),
    "lane": ((1, None), (2, None), (None, "3/10s")),
}
"""What people set limits to: concurrency and rate."""


class LimitedStore(Store):
    """A store whose documents can be out of reach, too."""

    def get_document(self, name: str) -> Document | None:
        self.sim.reach()
        return super().get_document(name)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        assert isinstance(self.sim, LimitedSimulation)
        self.sim.reach()
        before = super().get_document(name)
        written = super().put_document(name, body, version, due)
        if written is not None and name.startswith(LIMIT_DOCUMENTS):
            self.sim.limit_changed(name.removeprefix(LIMIT_DOCUMENTS), before)
        self.sim.lose_answer()
        return written

    def delete_document(self, name: str, version: int) -> bool:
        self.sim.reach()
        is_gone = super().delete_document(name, version)
        self.sim.lose_answer()
        return is_gone

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        self.sim.reach()
        return super().list_documents(prefix, due, limit)

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        self.sim.reach()
        return super().heads(run_ids)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        assert isinstance(self.sim, LimitedSimulation)
        self.sim.forget_lapsed()  # what is renewed now may have lost its slots before
        return super().renew(leases, ttl)


class Use:
    """A slot that a call, or a run as a whole, has of a limit."""

    def __init__(self, limit: str, drive: Drive, call: Any) -> None:
        self.limit = limit
        self.drive = drive
        self.call = call
        held = drive.session.held
        self.lease = None if held is None else Lease(drive.head.run_id, held.lease.fence, 0.0)


class LimitedSimulation(Simulation):
    """One schedule."""

    store_kind = LimitedStore
    cases = LIMITED_CASES
    graphs = (*LIMITED_CASES, "calls", "items", "whole")
    events = {  # noqa: RUF012 - it is never changed
        **{name: count for name, count in EVENTS.items() if name not in ("answer", "send")},
        "start_run": 6,
        "change_limit": 3,
    }
    test = "tests/models/test_limited_simulation.py"

    def __init__(self, seed: int) -> None:
        self.uses: list[Use] = []
        self.granted: set[tuple[Drive, str]] = set()
        """The calls that have got their slots, and haven't given them back."""
        self.begun: dict[str, list[float]] = {}
        """By limit: when what counts for its rate began, by `elapsed`."""
        self.set_forward = 0.0
        """The seconds by which the store's clock was set forward."""
        self.admitted: dict[tuple[str, str], tuple[float, dict[str, LimitDocument], bool]] = {}
        """By worker and run: when it got its slots as a whole, what the limits were, and if it counts for rates."""
        self.changed_at: dict[str, float] = {}
        """By limit: when it last changed what it allows."""
        self.idle_looks: dict[str, int] = {}
        """By limit, or by run: for how many looks a slot, or the run, waits for nothing but a worker."""
        super().__init__(seed)
        self.workers[1:] = [self.hire() for _ in self.workers[1:]]

    def run(self, length: int) -> None:
        """`length` things happen, then the faults stop, and every run ends."""
        for name in self.dice.sample(list(VALUES), 2):
            self.change_limit(name)
        for _ in range(3):
            self.start_run()
        super().run(length)

    def choose_queue(self) -> str:
        return self.dice.choice(QUEUES)

    def queues_of_worker(self) -> tuple[str, ...] | None:
        """Of one worker always all."""
        others = [worker for worker in self.workers if not worker.dead]
        if all(worker.supervisor.options.queues is not None for worker in others):
            return None
        return self.dice.choice((None, ("slow",), ("fast", "default"), ("default", "slow")))

    @property
    def elapsed(self) -> float:
        """The seconds that have passed by the store's clock. Setting it back doesn't undo that."""
        return self.clock.monotonic() + self.set_forward

    def set_clock(self, seconds: float) -> None:
        super().set_clock(seconds)
        self.set_forward += max(0.0, seconds)

    def change_limit(self, name: str | None = None) -> None:
        """A person changes a limit, resets it, or deletes it."""
        self.go_outside()
        name = name or self.dice.choice(list(VALUES))
        concurrency, rate = self.dice.choice(VALUES[name])
        kind = self.dice.choice(("set", "set", "set", "reset", "delete"))
        values = Values(concurrency, Limit(name, rate=rate).rate)
        self.note("limit", name, kind, values[:2])

        def changed(document: LimitDocument) -> LimitDocument:
            if kind == "reset":
                return document._replace(is_set=(), changed=Values(), is_deleted=False)
            return document._replace(changed=values, is_set=("concurrency", "rate"), is_deleted=False)

        before = self.document(name)
        with suppress(StoreError):
            limits: LimitClient = limits_of(self.outside_link())
            if kind == "delete":
                limits.delete(name)
            else:
                limits.edit(name, changed)
        after = self.document(name)
        if after.is_deleted or after.values.concurrency is None:
            self.uses = [use for use in self.uses if use.limit != name]
        if after.is_deleted or after.values.rate != before.values.rate:
            self.begun.pop(name, None)

    def document(self, name: str) -> LimitDocument:
        """A limit, whether the store can be reached or not. One that isn't there limits nothing."""
        found = MemoryStore.get_document(self.store, limit_name(name))
        return LimitDocument(is_deleted=True) if found is None else read_limit(name, found.body)

    def limit_changed(self, name: str, before: Document | None) -> None:
        """The store took a change of a limit."""
        was = _allowed(LimitDocument(is_deleted=True) if before is None else read_limit(name, before.body))
        if was != _allowed(self.document(name)):
            self.changed_at[name] = self.clock.monotonic()

    def is_fresh(self, name: str) -> bool:
        """Whether a limit allows something else since just now: a process may still know it as it was before."""
        return self.clock.monotonic() - self.changed_at.get(name, float("-inf")) <= FRESH

    def asked_for_slots(self, drive: Drive, tasks: Sequence[NodeContext], answers: Sequence[Any]) -> None:
        for task, answer in zip(tasks, answers, strict=True):
            if answer is None:
                self.granted.add((drive, task.idempotency_key))
                for name in task.plan_node.limits:
                    self.use(Use(name, drive, task))
                    self.begin(name, self.elapsed)

    def begins(self, drive: Drive, task: NodeContext) -> None:
        has_slots = not task.plan_node.limits or (drive, task.idempotency_key) in self.granted
        self.check(has_slots, f"{task.idempotency_key} begins without a slot")
        super().begins(drive, task)

    def released_slots(self, drive: Drive, tasks: Sequence[NodeContext]) -> None:
        self.granted.difference_update((drive, task.idempotency_key) for task in tasks)
        self.uses = [use for use in self.uses if use.drive is not drive or use.call not in tasks]

    def closing(self, drive: Drive) -> None:
        self.uses = [use for use in self.uses if use.drive is not drive]

    def picked(self, worker: Worker, heads: Sequence[RunHead]) -> None:
        for head in heads:
            queues = worker.supervisor.options.queues
            self.check(
                queues is None or head.queue in queues,
                f"{worker.name} takes {head.run_id} of the queue {head.queue}",
            )
            request = worker.supervisor.resumer.admission._admitted.get(head.run_id)
            if request is not None:
                documents = {
                    name: LimitDocument(is_deleted=True) if self.is_fresh(name) else self.document(name)
                    for name in request.limits
                }
                self.admitted[worker.name, head.run_id] = (
                    self.elapsed,
                    documents,
                    request.counts,
                )

    def opened(self, worker: Worker, drive: Drive) -> None:
        admitted = self.admitted.pop((worker.name, drive.head.run_id), None)
        needed = {limit.name for limit in drive.session.compiled.limits}
        has_them = admitted is not None and needed.issubset(admitted[1])
        self.check(has_them or not needed, f"{drive.head.run_id} is executed without slots of {needed}")
        if admitted is None or not worker.supervisor.resumer.admission.has_slots(drive.head.run_id):
            return
        at, documents, counts = admitted
        for name, document in documents.items():
            now = self.document(name)
            # What was admitted while the limit didn't limit knows no slot.
            if rules.is_limiting(document) and document.values.concurrency is not None:
                self.use(Use(name, drive, None))
            if counts and document.values == now.values:
                self.begin(name, at)

    def use(self, use: Use) -> None:
        """A call or a run has got a slot: there must not be too many."""
        document = self.document(use.limit)
        allowed = document.values.concurrency
        is_counted = rules.is_limiting(document) and not self.is_fresh(use.limit)
        if not is_counted or allowed is None or use.lease is None:
            return
        self.forget_lapsed()
        self.uses.append(use)
        using = [each for each in self.uses if each.limit == use.limit]
        self.check(
            len(using) <= allowed or not self.is_live(use),
            f"{len(using)} have slots of {use.limit!r}, which allows {allowed}: "
            + ", ".join(f"{each.drive.head.run_id} {each.call and each.call.node}" for each in using),
        )

    def is_live(self, use: Use) -> bool:
        """Whether the lease is valid under which a slot is held."""
        assert use.lease is not None
        return MemoryStore.are_valid(self.store, [use.lease]) == [True]

    def forget_lapsed(self) -> None:
        """What has lost its lease no longer counts, even if the lease is renewed later."""
        self.uses = [use for use in self.uses if self.is_live(use)]

    def begin(self, name: str, at: float) -> None:
        """Something begins that counts for the rate of a limit."""
        document = self.document(name)
        rate = document.values.rate
        if document.is_deleted or rate is None or self.is_fresh(name):
            return
        begun = self.begun.setdefault(name, [])
        begun.append(at)
        begun.sort()
        for first, last in zip(begun, begun[rate.number :], strict=False):
            self.check(last - first >= rate.seconds, f"{name!r}: more than {rate} from {first} to {last}")

    def ready_for(self, worker: Worker) -> list[RunHead]:
        resumer = worker.supervisor.resumer
        lanes = [
            lane
            for lane in MemoryStore.lanes(self.store)
            if resumer.served.serves_queue(lane.queue) and resumer.admission.is_open(lane)
        ]
        return MemoryStore.ready(self.store, lanes, MANY)

    def check_fairness(self, worker: Worker, found: Sequence[RunHead], picked: Sequence[RunHead]) -> None:
        """No graph was picked while another one with fewer runs in progress had one that was found, and room."""
        resumer = worker.supervisor.resumer
        picker = resumer.picker
        in_progress = Counter(picker._graph_of_run.values())
        apart = resumer.skipped.run_ids().union(picker.run_ids, resumer.suspects.waiting)
        may_admit = resumer.admission.may_admit
        left = {
            head.graph
            for head in found
            if head.run_id not in apart and may_admit(head) and not self.is_being_claimed(head)
        }
        for graph in left:
            if in_progress[graph] >= picker._limit_of(graph):
                continue
            for head in picked:
                is_fair = head.graph == graph or in_progress[head.graph] <= in_progress[graph] + 1
                self.check(is_fair, f"{worker.name} picks {head.run_id} at the cost of {graph}")

    def settle(self) -> None:
        """No more faults: every run has to end, and no slot stays free that something waits for."""
        self.faults = False
        self.lossy = False
        self.outage = 0
        self.note("no more faults")
        for worker in self.workers:
            worker.frozen_until = worker.skew = 0.0
        began = self.clock.monotonic()
        while not all(self.has_ended(head) for head in self.heads()):
            is_soon = self.clock.monotonic() - began < LONGEST
            self.check(is_soon, f"runs don't end in {LONGEST} s: {self.left()}")
            for worker in list(self.workers):
                self.work_off(worker)
            self.check_idle_slots()
            for head in self.heads():
                self.help(head, 0)
            self.clock.advance(TICK)
            self.renew()
        for head in self.heads():
            self.check_complete(head)
        self.check_empty()

    def work_off(self, worker: Worker) -> None:
        """A worker looks, and does all that it can do without waiting."""
        self.current = worker
        has_more = True
        while has_more:
            if not worker.leaving:
                worker.look()
                if worker.supervisor.watch_loop._has_next():
                    worker.look(again=True)
            has_more = bool(worker.chosen) or any(drive.can_continue for drive in worker.drives)
            while worker.chosen or any(drive.can_continue for drive in worker.drives):
                worker.step()
        if worker.leaving and not worker.drives:
            self.replace(worker)

    def help(self, head: RunHead, turn: int) -> None:
        """A quarantined run, or one whose deadline has passed, is resumed again."""
        if head.status == FAILED:
            self.go_outside()
            self.retry(head)
            self.runs[head.run_id].not_before.clear()  # a person who resumes it doesn't want to wait

    def left(self) -> str:
        """The runs that haven't ended, for a message."""
        return ", ".join(
            f"{head.run_id} {head.status} due {head.due}" for head in self.heads() if head.status not in ENDED
        )

    def check_idle_slots(self) -> None:
        """Note for how long slots are free that something waits for."""
        self.go_outside()
        now = self.clock.now
        room: dict[str, LimitDocument] = {}
        waited_for = set()
        for limit in LIMITS:
            stored = StoredLimit(self.outside_link(), limit.name)
            document = rules.normalised(self.document(limit.name), now)
            room[limit.name] = document = document._replace(slots=tuple(stored.live(document, now)))
            if rules.room(document, now) and self.has_waiting_call(stored, document):
                waited_for.add(limit.name)
        new_ones = set()
        for head in MemoryStore.ready(self.store, MemoryStore.lanes(self.store), MANY):
            names = self.limits_of_run(head)
            # One that has begun doesn't count for a rate. But it takes its turn after those of its graph that are
            # more urgent, or ready for longer: a worker lists only as many as it has room for, and some more.
            counts = not has_begun(head) or head.graph in new_ones
            if not has_begun(head):
                new_ones.add(head.graph)
            # Where a worker crashed that was about to claim it, others wait for the length of a lease.
            is_claimed = any(rules.slot_of(room[name], head.run_id, "") for name in names)
            has_room = all(rules.room(room[name], now, counts) for name in names)
            if has_room and not is_claimed and self.could_be_taken(head):
                waited_for.add(head.run_id)
        self.idle_looks = {each: self.idle_looks.get(each, 0) + 1 for each in sorted(waited_for)}
        for each, looks in self.idle_looks.items():
            self.check(looks <= LOOKS_UNTIL_USED, f"nothing is done for {each}: {room.get(each)}")

    def has_waiting_call(self, stored: StoredLimit, document: LimitDocument) -> bool:
        """Whether a call stands in line that could have a slot, and has none; or a lane."""
        for entry in stored.waiting():
            is_under_way = entry.is_of_lane
            if not is_under_way:
                is_under_way = MemoryStore.head(self.store, entry.run_id).status not in ENDED
            if is_under_way and not rules.is_served(document, entry):
                return True
        return False

    def limits_of_run(self, head: RunHead) -> list[str]:
        """The limits that a run needs slots of as a whole."""
        compiled = self.compiled(head.graph)
        names = {limit.name for limit in compiled.limits}
        for limit in LIMITS:
            document = self.document(limit.name)
            if not document.is_deleted and head.queue in document.values.queues:
                names.add(limit.name)
        return sorted(names - {limit.name for limit in compiled.plan.limits})

    def is_being_claimed(self, head: RunHead) -> bool:
        """Whether another worker is about to claim a run, or was when it crashed: it is left alone for a while."""
        documents = [self.document(name) for name in self.limits_of_run(head)]
        return any(rules.slot_of(document, head.run_id, "") is not None for document in documents)

    def could_be_taken(self, head: RunHead) -> bool:
        """Whether a worker has room for a run."""
        for worker in self.workers:
            resumer = worker.supervisor.resumer
            is_free = resumer.served.serves_queue(head.queue) and resumer.picker.room_for(head.graph) > 0
            is_apart = head.run_id in resumer.skipped.run_ids() or resumer.suspects.waiting
            if is_free and not is_apart and not worker.leaving:
                return True
        return False

    def check_empty(self) -> None:
        """No slot is lost, and the lines are empty."""
        self.go_outside()
        limits: LimitClient = limits_of(self.outside_link())
        for _ in range(4):
            self.clock.advance(LEASE + 1)
            for limit in LIMITS:
                limits._limit(limit.name).serve()
        for limit in LIMITS:
            document = self.document(limit.name)
            self.check(not document.slots, f"slots are left: {limit.name} {document.slots}")
            self.check(not document.has_line, f"{limit.name!r} still has a line")


def _allowed(document: LimitDocument) -> Any:
    return None if document.is_deleted else document.values[:2]
