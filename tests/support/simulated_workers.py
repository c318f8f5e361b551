"""The workers of the simulation: supervisors that are driven by hand, one command at a time."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

from limpet.engine.drivers.child_runs import SessionChildren
from limpet.engine.drivers.node_call import call_node
from limpet.engine.drivers.sync_driver import slots_of
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.driver_commands import (
    AcquireSlots,
    Asked,
    Begin,
    Cancelled,
    Failed,
    Gather,
    GiveUpTurns,
    ReleaseSlots,
    Report,
    Sleeping,
    Verdict,
    Wait,
    Waiting,
)
from limpet.engine.loop.run_context import WAITING
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import ChildFailed, StoreUnavailable
from limpet.journal.store import PAUSED, RUNNING, Commit, RunHead
from limpet.stores.memory import MemoryStore
from support.simulated_graphs import BACKOFF
from support.simulated_world import LEASE, MAX_CRASHES, MAX_SLEEP, World


class Drive:
    """One session of a worker, driven a command at a time. What it finished is durable with its next commit."""

    def __init__(self, sim: World, head: RunHead, opened: Session) -> None:
        self.sim = sim
        self.head = head
        self.session = opened
        self.record = sim.runs[head.run_id]
        self.opened = len(sim.trace)
        self.clean = self.record.clean_at_claim
        self.did = False
        self.was_overdue = False
        self.opened_at = sim.clock.now
        opened.make_children = lambda session: SessionChildren(session, None)
        self.loop = opened.loop()
        self._check_in_time()
        self.command: Any = None
        self.begun: list[NodeContext] = []
        self.finished: list[tuple[NodeContext, float]] = []
        self.kept: list[str] = []
        self.waits: dict[str, float] = {}
        self.until = 0.0
        self.verdict: Verdict | None = None

    @property
    def is_current(self) -> bool:
        """Whether no other worker has claimed the run since."""
        writer = self.session.writer
        return writer is not None and writer.fence == self.record.fence

    @property
    def can_continue(self) -> bool:
        """Whether it doesn't just wait for time to pass."""
        return self.until <= self.sim.clock.now or self.session.stop.asked

    def step(self) -> None:
        """Carry out the last command, and get the next one. `verdict` is set at the end."""
        command = self.command
        answer = None
        self.sim.driving = self
        if self.record.deadline is not None and self.sim.dice.random() < 0.8:
            self.session.check_deadline()
            self._check_in_time()
        if isinstance(command, NodeContext):
            answer = self._delivered(command, self._call(command))
        elif isinstance(command, Commit):
            answer = self._commit(command)
        elif isinstance(command, Begin):
            self.begun.extend(command.tasks)
        elif isinstance(command, Gather):
            answer = self._gather(command.seconds)
        elif isinstance(command, (AcquireSlots, ReleaseSlots)):
            answer = self._exchange_slots(command)
        elif isinstance(command, GiveUpTurns):
            slots_of(self.session).carry_out(command)
        elif isinstance(command, Wait):
            answer = Cancelled() if self.session.stop.asked else None
        try:
            self.command = self.loop.send(answer)
        except StopIteration as end:
            self.verdict = end.value
            self._check_due(end.value)
            self.close()
            return
        self.until = 0.0
        if isinstance(self.command, Wait):
            self.until = self.command.until
        elif isinstance(self.command, Report):
            self.command = None

    def _exchange_slots(self, command: AcquireSlots | ReleaseSlots) -> Any:
        if isinstance(command, ReleaseSlots):
            self.sim.released_slots(self, command.tasks)
            return slots_of(self.session).carry_out(command)
        self.did = True
        answers = slots_of(self.session).carry_out(command)
        self.sim.asked_for_slots(self, command.tasks, answers)
        return answers

    def close(self) -> None:
        """End it here: the run is given back as it is stored."""
        self.sim.closing(self)
        self.session.close()

    def _check_in_time(self) -> None:
        """A run isn't asked to stop for its deadline before that has passed."""
        if self.session.stop.is_overdue and not self.was_overdue:
            self.was_overdue = True
            deadline = self.record.deadline
            passed = deadline is not None and deadline <= self.sim.clock.now
            self.sim.check(passed, f"{self.head.run_id} is to fail before its deadline")

    def _check_due(self, verdict: Verdict) -> None:
        """A run that was released, or waits for an answer, needs a holder only when there is something to do."""
        if verdict.error is None and verdict.status in (RUNNING, WAITING, PAUSED) and self.is_current:
            due = self.session.progress.due()
            wanted = due
            progress = self.session.progress
            if verdict.status == RUNNING and progress.continues_at() is None and not progress.all_waits():
                wanted = 0.0
            idle = self.clean and not self.did and verdict.status != PAUSED and not self.session.stop.asked
            self.sim.check(not idle, f"{self.head.run_id} was resumed for nothing")
            self.record.clean = True
            head = MemoryStore.head(self.sim.store, self.head.run_id)
            if head.posted > head.taken:
                return  # a message came since, and made it due
            found = head.due
            self.sim.check(
                found == wanted, f"{self.head.run_id} is due at {found}, and should be at {wanted}"
            )
            if self.record.deadline is not None:
                in_time = found is not None and found <= self.record.deadline
                self.sim.check(in_time, f"{self.head.run_id} is due at {found}, after its deadline")

    def _call(self, task: NodeContext) -> Any:
        if self.session.stop.asked:
            return Cancelled()
        self.did = True
        self.sim.begins(self, task)
        # A node that waits for the store while it runs lets other runs of the simulation continue.
        around = CURRENT.get()
        try:
            return call_node(task)
        finally:
            CURRENT.set(around)

    def _delivered(self, task: NodeContext, outcome: Any) -> Any:
        """The loop gets the outcome of a task: its next commit will have it."""
        key = task.idempotency_key
        if isinstance(outcome, Sleeping):
            self.waits[key] = outcome.until
        elif isinstance(outcome, Failed):
            # A child fails at the deadline that it shares with its parent, and is cancelled with it.
            errors = (ValueError, StoreUnavailable, ChildFailed) if self.is_current else Exception
            known = isinstance(outcome.error, errors)
            self.sim.check(known, f"{key} failed: {outcome.error!r}")
            self.waits[key] = self.sim.clock.now + BACKOFF
        elif not isinstance(outcome, (Asked, Waiting, Cancelled)):
            self.finished.append((task, self.sim.clock.now))
        return outcome

    def _gather(self, seconds: float | None) -> list[tuple[NodeContext | None, Any]]:
        """Some of the nodes that run are done, in any order; or time passes."""
        if seconds is not None and self.sim.dice.random() < 0.2:
            self.sim.clock.advance(seconds)
            return []
        self.sim.dice.shuffle(self.begun)
        some = [self.begun.pop() for _ in range(self.sim.dice.randint(1, len(self.begun)))]
        called = [(task, self._call(task)) for task in some]
        found: list[tuple[NodeContext | None, Any]] = [
            (task, self._delivered(task, what)) for task, what in called
        ]
        return [*found, (None, Cancelled())] if self.session.stop.asked else found

    def _commit(self, commit: Commit) -> Any:
        answer: Any = self.session.refuse_if_stopping(commit) if self.session.stop.asked else None
        if answer is not None:
            return answer
        answer = self.sim.write(self.session, commit)
        if answer is None:
            # A node that runs a graph is complete without a call, once the graph is.
            self.did = self.did or (bool(commit.records) and commit.status is None)
            writer = self.session.writer
            record = self.record
            assert writer is not None
            saved = record.fence > writer.fence or record.sequence == writer.sequence
            self.sim.check(saved and not writer.pending, "a save was reported that wasn't made")
        if answer is not None or commit.status is not None:
            answer = self.session.finish_commit(commit, answer)
        return answer


class Worker:
    """A process that supervises the store."""

    def __init__(self, sim: World, number: int) -> None:
        self.sim = sim
        self.name = f"worker-{number}"
        self.links: dict[Any, LeaseClient] = {}
        self.drives: list[Drive] = []
        self.chosen: list[RunHead] = []
        self.busy = self.dead = False
        self.frozen_until = 0.0
        self.skew = 0.0
        self.limit = sim.dice.choice((1, 2, 2, 4))
        each = sim.dice.choice((None, None, 1))
        sim.current = self
        sim.link_here()
        queues = sim.queues_of_worker()
        options = SupervisorOptions(
            LEASE, self.limit, each, max_sleep=MAX_SLEEP, max_crashes=MAX_CRASHES, queues=queues
        )
        self.supervisor = Supervisor(sim.store, sim.catalog, options)
        self.supervisor.watch_loop._next_report = float("inf")

    @property
    def leaving(self) -> bool:
        """Whether it was asked to stop."""
        return self.supervisor.resumer.stopping

    def look(self, again: bool = False) -> None:
        """Take on what is ready, as a supervisor does; `again` if it does so at once, as it has room for more."""
        watch_loop = self.supervisor.watch_loop
        orphan_finder = self.supervisor.resumer.orphans
        if not again:
            watch_loop._next_look = 0.0
        orphan_finder._next_list = inf
        found: list[RunHead] | None
        if self.sim.dice.random() < 0.1:
            orphan_finder._next_list = 0.0
            found = self.orphans()
        else:
            found = watch_loop.look()
            if not again:
                self.sim.check_urgency(self, found)
        # Else these are orphans, or its backlog: what it found before and had no room for.
        has_seen_all = not again and found is not None and orphan_finder._next_list == inf
        failures = self.sim.failures
        picked = watch_loop.pick(found or [])
        self.sim.picked(self, picked)
        if has_seen_all and self.sim.failures == failures:
            self.sim.check_fairness(self, found or [], picked)
        self.chosen += self.claim(picked)
        self.sim.check(len(self.supervisor.running) <= self.limit, "too many runs at once")
        while self.chosen and self.sim.dice.random() < 0.8:
            self.open(self.chosen.pop())

    def claim(self, picked: list[RunHead]) -> list[RunHead]:
        """Claim runs that were picked together, or leave it to when each is opened."""
        if self.sim.dice.random() < 0.3:
            return picked
        try:
            return self.supervisor.watch_loop.claim(picked)
        except StoreUnavailable:
            return []

    def orphans(self) -> list[RunHead] | None:
        """The runs of workers that have died; None if the store is unavailable."""
        resumer = self.supervisor.resumer
        excluded = resumer.skipped.run_ids().union(self.supervisor.running)
        try:
            return [head for head in resumer.orphans.find(excluded) if resumer.served.serves(head.lane)]
        except Exception:
            return None

    def open(self, head: RunHead) -> None:
        """Claim a run that was picked, maybe some time ago, unless another worker has."""
        resumer = self.supervisor.resumer
        opened = resumer.open_session(head)
        if opened is None:
            resumer.admission.release([head.run_id])
            resumer.ended(head, None)
        else:
            record = self.sim.runs[head.run_id]
            slept = record.slept_at_claim
            spared = record.crashes_alone_at_claim < MAX_CRASHES
            self.sim.check(spared or slept, "a run wasn't quarantined that should be")
            often = record.crashes_at_claim >= MAX_CRASHES - 1
            self.sim.check(record.is_suspect or not often or slept, "a run isn't tried that should be")
            self.sim.check(not (self.drives and record.is_suspect), "a suspect isn't executed alone")
            beside = [drive for drive in self.drives if drive.is_current and drive.record.is_suspect]
            self.sim.check(not beside, "a run is executed beside a suspect")
            drive = Drive(self.sim, head, opened)
            self.drives.append(drive)
            self.sim.opened(self, drive)
            self.sim.note(self.name, "resumes", head.run_id)

    def step(self) -> bool:
        """Let one of its runs continue. False if none can."""
        if self.chosen and self.sim.dice.random() < 0.5:
            self.open(self.chosen.pop())
            return True
        able = [drive for drive in self.drives if drive.can_continue]
        if not able:
            return False
        drive = self.sim.dice.choice(able)
        drive.step()
        if drive.verdict is not None:
            self.sim.note(self.name, "is done with", drive.head.run_id, drive.verdict.status)
            self.drives.remove(drive)
            self.supervisor.resumer.admission.release([drive.head.run_id])
            self.supervisor.resumer.ended(drive.head, drive.verdict)
        return True

    def renew(self) -> None:
        """Prolong its leases."""
        for each in self.links.values():
            with suppress(StoreUnavailable):
                each.renew()

    def leave(self) -> None:
        """Stop: runs are released at their next commit."""
        self.supervisor.resumer.request_stop()

    def drop(self) -> None:
        """The grace is over: what is still under way is given back as it is."""
        for drive in self.drives:
            drive.close()
        self.drives.clear()
        self.chosen.clear()
        self.supervisor.resumer.release_claimed()
