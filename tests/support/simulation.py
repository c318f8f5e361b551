"""A fleet of workers in one thread, on a store and a clock that can be made to do anything.

Each worker is a real `Supervisor` that isn't started: the simulation has it look for runs, claims them through
it, and carries out one command at a time of what their loops ask for, in an order that a seed decides. In between,
workers die, freeze past their leases and continue, leave, forget to renew, and have clocks that are wrong; the store
can't be reached, or carries out a call without an answer; time jumps; people start runs, answer, approve, cancel.
Then all of that stops, and every run has to end.

What has to hold is checked as it happens, from what the store was seen to accept and not from what it says:

- a task whose result was accepted never begins again, nor does an effect that was kept
- one writer: a commit is accepted only with the newest fence that was given out, and after the newest record
- what was reported to a worker as saved is saved
- nothing is called before its time by the store's clock: after a sleep, a delay, a failed attempt
- a default stands for an answer only after the deadline, and only if no answer was accepted; none is, after it
- a run whose holders crashed twice in a row is executed alone until it gets further
- a run is quarantined when its holders crashed so often in a row while it was alone, and neither before nor after
- a run fails at its deadline and not before, nothing of it begins in a session that was opened later; with a new
  deadline it ends as if it had none
- a message is received by one task, in the order of sending, and by the same one each time; none is lost; a task
  continues without one only after its deadline, and only if none was accepted in time
- a run that starts another has one child, whatever happens, and gets its result
- nothing of a cancelled run begins in a session that was opened later, and it ends
- the most urgent of the ready runs are resumed first, and never too many at once
- every run ends as one that was never interrupted would have, given the answers that were accepted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from weakref import ref

from limpet.defaults import QUEUE
from limpet.engine.drivers import node_slots
from limpet.engine.leases import lease_client as client
from limpet.engine.leases import limit_slots
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limits import steps as limit_steps
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations import cancel, send
from limpet.engine.operations.run_info import run_info
from limpet.engine.sessions import failed_saves, node_saves, session, trials
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions import start as creation
from limpet.engine.supervisor import (
    lanes,
    limit_admission,
    orphans,
    run_resumer,
    schedule_firing,
    skipped_runs,
    stranded_runs,
    watch_loop,
)
from limpet.errors import (
    AlreadyCompleted,
    AnswerRefused,
    Conflict,
    RunExists,
    RunNotFound,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.inbox import is_cancel
from limpet.journal.reader import read_progress
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, FAILED, PAUSED, RUNNING, RunHead
from limpet.stores.memory import MemoryStore
from support.exploration import Replacement, Violation, replaced
from support.simulated_graphs import DELAY, NAP, RECEIVES, SLEEP, Lost, Stage
from support.simulated_workers import Worker
from support.simulated_world import APPROVALS, LEASE, Never, Record, World

ENOUGH_TIME = 1e6
"""Seconds in which any run ends."""
LENGTH = 40
"""How many things happen in a schedule before the faults stop."""
GRAPHS = ("line", "fan", "spread", "inner", "gate", "flow", "chat", "mail", "poison", "family")
EVENTS = {
    "crash": 3,
    "freeze": 3,
    "leave": 2,
    "renew": 6,
    "jump": 7,
    "skew": 1,
    "set_time": 1,
    "fail": 4,
    "mumble": 3,
    "start_run": 1,
    "answer": 5,
    "send": 5,
    "cancel": 2,
}


class Simulation(World):
    """One schedule."""

    graphs: Sequence[str] = GRAPHS
    """Those that people start runs of."""
    events: Mapping[str, int] = EVENTS
    """What may happen besides the work of workers, and how often."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults = True
        self.depth = self.numbers = self.messages = 0
        self.workers = [self.hire() for _ in range(self.dice.choice((1, 2, 2, 3)))]

    def run(self, length: int) -> None:
        """`length` things happen, then the faults stop, and every run ends."""
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            self.start_run()
        for _ in range(length):
            self.act()
        self.settle()

    def act(self) -> None:
        """One thing happens."""
        if self.dice.random() < 0.62:
            self.work(self.dice.choice(self.workers))
            return
        getattr(self, self.dice.choices(list(self.events), list(self.events.values()))[0])()

    def work(self, worker: Worker) -> None:
        """A worker does something, if it can."""
        if worker.busy or worker.dead or worker.frozen_until > self.clock.now:
            return
        self.current = worker
        try:
            if not worker.leaving and (not (worker.drives or worker.chosen) or self.dice.random() < 0.15):
                worker.look()
            elif not worker.step():
                self.clock.advance(self.dice.choice((0.5, NAP)))
        except Lost:
            self.bury(worker)
        if worker.leaving and not (worker.drives or worker.chosen or worker.dead):
            self.note(worker.name, "has left")
            self.replace(worker)

    def crash(self) -> None:
        """A worker is gone without a word; whether others know that is another matter."""
        self.bury(self.dice.choice(self.workers))

    def bury(self, worker: Worker) -> None:
        """A worker is dead, and another begins."""
        if worker.dead:
            return
        self.known_dead[worker.name] = self.dice.random() < 0.5
        self.note(worker.name, "dies", "known" if self.known_dead[worker.name] else "unknown")
        worker.drives = []
        self.replace(worker)

    def replace(self, worker: Worker) -> None:
        """A new worker takes the place of one that is gone."""
        worker.dead = True
        self.workers[self.workers.index(worker)] = self.hire()

    def hire(self) -> Worker:
        """A new worker."""
        self.numbers += 1
        return Worker(self, self.numbers)

    def freeze(self) -> None:
        """A worker stands still, maybe for longer than its leases last; then it just continues."""
        worker = self.dice.choice(self.workers)
        worker.frozen_until = self.clock.now + self.dice.choice((1.0, LEASE + 1, 5 * LEASE))
        self.note(worker.name, "freezes until", worker.frozen_until)

    def leave(self) -> None:
        """A worker is asked to stop; sometimes its grace is over at once."""
        worker = self.dice.choice(self.workers)
        self.current = worker
        self.note(worker.name, "is asked to leave")
        worker.leave()
        if not worker.busy and self.dice.random() < 0.3:
            worker.drop()

    def renew(self) -> None:
        """The leases of the living are renewed."""
        for worker in self.workers:
            if worker.frozen_until <= self.clock.now:
                self.current = worker
                worker.renew()

    def jump(self) -> None:
        """Time passes."""
        self.clock.advance(self.dice.choice((0.1, 1.0, NAP, LEASE / 2, LEASE + 1, 45.0, 1e4)))
        self.note("it is", self.clock.now)

    def set_time(self) -> None:
        """The time of day is set: forward by any amount, or back by a little."""
        seconds = self.dice.choice((-LEASE - 1, -1.0, 1.0, LEASE + 1, 1e4))
        self.set_clock(seconds)
        self.note("the clock is set by", seconds)

    def skew(self) -> None:
        """The clock of a machine is set."""
        self.dice.choice(self.workers).skew = self.dice.choice((-5.0, -0.5, 0.0, 0.5, 5.0, 1e6))

    def fail(self) -> None:
        """The store can't be reached for a while."""
        self.outage = self.dice.choice((1, 1, 2, 3, 8))
        self.note("the store is away for", self.outage)

    def mumble(self) -> None:
        """The store will carry out a call and not answer."""
        self.lossy = True
        self.note("the store will not answer")

    def start_run(self) -> None:
        """A person queues a run, and repeats that until the store answers."""
        self.go_outside()
        case = self.cases[self.dice.choice(self.graphs)]
        run_id = f"{case.graph.name}-{len(self.runs)}"
        n = self.dice.choice((0, 1, 2, 5))
        priority = self.dice.choice((0, 0, 1, 5))
        delay = self.dice.choice((0.0, 0.0, 0.0, DELAY))
        deadline = self.dice.choice((None,) * 9 + (LEASE, SLEEP + 5, 500.0))
        queue = self.choose_queue()
        self.runs[run_id] = record = Record(case.graph.name, n, self.clock.now)
        until = None
        if deadline is not None:
            until = datetime.fromtimestamp(self.clock.now + deadline, UTC)
            record.deadline = until.timestamp()
        given = {} if case.graph.name == "flow" else {"n": n}
        made = []
        while not made or made[-1] is None:
            try:
                compiled = self.compiled(case.graph.name)
                request = creation.StartRequest(given, None, run_id, deadline=until, queue=queue)
                creation.enqueue(compiled, request, priority, delay)
                made.append(True)
            except RunExists:
                made.append(False)
            except StoreUnavailable:
                made.append(None)
                self.outage = max(0, self.outage - 1)
            except Conflict:  # a supervisor has it already
                made.append(False)
        self.check(made.count(True) <= 1, "one id is one run")
        if delay and made == [True]:
            record.not_before[""] = self.clock.now + delay
        self.note("started", run_id, "n", n, "priority", priority, "delay", delay, "deadline", deadline)

    def choose_queue(self) -> str:
        """The queue of a new run."""
        return QUEUE

    def answer(self) -> None:
        """A person answers a question, or approves."""
        waiting = [head for head in self.heads() if head.status == PAUSED]
        if waiting:
            self.answer_to(self.dice.choice(waiting))

    def answer_to(self, head: RunHead) -> None:
        """A person resumes a paused run."""
        self.go_outside()
        record = self.runs[head.run_id]
        questions = run_info(head).questions
        question = self.dice.choice(questions) if questions else None
        if question is not None and question.deadline is not None and self.dice.random() < 0.2:
            moment = question.deadline + self.dice.choice((-0.1, 0.0, 0.1))
            self.clock.advance(max(0.0, moment - self.clock.now))
        value = self.dice.choice(("yes", "no", 7))
        given = ResumeInput() if question is None else ResumeInput(answers={question.id: value})
        before = record.sequence
        late = question is not None and question.deadline is not None and question.deadline <= self.clock.now
        self.note("answer to", head.run_id, question and question.node, value, "late" if late else "")
        try:
            self.resume(head, given)
        except AnswerRefused:
            self.check(late, "an answer was refused that was in time")
        except (StoreUnavailable, Conflict, UsageError) as problem:
            self.note("not taken:", problem)
        if record.sequence > before:
            seen = run_info(head).reason or ""
            record.approved.update(each for each in APPROVALS.get(head.graph, ()) if each in seen)
            self.check(not late, "an answer was accepted after the deadline")
            if question is not None:
                self.check(question.node not in record.answers, "a question was answered twice")
                record.answers[question.node] = value
            record.cancelled = None

    def resume(self, head: RunHead, given: ResumeInput) -> None:
        """Bring something to a run, and leave it to the workers."""
        entry.resume(self.compiled(head.graph), head.run_id, given, None, False).close()

    def cancel(self) -> None:
        """A person cancels a run."""
        self.go_outside()
        run_id = self.dice.choice([each for each, record in self.runs.items() if record.parent is None])
        if self.dice.random() < 0.7:
            return
        self.note("cancel", run_id)
        with suppress(StoreUnavailable, UsageError, RunNotFound, Conflict):
            cancel.cancel(self.outside_link(), run_id)
        head = MemoryStore.head(self.store, run_id)
        asked = any(is_cancel(post.key) for post in MemoryStore.inbox(self.store, run_id))
        if asked or head.status == CANCELLED:
            self.runs[run_id].cancelled = len(self.trace)

    def send(self) -> None:
        """A person sends a message to a run, and repeats that until the store answers."""
        waiting = [head for head in self.heads() if head.graph in RECEIVES and head.status not in ENDED]
        if waiting:
            head = self.dice.choice(waiting)
            self.send_to(head, self.dice.choice(RECEIVES[head.graph]))

    def send_to(self, head: RunHead, name: str) -> None:
        """A person sends one message; the key makes it one, however often it is sent."""
        self.go_outside()
        self.messages += 1
        value = f"{name}-{self.messages}"
        self.note("send", head.run_id, value)
        while True:
            try:
                send.send(self.outside_link(), head.run_id, name, value, value)
                return
            except StoreUnavailable:
                self.outage = max(0, self.outage - 1)
            except (UsageError, AlreadyCompleted) as ended:
                self.note("not taken:", ended)
                return

    def idle(self, seconds: float) -> None:
        """A worker waits for the store. Meanwhile, other things happen."""
        self.clock.advance(seconds)
        worker = self.current
        drive = self.driving
        if worker is None or not self.faults:
            return
        self.depth = self.depth + 1
        was = worker.busy
        worker.busy = True
        if self.depth < 3:
            for _ in range(self.dice.randrange(4)):
                self.act()
        else:
            self.outage = 0
        worker.busy = was
        self.depth = self.depth - 1
        self.current = worker
        self.driving = drive
        if worker.dead:
            raise Lost

    def settle(self) -> None:
        """No more faults: every run has to end."""
        self.faults = False
        self.lossy = False
        self.outage = 0
        self.note("no more faults")
        for turn in range(60):
            for worker in list(self.workers):
                worker.frozen_until = worker.skew = 0.0
                for _ in range(200):
                    if worker.dead or not (worker.drives or worker.chosen or self.ready()):
                        break
                    self.work(worker)
            heads = self.heads()
            if all(self.has_ended(head) for head in heads):
                break
            for head in heads:
                self.help(head, turn)
            self.clock.advance(5 * LEASE)
        for head in self.heads():
            self.check_complete(head)

    def help(self, head: RunHead, turn: int) -> None:
        """A quarantined run is resumed again, and open questions are answered."""
        waits = head.due is None or head.due == self.runs[head.run_id].deadline
        info = run_info(head)
        if head.status in (RUNNING, PAUSED) and info.waits and head.posted == head.taken:
            for wait in info.waits:
                self.send_to(head, wait.name)
        if head.status == PAUSED and (waits or (turn < 3 and self.dice.random() < 0.3)):
            self.answer_to(head)
        elif head.status == FAILED and not self.cases[head.graph].poison:
            self.go_outside()
            self.note("try again", head.run_id)
            self.retry(head)

    def retry(self, head: RunHead) -> None:
        """A failed run gets another chance, and enough time if its time was over."""
        record = self.runs[head.run_id]
        given = ResumeInput()
        if record.deadline is not None:
            given = ResumeInput(deadline=ENOUGH_TIME)
        with suppress(Conflict):  # a worker picked it before it failed, and couldn't release it
            self.resume(head, given)
            record.cancelled = None
            if record.deadline is not None:
                record.deadline = self.clock.now + ENOUGH_TIME

    def has_ended(self, head: RunHead) -> bool:
        """Whether nothing more is to be expected of a run."""
        is_over = self.cases[head.graph].poison or (self.is_overdue(head) and head.priority)
        return head.status in (COMPLETED, CANCELLED) or (head.status == FAILED and bool(is_over))

    def is_overdue(self, head: RunHead) -> bool:
        """Whether a run has failed because of its deadline."""
        return head.status == FAILED and head.error == "DeadlinePassed"

    def check_complete(self, head: RunHead) -> None:
        """A run has ended as it had to."""
        record = self.runs[head.run_id]
        case = self.cases[head.graph]
        self.check(head.status in ENDED, f"{head.run_id} never ends: it is {head.status}, due {head.due}")
        if record.cancelled is not None or (
            record.parent is not None and record.parent.cancelled is not None
        ):
            self.check(head.status != PAUSED and head.status != RUNNING, f"{head.run_id} wasn't cancelled")
        else:
            wanted = FAILED if case.poison or self.is_overdue(head) else COMPLETED
            self.check(head.status == wanted, f"{head.run_id} is {head.status} without a request")
        if head.status == COMPLETED:
            self.check(not case.poison, f"{head.run_id} completed")
            state = read_progress(MemoryStore.read(self.store, head.run_id)).state
            seen = case.seen(state)
            wanted = case.model(record.n, record.answers)
            self.check(
                seen == wanted, f"{head.run_id} ended with {seen!r}, and an uninterrupted one with {wanted!r}"
            )


@contextmanager
def simulated() -> Iterator[None]:
    """Have the engine live in the simulation: its clocks, its chance, its processes."""

    def world() -> Simulation:
        return Stage.world

    class Links(dict[Any, Any]):
        """The lease clients of the worker at work, or of the person."""

        def get(self, key: Any, default: Any = None) -> Any:
            return self._mine().get(key, default)

        def __setitem__(self, key: Any, value: Any) -> None:
            self._mine()[key] = value

        def __getitem__(self, key: Any) -> Any:
            return self._mine()[key]

        def valuerefs(self) -> Any:
            return [ref(each) for each in self._mine().values()]

        def _mine(self) -> dict[Any, LeaseClient]:
            here = world().current
            return world().outside if here is None else here.links

    class Chance:
        """Stands for the module `random`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world().dice, name)

    patches: list[Replacement] = [
        (client, "this_process", lambda: world().who),
        (client, "is_dead", lambda name: world().known_dead.get(name, False)),
        (client, "_clients", Links()),
        (limit_slots, "monotonic", lambda: world().clock.monotonic()),
        (limit_admission, "monotonic", lambda: world().clock.monotonic()),
        (schedule_firing, "monotonic", lambda: world().clock.monotonic()),
        (lanes, "monotonic", lambda: world().clock.monotonic()),
        (limit_steps, "sleep", lambda seconds: world().idle(seconds)),
        (limit_steps, "random", Chance()),
        (node_slots, "sleep", lambda seconds: world().idle(seconds)),
        (watch_loop, "random", lambda: world().dice.random()),
        (orphans, "is_dead", lambda name: world().known_dead.get(name, False)),
        (orphans, "this_process", lambda: world().who),
        (orphans, "monotonic", lambda: world().clock.monotonic()),
        (run_resumer, "monotonic", lambda: world().clock.monotonic()),
        (skipped_runs, "monotonic", lambda: world().clock.monotonic()),
        (stranded_runs, "monotonic", lambda: world().clock.monotonic()),
        (run_resumer, "random", lambda: world().dice.random()),
        (watch_loop, "monotonic", lambda: world().clock.monotonic()),
        (creation, "this_process", lambda: world().who),
        (creation, "time", lambda: world().now_here()),
        (entry, "time", lambda: world().now_here()),
        (node_saves, "time", lambda: world().now_here()),
        (failed_saves, "time", lambda: world().now_here()),
        (session, "time", lambda: world().now_here()),
        (trials, "time", lambda: world().now_here()),
        (failed_saves, "sleep", lambda seconds: world().idle(seconds)),
        (session, "_random", lambda: world().dice.random()),
    ]
    with replaced(patches):
        yield


def explore(seeds: Iterable[int], kind: type[Simulation] = Simulation, length: int = LENGTH) -> int:
    """Run the schedules of these seeds; returns how many. Raises a `Violation` for the first that fails."""
    count = 0
    with simulated():
        for seed in seeds:
            Stage.world = sim = kind.__new__(kind)
            try:
                sim.__init__(seed)  # type: ignore[misc]  # the engine asks for its world while that is being made
                sim.run(length)
            except (Exception, Never) as problem:
                raise Violation(sim.report(problem)) from problem
            count += 1
    return count
