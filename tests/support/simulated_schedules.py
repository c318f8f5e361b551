"""Schedules in a fleet of simulated processes, whose threads take turns at every call of the store: H17.

Workers look after schedules as the engine does, by `ScheduleFiring`. Meanwhile people pause, resume, trigger, replace
and delete schedules, and add them again; runs end, or are deleted; processes crash between any two calls of the
store, freeze, lose answers; the store's clock is set forward and back. Then the faults stop.

What has to hold is checked from what the store was seen to accept:

- each change of a schedule accounts for every planned time that it passes: it is fired, skipped or failed, or left
  out by a person who resumes or replaces the schedule. None is passed twice, and none is passed over.
- no run is fired twice by the same schedule, and no time is decided before it has come
- a run begins only if it was fired, and only once
- with `skip` and `queue`, no worker fires a planned time while the run of an earlier one hasn't ended. One that stood
  still may prepare a run then, but that never begins.
- with `all`, no time is missed
- once the faults have stopped: what has come is decided, all that was fired has begun, triggers too, and nothing that
  was prepared is left, unless a process crashed or couldn't reach the store; and that holds up nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from limpet import Schedules, StateGraph
from limpet.engine.leases import change_waiter, lease_client
from limpet.engine.leases.lease_client import client_for
from limpet.engine.schedules.prepared_runs import is_prepared
from limpet.engine.schedules.schedule import Schedule, read_schedule
from limpet.engine.sessions import start
from limpet.engine.supervisor import schedule_firing
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.schedule_firing import SETTLE_INTERVAL, ScheduleFiring
from limpet.errors import Conflict, LimpetError, StoreError
from limpet.graphs.names import SCHEDULES
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, ENDED, Commit, Document, NewRun, RunHead
from support.exploration import Replacement, explore_worlds, replaced
from support.interleaving import Interleaving, ProcessStore, SharedLock

LEASE = 10.0
LENGTH = 250
"""How many things happen in a schedule of the simulation before the faults stop."""
INTERVAL = 300
LOOK = 15.0
"""Seconds between two looks of the workers, once the faults have stopped."""
SETTLING_LOOKS = 4
"""Looks until all prepared runs are settled: in the first minute they may still begin, and a lease has to end."""
LOOKS = 60
"""How many looks it takes at most, once the faults have stopped, until all that has come is decided; and one more for
each time that waits until the run before it has ended, in which more times come."""
TEST = "tests/models/test_simulated_schedules.py"
NAMES = ("s", "t")
GRAPH = StateGraph({"x": int}, name="report").add_node("work", run=lambda state: {"x": 1})
GRAPH.set_entry_point("work").set_finish_point("work")


class Process:
    """A worker, or the program of a person."""

    def __init__(self, world: ScheduleWorld, number: int, is_worker: bool) -> None:
        self.name = f"{'worker' if is_worker else 'person'}-{number}"
        self.is_worker = is_worker
        self.store: Any = ProcessStore(world)
        self.client = client_for(self.store)
        self.client.renews_by_itself = False
        self.firing = ScheduleFiring(self.store, GraphCatalog([GRAPH])) if is_worker else None
        self.frozen_until = 0.0


class Life:
    """A schedule from when it is added until it is deleted."""

    def __init__(self) -> None:
        self.fired: set[str] = set()
        self.triggered: set[str] = set()
        self.overlaps: set[str] = set()
        self.catch_ups: set[str] = set()


class ScheduleWorld(Interleaving):
    """One schedule of what happens."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        SharedLock.world = self
        self.latest = self.clock()
        """The latest time that the store's clock has shown."""
        self.schedules: dict[str, Schedule] = {}
        self.lives: dict[str, Life] = {}
        self.fired: set[str] = set()
        """All runs that were ever fired."""
        self.begun: dict[str, int] = {}
        """How often each run has begun, since it was made."""
        self.prepared_by: dict[str, str] = {}
        """The processes that have crashed, or whose calls of the store have failed."""
        self.numbers = 0
        self.workers = [self.hire(True) for _ in range(self.dice.choice((1, 2, 3)))]

    def run(self, length: int) -> None:
        """`length` things happen, then the faults stop, and what has come is decided."""
        for name in NAMES:
            self.change(name, "add")
        for _ in range(length):
            self.act()
            self.latest = max(self.latest, self.clock())
        self.settle()

    def act(self) -> None:
        """One thing happens."""
        now = self.clock.monotonic()
        able = [thread for thread in self.able() if thread.process.frozen_until <= now]
        if able and self.dice.random() < 0.85:
            self.step(self.dice.choice(able))
            return
        getattr(self, self.dice.choices(list(EVENTS), list(EVENTS.values()))[0])()

    def hire(self, is_worker: bool) -> Process:
        """A new process."""
        self.numbers += 1
        return Process(self, self.numbers, is_worker)

    def look(self) -> None:
        """A worker looks, unless it is at it."""
        self.begin_look(self.dice.choice(self.workers))

    def begin_look(self, worker: Process) -> None:
        """A worker looks in a thread, unless one does."""
        if not any(thread.process is worker for thread in self.threads):
            was_asked = self.dice.random() < 0.5
            self.begin(worker, lambda: self.do_look(worker, was_asked))

    def do_look(self, worker: Process, was_asked: bool) -> None:
        assert worker.firing is not None
        with suppress(StoreError):
            if was_asked:
                worker.firing.list_soon()
            worker.firing.look()

    def person(self) -> None:
        """A person does something to a schedule."""
        kind = self.dice.choice(
            ("pause", "resume", "resume", "trigger", "trigger", "replace", "delete", "add", "add")
        )
        self.change(self.dice.choice(NAMES), kind)

    def change(self, name: str, kind: str) -> None:
        """A person does this, in a program of its own."""
        person = self.hire(False)
        dice = self.dice
        plan: dict[str, Any] = {
            "overlap": dice.choice(("skip", "queue", "allow", "cancel_old")),
            "catch_up": dice.choice(("none", "last", "all")),
            **dice.choice(
                ({"every": INTERVAL}, {"every": INTERVAL}, {"cron": "*/5 * * * *"}, {"every": 2 * INTERVAL})
            ),
        }
        self.note(person.name, kind, name, plan if kind in ("add", "replace") else "")

        def job() -> None:
            schedules = Schedules(person.store)
            with suppress(LimpetError):
                match kind:
                    case "add" | "replace":
                        schedules.add(name, GRAPH, replace=kind == "replace", **plan)
                    case "trigger":
                        self.note(person.name, "triggers", schedules.trigger(name))
                    case _:
                        getattr(schedules, kind)(name)

        self.begin(person, job)

    def crash(self) -> None:
        """A process is gone, and another worker begins."""
        running = [thread.process for thread in self.threads]
        process = self.dice.choice(running or self.workers)
        self.note(process.name, "crashes")
        self.end_threads(process)
        if process.is_worker:
            self.workers[self.workers.index(process)] = self.hire(True)

    def freeze(self) -> None:
        """A worker stands still, maybe for longer than its leases last."""
        worker = self.dice.choice(self.workers)
        worker.frozen_until = self.clock.monotonic() + self.dice.choice((1.0, LEASE + 1, 2 * INTERVAL))
        self.note(worker.name, "freezes")

    def jump(self) -> None:
        """Time passes."""
        self.advance(self.dice.choice((1.0, 61.0, INTERVAL, INTERVAL, 2 * INTERVAL + 1, 10 * INTERVAL)))
        self.note("it is", self.clock())

    def set_time(self) -> None:
        """The time of day is set."""
        seconds = self.dice.choice((-86400.0, -900.0, -30.0, 30.0, 900.0, 14400.0))
        self.set_clock(seconds)
        self.note("the clock is set by", seconds)

    def end_run(self) -> None:
        """A run that has begun ends."""
        ready = [head for head in self.unfinished() if head.due is not None]
        if ready:
            self.end(self.dice.choice(ready))

    def end(self, head: RunHead) -> None:
        """A run ends, unless a process holds it."""
        with suppress(Conflict):
            lease = self.store.claim(head.run_id, "executor", LEASE)
            tail = self.store.read(head.run_id)
            commit = Commit(
                head.run_id, lease.fence, tail.head.sequence, [tail.records[-1]], status=COMPLETED
            )
            commit.ignores_posts = True
            self.check(self.store.append([commit]) == [None], "an end is refused")
            self.note("ends", head.run_id)

    def delete_run(self) -> None:
        """A run that has ended is deleted."""
        ended = [head for head in self.heads() if head.status in ENDED]
        if ended:
            run_id = self.dice.choice(ended).run_id
            with suppress(Conflict):
                self.store.delete(run_id)
                self.begun.pop(run_id, None)
                self.note("is deleted", run_id)

    def heads(self) -> list[RunHead]:
        """All runs."""
        return list(self.store.list(RunFilter()))

    def unfinished(self) -> list[RunHead]:
        """The runs that haven't ended."""
        return [head for head in self.heads() if head.status not in ENDED]

    def carried_out(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        self.latest = max(self.latest, self.clock())
        if name == "create":
            self.prepared(args[0])
        elif name == "append":
            for commit, refusal in zip(args[0], answer, strict=True):
                if refusal is None and commit.due is not None and commit.run_id not in self.begun:
                    self.begins(commit.run_id)
        elif args and isinstance(args[0], str) and args[0].startswith(SCHEDULES):
            if name == "put_document" and answer is not None:
                document = Document(args[0], answer, args[1], args[3] if len(args) > 3 else None)
                self.schedule_changed(read_schedule(document))
            elif name == "delete_document" and answer:
                deleted = args[0].removeprefix(SCHEDULES)
                self.note("  ", self.who, "deletes", deleted)
                del self.schedules[deleted]
        elif name == "delete" and args[0] in self.begun:
            self.check(False, f"{args[0]} has begun, and is discarded")

    @property
    def who(self) -> str:
        """The process at work."""
        return "" if self.current is None else self.current.process.name

    def prepared(self, run: NewRun) -> None:
        """A process has made a run for a schedule."""
        self.note("  ", self.who, "prepares", run.run_id)
        self.prepared_by[run.run_id] = self.who
        self.check(run.due is None, f"{run.run_id} begins before it is fired")

    def begins(self, run_id: str) -> None:
        """A run is handed to the workers."""
        self.note("  ", self.who, "begins", run_id)
        self.check(run_id in self.fired, f"{run_id} begins without being fired")
        self.begun[run_id] = self.begun.get(run_id, 0) + 1

    def schedule_changed(self, after: Schedule) -> None:
        """The store took a change of a schedule."""
        before = self.schedules.get(after.name)
        self.schedules[after.name] = after
        self.note("  ", self.who, "changes", after.name, after.place, after.record[:3])
        if before is None:
            self.lives[after.name] = Life()
        life = self.lives[after.name]
        life.overlaps.add(after.plan.overlap)
        life.catch_ups.add(after.plan.catch_up)
        if before is None:
            return
        is_worker = self.current is not None and self.current.process.is_worker
        new = [run_id for run_id in after.place.starting if run_id not in before.place.starting]
        life.triggered.update(after.place.triggers)
        triggered = [run_id for run_id in new if run_id in life.triggered]
        for run_id in new:
            self.check(run_id not in life.fired, f"{run_id} is fired twice")
            if is_worker and run_id not in triggered and life.overlaps <= {"skip", "queue"}:
                self.check_no_overlap(life, run_id)
            life.fired.add(run_id)
            self.fired.add(run_id)
        self.check_decided(before, after, len(new) - len(triggered), is_worker)
        if is_worker and life.catch_ups == {"all"} and "skip" not in life.overlaps:
            self.check(not after.record.skipped, f"{after.name} misses times")

    def check_no_overlap(self, life: Life, run_id: str) -> None:
        """The runs of earlier planned times have ended when this one is fired."""
        earlier = life.fired - life.triggered
        others = [head.run_id for head in self.unfinished() if head.run_id in earlier]
        self.check(not others, f"{run_id} is fired although {others} haven't ended")

    def check_decided(self, before: Schedule, after: Schedule, fired: int, is_worker: bool) -> None:
        """A change accounts for all planned times that it passes."""
        if not is_worker:
            self.check_change_by_person(before, after, fired)
            return
        place = after.place
        self.check(before.plan == after.plan, f"{after.name}: a worker changes the plan")
        passed = []
        if before.place.next is not None:
            self.check(place.next is None or place.next >= before.place.next, f"{after.name} goes back")
            until = self.latest if place.next is None else place.next - 1
            passed = list(before.plan.timetable.times_from(before.place.next, until))
        self.check(not passed or passed[-1] <= self.latest, f"{after.name} decides before the time has come")
        times = [*before.place.waiting, *passed]
        left = list(place.waiting)
        in_order = [each for each in times if each in left]
        self.check(in_order == left, f"{after.name}: other times wait: {left}, of {times}")
        skipped = after.record.skipped - before.record.skipped
        failed = after.record.failed - before.record.failed
        decided = len(times) - len(left)
        self.check(
            decided == fired + skipped + failed,
            f"{after.name} passes {decided} times, fires {fired}, skips {skipped}, fails {failed}",
        )

    def check_change_by_person(self, before: Schedule, after: Schedule, fired: int) -> None:
        """A person passes only what comes next, and fires nothing.

        But a pause or a resume finds out that the first time was to be fired, if its run exists.
        """
        head = before.place.waiting[0] if before.place.waiting else before.place.next
        if fired:
            assert head is not None
            run_id = before.run_id(head)
            self.check(
                fired == 1 and run_id in after.place.starting and run_id in self.prepared_by,
                f"{after.name}: a person fires a time",
            )
        waiting = [each for each in before.place.waiting if not fired or each != head]
        counts = (before.record.fired + fired, before.record.skipped, before.record.failed)
        self.check(
            waiting == list(after.place.waiting) and counts == after.record[:3],
            f"{after.name}: a person decides about times",
        )

    def settle(self) -> None:
        """No more faults: all that has come is decided, and what was fired begins."""
        self.faults = False
        self.note("no more faults")
        for worker in self.workers:
            worker.frozen_until = 0.0
        # Workers look after prepared runs, by and by.
        for _ in range(SETTLING_LOOKS):
            self.advance(SETTLE_INTERVAL)
            self.latest = max(self.latest, self.clock())
            self.look_together()
        waiting = sum(self.backlog(schedule) for schedule in self.schedules.values())
        for _ in range(LOOKS + 2 * waiting):
            self.look_together()
            if not any(self.is_open(schedule) for schedule in self.schedules.values()):
                break
            self.advance(LOOK)
            self.latest = max(self.latest, self.clock())
        for schedule in self.schedules.values():
            self.check(not self.is_open(schedule), f"{schedule.name} isn't done with {schedule.place}")
        self.check_runs()

    def look_together(self) -> None:
        """All workers look, and what has begun ends."""
        for worker in self.workers:
            self.begin_look(worker)
        while able := self.able():
            self.step(self.dice.choice(able))
        for head in self.unfinished():
            if head.due is not None:
                self.end(head)

    def backlog(self, schedule: Schedule) -> int:
        """How many times have come that may be fired one after the other."""
        place = schedule.place
        return len(place.waiting) + len(list(schedule.plan.timetable.times_from(place.next, self.clock())))

    def is_open(self, schedule: Schedule) -> bool:
        """Whether a schedule has something to do."""
        due = schedule.place.due()
        return due is not None and due <= self.clock()

    def check_runs(self) -> None:
        """All that was fired has begun, and nothing else is left."""
        for head in self.heads():
            is_stuck = is_prepared(head) and not self.may_be_fired(head.run_id)
            self.check(not is_stuck, f"{head.run_id} was prepared, and never begins")
        for run_id in self.fired:
            head = self.store.heads([run_id])[0]
            self.check(head is None or not is_prepared(head), f"{run_id} was fired, and hasn't begun")

    def may_be_fired(self, run_id: str) -> bool:
        """Whether a prepared run is that of a time that a schedule hasn't decided: it is paused, or was set back."""
        schedule = self.schedules.get(run_id.partition(":")[0])
        return schedule is not None and schedule.mentions(run_id)


EVENTS = {
    "look": 30,
    "jump": 12,
    "end_run": 8,
    "person": 6,
    "crash": 4,
    "freeze": 3,
    "set_time": 2,
    "delete_run": 1,
}
"""What may happen besides the work of threads, and how often."""


@contextmanager
def simulated() -> Iterator[None]:
    """Have schedules live in the simulation: their clocks, their processes."""

    def world() -> ScheduleWorld:
        return SharedLock.world  # type: ignore[return-value]

    patches: list[Replacement] = [
        (schedule_firing, "monotonic", lambda: world().clock.monotonic()),
        (change_waiter, "provides", lambda *_: False),
        (change_waiter, "monotonic", lambda: world().clock.monotonic()),
        (change_waiter, "sleep", lambda seconds: world().sleep(seconds)),
        (lease_client, "this_process", lambda: world().who or "outside"),
        (lease_client, "is_dead", lambda name: False),
        (start, "time", lambda: world().clock()),
    ]
    with replaced(patches):
        yield


def explore(seeds: Iterable[int], kind: type[ScheduleWorld] = ScheduleWorld, length: int = LENGTH) -> int:
    """Run the schedules of these seeds; returns how many. Raises a `Violation` for the first that fails."""
    return explore_worlds(seeds, kind, length, simulated(), TEST)
