"""Messages against a plain interpreter, with kills anywhere: H16, invariants 1 to 5.

A *sketch* is what a run does in each of its stages, as plain data. The `Interpreter` does it from the first operation
to the last: it is a generator that stands still where something has to come first. It does nothing twice, and its
mailbox is the list of all that was sent. The `Bench` has a worker do the same with the real engine, and kills it
again and again. What comes from outside comes to both, when neither can continue. Stops and results must be the same.

`MODEL_EXAMPLES=5000` tries this many sketches instead of a few.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import DeadlinePassed, UsageError
from limpet.engine.node_context.questions import NOT_GIVEN
from models.bench import Broken, Transient, eager_snapshots, lean
from models.worker_bench import EPOCH, Place, Worker, examples, lives, log_of, stage_graph, stage_workflow

Operation = tuple[Any, ...]
Sketch = tuple[tuple[tuple[Operation, ...], ...], ...]
"""Stages, each of branches, each of operations. A place is the number of each of the three."""
Action = tuple[Any, ...]
Script = list[list[Action]]
"""What comes from outside: some actions whenever nothing else happens."""
Stop = list[tuple[Any, ...]]
"""What each branch waits for, when none can continue; nothing at the end."""

LATE = "late"

pytestmark = pytest.mark.timeout(120 + examples(0))


# The interpreter


@dataclass(frozen=True)
class Message:
    """One that was sent, when, and the place that received it."""

    name: str
    value: str
    sent: int
    taken: Place | None = None


@dataclass
class Interpreter:
    """Does what a sketch says, once. `done` has the outcome of each operation, and `sent` has all messages."""

    sketch: Sketch
    done: dict[Place, Any] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    keys: set[tuple[str, str]] = field(default_factory=set)
    epoch: int = 0
    repaired: set[Place] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.answered: set[Place] = set()
        self.stop: Stop = []
        self.body = self.run()

    def go(self) -> Stop:
        """Go on as far as possible."""
        self.stop = next(self.body, [])
        return self.stop

    def run(self) -> Iterator[Stop]:
        for stage, branches in enumerate(self.sketch):
            running = [self.branch(stage, number) for number in range(len(branches))]
            while waiting := [wait for branch in running if (wait := next(branch, None)) is not None]:
                yield waiting

    def branch(self, stage: int, branch: int) -> Iterator[tuple[Any, ...]]:
        for number, operation in enumerate(self.sketch[stage][branch]):
            place = (stage, branch, number)
            if place not in self.done:
                self.done[place] = yield from self.operation(place, operation)

    def operation(self, place: Place, operation: Operation) -> Generator[tuple[Any, ...], None, Any]:
        match operation:
            case ("receive", name, patience, *_):
                return (yield from self.receive(place, name_at(place, name), patience))
            case ("send", name, key):
                self.send(name_at(place, name), str(place), key or str(place))
            case ("ask",):
                while place not in self.answered:
                    yield ("asks", place)
                return "yes"
            case ("fail",):
                while place not in self.repaired:
                    yield ("fails", place)
        return None

    def receive(self, place: Place, name: str, patience: float) -> Generator[tuple[Any, ...], None, str]:
        until = self.epoch + patience
        while True:
            for number, message in enumerate(self.sent):
                if message.name == name and message.taken is None and message.sent <= until:
                    self.sent[number] = replace(message, taken=place)
                    return message.value
            if self.epoch >= until:
                return LATE
            yield ("waits", name)

    def send(self, name: str, value: str, key: str) -> None:
        if (name, key) not in self.keys:
            self.keys.add((name, key))
            self.sent.append(Message(name, value, self.epoch))

    def act(self, action: Action) -> None:
        """Something comes from outside. A run that has failed refuses messages."""
        match action:
            case ("send", name, value, key) if not self.failures():
                self.send(name, value, key)
            case ("answer",):
                self.answered |= {place for kind, place in self.stop if kind == "asks"}
            case ("pass",):
                self.epoch += 1

    def failures(self) -> set[Place]:
        return {place for kind, place in self.stop if kind == "fails"}

    def set_back(self, completed: set[Place], is_fork: bool) -> Interpreter:
        """One that has done only this much. What it hasn't received waits for it, even if it was sent later."""
        done = {place: value for place, value in self.done.items() if place in completed}
        sent = [replace(each, taken=each.taken if each.taken in done else None) for each in self.sent]
        if is_fork:
            return Interpreter(self.sketch, done, sent, epoch=self.epoch)
        return Interpreter(self.sketch, done, sent, self.keys, self.epoch, self.repaired)

    def log(self) -> list[Any]:
        """The outcome of each stage: of each branch, what it got."""
        return [
            [
                [got for number in range(len(each)) if (got := self.done[stage, branch, number]) is not None]
                for branch, each in enumerate(branches)
            ]
            for stage, branches in enumerate(self.sketch)
        ]


def name_at(place: Place, name: str) -> str:
    """Branches have names of their own: which of several gets a message depends on who is first."""
    return f"{name}{place[1]}"


# The bench


class Bench:
    """Does the same with the real engine."""

    def __init__(self, sketch: Sketch, kills: list[int], seed: int, is_workflow: bool = False) -> None:
        self.sketch = sketch
        widths = [len(stage) for stage in sketch]
        graph = stage_workflow(widths, self.perform) if is_workflow else stage_graph(self.perform)
        self.worker = Worker(graph, kills, seed)
        self.stumbled: set[Place] = set()
        self.repaired: set[Place] = set()
        self.returned: dict[Any, Any] = {}
        self.interpreter = Interpreter(sketch)
        self.forked: Interpreter | None = None
        """What the run does that was forked: for it, too, time passes."""
        given = {} if is_workflow else {"widths": widths}
        self.handle = self.worker.graph.start(given, run_id="r")

    def perform(self, where: Place, state: Any, ctx: Any) -> tuple[list[Any], dict[str, str]]:
        """What a node does: all operations of a branch, or a half of them."""
        stage, branch, *half = where
        got = []
        for number in numbers_of(self.sketch[stage][branch], *half):
            value = self.operation((stage, branch, number), self.sketch[stage][branch][number], ctx)
            got += [] if value is None else [value]
        return got, {}

    def operation(self, place: Place, operation: Operation, ctx: Any) -> Any:
        match operation:
            case ("receive", name, patience, keyed, has_default):
                key = f"k{place[2]}" if keyed else None
                value = receive(ctx, name_at(place, name), key, patience, has_default)
                # A node that is called again gets the same.
                assert self.returned.setdefault((ctx.idempotency_key, place), value) == value
                return value
            case ("send", name, key):
                self.worker.graph.send(ctx.run_id, name_at(place, name), str(place), key=key or str(place))
            case ("ask",):
                return ctx.pause(str(place), key=f"k{place[2]}")
            case ("stumble",) if (ctx.idempotency_key, place) not in self.stumbled:
                self.stumbled.add((ctx.idempotency_key, place))
                raise Transient
            case ("fail",) if (ctx.run_id, place) not in self.repaired:
                raise Broken(str(place))
        return None

    def run(self, script: Script, stops: float = inf) -> None:
        """Run to the end, or for some stops, with what the script brings, and after that with what is waited for."""
        brought = iter(script)
        while True:
            self.worker.work()
            stop = self.interpreter.go()
            if self.forked is not None:
                self.forked.go()
            assert self.stop() == sorted((kind, str(what)) for kind, what in stop)
            stops -= 1
            if not stop:
                assert log_of(self.handle.state) == self.interpreter.log()
            if not stop or stops < 0:
                return
            for action in next(brought, None) or self.awaited(stop):
                self.act(action)
                self.interpreter.act(action)
            self.repair()

    def awaited(self, stop: Stop) -> list[Action]:
        """What lets the run go on."""
        key = f"more {len(self.interpreter.sent)}"
        return [("answer",), *(("send", what, key, key) for kind, what in stop if kind == "waits")]

    def stop(self) -> Stop:
        """What the run waits for, as the interpreter says it."""
        info = self.handle.info
        if info.status == "failed":
            assert info.error is not None
            return [("fails", info.error["message"])]
        waits = [("waits", wait.name) for wait in info.waits]
        return sorted([*waits, *(("asks", question.prompt) for question in info.questions)])

    def act(self, action: Action) -> None:
        match action:
            case ("send", name, value, key) if self.handle.status == "failed":
                with pytest.raises(UsageError):
                    self.handle.send(name, value, key=key)
            case ("send", name, value, key):
                self.handle.send(name, value, key=key)
            case ("answer",):
                if answers := {question.id: "yes" for question in self.handle.questions}:
                    self.handle.answer(answers=answers)
            case ("pass",):
                self.worker.clock.advance(EPOCH)
                if self.forked is not None and self.forked is not self.interpreter:
                    self.forked.act(action)
            case ("cancel",) if self.handle.status != "failed":
                self.handle.cancel()
                self.worker.work()
                assert self.handle.status == "cancelled"
                self.handle.retry()

    def repair(self) -> None:
        """Repair what has failed, and retry the run."""
        failures = self.interpreter.failures()
        if failures:
            self.repaired |= {(self.handle.run_id, place) for place in failures}
            self.interpreter.repaired |= failures
            self.handle.retry()

    def set_back(self, number: int, way: str) -> None:
        """Roll the run back to one of its steps, or fork it there, and continue with that."""
        history = self.handle.history()
        number %= len(history)
        completed = places_of(self.sketch, history[: number + 1])
        interpreter = self.interpreter
        self.interpreter = interpreter.set_back(completed, way == "fork")
        if way == "fork":
            self.forked = interpreter
            self.handle = self.handle.fork(history[number].step, new_run_id="fork")
        else:
            self.handle.rollback(history[number].step)
        self.handle.retry()


def receive(ctx: Any, name: str, key: str | None, patience: float, has_default: bool) -> Any:
    deadline = None if patience == inf else patience * EPOCH
    default = LATE if has_default and deadline is not None else NOT_GIVEN
    try:
        return ctx.receive(name, key=key, deadline=deadline, default=default)
    except DeadlinePassed:
        return LATE


def numbers_of(operations: tuple[Operation, ...], half: int | None = None) -> range:
    """The operations of a node: all of a branch, or a half of them."""
    middle = len(operations) // 2
    if half is None:
        return range(len(operations))
    return range(middle, len(operations)) if half else range(middle)


def places_of(sketch: Sketch, history: list[Any]) -> set[Place]:
    """The operations of all nodes that have completed by then."""
    completed = set()
    stage = 0
    for step in history:
        branches = {"branch": 0, "in": 1}
        for branch, operations in enumerate(sketch[stage] if stage < len(sketch) else ()):
            numbers: range = range(0)
            if step.node in ("turn", "join"):
                numbers = numbers_of(operations)
            elif step.node in branches and step.branch.startswith(f"branch[{branch}]"):
                numbers = numbers_of(operations, branches[step.node])
            completed |= {(stage, branch, number) for number in numbers}
        stage += step.node in ("turn", "join")
    return completed


# What is generated

names = st.sampled_from("ab")
receives = st.tuples(
    st.just("receive"), names, st.sampled_from([inf, inf, 0, 0.5, 1.5]), st.booleans(), st.booleans()
)
sends = st.tuples(st.just("send"), names, st.sampled_from(["", "", "shared"]))
operations = receives | receives | sends | st.sampled_from([("ask",), ("stumble",)])
branches = st.lists(operations, max_size=4).map(tuple)
turns = st.lists(operations | st.just(("fail",)), max_size=5).map(tuple)
stages = st.tuples(turns) | st.lists(branches, min_size=2, max_size=3).map(tuple)
sketches = st.lists(stages, min_size=1, max_size=3).map(tuple)

sent = st.builds(
    lambda name, branch, number, shared: (
        "send",
        f"{name}{branch}",
        f"sent {number}",
        "shared" if shared else f"sent {number}",
    ),
    names,
    st.integers(0, 2),
    st.integers(0, 9),
    st.booleans(),
)
actions = st.lists(sent | sent | st.sampled_from([("pass",), ("answer",)]), min_size=1, max_size=3)
scripts = st.lists(actions | actions.map(lambda some: [*some, ("cancel",)]), max_size=5)


# The claims


@settings(lean, max_examples=examples(60))
@given(sketches, scripts, lives, st.integers(0, 999), st.booleans())
def test_messages_are_received_as_by_a_plain_interpreter_whatever_is_killed(
    sketch: Sketch, script: Script, kills: list[int], seed: int, eager: bool
) -> None:
    """H16: by name, in order, once, in time or not; in nodes, branches and graphs inside of nodes."""
    with eager_snapshots(eager):
        Bench(sketch, kills, seed).run(script)


@settings(lean, max_examples=examples(30))
@given(sketches, scripts, lives, st.integers(0, 999))
def test_tasks_receive_messages_as_a_plain_interpreter_does_whatever_is_killed(
    sketch: Sketch, script: Script, kills: list[int], seed: int
) -> None:
    """H16, H13: a workflow of the same stages."""
    Bench(sketch, kills, seed, is_workflow=True).run(script)


@settings(lean, max_examples=examples(40))
@given(
    sketches,
    scripts,
    lives,
    st.integers(0, 5),
    st.integers(0, 99),
    st.sampled_from(["fork", "rollback"]),
    scripts,
)
def test_from_any_step_messages_wait_again_that_were_received_or_sent_since(
    sketch: Sketch, script: Script, kills: list[int], stops: int, step: int, way: str, later: Script
) -> None:
    """H16: a fork gets a copy of the messages, a rollback restores them; the run that was forked continues."""
    bench = Bench(sketch, kills, step)
    bench.run(script, stops)
    handle = bench.handle
    bench.set_back(step, way)
    bench.run(later)
    if bench.forked is not None:
        bench.handle = handle
        bench.interpreter = bench.forked
        bench.run([])
