"""A worker that executes all runs of a store, one command at a time and in any order, and may be killed anywhere.

The property tests of messages and of child runs share it, and the graph whose stages it executes. Each of them has a
plain interpreter, which is never killed and calls nothing again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

from hypothesis import strategies as st

from limpet import Conflict, MemoryStore, Retry, StateGraph, Workflow, append, merge
from limpet.engine.drivers.child_runs import SessionChildren
from limpet.engine.drivers.node_call import call_node
from limpet.engine.leases.lease_client import client_for
from limpet.engine.loop.driver_commands import Begin, Cancelled, Gather, Wait
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.session import Session
from limpet.journal.store import Commit, Lease, NewRun, RunHead
from limpet.testing.conformance import ManualClock
from limpet.testing.conformance.store_calls import ready_runs
from models.bench import Killed, Transient

LEASE = 3600.0
EPOCH = 1e6
"""Seconds that pass at once. Deadlines are half-way between: a kill moves the clock by far less."""

MAX_SLEEP = 5.0
MOMENT = 0.1
ENDLESS = 3000
"""Commands after which a worker doesn't get on."""

lives = st.lists(st.integers(0, 60), max_size=4)
"""How many points each life of the worker gets past; when they are used up, it lives."""


def examples(number: int) -> int:
    """How many examples to try: this many in the suite, and more in a hunt."""
    return int(os.environ.get("MODEL_EXAMPLES", number))


class WatchedStore(MemoryStore):
    """A memory store whose user may be killed before or after any of its writes."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.point: Callable[[], None] = lambda: None

    def create(self, run: NewRun) -> Lease | None:
        return self._write(super().create, run)  # type: ignore[no-any-return]

    def append(self, commits: Any) -> list[Exception | None]:
        return self._write(super().append, commits)  # type: ignore[no-any-return]

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self._write(super().claim, run_id, holder, ttl, instead_of)  # type: ignore[no-any-return]

    def claim_ready(self, wanted: Any, holder: str, ttl: float) -> list[Lease | None]:
        return self._write(super().claim_ready, wanted, holder, ttl)  # type: ignore[no-any-return]

    def release(self, lease: Lease) -> None:
        self._write(super().release, lease)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return self._write(super().post, run_id, key, body)  # type: ignore[no-any-return]

    def _write(self, call: Callable[..., Any], *args: Any) -> Any:
        self.point()
        done = call(*args)
        self.point()
        return done


@dataclass
class Drive:
    """A run that the worker has claimed, and what its loop asks for."""

    session: Session
    command: Any = None
    begun: list[NodeContext] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session.make_children = lambda session: SessionChildren(session, None)
        self.loop = self.session.loop()


class Worker:
    """One worker after the other, on a store of their own. Each that is killed leaves its leases to expire."""

    def __init__(self, graph: Any, kills: list[int], seed: int) -> None:
        self.clock = ManualClock()
        self.store = WatchedStore(self.clock)
        self.graph = graph.compile(store=self.store, lease=LEASE, preserve=True)
        self.client = client_for(self.store, LEASE)
        self.client.renews_by_itself = False
        self.store.point = self.point
        self.open: dict[str, Drive] = {}
        self.kills = iter(kills)
        self.left = next(self.kills, -1)
        self.chance = Random(seed)
        self.is_working = False
        self.is_dead = False
        self.points = 0
        self.disturbed_at = 0
        self.disturb: Callable[[], None] = lambda: None
        """What another process does at the point of that number."""

    def work(self) -> None:
        """Execute runs until each of them waits or has ended."""
        self.is_working = True
        for _ in range(ENDLESS):
            try:
                if not self._step():
                    # A retry may be due within a moment.
                    self.clock.advance(MOMENT)
                    if not self._step():
                        break
            except Killed:
                self._die()
        else:
            raise AssertionError("it doesn't get on")
        self.is_working = False

    def point(self) -> None:
        """The worker may be killed here. What it would still do is without effect."""
        if not self.is_working:
            return
        if self.is_dead:
            raise Killed
        self.points += 1
        if self.points == self.disturbed_at:
            self.is_working = False
            self.disturb()
            self.is_working = True
        if self.left == 0:
            self.is_dead = True
            raise Killed
        self.left -= 1

    def _die(self) -> None:
        self.open.clear()
        self.client.held.clear()
        self.clock.advance(2 * LEASE)
        self.left = next(self.kills, -1)
        self.is_dead = False

    def _step(self) -> bool:
        """Claim a run, or carry out what one asks for. False if there is nothing to do."""
        ready = {head.run_id: head for head in ready_runs(self.store, [self.graph.name], 100)}
        able = [*self.open, *(each for each in ready if each not in self.open)]
        if not able:
            return False
        run_id = self.chance.choice(able)
        if run_id in self.open:
            self._advance(run_id, self.open[run_id])
        else:
            self._claim(ready[run_id])
        return True

    def _claim(self, head: RunHead) -> None:
        given = ResumeInput(timed=True)
        with suppress(Conflict):  # what was posted isn't what it waits for
            session = resume(self.graph.compiled(), head.run_id, given, max_sleep=MAX_SLEEP, known=head)
            self.open[head.run_id] = Drive(session)

    def _advance(self, run_id: str, drive: Drive) -> None:
        self.point()
        answer = self._carry_out(drive, drive.command)
        self.point()
        try:
            drive.command = drive.loop.send(answer)
        except StopIteration:
            del self.open[run_id]
            drive.session.close()

    def _carry_out(self, drive: Drive, command: Any) -> Any:
        session = drive.session
        match command:
            case NodeContext():
                return self._call(session, command)
            case Begin(tasks):
                drive.begun += tasks
            case Gather():
                some = self.chance.sample(drive.begun, self.chance.randint(1, len(drive.begun)))
                drive.begun = [task for task in drive.begun if task not in some]
                return [(task, self._call(session, task)) for task in some]
            case Commit():
                refusal: Any = session.refuse_if_stopping(command) if session.stop.asked else None
                return refusal or session.finish_commit(command, session.write(command))
            case Wait(until):
                self.clock.advance(max(0.0, until - self.clock()))
                return Cancelled() if session.stop.asked else None
        return None

    def _call(self, session: Session, task: NodeContext) -> Any:
        return Cancelled() if session.stop.asked else call_node(task)


Place = tuple[Any, ...]
Perform = Callable[[Place, Any, Any], tuple[list[Any], dict[str, str]]]
"""Does what is at a place: stage, branch and half of it. Returns its outcome, and the child runs it started."""


AGAIN = Retry(attempts=99, on=Transient, backoff=0.01)


def stage_graph(perform: Perform, name: str = "stages") -> StateGraph[Any]:
    """A graph of stages. Each is a call of "turn", or parallel branches: "branch", then a graph inside "deep".

    The run's input has their `widths`, from which it follows.
    """

    def turn(state: Any, ctx: Any) -> dict[str, Any]:
        got, children = perform((len(state["log"]), 0), state, ctx)
        return {"log": [[got]], "children": children}

    def half(number: int) -> Callable[..., Any]:
        def run(state: Any, ctx: Any) -> dict[str, Any]:
            got, children = perform((len(state["log"]), state["item"], number), state, ctx)
            return {"got": got, "children": children}

        return run

    def join(state: Any, parallel_results: Any) -> dict[str, Any]:
        children = {key: each for result in parallel_results for key, each in result["children"].items()}
        return {"log": [[result["got"] for result in parallel_results]], "children": children}

    def next_stage(state: Any) -> str:
        at = len(state["log"])
        if at == len(state["widths"]):
            return "end"
        return "turn" if state["widths"][at] == 1 else "split"

    schema = {"name": str, "widths": list, "item": int}
    schema |= {"log": Annotated[list, append], "got": Annotated[list, append]}
    schema |= {"children": Annotated[dict, merge]}
    inner = StateGraph(schema, name="inner").add_node("in", run=half(1), retry=AGAIN)
    inner.set_entry_point("in").set_finish_point("in")
    graph = StateGraph(schema, name=name).add_node("begin").add_node("split").add_node("end")
    graph.add_node("turn", run=turn, retry=AGAIN).add_node("branch", run=half(0), retry=AGAIN)
    graph.add_node("deep", run=inner).add_fanin_node("join", run=join).add_edge("branch", "deep")
    graph.add_map("split", "branch", lambda state: range(state["widths"][len(state["log"])]), "join")
    for node in ("begin", "turn", "join"):
        graph.add_conditional_edges(node, next_stage, {each: each for each in ("turn", "split", "end")})
    return graph.set_entry_point("begin").set_finish_point("end")


def stage_workflow(widths: list[int], perform: Perform, name: str = "stages") -> Workflow:
    """The same as a workflow: a branch is a task, which depends on all of the stage before."""

    def task(stage: int, branch: int) -> Callable[..., Any]:
        return lambda ctx: perform((stage, branch), None, ctx)[0]

    flow = Workflow(name)
    before: list[str] = []
    for stage, width in enumerate(widths):
        tasks = [f"task {stage}.{branch}" for branch in range(width)]
        for branch, each in enumerate(tasks):
            flow.add_task(each, task(stage, branch), depends_on=before, retry=AGAIN)
        before = tasks
    return flow


def log_of(state: Any) -> list[Any]:
    """The outcome of each branch of each stage."""
    if "log" in state:
        return list(state["log"])
    stages: dict[str, list[Any]] = {}
    for name, report in state["tasks"].items():
        stages.setdefault(name.partition(".")[0], []).append(report["result"])
    return list(stages.values())
