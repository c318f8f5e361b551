"""The loop against a plain model, cut anywhere: promises H2, H3, H4, H8, G6, G7 and F5.

A *sketch* is a random graph: what its nodes do, where its edges lead. The `Model` runs it on a plain dict
that it copies at every step, with no journal. The `Bench` runs the same sketch through the real loop,
carrying out by hand what `RunLifecycle.run()` yields, and can be killed before or after any of it. Whatever the
model says about states, paths, visits and stops has to be true of the real run, killed or not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import cycle, product
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from limpet.engine.drivers.node_call import call_node
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.leases.inbox_checks import read_inbox
from limpet.engine.loop.driver_commands import Cancelled, PostsArrived, Report, StopAsked, Verdict, Wait
from limpet.engine.loop.run_context import Clocks, Limits, Reporting, RunContext, Saving
from limpet.engine.loop.run_lifecycle import RunLifecycle
from limpet.engine.node_context.call_scope import pause
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.start import new_run
from limpet.errors import Conflict, ExecutionError, StoreUnavailable, UnstorableValue, UsageError
from limpet.graphs.builder import GraphBuilder
from limpet.graphs.edges import END, Goto
from limpet.graphs.plan import Plan
from limpet.graphs.reducers import append, merge
from limpet.graphs.retry import Retry
from limpet.graphs.secrets import SecretMasker
from limpet.graphs.state import State
from limpet.journal.progress import Progress
from limpet.journal.reader import history, progress_at, read_progress
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PAUSED,
    RUNNING,
    Commit,
    Lease,
    PostsWaiting,
)
from limpet.journal.waits import AFTER, BEFORE
from limpet.journal.writer import JournalWriter
from models.bench import CLIENT, CLOCK, LEASE, NUMBERS, STORE, Killed, eager_snapshots
from support.posts import post_cancel

Stops = tuple[frozenset[str], frozenset[str]]
Interrupts = list[Stops]
NOWHERE: Stops = (frozenset(), frozenset())
FAILED_BEFORE = "failed"
CHANCE = 0.75
UNSTORABLE = object()
TARGETS = ["a", "b", "c", END]
"""Where a goto of a random graph may lead."""

# Sketches: graphs as plain data, so that a failing example can be read


@dataclass(frozen=True)
class Turn:
    """What a node does at one of its visits: operations on the state, then what it returns."""

    does: tuple[tuple[Any, ...], ...]
    returns: tuple[Any, ...] | None


@dataclass(frozen=True)
class Node:
    turns: tuple[Turn, ...]
    ways: tuple[tuple[Any, ...], ...]
    exit: bool
    retry: tuple[int, type[Exception]] | None
    goto: tuple[str, ...] = ()
    errors: tuple[tuple[str, type[Exception]], ...] = ()

    def without(self, kinds: tuple[str, ...]) -> Node:
        turns = (
            Turn(
                tuple(each for each in turn.does if each[0] not in kinds),
                None if turn.returns and turn.returns[0] in kinds else turn.returns,
            )
            for turn in self.turns
        )
        return replace(self, turns=tuple(turns))


@dataclass(frozen=True)
class Sketch:
    nodes: Mapping[str, Node]
    limit: int

    def define(self, world: World) -> GraphBuilder:
        """The graph as a user would write it."""
        graph = GraphBuilder(SCHEMA, name="sketch", max_iterations=self.limit)
        for name, node in self.nodes.items():
            retry = None if node.retry is None else Retry(node.retry[0], on=node.retry[1])
            graph.add_node(name, _function(node, world), retry=retry, goto=node.goto)
            for handler, kind in node.errors:
                graph.add_error_edge(name, handler, on=kind)
            for way in node.ways:
                match way:
                    case ("edge", target, None):
                        graph.add_edge(name, target)
                    case ("edge", target, test):
                        graph.add_edge(name, target, _predicate(test))
                    case ("choice", key, targets):
                        outcomes = dict(enumerate(targets))
                        graph.add_conditional_edges(name, _choice(key, len(targets)), outcomes)
            if node.exit:
                graph.set_finish_point(name)
        return graph.set_entry_point("a")

    def without(self, *kinds: str) -> Sketch:
        """The same graph, but no node does or returns this kind of thing."""
        return Sketch({name: node.without(kinds) for name, node in self.nodes.items()}, self.limit)


class Transient(Exception):
    """An error that goes away by itself."""


@dataclass
class World:
    """What is outside of a run and survives it: what was repaired, and what `once` has been asked for."""

    repaired: set[int] = field(default_factory=set)
    fetch: Callable[[int, str], Any] = lambda step, key: [step, key]


def plain_type(error: str) -> str:
    """The type of an error as the interpreter has it, whose states are plain dicts."""
    return "KeyError" if error == "limpet.errors.UnknownKey" else error


def _window(old: list[Any], new: list[Any]) -> list[Any]:
    return (old + new)[-3:]


def _earliest(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return {**old, **{key: value for key, value in new.items() if key not in old}}


SCHEMA: dict[str, Any] = {
    "n": int,
    "log": Annotated[list, append],
    "book": Annotated[dict, merge],
    "total": Annotated[int, operator.add],
    "grown": Annotated[list, operator.add],
    "window": Annotated[list, _window],
    "earliest": Annotated[dict, _earliest],
    "most": Annotated[Any, max],
}
REDUCERS: dict[str, Callable[[Any, Any], Any]] = {
    key: hint.__metadata__[0] for key, hint in SCHEMA.items() if hasattr(hint, "__metadata__")
}
STARTING = {"log": [], "book": {}, "total": 0, "grown": [], "window": [], "earliest": {}}
INPUT = {"n": 0, "xs": [1], "d": {"k": [0]}, "t": ([], "t")}


def _function(node: Node, world: World) -> Callable[..., Any]:
    def run(state: Any, ctx: Any) -> Any:
        turn = node.turns[(ctx.visit - 1) % len(node.turns)]
        for operation in turn.does:
            _perform(operation, state, ctx, world)
        return _returned(turn.returns, state, ctx, world)

    return run


def _perform(operation: tuple[Any, ...], state: Any, ctx: Any, world: World) -> None:
    """One thing that a node may do, on the state it was handed: a private State or the model's dict."""
    match operation:
        case ("bump", key, by):
            state[key] = state.get(key, 0) + by
        case ("set", key, value):
            state[key] = deepcopy(value)
        case ("drop", key):
            state.pop(key, None)
        case ("grow", key, value) if isinstance(state.get(key), list):
            state[key].append(deepcopy(value))
        case ("shrink", key) if isinstance(state.get(key), list):
            del state[key][-1:]
        case ("poke", key, name, value) if isinstance(state.get(key), dict):
            state[key][name] = deepcopy(value)
        case ("dig", key, value) if isinstance(state.get(key), tuple) and len(state[key]) == 2:
            (state[key][0] if state[key][1] == "t" else state[key][1]).append(value)
        case ("share", key, other) if key in state:
            state[other] = state[key]
        case ("look",):
            assert {**state} == dict(state.items())
        case ("error",):
            # Not its attempts, as a crash is one, nor its text and its time, which the model doesn't know.
            state["caught"] = None if ctx.error is None else [plain_type(ctx.error.type), ctx.error.node]
        case ("own copy", key, value):
            state[key].append(value)
        case ("ask", "ctx", key):
            state["told"] = ctx.pause(f"what of {key}?", key=key)
        case ("ask", "anywhere", key):
            ask = pause if isinstance(ctx, NodeContext) else ctx.pause
            state["heard"] = ask(f"what of {key}?", key=key)
        case ("once", key, alter):
            kept = ctx.once(key, world.fetch, ctx.step, key)
            state["kept"] = list(kept)
            if alter:
                kept.append("altered by the node")
        case ("stumble", times) if ctx.attempt <= times:
            raise Transient(f"attempt {ctx.attempt}")
        case ("break", kind) if ctx.step not in world.repaired:
            raise kind("broken")
        case ("spoil", key) if ctx.step not in world.repaired and isinstance(state.get(key), list):
            state[key].append(UNSTORABLE)


def _returned(returns: tuple[Any, ...] | None, state: Any, ctx: Any, world: World) -> Any:
    kind, update = returns or ("", {})
    update = {key: deepcopy(value) for key, value in update.items()}  # no value under two keys
    match kind:
        case "update":
            return update
        case "goto":
            target = update.pop("to")
            return update if ctx.step in world.repaired else Goto(target, update or None)
        case "mapping":
            return MappingProxyType(update)
        case "whole":
            return State({**state, **update})
        case "part":
            return State(update)
        case "unstorable":
            return update if ctx.step in world.repaired else {**update, "odd": [UNSTORABLE]}
        case "twin":
            one = [1]
            return {"xs": one, "new": [one, one], "log": [one], "book": {"k": one}}
        case "clash":
            return update if ctx.step in world.repaired else {**update, "total": "no number"}
    return None


def _predicate(test: tuple[Any, ...]) -> Callable[..., Any]:
    match test:
        case ("divides", key, by):
            return lambda state: state.get(key, 0) % by == 0
        case ("has", key):
            return lambda state, config: key in state
        case ("strict", key, by):
            return lambda state: state[key] % by
        case _:
            return lambda state: len(state["log"]) % 2


def _choice(key: str, ways: int) -> Callable[..., Any]:
    return lambda state: state.get(key, 0) % ways


# What a stop looks like, and how the user reacts: the same for the model and the real run


@dataclass(frozen=True)
class ModelStop:
    """Where a run came to rest."""

    status: str
    node: str
    phase: str
    step: int
    asked: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Reply:
    """What a resume brings, and which step is repaired before it."""

    answers: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    repair: int | None = None


def reply_to(stops: list[ModelStop], talkative: bool) -> Reply | None:
    """How the user reacts to the last of these stops; None when there is nothing to do."""
    stop = stops[-1]
    assert len(stops) < 200, "it doesn't get on"
    if stop.status == COMPLETED or stop.error == "":
        return None
    if stop.status == FAILED and stop.phase == AFTER:
        return None if stop in stops[:-1] else Reply(update={"n": 0})
    if stop.status == FAILED:
        return Reply(repair=stop.step + 1)
    if stop.asked:
        return Reply({question: ["yes", question] for question in stop.asked})
    if stop.status == CANCELLED:
        return Reply()
    return Reply(update={"log": [f"stop {len(stops)}"]} if talkative else {})


def told_apart(state: Mapping[str, Any]) -> dict[str, str]:
    """A state, written so that 1 isn't True, a tuple isn't a list and {1: 2, 3: 4} isn't {3: 4, 1: 2}."""
    return {key: repr(value) for key, value in dict.items(state)}  # type: ignore[arg-type]


# The model


class Question(Exception):
    """The model's node asks."""


@dataclass(frozen=True)
class Caught:
    """What the model keeps of an error for the node that handles it."""

    type: str
    node: str


@dataclass
class Call:
    """What the model hands a node as `ctx`."""

    step: int
    visit: int
    attempt: int
    answers: dict[str, Any]
    memos: dict[str, Any]
    node: str
    error: Caught | None

    def pause(self, prompt: str, key: str) -> Any:
        question = f"{self.node}:{self.step}:{key}"
        if question not in self.answers:
            raise Question(question)
        return deepcopy(self.answers[question])

    def once(self, key: str, function: Callable[..., Any], *args: Any) -> Any:
        if key not in self.memos:
            self.memos[key] = function(*args)
        return deepcopy(self.memos[key])


class Model:
    """Runs a sketch on a plain dict. It saves nothing, shares nothing and is never cut."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch, self.world = sketch, World()
        self.functions = {name: _function(node, self.world) for name, node in sketch.nodes.items()}
        self.state: dict[str, Any] = deepcopy({**INPUT, **STARTING})
        self.node, self.phase, self.cleared = "a", BEFORE, False
        self.path: list[str] = []
        self.states = [deepcopy(self.state)]
        self.waits: list[float] = []
        self.goto: str | None = None
        self._arrive()

    def run(self, interrupts: Interrupts, talkative: bool) -> list[ModelStop]:
        """Run it, resuming at every stop as long as that makes sense; returns the stops."""
        stops: list[ModelStop] = []
        for before, after in cycle(interrupts):
            stops.append(self.go(before, after))
            reply = reply_to(stops, talkative)
            if reply is None:
                return stops
            self._resume(stops[-1], reply)
        raise AssertionError

    def go(self, before: frozenset[str], after: frozenset[str]) -> ModelStop:
        """Run to the next stop."""
        if self.phase == AFTER:
            failure = self._choose()
            if failure is not None:
                return self._stop(FAILED, error=failure)
        while self.node != END:
            if self.node in before and not self.cleared:
                return self._stop(PAUSED)
            if len(self.path) >= self.sketch.limit:
                self.phase = FAILED_BEFORE
                return self._stop(FAILED, error="")
            stopped = self._call()
            if stopped is not None:
                return stopped
            if self.phase == BEFORE:
                continue  # an error edge has led on
            if self.node in after:
                return self._stop(PAUSED)
            failure = self._choose()
            if failure is not None:
                return self._stop(FAILED, error=failure)
        return self._stop(COMPLETED)

    def _call(self) -> ModelStop | None:
        """Call the node until it completes (None) or stops the run."""
        node = self.sketch.nodes[self.node]
        visit, step = self.path.count(self.node) + 1, len(self.path) + 1
        while True:
            draft = deepcopy(self.state)
            call = Call(step, visit, self.ended + 1, self.answers, self.memos, self.node, self.caught)
            try:
                returned = self.functions[self.node](draft, call)
            except Question as asked:
                return self._stop(PAUSED, asked=(str(asked),))
            except Exception as error:
                self.ended += 1
                attempts, kind = node.retry or (1, Exception)
                if self.ended < attempts and isinstance(error, kind):
                    self.waits.append(2 ** (self.ended - 1) * (1 + 0.1 * (2 * CHANCE - 1)))
                    continue
                return self._fail(error)
            goto = None
            if isinstance(returned, Goto):
                goto, returned = returned.target, returned.update
            if goto is not None and goto not in node.goto:
                return self._fail(UsageError("undeclared"))
            try:
                changed = self._changed(draft, returned)
            except TypeError as error:
                return self._fail(error)
            if _is_unstorable(changed):
                return self._fail(UnstorableValue("odd", "unstorable"))
            self.state, self.phase = _unshared(changed), AFTER
            self.path.append(self.node)
            self.states.append(_unshared(changed))
            self.goto = goto
            return None

    def _fail(self, error: Exception) -> ModelStop | None:
        """A node failed for good: go where an error edge leads (None), or stop the run."""
        for handler, kind in self.sketch.nodes[self.node].errors:
            if isinstance(error, kind):
                caught = Caught(_name(error), self.node)
                self.path.append(self.node)
                self.states.append(deepcopy(self.state))
                self._arrive(handler)
                self.caught = caught
                return None
        self.phase = FAILED_BEFORE
        return self._stop(FAILED, error=_name(error))

    def _changed(self, draft: dict[str, Any], returned: Any) -> dict[str, Any]:
        """The state after a node: what it did to its draft, then what it returned."""
        private = {key: draft.get(key) for key in REDUCERS}
        new = {key: value for key, value in draft.items() if key not in REDUCERS}
        new |= {key: value for key, value in self.state.items() if key in REDUCERS}
        for key, value in (returned or {}).items():
            if key not in REDUCERS or (isinstance(returned, State) and value is not private[key]):
                new[key] = value
            elif not isinstance(returned, State):
                new[key] = REDUCERS[key](new[key], value) if key in new else value
        return new

    def _choose(self) -> str | None:
        """Go where the node said, or where the first way that holds leads; or say what went wrong."""
        goto, self.goto = self.goto, None
        if goto is not None:
            return self._arrive(goto)
        state = deepcopy(self.state)
        try:
            for way in self.sketch.nodes[self.node].ways:
                match way:
                    case ("choice", key, targets):
                        return self._arrive(targets[state.get(key, 0) % len(targets)])
                    case ("edge", target, None):
                        return self._arrive(target)
                    case ("edge", target, ("has", key)) if key in state:
                        return self._arrive(target)
                    case ("edge", target, test) if test[0] != "has" and _predicate(test)(state):
                        return self._arrive(target)
        except Exception as error:
            return _name(error)
        return self._arrive(END) if self.sketch.nodes[self.node].exit else "LookupError"

    def _arrive(self, node: str | None = None) -> None:
        self.node, self.phase, self.cleared = node or self.node, BEFORE, False
        self.ended, self.answers, self.memos = 0, {}, {}
        self.caught: Caught | None = None

    def _stop(self, status: str, asked: tuple[str, ...] = (), error: str | None = None) -> ModelStop:
        return ModelStop(status, self.node, self.phase, len(self.path), asked, error)

    def _resume(self, stop: ModelStop, reply: Reply) -> None:
        self.answers |= deepcopy(reply.answers)
        for key, value in deepcopy(reply.update).items():
            self.state[key] = REDUCERS[key](self.state[key], value) if key in REDUCERS else value
        self.states[-1] = deepcopy(self.state)
        if reply.repair is not None:
            self.world.repaired.add(reply.repair)
        if self.phase == FAILED_BEFORE:
            self.phase, self.ended = BEFORE, 0
        self.cleared = True


def _name(error: Exception) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _unshared(value: Any) -> Any:
    """A copy in which no list or dict is in two places."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return type(value)(map(_unshared, value)) if isinstance(value, (list, tuple)) else value


def _is_unstorable(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_unstorable, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_unstorable, value))
    return value is UNSTORABLE


# The bench: the real loop, with commands carried out by hand


def drive(
    core: RunLifecycle,
    call: Callable[[NodeContext], Any],
    commit: Callable[[Commit], Exception | None],
    wait: Callable[[float], Any] = lambda seconds: CLOCK.advance(seconds),
    report: Callable[[dict[str, Any]], None] = lambda event: None,
    point: Callable[[], None] = lambda: None,
) -> Verdict:
    """Carry out what the loop asks for, up to its verdict. `point` is called before and after each command."""
    loop, answer = core.run(), None
    while True:
        try:
            command = loop.send(answer)
        except StopIteration as end:
            return end.value
        point()
        match command:
            case NodeContext():
                answer = call(command)
            case Commit():
                answer = commit(command)
            case Wait():
                answer = wait(command.until - CLOCK())
            case Report():
                answer = report(command.event)
        point()


@dataclass
class Bench:
    """One run of a sketch by the real loop, and all the claims that are checked while it continues.

    `kills` says how many points each life of the process gets past; there is one before and one after every
    command and every commit. When they are used up, the process lives. `cancel_at` is the call, wait or
    commit at which the user cancels it, `refuse_at` the commit that the store refuses.
    """

    sketch: Sketch
    interval: int = 1
    watched: bool = False
    stream: bool = False
    kills: list[int] = field(default_factory=list)
    cancel_at: int | None = None
    refuse_at: int | None = None

    def __post_init__(self) -> None:
        self.kills = list(self.kills)
        self.world = World(fetch=self._fetch)
        self.definition = self.sketch.define(self.world)
        self.run_id = f"run-{next(NUMBERS)}"
        self.events: list[dict[str, Any]] = []
        self.waits: list[float] = []
        self.called: dict[int, str] = {}
        self.ended: dict[int, int] = {}
        self.kept: set[tuple[int, str]] = set()
        self.durable = 0
        self.inside = self.crashed = False
        self.points = self.chances = self.commits = 0
        self.refused: list[str] = []
        self.wrong: AssertionError | None = None
        self.stop: StopRequest | None = None
        self.core: RunLifecycle | None = None
        self._begin_life()

    def run(self, interrupts: Interrupts, talkative: bool, other_plans: bool = False) -> list[ModelStop]:
        """Run it to the end, resuming after every stop and every kill; returns the stops."""
        lives = cycle(interrupts)
        plan = self.plan(next(lives))
        stops: list[ModelStop] = []
        reply, seen = Reply(), 0
        if self.core is None:
            self.open(plan)
        while True:
            try:
                if self.core is None:
                    self._reopen(plan, reply)
                self._check_verdict(self._drive())
            except Killed:
                self._die()
                if other_plans:
                    plan = self.plan(next(lives))
            self.core = None
            head = STORE.head(self.run_id)
            if head.status == RUNNING:
                reply = Reply()
            elif head.sequence != seen:
                stops.append(self._stop())
                answer = reply_to(stops, talkative)
                if answer is None:
                    return stops
                reply, seen = answer, head.sequence
                if head.status != CANCELLED:
                    plan = self.plan(next(lives))
                if reply.repair is not None:
                    self.world.repaired.add(reply.repair)

    def check_history(self, model: Model) -> None:
        """Every stored step is as the model has it: the state, how it got there, what was counted."""
        tail = STORE.read(self.run_id, first=1)
        steps = history(tail)
        assert [each.step for each in steps] == list(range(len(model.states)))
        assert [each.node for each in steps] == [None, *model.path]
        for step, expected in enumerate(model.states):
            found = progress_at(tail, step)
            assert told_apart(found.state) == told_apart(expected), f"state at step {step}"
            assert list(found.path) == model.path[:step]
            assert found.visits == {name: model.path[:step].count(name) for name in set(model.path[:step])}
            assert found.iterations == found.step == step

    def plan(self, stops: Stops) -> Plan:
        before, after = stops
        nodes = self.sketch.nodes.keys()
        return self.definition.freeze(before & nodes, after & nodes)

    def open(self, plan: Plan) -> None:
        """A new run, made with nothing but a Progress, a Ledger and a Core."""
        state = State(plan.schema.initial(deepcopy(INPUT)), run_id=self.run_id, timestamp=CLOCK())
        progress = Progress(self.run_id, plan.name, plan.fingerprint, plan.entry, state, at=CLOCK())
        STORE.create(new_run(progress, (), "bench", LEASE))
        self.writer = writer = JournalWriter(self.run_id, 1, 1)

        def keep(scope: Any, key: str, value: Any) -> None:
            writer.add_memo(progress, scope.path, key, value, CLOCK())
            commit = writer.commit(ignores_posts=True)
            assert STORE.append([commit]) == [None]
            writer.acknowledge(len(commit.records))

        emit = self._emit if self.watched else None
        context = RunContext(
            progress,
            Clocks(now=CLOCK, store=CLOCK, random=lambda: CHANCE),
            Saving(writer, self.interval, purges=False, keep_result=keep),
            Reporting(SecretMasker(plan.secrets), emit, self.stream),
            Limits(),
        )
        self.core = RunLifecycle(plan, context)

    def _reopen(self, plan: Plan, reply: Reply) -> None:
        """The run as its store has it, opened as `graph.resume()` opens it."""
        stored = read_progress(STORE.read(self.run_id))
        at = stored.step + 1
        if stored.status == RUNNING:
            self.ended = {at: self.ended.get(at, 0) + self.crashed}
        elif stored.phase == FAILED_BEFORE:
            self.ended = {}
        self.crashed = False
        compiled = CompiledGraph(plan, CLIENT, self.interval, True, self._emit if self.watched else None)
        brought = ResumeInput(answers=deepcopy(reply.answers), update=deepcopy(reply.update))
        session: Session = resume(compiled, self.run_id, brought, None, self.stream)
        self.core, self.writer, self.stop = session.lifecycle, session.writer, session.stop
        assert self.core is not None
        context = self.core.context
        context.clocks = context.clocks._replace(now=CLOCK, random=lambda: CHANCE)
        if reply != Reply():
            self._check_stored()

    def _drive(self) -> Verdict:
        assert self.core is not None
        return drive(self.core, self._call, self._commit, self._wait, self.events.append, self._point)

    def _call(self, task: NodeContext) -> Any:
        self._check_task(task)
        if self._is_cancelled() or (self.stop is not None and self.stop.asked):
            return Cancelled()
        self.inside = True
        try:
            outcome = call_node(task)
        finally:
            self.inside = False
        task.close()
        if self.wrong is not None:
            raise self.wrong
        return outcome

    def _commit(self, commit: Commit) -> Exception | None:
        self._check_interval(commit)
        if not commit.ignores_posts and commit.status in (None, PAUSED) and self._is_cancelled():
            return StopAsked()
        self.commits += 1
        if self.commits - 1 == self.refuse_at:
            return StoreUnavailable("the disk is full")
        refusal: Exception | None = STORE.append([commit])[0]
        if isinstance(refusal, PostsWaiting):
            return PostsArrived(read_inbox(STORE, self.run_id))
        if refusal is None:
            assert self.writer is not None
            self.writer.acknowledge(len(commit.records))
        return refusal

    def _wait(self, seconds: float) -> Cancelled | None:
        self.waits.append(seconds)
        CLOCK.advance(seconds)
        return Cancelled() if self._is_cancelled() else None

    def _is_cancelled(self) -> bool:
        self.chances += 1
        return self.chances - 1 == self.cancel_at

    def _point(self) -> None:
        """The process may be killed here."""
        self.points += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                STORE.deserted = True
                raise Killed

    def _taken(self, commit: Commit) -> None:
        """The store took a commit. If a node made it, what is wrong has to wait: nodes' exceptions are caught."""
        try:
            if self.core is not None:
                self._check_stored()
        except AssertionError as wrong:
            if not self.inside:
                raise
            self.wrong = wrong
        self._point()

    def _check_stored(self) -> None:
        """What is stored equals what is live, in every field; but a node may be just changing the state."""
        stored, live = read_progress(STORE.read(self.run_id)), self.core.progress
        if not self.inside:
            assert told_apart(stored.state) == told_apart(live.state)
            assert list(stored.state) == list(live.state)
        for each in fields(Progress):
            if each.name != "state":
                assert getattr(stored, each.name) == getattr(live, each.name), each.name
        if stored.attempts or self.durable != stored.step:
            self.ended = {stored.step + 1: stored.attempts}
        self.durable = stored.step
        self.kept |= {(stored.step + 1, key) for key in stored.memos}

    def _die(self) -> None:
        """The process ends: no process renews the lease, and it expires."""
        CLOCK.advance(2 * LEASE)
        STORE.deserted, self.crashed = False, True
        self._begin_life()

    def _begin_life(self) -> None:
        self.left = self.kills.pop(0) if self.kills else None
        STORE.before = self._point
        STORE.after = self._taken

    def _stop(self) -> ModelStop:
        """Where the store says that the run is."""
        p = read_progress(STORE.read(self.run_id))
        asked = tuple(question.id for question in p.questions)
        error = None if p.status != FAILED or p.error is None else plain_type(p.error["type"])
        return ModelStop(p.status, p.node, p.phase, p.step, asked, error)

    def _check_task(self, task: NodeContext) -> None:
        """Finished is finished; what wasn't continues as the same step, with the next attempt."""
        assert task.step > self.durable, f"{task.node!r} runs again, though step {task.step} was stored"
        assert self.called.setdefault(task.step, task.idempotency_key) == task.idempotency_key
        assert task.attempt == self.ended.get(task.step, 0) + 1
        if self.interval:
            assert task.step - 1 - self.durable < self.interval

    def _check_interval(self, commit: Commit) -> None:
        """A step is saved by itself at every `interval`-th one of the whole run, also after a resume."""
        p = self.core.progress
        if commit.status is None and not p.attempts:
            assert p.iterations % self.interval == 0

    def _check_verdict(self, verdict: Verdict) -> None:
        """The verdict that the caller gets is what was saved."""
        stop, p = self._stop(), self.core.progress
        if stop.status == RUNNING:
            assert isinstance(verdict.error, ExecutionError)
            self.refused.append(type(verdict.error.cause).__name__)
            STORE.release(Lease(self.run_id, self.writer.fence, 0))
            return
        assert verdict.status == stop.status
        if stop.status == PAUSED:
            assert tuple(question.id for question in verdict.questions) == stop.asked
        last = self.events[-1]
        assert told_apart(last["state"]) == told_apart(p.state)
        if verdict.status == FAILED:
            assert isinstance(verdict.error, ExecutionError)
            ran = [] if stop.phase == AFTER else [stop.node]
            assert verdict.error.path == [*p.path, *ran]
            assert verdict.error.node == stop.node

    def _fetch(self, step: int, key: str) -> Any:
        if (step, key) in self.kept:
            self.wrong = AssertionError(f"once({key!r}) in step {step} is called again for what it had kept")
        return [step, key]

    def _emit(self, kind: str, source: str, data: dict[str, Any]) -> None:
        """An observer watches: the loop then takes other ways through its code."""


# Strategies

PLAIN = ["n", "m", "xs", "d", "t", "new"]
VALUES = [
    7, True, -(2**70), 0.5, "é", None, (), (1, [2]), [1, (2,)], [], {"k": [1]}, {1: "one", "z": ()}, b"b",
    datetime(2024, 2, 29, tzinfo=UTC),
]  # fmt: skip
LISTS = [[1], [], [None, (2, [3])], [1, 4]]
DICTS = [{"k": [0]}, {}, {"l": (1,), "k": 2}, {"l": [5]}]
ASSIGNED = [
    *product(["n"], range(5)), *product(["xs"], LISTS), *product(["d"], DICTS), *product(["new", "t"], VALUES)
]  # fmt: skip
REPLACING = [
    *product(["log", "grown", "window"], LISTS), *product(["book", "earliest"], DICTS),
    *product(["total", "most"], range(3)),
]  # fmt: skip
REDUCED = [*REPLACING, *product(["log"], VALUES)]
OPERATIONS = [
    *product(["bump"], ["n", "m"], [1, 2]),
    *(("set", *pair) for pair in ASSIGNED[::2]),
    *product(["drop"], PLAIN),
    *product(["grow"], ["xs", "new"], VALUES[::2]),
    ("shrink", "xs"),
    *product(["poke"], ["d"], "kl", VALUES[::3]),
    *product(["dig"], ["t"], range(2)),
    *product(["share"], ["xs", "d"], ["new"]),
    ("look",),
    ("error",),
    *product(["own copy"], ["log", "grown"], [9]),
    *product(["once"], "kl", [False, True]),
]
TROUBLES = [
    *product(["ask"], ["ctx", "anywhere"], "pq"),
    *product(["stumble"], [1, 2]),
    *product(["break"], [ValueError, Transient]),
    ("spoil", "xs"),
]
TESTS = [
    *product(["divides"], ["n", "m"], [2, 3]), *product(["has"], PLAIN), *product(["strict"], ["n"], [2, 3]),
    ("odd",),
]  # fmt: skip
CAUGHT = [Exception, ValueError, Transient, UsageError]
RETRIES = [None, *product(range(1, 5), [Exception, Transient])]

updates = st.lists(st.sampled_from(ASSIGNED) | st.sampled_from(REDUCED), max_size=3).map(dict)
wholes = st.lists(st.sampled_from(ASSIGNED + REPLACING), max_size=3).map(dict)
mappings = st.lists(st.sampled_from(ASSIGNED), max_size=2).map(dict)
returns = st.one_of(
    st.none(),
    st.tuples(st.just("update"), updates),
    st.tuples(st.sampled_from(["whole", "part"]), wholes),
    st.tuples(st.just("mapping"), mappings),
    st.just(("twin", {})),
    st.tuples(st.sampled_from(["unstorable", "clash"]), updates),
)
gotos = st.builds(
    lambda target, update: ("goto", {**update, "to": target}), st.sampled_from(TARGETS), updates
)
operations = st.sampled_from(OPERATIONS) | st.sampled_from(OPERATIONS) | st.sampled_from(TROUBLES)


def _keys_used_once(does: tuple[Any, ...]) -> bool:
    """A key of once() stands for one result in one call: a second use is refused."""
    keys = [each[1] for each in does if each[0] == "once"]
    return len(keys) == len(set(keys))


turns = st.builds(
    Turn, st.lists(operations, max_size=4).map(tuple).filter(_keys_used_once), returns | returns | gotos
)
tests = st.sampled_from(TESTS)


@st.composite
def sketches(draw: Any) -> Sketch:
    """A valid graph: all nodes can be reached, all lead somewhere, and it can end."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    ways: dict[str, list[Any]] = {name: [] for name in names}
    for place, name in enumerate(names[1:]):
        ways[names[draw(st.integers(0, place))]].append(("edge", name, draw(tests)))
    more = [
        *product(["edge"], [*names, END], [None, *TESTS[::2]]),
        *product(["choice"], ["n"], _pairs(names)),
    ]
    for name in names:
        ways[name] += draw(st.lists(st.sampled_from(more), max_size=2))
        onward = draw(st.sampled_from([*[None] * len(names), *names]))
        if onward is not None:
            ways[name].append(("edge", onward, None))
    nodes = {name: _with_jumps(draw, draw(_nodes(ways[name])), name, names) for name in names}
    if not any(node.exit or END in str(node.ways) for node in nodes.values()):
        nodes["a"] = replace(nodes["a"], ways=(("edge", END, ("odd",)), *nodes["a"].ways))
    return Sketch(nodes, draw(st.sampled_from([12, 3, 7, 1])))


def _with_jumps(draw: Any, node: Node, name: str, names: str) -> Node:
    """The node with targets for its gotos, most of which are declared, and with error edges."""
    named = {turn.returns[1]["to"] for turn in node.turns if turn.returns and turn.returns[0] == "goto"}
    goto = sorted(target for target in named if target in (*names, END) and draw(st.integers(0, 3)))
    others = [other for other in names if other != name]
    errors = []
    if others:
        pairs = st.tuples(st.sampled_from(others), st.sampled_from(CAUGHT))
        errors = draw(st.just([]) | st.lists(pairs, min_size=1, max_size=2))
    return replace(node, goto=tuple(goto), errors=tuple(errors))


def _pairs(names: str) -> list[tuple[str, ...]]:
    return list(zip([*names, END], [*names[1:], names[0], names[0]], strict=True))


@st.composite
def _nodes(draw: Any, ways: list[Any]) -> Node:
    ways = [("edge", way[1], ("odd",)) if way[1:] == (END, None) else way for way in ways]
    certain = any(way[0] == "choice" or way[2] is None for way in ways)
    done = tuple(draw(st.lists(turns, min_size=1, max_size=2)))
    stumbles = any(each[0] == "stumble" for turn in done for each in turn.does)
    retry = (3, Transient) if stumbles else draw(st.sampled_from(RETRIES))
    return Node(done, tuple(ways), not ways or (not certain and draw(st.booleans())), retry)


some_nodes = st.frozensets(st.sampled_from("abcdef"), max_size=3)
interrupts = st.lists(st.tuples(some_nodes, some_nodes), min_size=1, max_size=3)
intervals = st.sampled_from([0, 1, 2, 3, 7])
kills = st.lists(st.integers(0, 40), min_size=1, max_size=5)
lean = settings(
    deadline=None,
    report_multiple_bugs=False,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


RICH = Sketch(
    {
        "a": Node(
            (
                Turn(
                    (("bump", "n", 1), ("once", "k", True), ("grow", "xs", 7)),
                    ("update", {"log": 1, "total": 2}),
                ),
            ),
            (("edge", "b", None),),
            False,
            None,
        ),
        "b": Node(
            (
                Turn(
                    (("grow", "xs", (1, [2])), ("stumble", 2), ("poke", "d", "l", [5])),
                    ("whole", {"new": 0.5}),
                ),
                Turn(
                    (("once", "k", False), ("stumble", 1)),
                    ("update", {"window": [1, 2], "earliest": {"l": 1}}),
                ),
            ),
            (("choice", "n", ("c", "a", "a")),),
            False,
            (3, Transient),
        ),
        "c": Node(
            (
                Turn(
                    (("ask", "ctx", "p"), ("drop", "xs"), ("break", ValueError), ("ask", "anywhere", "q")),
                    None,
                ),
            ),
            (),
            True,
            None,
        ),
    },
    12,
)
"""A bit of everything: a cycle, kept results, retries, questions, a failure, changes in place."""

JUMPS = Sketch(
    {
        "a": Node(
            (Turn((("bump", "n", 1), ("once", "k", True)), ("goto", {"to": "b", "log": 1})),),
            (("edge", "c", None),),
            False,
            None,
            goto=("b", "c"),
        ),
        "b": Node(
            (Turn((("grow", "xs", 7), ("break", Transient)), ("update", {"total": 1})),),
            (("edge", "d", None),),
            False,
            (2, Transient),
            errors=(("a", KeyError), ("c", Transient)),
        ),
        "c": Node(
            (
                Turn((("error",), ("ask", "ctx", "p"), ("once", "k", False)), ("goto", {"to": "a"})),
                Turn((("error",), ("stumble", 1)), ("goto", {"to": "e", "log": 2})),
            ),
            (),
            False,
            (3, Transient),
            goto=("a", END),
            errors=(("d", Exception),),
        ),
        "d": Node((Turn((("error",), ("drop", "xs")), ("goto", {"to": END})),), (), False, None, goto=(END,)),
    },
    12,
)
"""A node that goes where it says, one whose error is caught after its retries, and a goto that wasn't declared."""

RICH_STOPS: Interrupts = [(frozenset("c"), frozenset("a")), (frozenset("ac"), frozenset("bc"))]


def unpaused(stops: list[ModelStop]) -> list[ModelStop]:
    return [stop for stop in stops if stop.status != PAUSED]


# The claims


@settings(lean, max_examples=90)
@given(sketches(), interrupts, intervals, st.booleans(), st.booleans())
def test_the_loop_does_what_a_plain_interpreter_does(
    sketch: Sketch, stops: Interrupts, interval: int, watched: bool, stream: bool
) -> None:
    """G6, G7, F5, H8: states, path, visits, waits and stops; each resume has other interrupts (invariants 3, 4)."""
    model, bench = Model(sketch), Bench(sketch, interval, watched, stream)
    expected = model.run(stops, talkative=True)
    assert bench.run(stops, talkative=True) == expected
    assert bench.waits == pytest.approx(model.waits)
    bench.check_history(model)


@settings(lean, max_examples=70)
@given(sketches(), interrupts, intervals, kills, st.booleans(), st.booleans())
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not_been(
    sketch: Sketch, stops: Interrupts, interval: int, lives: list[int], watched: bool, snapshots: bool
) -> None:
    """H2, H3, G6, G7 (invariants 1, 2): before or after any command, whether the store had taken a commit or not."""
    model, bench = Model(sketch), Bench(sketch, interval, watched, kills=lives)
    expected = model.run(stops, talkative=True)
    with eager_snapshots(snapshots):
        assert bench.run(stops, talkative=True) == expected
    bench.check_history(model)


@settings(lean, max_examples=50)
@given(sketches(), interrupts, intervals, kills)
def test_the_stored_position_is_enough_whatever_the_next_plan_interrupts(
    sketch: Sketch, stops: Interrupts, interval: int, lives: list[int]
) -> None:
    """F5 (invariant 4): a killed run resumes under a plan with other interrupts; no node is left out or repeated."""
    model, bench = Model(sketch), Bench(sketch, interval, kills=lives)
    expected = unpaused(model.run([NOWHERE], talkative=False))
    assert unpaused(bench.run(stops, talkative=False, other_plans=True)) == expected
    bench.check_history(model)


@settings(lean, max_examples=60)
@given(sketches())
def test_without_a_store_the_loop_computes_the_same(sketch: Sketch) -> None:
    """G6 (invariant 3): up to the first stop, for graphs that ask nothing and share nothing between keys."""
    sketch = sketch.without("ask", "spoil", "unstorable", "share", "twin")
    model, world = Model(sketch), World()
    plan = sketch.define(world).freeze()
    state = State(plan.schema.initial(deepcopy(INPUT)))
    progress = Progress("none", plan.name, plan.fingerprint, plan.entry, state)
    clocks = Clocks(now=CLOCK, store=CLOCK, random=lambda: CHANCE)
    context = RunContext(progress, clocks, Saving(), Reporting(SecretMasker(plan.secrets)), Limits())
    core = RunLifecycle(plan, context)
    verdict = drive(core, lambda task: call_node(task), lambda commit: pytest.fail("nothing to commit to"))
    expected = model.go(*NOWHERE)
    assert (verdict.status, progress.node, progress.phase) == (expected.status, expected.node, expected.phase)
    assert told_apart(core.state) == told_apart(model.state)
    assert list(progress.path) == model.path


def test_nodes_go_where_they_say_and_errors_are_caught() -> None:
    """The sketch of jumps does what its text says: it visits these nodes, and stops at no failure."""
    model = Model(JUMPS)
    stops = model.run(RICH_STOPS, talkative=False)
    assert model.path == ["a", "b", "c", "a", "b", "c", "d"]
    assert model.state["caught"] == ["limpet.errors.UsageError", "c"]
    assert {stop.status for stop in stops} == {PAUSED, COMPLETED}


@pytest.mark.parametrize("sketch", [RICH, JUMPS], ids=["rich", "jumps"])
def test_a_kill_does_no_harm_at_any_point(sketch: Sketch) -> None:
    """H3, G6: one run with a bit of everything, killed at each of its points in turn, and once more soon after."""
    model, whole = Model(sketch), Bench(sketch)
    expected = model.run(RICH_STOPS, talkative=True)
    assert whole.run(RICH_STOPS, talkative=True) == expected
    assert whole.points > 60
    for point in range(whole.points):
        bench = Bench(sketch, interval=1 + point % 3, kills=[point, point % 5])
        assert bench.run(RICH_STOPS, talkative=True) == expected, f"killed at point {point}"
        bench.check_history(model)


def test_a_run_cancelled_anywhere_resumes_where_it_was() -> None:
    """G12, D11: at any call, wait or commit; no interrupt counts as taken that the caller hasn't seen."""
    model, whole = Model(RICH), Bench(RICH)
    expected = model.run(RICH_STOPS[1:], talkative=False)
    assert whole.run(RICH_STOPS[1:], talkative=False) == expected
    assert whole.chances > 30
    for chance in range(whole.chances):
        bench = Bench(RICH, cancel_at=chance)
        found = bench.run(RICH_STOPS[1:], talkative=False)
        assert [stop.status for stop in found].count(CANCELLED) == 1
        asking = [replace(stop, status=PAUSED) if stop.asked else stop for stop in found]
        assert [stop for stop in asking if stop.status != CANCELLED] == expected, f"cancelled at {chance}"
        bench.check_history(model)


def test_a_request_to_cancel_outlives_a_result_that_is_kept() -> None:
    """G12: a node that keeps something is in the middle of a step; the step's own commit is to handle the signal."""
    expected = Model(RICH).run([NOWHERE], talkative=False)
    bench = Bench(RICH, kills=[0])  # so that what is kept goes the way it does after a resume
    fetch, sent = bench.world.fetch, []

    def cancelling(step: int, key: str) -> Any:
        if not sent:
            sent.append(step)
            post_cancel(STORE, bench.run_id)
        return fetch(step, key)

    bench.world.fetch = cancelling
    found = bench.run([NOWHERE], talkative=False)
    assert [stop.step for stop in found if stop.status == CANCELLED] == sent
    assert [stop for stop in found if stop.status != CANCELLED] == expected


def test_a_save_that_is_refused_stops_the_run_before_anything_else_happens() -> None:
    """G9, H3: whichever commit it is; nothing is reported as saved, and a resume finds all that was."""
    model, whole = Model(RICH), Bench(RICH)
    expected = model.run([NOWHERE], talkative=False)
    assert whole.run([NOWHERE], talkative=False) == expected
    assert whole.commits > 10
    for commit in range(whole.commits):
        bench = Bench(RICH, refuse_at=commit)
        assert bench.run([NOWHERE], talkative=False) == expected, f"refused commit {commit}"
        assert bench.refused == ["StoreUnavailable"]
        bench.check_history(model)


def test_a_holder_that_was_replaced_is_refused_and_changes_nothing() -> None:
    """H3 (invariant 5): it learns of it at its next commit, and what the other one does stands."""
    model = Model(RICH)
    expected = model.run([NOWHERE], talkative=False)
    bench = Bench(RICH, kills=[0])
    bench.open(bench.plan(NOWHERE))
    stale, writer = bench.core, bench.writer
    assert bench.run([NOWHERE], talkative=False) == expected
    records = STORE.read(bench.run_id, first=1).records
    verdict = drive(stale, call_node, lambda commit: STORE.append([commit])[0])
    assert isinstance(verdict.error, Conflict)
    assert writer.pending
    assert STORE.read(bench.run_id, first=1).records == records


@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_a_node_in_both_lists_stops_twice_and_runs_once(node: str) -> None:
    """F5"""
    chain = {
        name: Node((Turn((), None),), (("edge", then, None),) if then else (), not then, None)
        for name, then in zip("abc", ["b", "c", ""], strict=True)
    }
    bench = Bench(Sketch(chain, 10))
    both = frozenset(node)
    found = bench.run([(both, both)], talkative=True)
    assert [(stop.status, stop.node, stop.phase) for stop in found] == [
        (PAUSED, node, BEFORE),
        (PAUSED, node, AFTER),
        (COMPLETED, END, BEFORE),
    ]
    assert bench.called == {1: f"{bench.run_id}/1/a", 2: f"{bench.run_id}/2/b", 3: f"{bench.run_id}/3/c"}
