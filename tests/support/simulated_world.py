"""What the simulation sees: what its store accepts, what its nodes do, and what of that never may happen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.session import Session
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.errors import StoreUnavailable
from limpet.journal.inbox import Posted, is_cancel, read_post
from limpet.journal.reader import read_progress
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import FAILED, Commit, Lane, Lease, NewRun, Post, RunHead, Tail
from limpet.journal.waits import MESSAGE
from limpet.stores.memory import MemoryStore
from limpet.testing.conformance.store_calls import ManualClock
from support.simulated_graphs import CASES, DELAY, NAP, NOTHING, Case

if TYPE_CHECKING:
    from support.simulated_workers import Drive, Worker

LEASE = 10.0
MAX_SLEEP = 5.0
MAX_CRASHES = 3
MANY = 1000
APPROVALS = {"gate": ["flaky"], "fan": ["more"]}
DELAYS = {"line": [("pay", "end", DELAY)], "gate": [("draft", "flaky", NAP)]}


class Never(BaseException):
    """Something happened that never may. No `Exception`: the engine makes the best of those that a store raises."""


class Record:
    """What is known of a run from outside: what the store was seen to accept, and what people wish."""

    def __init__(self, graph: str, n: int, now: float) -> None:
        self.graph = graph
        self.n = n
        self.created = now
        self.fence = 1
        self.sequence = 1
        self.durable: set[str] = set()
        """Tasks and effects that were accepted, by their keys."""
        self.not_before: dict[str, float] = {}
        """When a task may begin again that is known to wait, by its key."""
        self.done_at: dict[str, float] = {}
        """When a node was done that was accepted, by its name."""
        self.began: dict[str, float] = {}
        """When a task first lay down, or first asked, by its key."""
        self.answers: dict[str, Any] = {}
        self.sent_at: dict[str, float] = {}
        """When a message was accepted, by its value, which no other has."""
        self.received_by: dict[str, str] = {}
        """The task that has received a message, by its value."""
        self.crashes = self.crashes_at_claim = 0
        """How many holders were replaced since the last record was accepted; and when it was last claimed."""
        self.crashes_alone = self.crashes_alone_at_claim = 0
        """How many of them executed it alone, since it last got further; and when it was last claimed."""
        self.slept_at_claim = False
        """Whether it slept or waited when it was last claimed, so that no crash before counts."""
        self.tried_alone = False
        """Whether its newest record says that its holder executes it alone, and that one wasn't replaced yet."""
        self.is_suspect = False
        """Whether its newest record says that it may have crashed its process."""
        self.approved: set[str] = set()
        """Which interrupts a person has approved, by the node."""
        self.clean = self.clean_at_claim = False
        """Whether the last holder released it in order; and whether the one before had, when it was last claimed."""
        self.deadline: float | None = None
        """When it fails, by the store's clock."""
        self.parent: Record | None = None
        """The run that started it."""
        self.has_child = False
        self.cancelled: int | None = None
        """Where in the trace it was cancelled, if that is the newest request."""


class Store(MemoryStore):
    """A memory store that can be out of reach, or not say what it has done; the simulation sees what it does."""

    def __init__(self, sim: World) -> None:
        self.sim = sim
        super().__init__(sim.clock)

    def create(self, run: NewRun) -> Lease | None:
        self.sim.reach()
        lease = super().create(run)
        self.sim.created(run)
        self.sim.lose_answer()
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.sim.reach()
        outcomes = super().append(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if outcome is None:
                self.sim.accepted(commit)
        self.sim.lose_answer()
        return outcomes

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        self.sim.reach()
        before = super().head(run_id)
        lease = super().claim(run_id, holder, ttl, instead_of)
        self.sim.claimed(before, lease)
        self.sim.lose_answer()
        return lease

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        self.sim.reach()
        before = {head.run_id: head for head in self.sim.heads()}
        leases = super().claim_ready(wanted, holder, ttl)
        for lease in leases:
            if lease is not None:
                self.sim.claimed(before[lease.run_id], lease)
        self.sim.lose_answer()
        return leases

    def head(self, run_id: str) -> RunHead:
        self.sim.reach()
        return super().head(run_id)

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        self.sim.reach()
        return super().read(run_id, first, last)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        self.sim.reach()
        return super().renew(leases, ttl)

    def release(self, lease: Lease) -> None:
        self.sim.reach()
        super().release(lease)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        self.sim.reach()
        is_new = super().post(run_id, key, body)
        if is_new and not is_cancel(key):
            self.sim.posted(run_id, read_post(run_id, super().inbox(run_id)[-1]))
        self.sim.lose_answer()
        return is_new

    def waiting_posts(self, run_id: str) -> int:
        """How many posts no commit has taken in."""
        head = super().head(run_id)
        return head.posted - head.taken

    def inbox(self, run_id: str) -> Sequence[Post]:
        self.sim.reach()
        return super().inbox(run_id)

    def lanes(self) -> Sequence[Lane]:
        self.sim.reach()
        return super().lanes()

    def ready(self, lanes: Sequence[Lane], limit: int) -> list[RunHead]:
        self.sim.reach()
        return super().ready(lanes, limit)

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        self.sim.reach()
        return super().are_valid(leases)

    def ready_of(self, graphs: Collection[str], limit: int) -> list[RunHead]:
        """The runs of these graphs that are ready, whether the store can be reached or not."""
        lanes = [lane for lane in super().lanes() if lane.graph in graphs]
        return super().ready(lanes, limit)

    def list(self, which: RunFilter) -> list[RunHead]:
        self.sim.reach()
        return super().list(which)


class World:
    """A store, a clock, workers, and what is known of the runs. The same seed is the same world."""

    store_kind: type[Store]
    cases: Mapping[str, Case] = CASES
    """The graphs that it has, by name."""
    test = "tests/models/test_simulation.py"
    """Which test shows it again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.clock = ManualClock(1000.0)
        self.trace = list[tuple[Any, ...]]()
        self.outage = 0
        self.lossy = False
        self.failures = 0
        """How many calls of the store have failed."""
        self.runs: dict[str, Record] = {}
        self.known_dead: dict[str, bool] = {}
        self.workers: list[Worker] = []
        self.current: Worker | None = None
        self.driving: Drive | None = None
        self.catalog = GraphCatalog([case.graph for case in self.cases.values()])
        self.store = self.store_kind(self)
        self.outside: dict[Any, LeaseClient] = {}

    def heads(self) -> list[RunHead]:
        """All runs, whether the store can be reached or not, in the order they were made in."""
        return [MemoryStore.head(self.store, run_id) for run_id in self.runs]

    def ready(self) -> bool:
        """Whether any run wants a holder."""
        return bool(self.store.ready_of(self.catalog.names, 1))

    def write(self, opened: Session, commit: Commit) -> Exception | None:
        """Carry out a commit, as a driver does."""
        return opened.write(commit)

    @property
    def who(self) -> str:
        """The holder that leases are given to now."""
        return self.current.name if self.current is not None else "outside"

    def go_outside(self) -> None:
        """What follows is done by a person, not by a worker."""
        self.current = self.driving = None

    def link_here(self) -> None:
        """Have a lease client whose leases only the simulation renews."""
        made = client_for(self.store, LEASE)
        made.renews_by_itself = False

    def outside_link(self) -> LeaseClient:
        """The link of those who are no workers."""
        if not self.outside:
            self.link_here()
        return client_for(self.store, LEASE)

    def compiled(self, graph: str) -> CompiledGraph:
        """A graph as those run it who are no workers."""
        found: CompiledGraph = self.cases[graph].graph.compiled()
        return found._replace(client=self.outside_link(), interval=1)

    def now_here(self) -> float:
        """The time by the clock of the machine that is at work."""
        return self.clock.now + (self.current.skew if self.current is not None else 0.0)

    def set_clock(self, seconds: float) -> None:
        """The time of day is set, for the store and all machines. What was to wait for so long still has to."""
        self.clock.set_by(seconds)
        if seconds < 0:
            for record in self.runs.values():
                for times in (record.not_before, record.done_at, record.began, record.sent_at):
                    times.update({key: time + seconds for key, time in times.items()})

    def note(self, *words: Any) -> None:
        """Something for the trace."""
        self.trace.append(words)

    def check(self, holds: bool, claim: str) -> None:
        """Raise with what happened unless it holds."""
        if not holds:
            raise Never(claim)

    def report(self, problem: BaseException) -> str:
        """What happened, and how to see it again."""
        lines = "\n".join("  " + " ".join(map(str, words)) for words in self.trace)
        again = f"SIMULATION_SEED={self.seed} pytest {self.test}"
        return f"seed {self.seed}: {type(problem).__name__}: {problem}\n{lines}\nTo see it again: {again}"

    def reach(self) -> None:
        """Before the store does anything: it may be out of reach."""
        if self.outage:
            self.outage -= 1
            self.failures += 1
            raise StoreUnavailable("it is away")

    def lose_answer(self) -> None:
        """After the store has done something."""
        if self.lossy:
            self.lossy = False
            self.failures += 1
            raise StoreUnavailable("the connection broke")

    def created(self, run: NewRun) -> None:
        """The store took a new run: a child has the input and the deadline of its parent."""
        if run.run_id not in self.runs:
            self.check(run.parent in self.runs, "a run without a parent appears by itself")
            parent = self.runs[run.parent or ""]
            self.runs[run.run_id] = record = Record(run.graph, parent.n, self.clock.now)
            record.deadline = parent.deadline
            record.parent = parent
            self.check(not parent.has_child, "a second child was started")
            parent.has_child = True
            self.note("child", run.run_id, "of", run.parent)

    def accepted(self, commit: Commit) -> None:
        """The store took a commit."""
        record = self.runs[commit.run_id]
        self.check(commit.fence == record.fence, f"{commit.run_id}: a commit of an old fence was accepted")
        self.check(
            commit.expected == record.sequence, f"{commit.run_id}: a commit in the wrong place was accepted"
        )
        self.check(
            commit.ignores_posts or not self.store.waiting_posts(commit.run_id),
            "a commit was accepted although posts waited",
        )
        record.sequence += len(commit.records)
        if commit.status == FAILED:
            overdue = self.driving is not None and self.driving.session.stop.is_overdue
            if commit.labels is not None and commit.labels.error == "DeadlinePassed":
                # A supervisor without room fails a run that no session drives.
                overdue = overdue or (record.deadline is not None and record.deadline <= self.clock.now)
            early = record.crashes_alone_at_claim < MAX_CRASHES and not overdue
            self.check(not early, f"{commit.run_id} was quarantined too early")
            self.note("overdue" if overdue else "quarantined", commit.run_id)
        drive = self.driving
        is_driven = drive is not None and drive.head.run_id == commit.run_id and drive.is_current
        if commit.records:
            record.crashes = 0
            # A worker that opens a run stores nothing without a status but this.
            is_trial = not is_driven and commit.status is None
            record.is_suspect = is_trial
            record.tried_alone = is_trial and self.current is not None
            if is_driven or self.current is None:
                record.crashes_alone = 0
        if is_driven:
            assert drive is not None
            self.take_over(drive)

    def take_over(self, drive: Drive) -> None:
        """What a session had done is durable."""
        record = drive.record
        for task, at in drive.finished:
            record.durable.add(task.idempotency_key)
            record.done_at[task.node] = at
        record.durable.update(drive.kept)
        for key, until in drive.waits.items():
            record.not_before.setdefault(key, until)
            record.not_before[key] = max(record.not_before[key], until)
        drive.finished = []
        drive.kept = []
        drive.waits = {}

    def claimed(self, before: RunHead, lease: Lease) -> None:
        """The store gave a run to a holder."""
        record = self.runs[before.run_id]
        self.check(lease.fence > record.fence, "a fence was given out twice")
        held = before.lease_until is not None and before.lease_until > self.clock.monotonic()
        mine = before.holder == self.who
        dead = self.known_dead.get(before.holder or "", False)
        self.check(not held or dead or mine, f"{before.run_id} was taken from a holder that is alive")
        record.fence = lease.fence
        crashed = before.holder is not None
        record.crashes += crashed
        record.crashes_at_claim = record.crashes
        record.crashes_alone += crashed and record.tried_alone
        record.crashes_alone_at_claim = record.crashes_alone
        record.slept_at_claim = self.sleeps(before.run_id)
        record.tried_alone = record.tried_alone and not crashed
        record.clean_at_claim = record.clean
        record.clean = False

    def sleeps(self, run_id: str) -> bool:
        """Whether a run does nothing yet by its journal: what was posted to it isn't considered."""
        due = read_progress(MemoryStore.read(self.store, run_id)).due()
        return due is not None and due > self.clock.now

    def begins(self, drive: Drive, task: NodeContext) -> None:
        """A node is about to be called."""
        record = drive.record
        key = task.idempotency_key
        now = self.clock.now
        self.note(
            self.who, "calls" if drive.is_current else "calls, although another worker has the run,", key
        )
        if not drive.is_current:
            return  # it can't know yet, and its result won't be accepted
        self.check(key not in record.durable, f"{key} was accepted, and begins again")
        self.check(record.not_before.get(key, 0.0) <= now, f"{key} begins before its time")
        self.check(record.not_before.get("", 0.0) <= now, f"{key} begins before its run does")
        in_time = record.deadline is None or drive.opened_at < record.deadline
        self.check(in_time, f"{key} begins in a session that was opened after the deadline")
        self.check(
            record.cancelled is None or drive.opened <= record.cancelled, f"{key} begins after a cancel"
        )
        approved = task.node not in APPROVALS.get(record.graph, ()) or task.node in record.approved
        self.check(approved, f"{key} begins without an approval")
        for source, target, seconds in DELAYS.get(record.graph, ()):
            if task.node == target:
                self.check(record.done_at[source] + seconds <= now, f"{key} begins before its edge is over")

    def queues_of_worker(self) -> tuple[str, ...] | None:
        """The queues that a new worker serves; None for all."""
        return None

    def asked_for_slots(self, drive: Drive, tasks: Sequence[NodeContext], answers: Sequence[Any]) -> None:
        """Calls have asked for slots of their limits; for each None if it has them."""

    def released_slots(self, drive: Drive, tasks: Sequence[NodeContext]) -> None:
        """Calls are about to give back their slots."""

    def picked(self, worker: Worker, heads: Sequence[RunHead]) -> None:
        """A worker has picked runs, which have the slots that they need as a whole."""

    def check_fairness(self, worker: Worker, found: Sequence[RunHead], picked: Sequence[RunHead]) -> None:
        """A worker has picked some of the runs that it found."""

    def opened(self, worker: Worker, drive: Drive) -> None:
        """A worker has claimed a run and opened it."""

    def closing(self, drive: Drive) -> None:
        """A worker is about to close a run, and gives back what it has of limits."""

    def lies_down(self, task: NodeContext | None, seconds: float) -> None:
        """A node is about to sleep."""
        assert task is not None
        until = self.clock.now + seconds
        record = self.runs[task.run_id]
        key = f"sleep {task.idempotency_key}"
        record.began[key] = min(until, record.began.get(key, until))

    def gets_up(self, task: NodeContext | None) -> None:
        """A node has slept."""
        assert task is not None
        until = self.runs[task.run_id].began[f"sleep {task.idempotency_key}"]
        self.check(until <= self.clock.now, f"{task.idempotency_key} slept too short")

    def asks(self, task: NodeContext | None, deadline: float | None) -> None:
        """A node is about to ask."""
        assert task is not None
        until = self.clock.now + (float("inf") if deadline is None else deadline)
        record = self.runs[task.run_id]
        key = f"ask {task.idempotency_key}"
        record.began[key] = min(until, record.began.get(key, until))

    def answered(self, task: NodeContext | None, answer: Any) -> None:
        """A node gets an answer, or continues without one."""
        assert task is not None
        record = self.runs[task.run_id]
        place = task.scope.place(task.node)
        if place in record.answers:
            self.check(answer == record.answers[place], f"{place} got {answer!r} for an answer")
        else:
            until = record.began[f"ask {task.idempotency_key}"]
            self.check(until <= self.clock.now, f"{place} continues without an answer before its deadline")

    def posted(self, run_id: str, post: Posted) -> None:
        """The store took a message to a run."""
        if post.kind != MESSAGE:
            return
        record = self.runs[run_id]
        value = post.data["value"]
        self.check(value not in record.sent_at, f"{value} was accepted twice")
        record.answers.setdefault(post.data["name"], []).append(value)
        record.sent_at[value] = self.clock.now

    def got(self, task: NodeContext | None, name: str, value: Any) -> None:
        """A node receives a message, or continues without one."""
        assert task is not None
        record = self.runs[task.run_id]
        if value == NOTHING:
            until = record.began[f"ask {task.idempotency_key}"]
            self.check(until <= self.clock.now, f"{task.idempotency_key} waits too short")
            came = [each for each in record.answers.get(name, ()) if record.sent_at[each] < until - LEASE]
            self.check(not came, f"{task.idempotency_key} doesn't get {came}")
        else:
            self.check(value in record.answers[name], f"{value!r} was never sent")
            by = record.received_by.setdefault(value, task.idempotency_key)
            self.check(by == task.idempotency_key, f"{value} is received by {by} and {task.idempotency_key}")
        if name == "b":
            place = task.scope.place(task.node)
            self.check(record.answers.setdefault(place, value) == value, f"{place} gets {value} this time")

    def effect(self, task: NodeContext | None, name: str) -> str:
        """Something happens outside, that is to be kept."""
        assert task is not None
        assert self.driving is not None
        key = f"{name} {task.idempotency_key}"
        again = self.driving.is_current and key in self.runs[task.run_id].durable
        self.check(not again, f"{key} was kept, and happens again")
        self.driving.kept.append(key)
        return name

    def ready_for(self, worker: Worker) -> list[RunHead]:
        """The runs that are ready, and that a worker may take."""
        return self.store.ready_of(self.catalog.names, MANY)

    def check_urgency(self, worker: Worker, found: list[RunHead] | None) -> None:
        """No run that a worker leaves is more urgent than one of its graph that it picks."""
        watcher = worker.supervisor
        picker = watcher.resumer.picker
        suspects = watcher.resumer.suspects
        # While it is the turn of a suspect, nothing else is picked.
        if not found or suspects.chosen is not None:
            return
        chosen = {head.run_id: head for head in picker.pick(suspects.others(found))}
        if not chosen:
            return
        least: dict[str, int] = {}
        for head in chosen.values():
            least[head.graph] = min(head.priority, least.get(head.graph, head.priority))
        for head in suspects.others(self.ready_for(worker)):
            left = head.run_id not in chosen and head.run_id not in watcher.running
            passed = (
                left
                and head.priority > least.get(head.graph, head.priority)
                and head.run_id not in watcher.resumer.skipped.run_ids()
            )
            self.check(not passed, f"{head.run_id} is more urgent than a run that was picked")


World.store_kind = Store
