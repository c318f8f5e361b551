"""The bench that the property tests share: a run of the real loop, driven by hand, whose process may die anywhere.

Each test file has a plain interpreter of its own, and a `Bench` that derives from `ModelBench` and adds the claims
that are checked while the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from limpet import MemoryStore, StoreUnavailable
from limpet.engine.drivers.node_call import call_node
from limpet.engine.leases.lease_client import client_for
from limpet.engine.loop.driver_commands import (
    Begin,
    Cancelled,
    Command,
    Gather,
    Report,
    StopAsked,
    Verdict,
    Wait,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.start import StartRequest, start
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress
from limpet.journal.reader import read_progress, read_records
from limpet.journal.records import MEMO, NESTED, STEP, apply_record
from limpet.journal.store import FAILED, PAUSED, RUNNING, Commit, Lease, Tail
from limpet.testing.conformance import ManualClock
from support.posts import post_cancel


class Killed(BaseException):
    """The process is killed."""


class Transient(Exception):
    """An error that goes away by itself."""


class Broken(Exception):
    """An error that is there until what it names is repaired."""


def answer_to(place: str, prompt: str) -> list[str]:
    """The answer that a question of a node gets each time."""
    return ["yes", place, prompt]


class FragileStore(MemoryStore):
    """A MemoryStore whose user may be killed before or after it takes a commit, or never learn that it took it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.before: Callable[[], Exception | None] = lambda: None
        self.after: Callable[[Commit], Exception | None] = lambda commit: None
        self.deserted = False

    def append(self, commits: Any) -> Any:
        problem = self.before()
        if problem is None:
            refusals = super().append(commits)
            if refusals != [None]:
                return refusals
            problem = self.after(commits[0])
        return [problem]

    def release(self, lease: Lease) -> None:
        if not self.deserted:
            super().release(lease)


LEASE = 3600.0
CLOCK = ManualClock()
STORE = FragileStore(CLOCK)
CLIENT = client_for(STORE, LEASE)
NUMBERS = count(1)

Lives = list[tuple[str, int]]
"""What happens to each life of the process, and how many points it gets past before: one before and one after every
command and every commit. When they are used up, nothing happens any more."""

KILL = "kill"
CANCEL = "cancel"
SIGNAL = "signal"
REFUSE = "refuse"
OUTAGE = "outage"
LOSE = "lose"
UNCALLED = object()

PLAIN = [
    each.name
    for each in fields(Progress)
    if each.name not in ("state", "path", "section", "base", "start", "changed")
]
"""What a progress has next to its state, and can be compared as it is."""

lean = settings(
    deadline=None,
    report_multiple_bugs=False,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

Occurrence = tuple[Any, ...]
"""One call of a node: the sections around it, each with its visit and its branch, then the node and its visit."""


def occurrence(root: Progress, path: tuple[Key, ...], node: str, more: int = 1) -> Occurrence:
    """Which call of a node comes next in a branch; with `more` 0, which was the last."""
    chain = []
    scope = root
    for key in path:
        section = scope.section
        assert section is not None
        # Tasks of a data flow stay open while the planner completes layers.
        visits = 0 if section.flow is not None else scope.visits.get(section.source, 0)
        chain.append((section.source, visits, key))
        scope = section.children[key]
    return (*chain, (node, scope.visits.get(node, 0) + more))


@contextmanager
def eager_snapshots(wanted: bool) -> Iterator[None]:
    """Take a snapshot after every few records, so that short runs have some."""
    with pytest.MonkeyPatch.context() as patch:
        if wanted:
            patch.setattr("limpet.journal.snapshots.MIN_WEIGHT", 1)
            patch.setattr("limpet.journal.snapshots.SNAPSHOT_FACTOR", 0.5)
        yield


class ModelBench:
    """One run by the real loop, through all lives of its process. What derives from it adds the claims."""

    seed: int
    lives: Lives
    whole: bool
    stream: bool
    world: Any
    inputs: dict[str, Any]
    compiled: CompiledGraph

    def prepare(self) -> None:
        """A run that hasn't begun."""
        self.fates = iter(self.lives)
        self.chance = Random(self.seed)
        self.run_id = f"run-{next(NUMBERS)}"
        self.durable: dict[Occurrence, int] = {}
        self.keys: dict[Occurrence, str] = {}
        self.used: set[str] = set()
        self.asked: dict[tuple[Occurrence, str], str] = {}
        self.kept: set[tuple[Occurrence, str]] = set()
        self.trees: dict[int, dict[Any, Any]] = {}
        self.verdicts: list[str] = []
        self.created = False
        self.looked = 1
        self.points = 0
        self.wrong: AssertionError | None = None
        self.session: Session | None = None
        self.followed: Progress

    @property
    def progress(self) -> Progress:
        """The live run."""
        assert self.session is not None
        return self.session.progress

    # The lives of the process

    def live_to_the_end(self) -> None:
        """Run to the end, resuming after every stop and every kill."""
        self.begin_life()
        while True:
            try:
                self.open()
                verdict = self.drive()
                self.check_verdict(verdict)
                self.end_life()
            except Killed:
                self.die()
            assert len(self.verdicts) < 200, "it doesn't get on"
            if STORE.head(self.run_id).status == "completed":
                return

    def open(self) -> None:
        """Start the run, or resume it as its store has it."""
        self.forget_life()
        if self.created:
            self.resume()
            return
        self.opened_session(
            start(self.compiled, StartRequest(deepcopy(self.inputs), None, self.run_id), self.stream)
        )
        self.created = True
        self.followed = read_progress(STORE.read(self.run_id))

    def resume(self) -> None:
        """Resume the run; what its store has is what this bench has followed."""
        tail = STORE.read(self.run_id)
        stored = read_progress(tail)
        assert self.plain_tree(stored) == self.plain_tree(self.followed)
        self.check_stopped(stored)
        brought = self.resume_input(stored)
        self.opened_session(resume(self.compiled, self.run_id, brought, None, self.stream))
        self.check_resumed(brought)
        if STORE.head(self.run_id).sequence != tail.head.sequence:
            self.check_stored()

    def plain_tree(self, progress: Progress) -> dict[Any, Any]:
        """All of a stored progress as plain data."""
        raise NotImplementedError

    def resume_input(self, stored: Progress) -> ResumeInput:
        """The answers and the update that a resume brings."""
        raise NotImplementedError

    def check_resumed(self, brought: ResumeInput) -> None:
        """The run was resumed with this."""

    def forget_life(self) -> None:
        """What a new process doesn't know."""
        self.session = None
        self.running: dict[NodeContext, Any] = {}
        self.at: dict[tuple[Key, ...], Occurrence] = {}
        self.inside: NodeContext | None = None
        self.cancelled = False

    def opened_session(self, session: Session) -> None:
        """A session was opened: have it live by our clock and chance."""
        self.session = session
        context = session.lifecycle.context
        context.clocks = context.clocks._replace(now=CLOCK, random=lambda: 0.75)

    def begin_life(self) -> None:
        self.fate, self.left = next(self.fates, ("", 0))
        STORE.before = self.before_commit
        STORE.after = self.after_commit

    def end_life(self) -> None:
        assert self.session is not None
        self.session.close()
        if self.left < 0 or self.fate == "":
            self.begin_life()

    def die(self) -> None:
        """The process ends: no process renews the lease, and it expires."""
        CLOCK.advance(2 * LEASE)
        STORE.deserted = False
        self.begin_life()

    # What the loop asks for

    def drive(self) -> Verdict:
        assert self.session is not None
        loop = self.session.loop()
        answer = None
        while True:
            try:
                command = loop.send(answer)
            except StopIteration as end:
                verdict: Verdict = end.value
                return verdict
            self.command_comes()
            self.point()
            answer = self.carry_out(command)
            self.point()

    def command_comes(self) -> None:
        """The loop has taken in what it was sent, and yields its next command."""

    def carry_out(self, command: Command) -> Any:
        CLOCK.advance(1.0)
        match command:
            case NodeContext():
                self.check_task(command)
                self.handed_back([command])
                return Cancelled() if self.cancelled else self.call(command)
            case Begin(tasks):
                for task in tasks:
                    self.check_task(task)
                    self.running[task] = Cancelled() if self.cancelled else UNCALLED
            case Gather(seconds):
                return self.gather(seconds)
            case Commit():
                return self.commit(command)
            case Wait(until):
                CLOCK.advance(until - CLOCK())
                return Cancelled() if self.cancelled else None
            case Report(event):
                self.check_event(event)
        return None

    def gather(self, seconds: float | None) -> list[tuple[NodeContext | None, Any]]:
        """Let some of the nodes run that were begun, and hand back the outcome of some that have run."""
        assert self.running
        called = {task: outcome for task, outcome in self.running.items() if outcome is not UNCALLED}
        for task in self.chance.sample([*self.running], self.chance.randint(1, len(self.running))):
            if task not in called:
                called[task] = self.running[task] = self.call(task)
        if self.cancelled and self.chance.random() < 0.5:
            return [(None, Cancelled())]
        if seconds is not None and self.chance.random() < 0.5:
            CLOCK.advance(seconds)
            return []
        over = self.chance.sample([*called], self.chance.randint(1, len(called)))
        self.handed_back(over)
        return [(task, self.running.pop(task)) for task in over]

    def handed_back(self, tasks: list[NodeContext]) -> None:
        """The loop gets the outcomes of these calls."""

    def call(self, task: NodeContext) -> Any:
        self.inside = task
        try:
            outcome = call_node(task)
        finally:
            self.inside = None
        self.check_nothing_wrong()
        return outcome

    def commit(self, commit: Commit) -> Exception | None:
        assert self.session is not None
        if self.cancelled and not commit.ignores_posts and commit.status in (None, PAUSED):
            return StopAsked()
        refusal = self.session.write(commit)
        self.check_nothing_wrong()
        return self.session.finish_commit(commit, refusal)  # type: ignore[return-value]  # there is no checkpointer

    # What may happen at any point

    def point(self) -> None:
        self.check_nothing_wrong()
        self.points += 1
        self.left -= 1
        if self.whole and self.session is not None and self.may_snapshot() and self.chance.random() < 0.1:
            assert self.session.writer is not None
            self.session.writer.add_snapshot(self.session.progress)
        if self.left == -1 and self.fate == KILL:
            STORE.deserted = True
            raise Killed
        if self.left == -1 and self.fate == CANCEL:
            self.cancelled = True
        if self.left == -1 and self.fate == SIGNAL and STORE.head(self.run_id).status == RUNNING:
            post_cancel(STORE, self.run_id)

    def may_snapshot(self) -> bool:
        """Whether a snapshot may be taken now."""
        raise NotImplementedError

    def before_commit(self) -> Exception | None:
        """The store is asked to take a commit. It may refuse."""
        self.point()
        if self.left >= 0 or not self.is_refused():
            return None
        self.note_trouble("refused")
        return StoreUnavailable("the disk is full")

    def is_refused(self) -> bool:
        return self.is_loops_commit and self.fate == REFUSE

    @property
    def is_loops_commit(self) -> bool:
        """Whether the loop commits, rather than a node that keeps a result."""
        return self.session is not None and self.inside is None

    def after_commit(self, commit: Commit) -> Exception | None:
        """The store took a commit: from now on nothing of it happens again."""
        try:
            self.note_durable(commit)
            if self.session is not None:
                self.check_stored()
        except AssertionError as wrong:
            self.wrong = wrong
        self.note_saved()
        self.point()
        if self.is_loops_commit and self.left < 0 and self.fate == LOSE:
            self.note_trouble("lost")
            return StoreUnavailable("it isn't known whether it was taken")
        return None

    def note_trouble(self, what: str) -> None:
        """A commit is refused, or its acknowledgement is lost."""
        self.fate = what

    def note_saved(self) -> None:
        """Everything is saved."""

    # What is checked

    def check_nothing_wrong(self) -> None:
        """Raise what was found wrong inside of a node, or of the store, where exceptions are caught."""
        if self.wrong is not None:
            raise self.wrong

    def check_call(self, task: NodeContext) -> Occurrence:
        """Finished is finished; what isn't has the same idempotency key at each call."""
        this = occurrence(self.progress, task.scope.path, task.node)
        assert this not in self.durable, f"{this} runs again, though it was stored"
        assert self.keys.setdefault(this, task.idempotency_key) == task.idempotency_key
        assert len({*self.keys.values()} - self.used) == len(self.keys), "two calls have the same key"
        self.at[task.scope.path] = this
        return this

    def check_task(self, task: NodeContext) -> None:
        """A node is about to be called."""
        self.check_call(task)

    def check_event(self, event: dict[str, Any]) -> None:
        """The loop reports an event."""
        raise NotImplementedError

    def check_verdict(self, verdict: Verdict) -> None:
        """The run stopped."""
        raise NotImplementedError

    def check_stored(self) -> None:
        """What is stored is what is live."""
        raise NotImplementedError

    def check_stopped(self, stored: Progress) -> None:
        """A run that has stopped, as its store shows it: what a paused one waits for, and what has failed."""
        head = STORE.head(self.run_id)
        assert head.status == stored.status
        if head.status == PAUSED and self.looked:
            self.check_paused(stored)
        elif head.status == FAILED:
            assert stored.error is not None
            assert stored.error["type"].endswith("Broken"), stored.error["traceback"]
            broken = stored.error["message"]
            assert broken not in self.world.repaired or self.looked == head.sequence
            self.world.repaired.add(broken)
        self.looked = head.sequence

    def check_paused(self, stored: Progress) -> None:
        """A paused run has a reason."""
        raise NotImplementedError

    def check_questions(self, root: Progress, path: tuple[Key, ...], branch: Progress) -> None:
        """Questions have ids that no others have, and the same each time they are read."""
        for question in branch.questions:
            at = occurrence(root, path, branch.node)
            key = question.id.rpartition(":")[2]
            assert self.asked.setdefault((at, key), question.id) == question.id
            assert len({*self.asked.values()}) == len(self.asked), "two questions have the same id"

    def note_durable(self, commit: Commit) -> None:
        """Follow the journal record by record: what completes, and what nodes keep."""
        root = self.followed
        head = STORE.head(self.run_id)
        for _, record in read_records(Tail(head, commit.expected + 1, commit.records)):
            path, inner = (tuple(record[4]), record[5]) if record[0] == NESTED else ((), record)
            if inner[0] == STEP:
                this = occurrence(root, path, inner[4])
                assert this not in self.durable, f"{this} completes again"
                self.durable[this] = record[1]
            elif inner[0] == MEMO:
                self.kept.add((occurrence(root, path, root.branch_at(path).node), inner[4]))
            apply_record(root, record)
            self.trees.pop(record[1], None)

    def check_kept(self, this: Occurrence, key: str) -> None:
        """A function of `once` is called: its result must not have been kept already."""
        if (this, key) in self.kept:
            self.wrong = AssertionError(f"once({key!r}) in {this} is called again for what it had kept")

    def continue_from(self, other: ModelBench, step: int, same_run: bool) -> None:
        """This bench continues a run of another one from a step: a fork of it, or the run rolled back."""
        self.world.repaired = set(other.world.repaired)
        self.created = True
        self.looked = 0
        other.session = None
        if same_run:
            self.run_id = other.run_id
            self.used = {*other.keys.values()}
            self.trees = other.trees
        self.durable = {each: at for each, at in other.durable.items() if at <= step}
