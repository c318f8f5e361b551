"""Workflows against a plain interpreter, cut anywhere: D1, D4, D6, D3, D11, P1, H3, and invariants 2, 3, 5 and 8.

A *sketch* is a random workflow as plain data: tasks and what they depend on, what each of them says and asks and
where it breaks down, templates, a handler after layers, now and then a graph or another workflow as a task. The
`Interpreter` runs it on plain dicts that it copies, layer by layer or, as data flow, task by task: no journal, and no
order but that of declaration. The `Bench` runs the same sketch through the real loop, carries out by hand what
`RunLifecycle.run()` yields, lets tasks finish in any order, and can be killed, cancelled or refused by its store
before or after any of it; each of its lives has a workflow of its own. Whatever the interpreter says has to come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import Retry, RunPaused, StateGraph, TaskResult, Workflow, WorkflowState
from limpet.engine.loop.driver_commands import Command, Verdict
from limpet.engine.node_context.questions import ResumeInput
from limpet.errors import Conflict, ExecutionError, StoreUnavailable, UsageError
from limpet.journal.encoding.codec import decode
from limpet.journal.progress import Progress
from limpet.journal.reader import history, progress_at, read_progress
from limpet.journal.records import apply_record, snapshot_record
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED
from limpet.stores.memory import MemoryStore
from models.bench import (
    CANCEL,
    CLIENT,
    KILL,
    LEASE,
    LOSE,
    OUTAGE,
    PLAIN,
    REFUSE,
    SIGNAL,
    STORE,
    Broken,
    Lives,
    ModelBench,
    Transient,
    answer_to,
    eager_snapshots,
    lean,
)

Key = str | int
Operation = tuple[Any, ...]

# Sketches: workflows as plain data, so that a failing example can be read


@dataclass(frozen=True)
class Leaf:
    """A node of a graph that is a task."""

    name: str
    does: tuple[Operation, ...] = ()
    retry: bool = False


@dataclass(frozen=True)
class Job:
    """A task, or a template for tasks. `runs` is the graph that it runs, a chain of nodes, or the workflow."""

    name: str
    does: tuple[Operation, ...] = ()
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    named: bool = False
    condition: tuple[Any, ...] = ()
    retry: bool = False
    safe: bool = False
    runs: Flow | tuple[Leaf, ...] | None = None


@dataclass(frozen=True)
class Flow:
    """A workflow. `after` says what its handler does after each layer, if it has one; then it has barriers, too."""

    name: str
    jobs: tuple[Job, ...]
    templates: tuple[Job, ...] = ()
    after: tuple[tuple[Operation, ...], ...] | None = None
    layers: bool = False

    @property
    def barriers(self) -> bool:
        return self.layers or self.after is not None

    @property
    def codes(self) -> dict[str, Job]:
        return {job.name: job for job in (*self.jobs, *self.templates)}


INPUTS = {"n": 3, "xs": [1, [2]], "flag": True}


@dataclass
class World:
    """What is outside of a run and survives it: what was repaired, and what the user's functions were given."""

    see: Callable[[str, Any], None]
    fetch: Callable[[Any, str, str], Any] = lambda ctx, place, key: [place, key]
    sound: bool = False
    repaired: set[str] = field(default_factory=set)

    def use(self, what: str) -> None:
        """Use something that is broken. Raises until it is repaired."""
        if not self.sound and what not in self.repaired:
            raise Broken(what)


def define(flow: Flow, world: World, more: int = 0, **options: Any) -> Workflow:
    """The workflow as a user would write it, with `more` templates that no task uses."""
    made = Workflow(flow.name, layers=flow.layers, **options)
    for job in flow.jobs:
        needs: Any = {f"p_{name}": name for name in job.needs} if job.named else list(job.needs)
        made.add_task(
            job.name, _run(job, flow, world), needs, optional=list(job.optional), **_policy(job, flow, world)
        )
    for job in flow.templates:
        made.add_template(job.name, _run(job, flow, world), **_policy(job, flow, world))
    for number in range(more):
        made.add_template(f"unused {number}", lambda: None)
    if flow.after is not None:
        made.after_layer(_handler(flow, world))
    return made


def _policy(job: Job, flow: Flow, world: World) -> dict[str, Any]:
    condition = _condition(job, flow, world) if job.condition else None
    return {"retry": Retry(3) if job.retry else None, "safe_to_fail": job.safe, "condition": condition}


def _run(job: Job, flow: Flow, world: World) -> Any:
    if isinstance(job.runs, Flow):
        return define(job.runs, world)
    if job.runs is None:
        return _function(job, flow, world)
    graph = StateGraph(name=f"graph of {job.name}").set_entry_point(job.runs[0].name)
    for leaf in job.runs:
        graph.add_node(leaf.name, _node(leaf, world), retry=Retry(3) if leaf.retry else None)
    for one, other in zip(job.runs, job.runs[1:], strict=False):
        graph.add_edge(one.name, other.name)
    return graph.set_finish_point(job.runs[-1].name)


def _function(job: Job, flow: Flow, world: World) -> Callable[..., Any]:
    def run(ctx: Any, context: Any, inputs: Any, results: Any, state: Any, n: Any, **rest: Any) -> Any:
        others = {name: value for name, value in rest.items() if not job.named or name not in results}
        world.see(ctx.branch, [others, _own(context), inputs, results, n, _looked_at(state)])
        returned = TaskResult()
        for operation in job.does:
            if not flow.barriers:
                operation = _for_one_adder(operation, ctx.node)
            _perform(operation, ctx, ctx.branch, state, returned, world, flow.barriers)
        value = [ctx.branch, [each is not None for each in results.values()], returned.value]
        _spoil(context, inputs, results, *rest.values(), state["messages"], state["dag"])
        return _returned(returned, value)

    return run


def _handler(flow: Flow, world: World) -> Callable[..., Any]:
    def after(ctx: Any, layer: Any, results: Any, state: Any, context: Any, inputs: Any) -> Any:
        place = f"{ctx.branch or ''}:{layer}"
        world.see(place, [results, _own(context), inputs, _looked_at(state)])
        returned = TaskResult()
        assert flow.after is not None
        for operation in flow.after[layer] if layer < len(flow.after) else ():
            _perform(operation, ctx, place, state, returned, world, barriers=True)
        _spoil(context, inputs, results, state["messages"], state["dag"])
        return _returned(returned, None)

    return after


def _condition(job: Job, flow: Flow, world: World) -> Callable[..., Any]:
    def condition(context: Any, inputs: Any, results: Any, state: Any, **deps: Any) -> Any:
        seen = [context, inputs, results, _looked_at(state)]
        _spoil(context, inputs, results, state["messages"])
        match job.condition:
            case ("context", key):
                return bool(seen[0].get(key))
            case ("result", name):
                return results.get(name) is not None
            case ("broken",):
                world.use(f"the condition of {job.name} in {flow.name}")
        return job.condition != ("no",)

    return condition


def _node(leaf: Leaf, world: World) -> Callable[..., Any]:
    def run(state: Any, ctx: Any) -> Any:
        place = f"{ctx.branch}/{ctx.node}"
        world.see(place, dict(state))
        returned = TaskResult()
        for operation in leaf.does:
            _perform(operation, ctx, place, state, returned, world, barriers=True)
        return {"log": [*state.get("log", []), leaf.name], "told": returned.value}

    return run


def _looked_at(state: Any) -> list[Any]:
    tasks = {name: (record.status, record.result, record.layer) for name, record in state.tasks.items()}
    said = [_said(state), _own(state.context)]
    return [tasks, said, state["dag"], state.inputs]


def is_update(message: Any) -> bool:
    return isinstance(message, dict) and "update" in message


def _said(state: Mapping[str, Any]) -> list[Any]:
    """What tasks and handlers have said, without what resumes brought."""
    decisions = [_decision(each) for each in state["decisions"] if each["by"] != "outside"]
    return [decisions, [each for each in state["messages"] if not is_update(each)]]


def _own(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key != "outside"}


def _spoil(*values: Any) -> None:
    """Alter what a function was given: it is its own."""
    for value in values:
        if isinstance(value, list):
            value.append("spoilt")
        elif isinstance(value, dict):
            _spoil(*value.values())
            value["spoilt"] = True


def _returned(returned: TaskResult, value: Any) -> Any:
    bare = not (
        returned.messages or returned.decisions or returned.context or returned.add_tasks or returned.skip
    )
    returned.value = value
    return value if bare else returned


def _for_one_adder(operation: Operation, node: str) -> Operation:
    """The operation with names for added tasks that no other task adds: as data flow, two would race for one name."""

    def renamed(names: Any) -> Any:
        return type(names)(f"{each}_{node}" if each in DYNAMIC else each for each in names)

    match operation:
        case ("add", wanted, how) if node.count("_") < 2:
            wanted = {**wanted, "name": f"{wanted['name']}_{node}"}
            for key in ("depends_on", "optional", "before"):
                if key in wanted:
                    wanted[key] = renamed(wanted[key])
            return ("add", wanted, how)
        case ("add", _, _):
            return ("message", "enough", "ctx")  # else a template would add itself for ever
        case ("skip", names, reason, how):
            return ("skip", renamed(names), reason, how)
    return operation


def _in_reach(state: Any, by: str, names: Any) -> bool:
    """Whether all of these tasks depend on the one that wants to change something about them."""
    return all(by in _ancestors(state["dag"], name) for name in names)


def _ancestors(dag: Mapping[str, Any], name: str) -> set[str]:
    found: set[str] = set()
    unexplored = _earlier(dag[name])
    while unexplored:
        each = unexplored.pop()
        if each in dag and each not in found:
            found.add(each)
            unexplored += _earlier(dag[each])
    return found


def _earlier(spec: Mapping[str, Any]) -> list[str]:
    adder = [spec["added_by"]] if "added_by" in spec else []
    return [*spec.get("depends_on", ()), *spec.get("optional", ()), *adder]


def _perform(
    operation: Operation, ctx: Any, place: str, state: Any, returned: TaskResult, world: World, barriers: bool
) -> None:
    """One thing that a task, a node or a handler may do, by its `ctx` or by what it will have returned."""
    told: list[Any] = returned.value or []
    returned.value = told
    match operation:
        case ("message", value, "ctx"):
            ctx.add_message(deepcopy(value))
        case ("message", value, _):
            returned.messages = [*returned.messages, deepcopy(value)]
        case ("decide", value, "ctx"):
            ctx.add_decision(deepcopy(value), place=[place])
        case ("decide", value, _):
            returned.decisions = [*returned.decisions, deepcopy(value)]
        case ("share", key, value, "ctx"):
            ctx.add_context({key: deepcopy(value)}, last=[place])
        case ("share", key, value, _):
            returned.context = {**returned.context, key: deepcopy(value)}
        case ("ask", key):
            told.append(ctx.pause(f"{key}?", key=key))
        case ("once", key):
            kept = ctx.once(key, world.fetch, ctx, place, key)
            told.append([*kept])
            kept.append("altered by the task")
        case ("stumble", times) if ctx.attempt <= times:
            raise Transient(place)
        case ("break",):
            world.use(place)
        case ("add", wanted, _) if wanted["name"] in told:
            pass
        case ("add", wanted, "ctx"):
            try:
                ctx.add_task(**deepcopy(wanted))
                told.append(wanted["name"])
            except UsageError:
                told.append(f"no {wanted['name']}")
        case ("add", wanted, _):
            there = state["dag"]
            known = wanted["name"] not in there and all(name in there for name in _mentioned(wanted))
            if known and (barriers or _in_reach(state, ctx.node, wanted.get("before", ()))):
                returned.add_tasks = [*returned.add_tasks, deepcopy(wanted)]
                told.append(wanted["name"])
        case ("skip", names, reason, "ctx"):
            try:
                ctx.skip(*names, reason=reason)
            except UsageError:
                told.append(f"no {names}")
        case ("skip", names, _, _) if all(name in state["dag"] for name in names):
            if barriers or _in_reach(state, ctx.node, names):
                returned.skip = [*returned.skip, *names]
        case ("skip layers", number, reason):
            try:
                ctx.skip_layers(number, reason)
            except UsageError:
                told.append("no layers")
        case ("set", key, value):
            state[key] = deepcopy(value)
        case ("grow", key) if isinstance(state.get(key), list):
            state[key].append(place)


def _same(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a task that was added is the one that is wanted."""
    keys = ("depends_on", "optional", "arguments", "run")
    added = "added_by" in there or "kind" in there
    return added and all((there.get(key) or None) == (wanted.get(key) or None) for key in keys)


def _mentioned(wanted: Mapping[str, Any]) -> list[str]:
    return [*wanted.get("depends_on", ()), *wanted.get("optional", ()), *wanted.get("before", ())]


def told_apart(value: Any) -> Any:
    """A value, written so that 1 isn't True and a tuple isn't a list; the order of keys doesn't count."""
    if isinstance(value, Mapping):
        return {repr(key): told_apart(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [told_apart(item) for item in value]
    return repr(value)


# The interpreter


class Failure(Exception):
    """A workflow inside of a task that is safe to fail can't go on; `places` are those that raise."""

    def __init__(self, *places: str) -> None:
        self.places = places


@dataclass
class Seen(dict[str, Any]):
    """What the interpreter hands a function as the state."""

    data: dict[str, Any]

    def __post_init__(self) -> None:
        self.update(deepcopy(self.data))

    @property
    def tasks(self) -> dict[str, Any]:
        return {name: Record(**{**EMPTY, **record}) for name, record in self["tasks"].items()}

    messages = property(lambda self: self["messages"])
    decisions = property(lambda self: self["decisions"])
    context = property(lambda self: self["context"])
    inputs = property(lambda self: self["inputs"])


@dataclass
class Record:
    id: str
    status: str
    result: Any
    layer: int
    attempts: int
    reason: Any
    error: Any


EMPTY = {"result": None, "attempts": 0, "reason": None, "error": None}


@dataclass
class Call:
    """What the interpreter hands a function as `ctx`."""

    by: str
    branch: str
    place: str
    flow: Flow | None = None
    dag: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 99

    def __post_init__(self) -> None:
        self.node = self.place.rpartition("/")[2]
        self.messages: list[Any] = []
        self.decisions: list[dict[str, Any]] = []
        self.context: dict[str, Any] = {}

    def add_message(self, message: Any) -> None:
        self.messages.append(message)

    def add_decision(self, decision: Any, **details: Any) -> None:
        data = decision if isinstance(decision, dict) else {"decision": decision}
        self.decisions.append({**data, **details, "kind": "decision", "by": self.by})

    def add_context(self, values: dict[str, Any], **more: Any) -> None:
        self.context |= {**values, **more}

    def pause(self, prompt: str, key: str) -> Any:
        answer = answer_to(self.place, prompt)
        if self.flow is not None:
            told = {"question": f"{self.place}:{key}", "prompt": prompt, "answer": answer}
            self.decisions.append({"kind": "answer", "by": self.by, **told})
        return list(answer)

    def once(self, key: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def add_task(self, name: str, **wanted: Any) -> None:
        assert self.flow is not None
        mine = {each["name"]: each for each in self.decisions if each["kind"] == "add_task"}
        there = {**self.dag, **mine}
        other = name in there and not _same(there[name], wanted)
        if other or name in self.flow.codes or not there.keys() >= {*_mentioned(wanted)}:
            raise UsageError("no such task")
        self._check_reach([each for each in wanted.get("before", ()) if each not in mine])
        before = set(wanted.get("before", ()))
        for each in (*wanted.get("depends_on", ()), *wanted.get("optional", ())):
            if before & {each, *_ancestors(there, each)}:
                raise UsageError("a circle")
        self.decisions.append({"name": name, **wanted, "kind": "add_task", "by": self.by})

    def skip(self, *tasks: str, reason: str) -> None:
        mine = [each["name"] for each in self.decisions if each["kind"] == "add_task"]
        if not {*self.dag, *mine}.issuperset(tasks):
            raise UsageError("no such task")
        self._check_reach([each for each in tasks if each not in mine])
        self.decisions.append({"kind": "skip_tasks", "by": self.by, "tasks": [*tasks], "reason": reason})

    def _check_reach(self, tasks: list[str]) -> None:
        assert self.flow is not None
        if not self.flow.barriers and not _in_reach({"dag": self.dag}, self.by, tasks):
            raise UsageError("it may have begun")

    def skip_layers(self, number: int, reason: str) -> None:
        if self.flow is not None and not self.flow.barriers:
            raise UsageError("no layer waits for another")
        self.decisions.append({"kind": "skip_layers", "by": self.by, "layers": number, "reason": reason})

    def take(self, returned: Any) -> Any:
        """Say what was returned besides the result, and give the result."""
        if not isinstance(returned, TaskResult):
            return returned
        self.messages += returned.messages
        for decision in returned.decisions:
            self.add_decision(decision)
        self.context |= returned.context
        for wanted in returned.add_tasks:
            self.add_task(**wanted)
        if returned.skip:
            self.skip(*returned.skip, reason="")
        return returned.value


class Interpreter:
    """Runs a sketch, one task after the other. It saves nothing, shares nothing and is never cut.

    `seen` is what each function is to be given, `layers` the state after each layer.
    """

    def __init__(self, flow: Flow) -> None:
        self.world, self.seen, self.layers = World(self._see), {}, []
        self.state = self._flow(flow, deepcopy(INPUTS), "", forgiven=False)

    def _see(self, place: str, what: Any) -> None:
        self.seen[place] = told_apart(what)

    def _flow(self, flow: Flow, inputs: dict[str, Any], place: str, forgiven: bool) -> dict[str, Any]:
        state: dict[str, Any] = {
            "inputs": inputs, "messages": [], "tasks": {}, "decisions": [], "context": {},
            "dag": {job.name: _spec(job) for job in flow.jobs},
        }  # fmt: skip
        if not flow.barriers:
            return self._data_flow(flow, state, place, forgiven)
        layer, ready = 0, self._plan(state, [], 0)
        while ready:
            calls = [self._task(flow, name, state, layer, place, forgiven) for name in ready]
            failures = [each for _, _, failed in calls for each in failed]
            if failures:
                raise Failure(*failures)
            for call, record, _ in calls:
                self._take(state, call)
                state["tasks"][record["id"]] = record
            changes = [
                each for call, _, _ in calls for each in call.decisions if "/" not in str(each.get("by"))
            ]
            if flow.after is not None:
                call = self._after(flow, ready, state, layer, place, forgiven)
                self._take(state, call)
                changes += call.decisions
            layer += 1
            ready = self._plan(state, changes, layer)
            if not place:
                self.layers.append(deepcopy(state))
        return state

    def _take(self, state: dict[str, Any], call: Call) -> None:
        state["messages"] += deepcopy(call.messages)
        state["decisions"] += deepcopy(call.decisions)
        state["context"] |= deepcopy(call.context)

    def _task(
        self, flow: Flow, name: str, state: dict[str, Any], layer: int, place: str, forgiven: bool
    ) -> tuple[Call, dict[str, Any], list[str]]:
        spec, where = state["dag"][name], f"{place}{name}"
        job = flow.codes[spec.get("run", name)]
        call = Call(name, where, where, flow, deepcopy(state["dag"]))
        record: dict[str, Any] = {"id": name, "layer": layer, "attempts": _attempts(job)}
        needs = [*spec.get("depends_on", ()), *spec.get("optional", ())]
        results = {each: _result(state, each) for each in needs}
        results |= {parameter: _result(state, each) for parameter, each in spec.get("named", {}).items()}
        forgiven = forgiven or job.safe
        try:
            if not self._holds(flow, name, state, forgiven):
                del record["attempts"]
                return call, {**record, "status": "skipped", "reason": ("condition",)}, []
            if job.runs is not None:
                given = deepcopy({**state["inputs"], **spec.get("arguments", {}), **results})
                value = self._inside(job.runs, given, where, forgiven, call)
            else:
                value = call.take(self._called(job, flow, call, state, needs, results, forgiven))
        except (Broken, Failure) as error:
            places = [str(error)] if isinstance(error, Broken) else [*error.places]
            if not job.safe:
                return call, record, places
            call = Call(name, where, where)
            record["attempts"] = 3 if job.retry else 1
            return call, {**record, "status": "failed", "error": places}, []
        return call, {**record, "status": "completed", "result": deepcopy(value)}, []

    def _called(
        self, job: Job, flow: Flow, call: Call, state: Any, needs: Any, results: Any, forgiven: bool
    ) -> Any:
        spec = state["dag"][call.by]
        rest = deepcopy(
            {name: value for name, value in results.items() if not job.named or name not in needs}
        )
        rest |= deepcopy(spec.get("arguments", {}))
        given = {"context": state["context"], "inputs": state["inputs"], "n": state["inputs"]["n"]}
        given["results"] = {name: _result(state, name) for name in needs}
        self.world.sound = not forgiven
        return _function(job, flow, self.world)(ctx=call, state=Seen(state), **deepcopy(given), **rest)

    def _inside(
        self, runs: Flow | tuple[Leaf, ...], given: dict[str, Any], where: str, forgiven: bool, call: Call
    ) -> Any:
        if isinstance(runs, Flow):
            final = self._flow(runs, given, f"{where}/", forgiven)
            call.decisions += [{**each, "by": f"{call.by}/{each.get('by')}"} for each in final["decisions"]]
            return {name: _result(final, name) for name in final["tasks"] if _done(final, name)}
        state = given
        for leaf in runs:
            self.world.sound = not forgiven
            state |= deepcopy(_node(leaf, self.world)(state, Call(leaf.name, where, f"{where}/{leaf.name}")))
        return state

    def _after(
        self, flow: Flow, ready: list[str], state: dict[str, Any], layer: int, place: str, forgiven: bool
    ) -> Call:
        call = Call("after_layer", place.rstrip("/"), f"{place}after_layer", flow, deepcopy(state["dag"]))
        results = {name: _result(state, name) for name in ready}
        given = deepcopy({"context": state["context"], "inputs": state["inputs"], "results": results})
        self.world.sound = not forgiven
        returned = _handler(flow, self.world)(call, layer, state=Seen(state), **given)
        call.take(returned)
        return call

    def _data_flow(self, flow: Flow, state: dict[str, Any], place: str, forgiven: bool) -> dict[str, Any]:
        """Run each task when what it needs is there; what they said is put together at the end, in order."""
        dag: dict[str, Any] = state["dag"]
        done: dict[str, tuple[Call, dict[str, Any]]] = {}
        failures: list[str] = []
        failed: set[str] = set()
        while True:
            waiting = [name for name in dag if name not in done and name not in failed]
            ready = [name for name in waiting if done.keys() >= {*_needs(dag[name])}]
            if not ready:
                break
            name = ready[-1]  # any will do
            layer = 1 + max((done[each][1]["layer"] for each in _earlier(dag[name])), default=-1)
            seen = self._seen(state, done, name)
            reason = self._why_skipped(dag, done, name)
            if reason:
                record = {"id": name, "status": "skipped", "layer": layer, "reason": reason}
                done[name] = (Call(name, name, name), record)
                continue
            call, record, broken = self._task(flow, name, seen, layer, place, forgiven)
            if broken:
                failed.add(name)
                failures += broken
                continue
            done[name] = (call, record)
            self._add_tasks(dag, call)
        if failures:
            raise Failure(*failures)
        last = max((record["layer"] for _, record in done.values()), default=-1)
        for layer in range(last + 1):
            self._fold(state, {name: each for name, each in done.items() if each[1]["layer"] == layer})
            if not place:
                self.layers.append(deepcopy(state))
        return state

    def _seen(self, state: dict[str, Any], done: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The state as a task sees it: with what the tasks that it comes after have said."""
        dag = state["dag"]
        earlier = _ancestors(dag, name)
        hidden = {
            each for each, spec in dag.items() if "added_by" in spec and spec["added_by"] not in earlier
        } - {name}
        seen = {**state, "messages": [], "decisions": [], "context": {}, "tasks": {}}
        seen["dag"] = {each: _unhidden(spec, hidden) for each, spec in dag.items() if each not in hidden}
        self._fold(seen, {each: done[each] for each in earlier})
        return seen

    def _fold(self, state: dict[str, Any], done: Mapping[str, tuple[Call, dict[str, Any]]]) -> None:
        places = _places(state["dag"])
        for name in sorted(done, key=lambda each: (done[each][1]["layer"], places[each])):
            call, record = done[name]
            self._take(state, call)
            state["tasks"][name] = deepcopy(record)

    def _why_skipped(self, dag: Mapping[str, Any], done: Mapping[str, Any], name: str) -> tuple[str, ...]:
        places = _places(dag)
        decided = [
            (done[by][1]["layer"], places[by], (repr(by), each["reason"]))
            for by in _ancestors(dag, name)
            for each in done[by][0].decisions
            if each["kind"] == "skip_tasks" and "/" not in each["by"] and name in each["tasks"]
        ]
        if decided:
            return min(decided, key=lambda each: each[:2])[2]
        for needed in dag[name].get("depends_on", ()):
            status = done[needed][1]["status"]
            if status != "completed":
                return (repr(needed), status)
        return ()

    def _add_tasks(self, dag: dict[str, Any], call: Call) -> None:
        for each in call.decisions:
            if each["kind"] != "add_task" or "/" in each["by"] or each["name"] in dag:
                continue
            kept = {key: each[key] for key in ("depends_on", "optional", "arguments", "run") if each.get(key)}
            dag[each["name"]] = deepcopy({**kept, "added_by": each["by"]})
            for name in each.get("before", ()):
                dag[name]["depends_on"] = [*dag[name].get("depends_on", ()), each["name"]]

    def _plan(self, state: dict[str, Any], changes: Any, layer: int) -> list[str]:
        """Carry out what was decided; gives the tasks of the next layer that has any to run."""
        skips: dict[str, Any] = {}
        leave, because, dag = 0, (), state["dag"]

        def skip(name: str, *reason: str) -> None:
            skips[name] = {"id": name, "status": "skipped", "layer": layer, "reason": reason}

        for each in changes:
            refused = {"kind": "refused", "by": each.get("by"), "decision": each["kind"]}
            if "name" in each:
                refused["task"] = each["name"]
            if each["kind"] == "add_task":
                late = [name for name in each.get("before", ()) if name in state["tasks"] or name in skips]
                again = each["name"] in dag and _same(dag[each["name"]], each)
                known = dag.keys() >= {*_mentioned(each)}
                if again and known:
                    continue
                if each["name"] in dag or late or not known:
                    state["decisions"].append(refused)
                    continue
                kept = {
                    key: each[key] for key in ("depends_on", "optional", "arguments", "run") if each.get(key)
                }
                dag[each["name"]] = deepcopy({**kept, "added_by": each["by"]})
                for name in each.get("before", ()):
                    dag[name]["depends_on"] = [*dag[name].get("depends_on", ()), each["name"]]
            elif each["kind"] == "skip_tasks":
                for name in each["tasks"]:
                    if name not in dag or name in state["tasks"]:
                        state["decisions"].append(refused)
                    else:
                        skip(name, repr(each["by"]), each["reason"])
            elif each["kind"] == "skip_layers":
                leave, because = leave + each["layers"], (repr(each["by"]), each["reason"])
        ready: list[str] = []
        while not ready:
            done = {**state["tasks"], **skips}
            names = [name for name in dag if name not in done and done.keys() >= {*_needs(dag[name])}]
            if not names:
                break
            for name in names:
                missing = [each for each in dag[name].get("depends_on", ()) if not _completed(done, each)]
                if leave:
                    skip(name, *because)
                elif missing:
                    failed = done[missing[0]]["status"] == "failed"
                    skip(name, repr(missing[0]), "failed" if failed else "skipped")
                else:
                    ready.append(name)
            leave = max(0, leave - 1)
        state["tasks"] |= skips
        return ready

    def _holds(self, flow: Flow, name: str, state: dict[str, Any], forgiven: bool) -> bool:
        job = flow.codes[state["dag"][name].get("run", name)]
        if not job.condition:
            return True
        self.world.sound = not forgiven
        given = {key: deepcopy(state[key]) for key in ("context", "inputs")}
        given["results"] = {each: _result(state, each) for each in _needs(state["dag"][name])}
        return bool(_condition(job, flow, self.world)(**given, state=Seen(state)))


def _spec(job: Job) -> dict[str, Any]:
    named = {f"p_{name}": name for name in job.needs} if job.named else {}
    spec = {"depends_on": [*job.needs], "optional": [*job.optional], "named": named}
    return {key: value for key, value in spec.items() if value}


def _unhidden(spec: Mapping[str, Any], hidden: set[str]) -> dict[str, Any]:
    seen = {**spec}
    for key in ("depends_on", "optional"):
        seen[key] = [each for each in spec.get(key, ()) if each not in hidden]
    return {key: value for key, value in seen.items() if value}


def _places(dag: Mapping[str, Any]) -> dict[str, Any]:
    """The order of tasks: those of the code first, then added ones by what added them."""
    places: dict[str, Any] = {}
    for number, (name, spec) in enumerate(dag.items()):
        by = spec.get("added_by")
        places[name] = (0, number) if by is None else (1, *places[by], number)
    return places


def _needs(spec: Mapping[str, Any]) -> list[str]:
    return [*spec.get("depends_on", ()), *spec.get("optional", ())]


def _completed(tasks: Mapping[str, Any], name: str) -> bool:
    return bool(tasks[name]["status"] == "completed")


def _done(state: Mapping[str, Any], name: str) -> bool:
    return _completed(state["tasks"], name)


def _result(state: Mapping[str, Any], name: str) -> Any:
    return deepcopy(state["tasks"][name]["result"]) if _done(state, name) else None


def _attempts(job: Job) -> int:
    if job.runs is not None or not job.retry:
        return 1
    return 1 + max((each[1] for each in job.does if each[0] == "stumble"), default=0)


def compare(found: Mapping[str, Any], expected: Mapping[str, Any], exactly: bool) -> None:
    """A state is what the interpreter says, but for times; attempts count crashes of the process."""
    assert [*found["tasks"]] == [*expected["tasks"]]
    for name, record in expected["tasks"].items():
        there = found["tasks"][name]
        for key in ("id", "status", "layer"):
            assert there[key] == record[key], f"{key} of {name}"
        assert told_apart(there.get("result")) == told_apart(record.get("result")), f"the result of {name}"
        assert ("result" in there) == (record["status"] == "completed")
        assert all(part in there["reason"] for part in record.get("reason", ())), f"the reason of {name}"
        assert ("reason" in there) == ("reason" in record)
        if "error" in record:
            assert there["error"]["message"] in record["error"]
        assert ("error" in there) == ("error" in record)
        if record["status"] != "skipped":
            assert there["attempts"] >= record["attempts"]
            assert there["attempts"] == record["attempts"] or not exactly
    assert told_apart(_said(found)) == told_apart(_said(expected))
    assert told_apart(_own(found["context"])) == told_apart(expected["context"])
    for key in ("dag", "inputs"):
        assert told_apart(found[key]) == told_apart(expected[key]), key


def _decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    """A decision without the step in the id of a question, and without the words of a refusal."""
    if decision["kind"] == "refused":
        return {key: value for key, value in decision.items() if key != "reason"}
    if decision["kind"] == "answer":
        parts = decision["question"].split(":")
        return {**decision, "question": [parts[0], parts[-1]]}
    return dict(decision)


# The bench: the real loop, with commands carried out by hand


class AtOnce:
    """An executor that does what it is given at once."""

    def submit(self, function: Callable[[], None]) -> None:
        function()


CLIENT._tidier = AtOnce()  # type: ignore[assignment]


def tree(progress: Progress, path: tuple[Key, ...] = ()) -> dict[Any, Any]:
    """All of a progress as plain data; what tasks that are done came to counts as taken over."""
    told: dict[Any, Any] = {(*path, name): repr(getattr(progress, name)) for name in PLAIN}
    told[*path, "path"] = repr([*progress.path])
    told[*path, "state"] = told_apart(_full_state(progress))
    section = progress.section
    if section is not None:
        names = ("source", "step", "layer", "entry", "own_state", "inside")
        told |= {(*path, "section", name): repr(getattr(section, name)) for name in names}
        for key, child in section.children.items():
            told |= tree(child, (*path, key))
    return told


def _full_state(progress: Progress) -> dict[str, Any]:
    return progress.state_so_far() if progress.start is None else {**(progress.base or {}), **progress.start}


@dataclass
class Bench(ModelBench):
    """One run of a sketch by the real loop, and all the claims that are checked while it runs."""

    flow: Flow
    seed: int = 0
    limit: int = 32
    stream: bool = True
    tolerant: bool = False
    keep: int | None = None
    lives: Lives = field(default_factory=list)
    talkative: bool = False
    """Whether each resume adds something to the state; then tasks may have another result."""
    whole: bool = False
    """Whether snapshots are taken at any moment."""

    def __post_init__(self) -> None:
        self.prepare()
        self.inputs = INPUTS
        self.expected = Interpreter(self.flow)
        self.world = World(self._see, self._fetch)
        self.emitted: dict[str, Any] = {}
        self.saved: dict[int, str] = {}
        """The checkpoints of layers that were reported. Others were saved by a process that was never told so."""
        self.updates = 0

    def run(self) -> None:
        """Run it to the end, resuming after every stop and every kill, and check the result."""
        self.live_to_the_end()
        self._compile()
        final = self.workflow.checkpoint(self.run_id).state
        self._compare(final, self.expected.state)
        self._check_updates(final)
        self._check_history()

    def again(self, step: int, back: bool) -> Bench:
        """A bench for a run that continues from a step of this one: a fork of it, or this one rolled back."""
        made = Bench(self.flow, self.seed + 1, self.limit)
        made.continue_from(self, step, same_run=back)
        if back:
            self.workflow.rollback(self.run_id, step)
        else:
            self.workflow.fork(self.run_id, step, new_run_id=made.run_id)
        made.followed = read_progress(STORE.read(made.run_id))
        return made

    def _compile(self) -> None:
        """The workflow as another process would import it."""
        more = self.chance.choice([0, 0, 1])
        on_save_error = "continue" if self.tolerant else "fail"
        settings: dict[str, Any] = {"store": STORE, "preserve": True, "lease": LEASE, "keep": self.keep}
        settings |= {"max_concurrency": self.limit, "on_save_error": on_save_error}
        self.workflow = define(self.flow, self.world, more=more, **settings)
        self.compiled = self.workflow.compiled()

    def forget_life(self) -> None:
        super().forget_life()
        self.gap = False
        self.troubled = False
        self._compile()

    def plain_tree(self, progress: Progress) -> dict[Any, Any]:
        return tree(progress)

    def resume_input(self, stored: Progress) -> ResumeInput:
        self._check_plan(stored)
        update: dict[str, Any] = {}
        if self.talkative:
            number = self.updates + 1
            update = {
                "messages": [{"update": number}],
                "decisions": [f"update {number}"],
                "context": {"outside": number},
            }
        return ResumeInput(answers=self._answers(stored), update=update)

    def check_resumed(self, brought: ResumeInput) -> None:
        self.updates += bool(brought.update)

    def check_paused(self, stored: Progress) -> None:
        assert stored.open_questions()
        for path, branch in [*stored.stopped_branches(), ((), stored)]:
            self.check_questions(stored, path, branch)

    def _check_plan(self, stored: Progress) -> None:
        """What a resume would do can be asked at any stop: it is what is left, and asking changes nothing."""
        before = STORE.read(self.run_id, first=1)
        plan = self.workflow.plan_resume(self.run_id)
        after = STORE.read(self.run_id, first=1)
        # Old records may be deleted meanwhile, in the background.
        assert (after.head, after.records) == (before.head, before.records[after.first - before.first :])
        assert not plan.differs, str(plan)
        state = stored.state_so_far()
        assert [*dict.fromkeys(plan.kept)] == [*state["tasks"]]
        left = [name for names in plan.layers for name in names]
        assert {*left} == state["dag"].keys() - state["tasks"].keys()
        assert len({*left}) == len(left)
        assert plan.questions == stored.unanswered_questions()

    def _answers(self, stored: Progress) -> dict[str, Any]:
        """Answers to some of the open questions; to one at least, if nothing else could continue."""
        questions = stored.open_questions()
        least = stored.status == PAUSED and bool(questions)
        chosen = self.chance.sample(questions, self.chance.randint(least, len(questions)))
        return {each.id: answer_to(each.node, each.prompt) for each in chosen}

    def end_life(self) -> None:
        super().end_life()
        self.session = None

    def die(self) -> None:
        self.session = None
        super().die()

    def carry_out(self, command: Command) -> Any:
        answer = super().carry_out(command)
        assert len(self.running) <= self.limit
        return answer

    def is_refused(self) -> bool:
        if self.session is None or self.fate not in (REFUSE, OUTAGE):
            return False
        return self.inside is None or self.tolerant

    def note_trouble(self, what: str) -> None:
        if self.fate != OUTAGE:
            self.fate = what
        self.gap = True
        self.troubled = True

    def note_saved(self) -> None:
        self.gap = False

    def may_snapshot(self) -> bool:
        """Not where a process crashed with a task that hasn't begun since."""
        section = self.progress.section
        return section is None or not any(
            each.attempts and each.start is not None for each in section.children.values()
        )

    # What is checked

    def check_stored(self) -> None:
        """What is stored is what is live, of all tasks; so is what a snapshot would store; and it can be so."""
        live = tree(self.progress)
        assert tree(self.followed) == live
        if self.may_snapshot():
            whole = Progress("", "", "", "", {})
            apply_record(whole, decode(snapshot_record(self.progress)))
            assert tree(whole) == live
        WorkflowState(self.followed.state_so_far()).check()
        self.trees[self.followed.step] = live

    def check_event(self, event: dict[str, Any]) -> None:
        """What is reported is durable; an id that is reported can be loaded, and is what the run is then."""
        if event["type"] == "task_complete" and not self.gap:
            where = f"{event['branch']}" if "branch" in event else event["task"]
            done = {each[-1][0] for each in self.durable if len(each) > 1}
            assert event["task"] in done, f"{where} isn't saved"
        if event["type"] not in ("checkpoint_saved", "decision_required"):
            return
        checkpoint_id = event["checkpoint_id"]
        loaded = self.workflow.checkpoint(checkpoint_id)
        assert loaded.checkpoint_id == checkpoint_id
        assert self.session is not None
        now = told_apart(self.session.lifecycle.state)
        assert told_apart(loaded.state) == now
        loaded.state.check()
        self.emitted[checkpoint_id] = now
        if event["type"] == "checkpoint_saved" and "branch" not in event:
            if not self.talkative:
                self._compare_layer(loaded.state, event["layer"])
            assert loaded.completed_layers == event["layer"] + 1
            self.saved[event["layer"]] = checkpoint_id
            for layer, each in self.saved.items():
                if layer > event["layer"] - (self.keep or 1):
                    self._check_still_there(each)

    def check_verdict(self, verdict: Verdict) -> None:
        """The verdict that the caller gets is what was saved."""
        stored = read_progress(STORE.read(self.run_id))
        self.verdicts.append(verdict.status)
        assert self.session is not None
        if verdict.status == COMPLETED:
            self._compare(self.session.lifecycle.state, self.expected.state)
            saved = self.session.lifecycle.state.checkpoint_id  # type: ignore[attr-defined]
            assert self.tolerant or saved is not None
            if saved is not None and not self.gap:
                loaded = self.workflow.checkpoint(saved).state
                assert told_apart(loaded) == told_apart(self.session.lifecycle.state)
        if self.troubled:
            if not self.tolerant:
                assert isinstance(verdict.error, ExecutionError)
                assert isinstance(verdict.error.cause, StoreUnavailable)
            elif self.fate == "lost" and isinstance(verdict.error, Conflict):
                pass  # what it saves next doesn't fit what the store has
            elif verdict.status != COMPLETED and verdict.status != stored.status:
                assert isinstance(verdict.error, ExecutionError)
                assert isinstance(verdict.error.cause, StoreUnavailable)
            return
        assert verdict.status == stored.status
        if verdict.status == PAUSED:
            assert [*verdict.questions] == stored.open_questions()
        elif verdict.status == FAILED:
            assert isinstance(verdict.error, ExecutionError)
            assert isinstance(verdict.error.cause, Broken), verdict.error
            assert isinstance(verdict.error.state, WorkflowState) or "/" in str(verdict.error.node)
        elif verdict.status == CANCELLED:
            assert self.fate in (CANCEL, SIGNAL)
            assert self.left < 0

    def _check_history(self) -> None:
        """Every step can be looked at, and is as it was then; and so can every checkpoint whose id was reported."""
        if self.keep is not None:
            return
        tail = STORE.read(self.run_id, first=1)
        steps = history(tail)
        assert [each.step for each in steps] == [*range(steps[0].step, steps[-1].step + 1)]
        for each in steps:
            found = progress_at(tail, each.step)
            if each.step in self.trees:
                assert tree(found) == self.trees[each.step], f"step {each.step}"
        for checkpoint_id in self.emitted:
            self._check_still_there(checkpoint_id)

    def _check_still_there(self, checkpoint_id: str) -> None:
        """A checkpoint whose id was reported is what it was then, but for what a resume has brought to it."""
        found = self.workflow.checkpoint(checkpoint_id).state
        assert told_apart(found) == self.emitted[checkpoint_id] or self.talkative

    def _check_updates(self, final: Mapping[str, Any]) -> None:
        """What resumes brought is there, once, in their order; one that was cut may have been saved or not."""
        told = [each["update"] for each in final["messages"] if is_update(each)]
        assert {*told} == {*range(1, self.updates + 1)} or not self.talkative
        assert told == sorted(told)
        decided = [each["decision"] for each in final["decisions"] if each["by"] == "outside"]
        assert decided == [f"update {each}" for each in told]
        assert final["context"].get("outside", 0) == self.updates

    def _compare_layer(self, found: WorkflowState, layer: int) -> None:
        """The checkpoint of a layer; as data flow, tasks of later layers may be done as well."""
        expected = self.expected.layers[layer]
        if self.flow.barriers:
            self._compare(found, expected)
            return
        done = {name: record for name, record in found["tasks"].items() if record["layer"] <= layer}
        assert [*done] == [*expected["tasks"]]
        for name, record in expected["tasks"].items():
            assert told_apart(done[name].get("result")) == told_apart(record.get("result"))

    def _compare(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        if not self.talkative:
            compare(found, expected, exactly=not any(fate == KILL for fate, _ in self.lives))

    def _fetch(self, ctx: Any, place: str, key: str) -> Any:
        self.check_kept(self.at[ctx.scope.path], key)
        return [place, key]

    def _see(self, place: str, what: Any) -> None:
        """A function of the user's is called: each time, it is given what the interpreter says."""
        expected = self.expected.seen.get(place)
        if told_apart(what) != expected and not self.talkative:
            self.wrong = AssertionError(f"{place} is given {told_apart(what)}, not {expected}")


# Strategies

VALUES = [7, True, "é", None, (1, [2]), [1, (2,)], [], {"k": [1]}]
SAYING = [
    *product(["message"], VALUES, ["ctx", "result"]),
    *product(["decide"], ["go", {"choice": [1], "k": (2,)}], ["ctx", "result"]),
    *product(["share"], ["k", "l"], VALUES, ["ctx", "result"]),
]
TROUBLES: list[Operation] = [("ask", "p"), ("ask", "q"), ("once", "k"), ("once", "l"), ("break",)]
DYNAMIC = "xyz"


class Drawing:
    """A workflow as it is drawn."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def flow(self, name: str, most: int, depth: int) -> Flow:
        names = "abcdefgh"[: self.number(1, most)]
        ranks = {each: self.number(0, len(names)) for each in DYNAMIC}
        codes = [*names, "t", "u"]
        jobs = tuple(self.job(each, names, ranks, codes, depth) for each in names)
        templates = tuple(self.job(each, "", ranks, codes, depth, names) for each in "tu")
        after = None
        if self.one([False, False, True]):
            each = [self.operations(names, ranks, codes, False, 2) for _ in range(self.number(0, 3))]
            after = tuple(each)
        return Flow(name, jobs, templates, after, layers=self.chance())

    def job(self, name: str, names: str, ranks: Any, codes: list[str], depth: int, others: str = "") -> Job:
        earlier = [each for each in names if each < name]
        needs = self.some(earlier, 2) or self.some(earlier, 1)
        optional = self.some([each for each in earlier if each not in needs], 2) if self.chance() else ()
        retry, safe, runs, does = self.chance(), self.chance(), None, ()
        if depth and self.one([False] * 6 + [True]):
            runs = self.flow(f"inside {name}", 3, depth - 1) if self.chance() else self.leaves()
        else:
            does = self.operations(names or others, ranks, codes, retry, 3)
        condition: tuple[Any, ...] = ()
        if self.one([False] * 4 + [True]):
            either = [("result", each) for each in (*needs, *optional)]
            condition = self.one([("yes",), ("no",), ("context", "k"), ("broken",), *either])
        return Job(name, does, needs, optional, bool(needs) and self.chance(), condition, retry, safe, runs)

    def leaves(self) -> tuple[Leaf, ...]:
        leaves = []
        for name in "lm"[: self.number(1, 2)]:
            retry = self.chance()
            either: list[Operation] = [*TROUBLES, ("set", "s", [1]), ("grow", "xs"), ("grow", "a")]
            does = self.distinct(either + [("stumble", 1), ("stumble", 2)] * retry, 2)
            leaves.append(Leaf(name, does, retry))
        return tuple(leaves)

    def operations(
        self, names: str, ranks: Any, codes: list[str], retry: bool, most: int
    ) -> tuple[Operation, ...]:
        either: list[Operation] = []
        for _ in range(self.number(0, most)):
            rarely = self.one(["say", "skip", "layers"])
            match self.one(["say", "say", "trouble", "trouble", "add", rarely]):
                case "say":
                    either.append(self.one(SAYING))
                case "trouble":
                    either.append(self.one(TROUBLES + [("stumble", 1), ("stumble", 2)] * retry))
                case "add":
                    either.append(self.add(names, ranks, codes))
                case "skip":
                    which = self.some([*names, *DYNAMIC, "missing"], 2) or (names[-1],)
                    either.append(("skip", which, self.one(["", "not now"]), self.one(["ctx", "result"])))
                case "layers":
                    either.append(("skip layers", self.one([1, 1, 2]), self.one(["", "enough"])))
        distinct: list[Operation] = []
        for each in either:
            if each[0] not in ("ask", "once", "break") or each not in distinct:
                distinct.append(each)
        return tuple(distinct)

    def add(self, names: str, ranks: Any, codes: list[str]) -> Operation:
        """A task to be added; what it needs ranks lower and what it is put before higher, so there is no circle."""
        name = self.one([*DYNAMIC])
        others = [each for each in DYNAMIC if (ranks[each], each) > (ranks[name], name)]
        lower = [each for each in DYNAMIC if (ranks[each], each) < (ranks[name], name)]
        needs = self.some([*names[: ranks[name]], *lower], 2)
        optional = self.some([each for each in names[: ranks[name]] if each not in needs], 1)
        wanted: dict[str, Any] = {"name": name, "run": self.one(codes), "depends_on": [*needs]}
        wanted |= {"optional": [*optional], "before": [*self.some([*names[ranks[name] :], *others], 2)]}
        if self.chance():
            wanted["arguments"] = {"k": [1]}
        return "add", {key: value for key, value in wanted.items() if value}, self.one(["ctx", "result"])

    def distinct(self, either: list[Operation], most: int) -> tuple[Operation, ...]:
        found = [self.one(either) for _ in range(self.number(0, most))]
        return tuple(each for place, each in enumerate(found) if each not in found[:place])

    def some(self, either: list[str], most: int) -> tuple[str, ...]:
        if not either:
            return ()
        chosen = {self.one(either) for _ in range(self.number(0, most))}
        return tuple(each for each in either if each in chosen)

    def chance(self) -> bool:
        return bool(self.one([False, False, True]))

    def one(self, choices: list[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, least: int, most: int) -> int:
        return int(self.draw(st.integers(least, most)))


@st.composite
def sketches(draw: Any) -> Flow:
    return Drawing(draw).flow("sketch", 8, 1)


seeds = st.integers(0, 2**16)
limits = st.integers(1, 4)
fates = st.sampled_from([KILL, KILL, CANCEL, SIGNAL, LOSE, REFUSE, OUTAGE])
lives = st.lists(st.tuples(fates, st.integers(0, 80)), max_size=5)


def benches(**more: Any) -> st.SearchStrategy[Bench]:
    return st.builds(Bench, sketches(), seeds, limit=limits, **more)


ADD = {"name": "x", "run": "t", "depends_on": ["a"], "before": ["d"], "arguments": {"k": [1]}}
RICH = Flow(
    "sketch",
    (
        Job("a", (("add", ADD, "ctx"), ("message", [1], "result"), ("share", "k", {"k": [1]}, "ctx"))),
        Job("b", (("once", "k"), ("ask", "p"), ("decide", "go", "ctx")), retry=True),
        Job("c", (("break",),), safe=True, retry=True),
        Job("d", (("stumble", 1), ("ask", "q")), needs=("a",), optional=("c",), named=True, retry=True),
        Job("e", needs=("b",), runs=(Leaf("l", (("ask", "p"), ("grow", "xs"))), Leaf("m", (("break",),)))),
        Job("f", needs=("d",), runs=Flow("inside", (Job("a", (("ask", "p"),)), Job("b", needs=("a",))))),
        Job("g", needs=("c",)),
        Job(
            "h",
            (("break",), ("skip", ("missing",), "", "result")),
            needs=("e", "f"),
            condition=("context", "k"),
        ),
    ),
    (Job("t", (("message", (1, [2]), "ctx"), ("once", "l")), safe=True),),
    after=((("decide", {"k": [1]}, "result"), ("ask", "p")), (), (("share", "l", [7], "result"), ("break",))),
)
"""A bit of everything."""


# The claims


@settings(lean, max_examples=40)
@given(benches(stream=st.booleans()))
def test_workflows_do_what_a_plain_interpreter_does(bench: Bench) -> None:
    """D1, D3, P1 (invariants 3, 8): whatever the order that tasks finish in, and that questions are answered in."""
    bench.run()


@settings(lean, max_examples=50)
@given(
    benches(
        lives=lives,
        whole=st.booleans(),
        tolerant=st.booleans(),
        stream=st.booleans(),
        keep=st.sampled_from([None, None, 1, 2]),
    ),
    st.booleans(),
)
def test_workflows_that_are_cut_anywhere_end_as_if_they_had_not_been(bench: Bench, eager: bool) -> None:
    """D4, D6, D11, H3 (invariants 2, 5, 8): killed, cancelled, refused by the store, never told it had saved."""
    with eager_snapshots(eager):
        bench.run()


@settings(lean, max_examples=30)
@given(benches(lives=lives, tolerant=st.booleans(), whole=st.booleans(), talkative=st.just(True)))
def test_what_a_resume_brings_is_there_at_the_end(bench: Bench) -> None:
    """D11, P2 (invariant 2): and nothing that was finished is lost by it, or done again."""
    bench.run()


@settings(lean, max_examples=30)
@given(benches(), st.data(), st.booleans())
def test_from_any_step_a_fork_or_the_run_set_back_ends_the_same(
    bench: Bench, data: st.DataObject, back: bool
) -> None:
    """D4, H8: what tasks had finished by then is kept, and nothing else; no key is used again."""
    bench.run()
    steps = history(STORE.read(bench.run_id, first=1))
    step = data.draw(st.integers(0, steps[-1].step - 1))
    bench.again(step, back).run()


@pytest.mark.parametrize(
    ("fate", "stride", "tolerant"),
    [
        (KILL, 53, False),
        (CANCEL, 97, False),
        (SIGNAL, 97, False),
        (LOSE, 97, False),
        (REFUSE, 97, False),
        (REFUSE, 97, True),
        (OUTAGE, 97, True),
    ],
)
def test_a_cut_does_no_harm_at_any_point(fate: str, stride: int, tolerant: bool) -> None:
    """D4, D6, H3: a workflow with a bit of everything, cut at its points in turn, and killed once more soon after."""
    whole = Bench(RICH)
    whole.run()
    assert whole.points > 150
    for point in range(0, whole.points, stride):
        lives = [(fate, point), (KILL, point % 13)]
        Bench(RICH, point, 1 + point % 4, tolerant=tolerant, lives=lives, whole=point % 3 == 0).run()


# What was found, as small as it gets


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_a_graph_that_is_safe_to_fail_may_fail(kind: str) -> None:
    """D1: its record says so, and the run continues."""
    job = Job("a", runs=(Leaf("l", (("break",),)),), safe=True)
    if kind == "workflow":
        job = Job("a", runs=Flow("inside", (Job("b", (("break",),)),)), safe=True)
    bench = Bench(Flow("sketch", (job,)), stream=False)
    bench.run()
    assert bench.verdicts == [COMPLETED]


def test_the_handler_of_a_workflow_inside_of_another_adds_tasks() -> None:
    """D3"""
    add = ("add", {"name": "x", "run": "t"}, "ctx")
    inside = Flow("inside", (Job("b"),), (Job("t"),), after=((add,),))
    Bench(Flow("sketch", (Job("a", runs=inside),)), stream=False).run()


def test_a_task_that_was_added_is_still_there_when_another_is_put_before_it() -> None:
    """D7, D3: also for a process whose workflow has one more template."""
    one = ("add", {"name": "x", "run": "t", "depends_on": ["b"]}, "ctx")
    other = ("add", {"name": "y", "run": "t", "before": ["x"]}, "ctx")
    jobs = (Job("a", (one,)), Job("b", (other,), needs=("a",)))
    Bench(Flow("sketch", jobs, (Job("t", (("ask", "p"),)),))).run()


def test_a_workflow_inside_of_another_can_be_followed() -> None:
    """D1: `stream` tells of its layers, too."""
    inside = define(Flow("inside", (Job("b"),)), World(lambda place, what: None))
    flow = Workflow("outside").add_task("a", inside)
    assert [event["type"] for event in flow.stream(INPUTS)][-1] == "workflow_complete"


def test_a_task_that_closes_a_circle_is_refused() -> None:
    """D3: at the call, or as a decision; the run completes in either case."""
    add = ("add", {"name": "x", "run": "t", "depends_on": ["c"], "before": ["b"]}, "ctx")
    jobs = (Job("a", (add,)), Job("b", needs=("a",)), Job("c", needs=("b",)))
    flow = define(Flow("sketch", jobs, (Job("t"),)), World(lambda place, what: None))
    assert flow.execute(INPUTS).tasks.keys() == {"a", "b", "c"}


def test_a_condition_takes_what_its_task_may() -> None:
    """D1: the config, for example."""
    flow = Workflow("sketch").add_task("a", lambda: 1, condition=lambda config: config["wanted"])
    assert flow.execute(config={"wanted": True}).results == {"a": 1}


def test_a_run_that_may_continue_unsaved_continues_without_an_acknowledgement() -> None:
    """D6, P7"""
    for point in range(12):
        bench = Bench(
            Flow("sketch", (Job("a"), Job("b", needs=("a",)))), tolerant=True, lives=[(LOSE, point)]
        )
        bench.run()
        assert bench.verdicts == [COMPLETED], f"lost at point {point}"


def test_what_a_resume_brings_changes_neither_what_tasks_see_nor_their_order() -> None:
    """D11, D3: the tasks of a layer see the state that it began with, and count in their order of declaration."""
    seen: list[list[str]] = []

    def ask(ctx: Any, state: Any) -> None:
        seen.append([*state.tasks])
        ctx.add_message(ctx.pause("?"))

    flow = Workflow("sketch", store=MemoryStore(), max_concurrency=1)
    flow.add_task("a", ask).add_task("b", lambda ctx: ctx.add_message("b"))
    with pytest.raises(RunPaused):
        flow.execute(run_id="r")
    final = flow.resume("r", response="a", update={"messages": ["from outside"]})
    assert seen == [[], []]
    assert [each for each in final.messages if each in ("a", "b")] == ["a", "b"]
    assert [*final.tasks] == ["a", "b"]


def test_a_pause_without_an_acknowledgement_leaves_a_run_that_says_what_it_is() -> None:
    """D6, P1: its head is what its journal says, wherever the answer of the store is lost."""
    for point in range(24):
        jobs = (Job("a", (("ask", "p"),)), Job("b", needs=("a",)))
        Bench(Flow("sketch", jobs), tolerant=True, lives=[(LOSE, point)]).run()
