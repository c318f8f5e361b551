"""Child runs and deadlines against a plain interpreter, with kills anywhere: H16, invariants 1 to 5.

A *program* is what a run does in each of its stages, as plain data; some of it is to start other runs and to join
them. The `Interpreter` does all of it from the first operation to the last: each run is a generator that stands still
where something has to come first. The `Bench` has a worker execute the same runs with the real engine, in any order,
and kills it again and again. What comes from outside comes to both, when no run can continue.

`MODEL_EXAMPLES=5000` tries this many programs instead of a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import AlreadyCompleted, ChildFailed, Runs
from limpet.engine.drivers.child_runs import RECHECK_INTERVALS
from models.bench import Broken, Transient, eager_snapshots, lean
from models.worker_bench import EPOCH, Place, Worker, examples, lives, stage_graph
from support.posts import post_cancel

Operation = tuple[Any, ...]
Program = tuple[tuple[tuple[Operation, ...], ...], ...]
"""Stages, each of branches, each of operations. A place is the number of each of the three."""
Action = tuple[str, int]
"""What comes from outside, and to which of the runs that it can be done to."""

RUNNING = "running"

pytestmark = pytest.mark.timeout(120 + examples(0))


# The interpreter


@dataclass
class ModelRun:
    """One run: what it has done so far, and the runs that it has started, by place."""

    name: str
    program: Program
    deadline: float = inf
    log: list[Any] = field(default_factory=list)
    started: dict[Place, ModelRun] = field(default_factory=dict)
    children: list[ModelRun] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)
    status: str = RUNNING

    def __post_init__(self) -> None:
        self.waits: set[str] = set()
        """The messages that it has waited for, each of which has a name that no other has."""


class Interpreter:
    """Does what programs say, once."""

    def __init__(self, program: Program, patience: float) -> None:
        self.epoch = 0
        self.bodies: dict[str, Iterator[Any]] = {}
        self.runs: dict[str, ModelRun] = {}
        self.add(ModelRun("root", program, patience))

    def add(self, run: ModelRun) -> ModelRun:
        self.runs[run.name] = run
        self.bodies[run.name] = self.stages(run)
        return run

    def go(self) -> None:
        """Have all runs continue as far as possible."""
        before = None
        while before != self.running():
            # What has ended lets others continue.
            before = self.running()
            for run in list(self.runs.values()):
                if run.status == RUNNING:
                    next(self.bodies[run.name], None)

    def stages(self, run: ModelRun) -> Iterator[bool]:
        for stage in range(len(run.log), len(run.program)):
            got: list[list[Any]] = [[] for _ in run.program[stage]]
            running = [self.branch(run, (stage, number), each) for number, each in enumerate(got)]
            while True in [next(branch, False) for branch in running]:
                yield True
            run.log.append(got)
        run.status = "completed"

    def branch(self, run: ModelRun, where: Place, got: list[Any]) -> Iterator[bool]:
        """The operations of a branch. It yields True where it has to wait."""
        stage, branch = where
        for number, operation in enumerate(run.program[stage][branch]):
            match operation:
                case ("start", program, patience):
                    name = f"{run.name} {stage}.{branch}.{number}"
                    child = self.add(ModelRun(name, program, min(run.deadline, self.epoch + patience)))
                    run.started[stage, branch, number] = child
                    run.children.append(child)
                case ("join", place):
                    while run.started[place].status == RUNNING:
                        yield True
                    got.append(outcome(run.started[place].status, run.started[place].log))
                case ("receive",):
                    name = f"{stage}.{branch}.{number}"
                    run.waits.add(name)
                    while name not in run.sent:
                        yield True
                case ("fail",):
                    run.status = "failed"
                    yield True

    def waiting(self) -> list[tuple[str, str]]:
        """The messages that runs wait for."""
        running = [run for run in self.runs.values() if run.status == RUNNING]
        return sorted((run.name, wait) for run in running for wait in run.waits - run.sent)

    def running(self) -> list[str]:
        """The runs that haven't ended."""
        return sorted(run.name for run in self.runs.values() if run.status == RUNNING)

    def pass_time(self) -> None:
        self.epoch += 1
        for run in self.runs.values():
            if run.status == RUNNING and run.deadline < self.epoch:
                run.status = "failed"

    def cancel(self, run: ModelRun) -> None:
        if run.status == RUNNING:
            run.status = "cancelled"
            for child in run.children:
                self.cancel(child)

    def set_back(self, run: ModelRun, name: str, stage: int, is_fork: bool) -> None:
        """Continue a run from a stage, under another name: it starts new children, and joins the earlier ones."""
        started = {place: child for place, child in run.started.items() if place[0] < stage}
        children = [] if is_fork else run.children
        self.add(ModelRun(name, run.program, inf, run.log[:stage], started, children, set(run.sent)))
        if not is_fork:
            del self.runs[run.name]

    def outcomes(self) -> list[tuple[str, Any]]:
        return sorted((run.name, outcome(run.status, run.log)) for run in self.runs.values())


def outcome(status: str, log: list[Any]) -> Any:
    return log if status == "completed" else status


# The bench


class Bench:
    """Has the real engine do the same."""

    def __init__(self, program: Program, patience: float, kills: list[int], seed: int) -> None:
        self.programs: dict[str, Program] = {"root": program}
        self.interpreter = Interpreter(program, patience)
        self.graph = stage_graph(self.perform)
        self.worker = Worker(self.graph, kills, seed)
        self.stumbled: set[Any] = set()
        self.names = {"r": "root"}
        """The names of runs, by id."""
        deadline = None if patience == inf else patience * EPOCH
        self.handle = self.graph.start(self.given("root", program), run_id="r", deadline=deadline)

    def given(self, name: str, program: Program) -> dict[str, Any]:
        self.programs[name] = program
        return {"name": name, "widths": [len(stage) for stage in program]}

    def perform(self, where: Place, state: Any, ctx: Any) -> tuple[list[Any], dict[str, str]]:
        """What a node does: all operations of a branch; of a parallel one in the graph inside of its second node."""
        stage, branch, *half = where
        got: list[Any] = []
        children: dict[str, Any] = {}
        operations = self.programs[state["name"]][stage][branch]
        for number, operation in enumerate(operations if half != [0] else ()):
            place = (stage, branch, number)
            match operation:
                case ("start", program, patience):
                    given = self.given(f"{state['name']} {stage}.{branch}.{number}", program)
                    deadline = None if patience == inf else patience * EPOCH
                    children[str(place)] = ctx.start(self.graph, given, deadline=deadline)
                    self.names[children[str(place)].run_id] = given["name"]
                case ("join", which):
                    got.append(join(ctx, {**state["children"], **children}[str(which)]))
                case ("receive",):
                    ctx.receive(f"{stage}.{branch}.{number}")
                case ("stumble",) if (ctx.idempotency_key, number) not in self.stumbled:
                    self.stumbled.add((ctx.idempotency_key, number))
                    raise Transient
                case ("fail",):
                    raise Broken
        return got, {key: child.run_id for key, child in children.items()}

    def run(self, script: list[Action], stops: float = inf) -> None:
        """Run to the end of all runs, or for some stops, with what the script brings, then with what is awaited."""
        actions = iter(script)
        while True:
            self.worker.work()
            if "fork" in self.programs:
                # The end of a child isn't posted to a fork of its parent, which looks at it now and then.
                self.worker.clock.advance(RECHECK_INTERVALS[-1])
                self.worker.work()
            self.interpreter.go()
            assert self.outcomes() == self.interpreter.outcomes()
            assert self.waiting() == self.interpreter.waiting()
            stops -= 1
            if stops < 0 or not self.interpreter.running():
                return
            self.act(*next(actions, ("send", 0)))

    def act(self, what: str, number: int) -> None:
        """Something comes from outside."""
        interpreter = self.interpreter
        handles = {name: self.graph.get(run_id) for run_id, name in self.names.items()}
        if what == "send" and (waiting := interpreter.waiting()):
            name, wait = waiting[number % len(waiting)]
            handles[name].send(wait, "come", key="once")
            interpreter.runs[name].sent.add(wait)
        elif what == "pass":
            self.worker.clock.advance(EPOCH)
            interpreter.pass_time()
        elif what == "cancel":
            running = interpreter.running()
            name = running[number % len(running)]
            handles[name].cancel()
            interpreter.cancel(interpreter.runs[name])

    def outcomes(self) -> list[tuple[str, Any]]:
        """How all runs ended that exist, or that they haven't."""
        return sorted((self.names[info.run_id], outcome(info.status, self.log(info))) for info in self.list())

    def log(self, info: Any) -> list[Any]:
        return self.graph.get(info.run_id).state["log"] if info.status == "completed" else []

    def waiting(self) -> list[tuple[str, str]]:
        """The messages that runs wait for."""
        waits = [(self.names[info.run_id], wait) for info in self.list() for wait in info.waits]
        return sorted((name, wait.name) for name, wait in waits if wait.kind == "message")

    def request_cancel(self) -> None:
        """Another process asks for the end of the run."""
        with suppress(AlreadyCompleted):
            post_cancel(self.worker.store, "r")

    def list(self) -> Any:
        return Runs(self.worker.store).list()

    def set_back(self, number: int, way: str) -> None:
        """Roll the run back to one of its steps, or fork it there."""
        steps = [each.step for each in self.handle.history() if each.branch is None]
        step = steps[number % len(steps)]
        stage = len(self.graph.state_at("r", step)["log"])
        root = self.interpreter.runs["root"]
        self.interpreter.set_back(root, way, stage, way == "fork")
        self.programs[way] = root.program
        self.names["fork" if way == "fork" else "r"] = way
        if way == "fork":
            self.handle.fork(step, {"name": way}, new_run_id="fork").retry()
        else:
            self.handle.rollback(step)
            self.handle.retry({"name": way})


def join(ctx: Any, child: Any) -> Any:
    try:
        return ctx.join(child)["log"]
    except ChildFailed as failed:
        return failed.status


# What is generated

simple = st.sampled_from([("receive",), ("receive",), ("stumble",)])
patiences = st.sampled_from([inf, inf, inf, 0.5, 1.5])


@st.composite
def programs(draw: Any, depth: int = 2) -> Program:
    """Stages whose operations join what was started in the same branch, or in a stage before."""
    stages: list[Any] = []
    started: list[Place] = []
    for stage in range(draw(st.integers(1, 3 if depth == 2 else 2))):
        before = list(started)
        branches = []
        for branch in range(draw(st.sampled_from([1, 1, 2, 3]))):
            joinable = list(before)
            operations: list[Operation] = []
            for number in range(draw(st.integers(0, 3))):
                kind = draw(st.sampled_from(["start", "start", "join", "join", "simple"]))
                if kind == "start" and len(started) < depth:
                    operations.append(("start", draw(programs(depth - 1)), draw(patiences)))
                    joinable.append((stage, branch, number))
                    started.append((stage, branch, number))
                elif kind == "join" and joinable:
                    operations.append(("join", draw(st.sampled_from(joinable))))
                else:
                    operations.append(draw(simple))
            branches.append(tuple(operations))
        if len(branches) == 1 and draw(st.integers(0, 5)) == 0:
            branches = [(*branches[0], ("fail",))]
        stages.append(tuple(branches))
    return tuple(stages)


actions = st.tuples(st.sampled_from(["send", "send", "pass", "cancel"]), st.integers(0, 9))
scripts = st.lists(actions, max_size=6)


# The claims


@settings(lean, max_examples=examples(60))
@given(programs(), patiences, scripts, lives, st.integers(0, 999), st.booleans())
def test_child_runs_do_what_a_plain_interpreter_does_whatever_is_killed(
    program: Program, patience: float, script: list[Action], kills: list[int], seed: int, eager: bool
) -> None:
    """H16: children are started once, joined with their results, fail at deadlines, are cancelled."""
    with eager_snapshots(eager):
        Bench(program, patience, kills, seed).run(script)


@settings(lean, max_examples=examples(60))
@given(programs(), st.integers(1, 200), lives, st.integers(0, 999))
def test_a_run_that_is_cancelled_at_any_point_leaves_no_child_under_way(
    program: Program, point: int, kills: list[int], seed: int
) -> None:
    """H16: cancel goes down, whatever the worker does at that moment, and whether it is killed then or later."""
    bench = Bench(program, inf, kills, seed)
    bench.worker.disturbed_at = point
    bench.worker.disturb = bench.request_cancel
    bench.worker.work()
    statuses = {info.run_id: info.status for info in bench.list()}
    cancelled = [info for info in bench.list() if statuses.get(info.parent or "") == "cancelled"]
    assert RUNNING not in {info.status for info in cancelled}


@settings(lean, max_examples=examples(40))
@given(
    programs(),
    scripts,
    lives,
    st.integers(0, 5),
    st.integers(0, 99),
    st.sampled_from(["fork", "rollback"]),
    scripts,
)
def test_from_any_step_new_children_are_started_and_earlier_ones_joined(
    program: Program,
    script: list[Action],
    kills: list[int],
    stops: int,
    step: int,
    way: str,
    later: list[Action],
) -> None:
    """H16: by a fork and after a rollback; the children that were started since then go on as they are."""
    # A fork has no deadline; a run that is rolled back keeps its own.
    bench = Bench(program, 1.5 if way == "fork" else inf, kills, step)
    bench.run(script, stops)
    bench.set_back(step, way)
    bench.run(later)
