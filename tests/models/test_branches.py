"""Nested sections against a plain interpreter, cut anywhere: F12, H3, H8, and invariants 2, 3, 5 and 8.

A *sketch* is a random nesting as plain data: chains of nodes, parallel branches, maps over items, graphs inside of
nodes, loops around any of it. The `Interpreter` runs it by recursion on plain dicts that it copies: no journal, no
order among branches but that of their declaration. The `Bench` runs the same sketch through the real loop, carries
out by hand what `RunLifecycle.run()` yields, lets nodes finish in any order, and can be killed, cancelled or
refused by its store before or after any of it. Whatever the interpreter says has to come out.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain as chained
from itertools import count, cycle, pairwise, product
from random import Random
from typing import Annotated, Any, TypeVar

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from limpet.engine.drivers.node_call import call_node
from limpet.engine.loop.driver_commands import Begin, Gather, Verdict, Wait
from limpet.engine.loop.next_node import update_for_branch
from limpet.engine.loop.run_context import Clocks, Limits, Reporting, RunContext, Saving
from limpet.engine.loop.run_lifecycle import RunLifecycle
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.fork import fork
from limpet.engine.operations.rollback import rollback
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import ExecutionError, StoreUnavailable
from limpet.graphs.builder import GraphBuilder
from limpet.graphs.edges import END, CaughtError, Goto
from limpet.graphs.limits import Limit
from limpet.graphs.plan import Plan
from limpet.graphs.reducers import append, merge
from limpet.graphs.retry import Retry
from limpet.graphs.schema import read_schema
from limpet.graphs.secrets import SecretMasker
from limpet.graphs.state import State
from limpet.journal.encoding.codec import decode
from limpet.journal.progress import Progress
from limpet.journal.reader import Checkpoint, history, progress_at, read_progress
from limpet.journal.records import apply_record, snapshot_record
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import AFTER, BEFORE
from limpet.testing.conformance.store_calls import ManualClock
from models.bench import (
    CANCEL,
    CLIENT,
    KILL,
    LOSE,
    PLAIN,
    REFUSE,
    SIGNAL,
    STORE,
    Broken,
    Lives,
    ModelBench,
    Occurrence,
    Transient,
    answer_to,
    eager_snapshots,
    lean,
    occurrence,
)

Key = str | int
Interrupts = list[tuple[frozenset[str], frozenset[str]]]
"""Before and after which nodes a run stops: in its first life, in its second, and so on, and from the start again."""
NOWHERE = (frozenset[str](), frozenset[str]())

# Sketches: nestings as plain data, so that a failing example can be read


@dataclass(frozen=True)
class Leaf:
    """A node that calls a function: operations on the state, then what it returns.

    A fan-in also `gathers` what branches came to; that is the key which it counts the laps of its section under. One
    that `goes` says itself what is next, and the last thing that one does whose error is `caught` is to fail.
    """

    name: str
    does: tuple[tuple[Any, ...], ...] = ()
    returns: tuple[tuple[str, Any], ...] = ()
    gathers: str = ""
    retry: bool = False
    goes: bool = False
    caught: bool = False

    @property
    def rescue(self) -> Leaf:
        """The node that handles its error."""
        return Leaf(f"{self.name}!", (("rescue",),))


@dataclass(frozen=True)
class Inner:
    """A node that runs a graph. `passing` says what passes in and out; what passes out may be broken."""

    name: str
    graph: Graph
    passing: str = "default"
    retry: bool = False


@dataclass(frozen=True)
class Parallel:
    """Parallel branches. All of them continue into `tail`; `ends` says what their last node leads to."""

    branches: tuple[Chain, ...]
    tail: Chain = ()
    ends: str = "fan-in"


@dataclass(frozen=True)
class Each:
    """A branch for each item: of the state's `todo`, or of a function, which may be broken."""

    each: Chain | Graph
    over: str = "todo"
    item: str = "item"
    passing: str = "default"
    limit: int | None = None
    ends: str = "fan-in"


@dataclass(frozen=True)
class Section:
    """What `source` opens, up to the fan-in, which is the source again if there is none of its own; in `laps`."""

    source: Leaf | Inner
    opens: Parallel | Each
    fan_in: Leaf | None
    collects: bool = False
    laps: int = 1

    @property
    def joins(self) -> str:
        return self.source.name if self.fan_in is None else self.fan_in.name

    def is_enough(self, state: Mapping[str, Any]) -> bool:
        leaf = self.fan_in or self.source
        assert isinstance(leaf, Leaf)
        return bool(state[leaf.gathers] % self.laps == 0)


Part = Leaf | Inner | Section
Chain = tuple[Part, ...]


@dataclass(frozen=True)
class Graph:
    name: str
    schema: str
    chain: Chain


def _window(old: list[Any], new: list[Any]) -> list[Any]:
    return (old + new)[-3:]


SCHEMAS: dict[str, Any] = {
    "rich": {
        "n": int,
        "xs": list,
        "d": dict,
        "log": Annotated[list, append],
        "book": Annotated[dict, merge],
        "total": Annotated[int, operator.add],
        "window": Annotated[list, _window],
    },
    "small": {"n": int, "xs": list, "item": object, "log": Annotated[list, operator.add]},
    "none": None,
}
PASSINGS = ["default", "mapped", "called"]
LARGEST = 60
"""How many steps a run has at most."""
INPUT = {"n": 0, "xs": [1, [2]], "d": {"k": [0]}, "t": ([], "t"), "todo": [[1], {"k": [2]}]}


def entry(chain: Chain) -> str:
    """The node that a chain starts at."""
    first = chain[0]
    return first.source.name if isinstance(first, Section) else first.name


def define(graph: Graph, world: World) -> GraphBuilder:
    """The graph as a user would write it."""
    made = GraphBuilder(SCHEMAS[graph.schema], name=graph.name)
    _lay(made, graph.chain, END, world)
    return made.set_entry_point(entry(graph.chain))


def _lay(made: GraphBuilder, chain: Chain, onward: str | None, world: World) -> None:
    for part, following in pairwise([*chain, None]):
        target = onward if following is None else entry((following,))
        if isinstance(part, Section):
            _lay_section(made, part, target, world)
        elif isinstance(part, Leaf) and part.goes and target is not None:
            limits = world.limits(part.name)
            function = _function(part, world, target)
            made.add_node(part.name, function, retry=_retry(part), goto=[target], limits=limits)
            _lay_rescue(made, part, target, world)
        else:
            _lay_node(made, part, world)
            _lead(made, part.name, target)
            if isinstance(part, Leaf):
                _lay_rescue(made, part, target, world)


def _lay_rescue(made: GraphBuilder, leaf: Leaf, target: str | None, world: World) -> None:
    if leaf.caught:
        made.add_error_edge(leaf.name, leaf.rescue.name, on=Odd)
        _lay(made, (leaf.rescue,), target, world)


def _retry(node: Leaf | Inner) -> Retry | None:
    return Retry(3) if node.retry else None


def _lay_node(made: GraphBuilder, node: Leaf | Inner, world: World) -> None:
    retry = _retry(node)
    if isinstance(node, Leaf):
        limits = world.limits(node.name)
        made.add_fanin_node(node.name, _function(node, world), retry=retry, limits=limits)
    else:
        inputs, outputs = passing(node.graph, node.passing, world)
        made.add_node(node.name, define(node.graph, world), retry=retry, inputs=inputs, outputs=outputs)


def _lay_section(made: GraphBuilder, section: Section, target: str | None, world: World) -> None:
    source, joins, opens = section.source.name, section.joins, section.opens
    on_error: Any = "collect" if section.collects else "fail"
    end = {"fan-in": joins, "nowhere": None, "exit": END}[opens.ends]
    _lay_node(made, section.source, world)
    if section.fan_in is None:
        made.add_edge(source, target or END, section.is_enough)
    match opens:
        case Parallel(branches, tail):
            for branch in branches:
                made.add_parallel_edge(source, entry(branch), joins, on_error=on_error)
                _lay(made, branch, entry(tail) if tail else end, world)
            _lay(made, tail, end, world)
        case Each(each, item=item, limit=limit):
            more: Any = {"item": item, "max_concurrency": limit, "on_error": on_error}
            if isinstance(each, Graph):
                more["inputs"], more["outputs"] = passing(each, opens.passing, world)
            over = "todo" if opens.over == "todo" else items_of(opens, f"{made.name} {source}", world)
            target_node = define(each, world) if isinstance(each, Graph) else entry(each)
            made.add_map(source, target_node, over, joins, **more)
            if not isinstance(each, Graph):
                _lay(made, each, end, world)
    if section.fan_in is not None:
        _lay_node(made, section.fan_in, world)
        if section.laps > 1:
            made.add_edge(joins, source, lambda state: not section.is_enough(state))
        _lead(made, joins, target or (END if section.laps > 1 else None))


def _lead(made: GraphBuilder, source: str, target: str | None) -> None:
    if target is not None:
        made.add_edge(source, target)


def items_of(each: Each, name: str, world: World) -> Callable[[Mapping[str, Any]], list[Any]]:
    """The function that a map goes over. Its items are still part of the state that they are taken from."""

    def items(state: Mapping[str, Any]) -> list[Any]:
        if each.over == "broken":
            world.use(f"the items of {name}")
        return [*state["todo"]] if each.over == "todo" else [*state.get("xs", []), state.get("d")][:3]

    return items


def passing(graph: Graph, how: str, world: World) -> tuple[Any, Any]:
    """What passes into a graph and out of it: `{new key: old key}`, a function of the state, or None by default."""

    def outputs(state: Mapping[str, Any]) -> dict[str, Any]:
        if how == "broken":
            world.use(f"the outputs of {graph.name}")
        return {"log": ["left"], "book": {"k": state.get("xs")}, "d": state.get("d")}

    def inputs(state: Mapping[str, Any]) -> dict[str, Any]:
        return {"n": state["n"], "xs": state.get("xs", []), "d": {"k": state.get("item")}}

    match how:
        case "default":
            return None, None
        case "mapped":
            return {"n": "n", "m": "n"}, {"m": "n"}
        case _:
            return inputs, outputs


def nodes_of(graph: Graph) -> list[str]:
    """All nodes of a graph, those of graphs inside of it by the way there."""
    return list(_names(graph.chain))


def _names(chain: Chain) -> Iterator[str]:
    for part in chain:
        if isinstance(part, Section):
            yield from _names((part.source,) if part.fan_in is None else (part.source, part.fan_in))
            match part.opens:
                case Parallel(branches, tail):
                    for each in (*branches, tail):
                        yield from _names(each)
                case Each(Graph() as graph):
                    yield from (f"{graph.name}/{name}" for name in nodes_of(graph))
                case Each(each):
                    yield from _names(each)
        else:
            yield part.name
            if isinstance(part, Inner):
                yield from (f"{part.name}/{name}" for name in nodes_of(part.graph))


# What nodes do: the same functions for the interpreter and the real run


@dataclass
class World:
    """What is outside of a run and survives it: what was repaired, and what nodes have seen.

    In a `plain` one no node asks, and none has the same list under two keys; in a `sound` one nothing is broken.
    """

    plain: bool = False
    sound: bool = False
    repaired: set[str] = field(default_factory=set)
    fetch: Callable[[str, int, str], Any] = lambda place, visit, key: [place, visit, key]
    gathered: Callable[[Any, list[Any]], None] = lambda ctx, results: None
    limits: Callable[[str], list[Limit]] = lambda name: []
    """The limits of a node that calls a function."""

    def use(self, what: str) -> None:
        """Use something that is broken. Raises until it is repaired."""
        if not self.sound and what not in self.repaired:
            raise Broken(what)


class Odd(Exception):
    """An error that another node handles."""


def _function(leaf: Leaf, world: World, target: str | None = None) -> Callable[..., Any]:
    def run(state: Any, ctx: Any, parallel_results: Any) -> Any:
        for operation in leaf.does:
            if not world.plain or operation[0] not in ("ask", "share"):
                _perform(operation, state, ctx, world)
        if leaf.caught:
            raise Odd(leaf.name)
        update = {key: deepcopy(value) for key, value in leaf.returns}
        if target is not None:
            return Goto(target, update)
        if leaf.gathers:
            world.gathered(ctx, parallel_results)
            update = {**update, **_gathered(parallel_results), leaf.gathers: state.get(leaf.gathers, 0) + 1}
        return update

    return run


def _gathered(results: list[Any]) -> dict[str, Any]:
    return {
        "log": [f"{each.branch} {'failed' if each.error else 'done'}" for each in results],
        "book": {each.branch: each.get("n") for each in results},
        "total": len(results),
        "xs": [each.get("item", each.get("n")) for each in results],
    }


def _perform(operation: tuple[Any, ...], state: Any, ctx: Any, world: World) -> None:
    """One thing that a node may do, on the state it was handed: a private State or the interpreter's dict."""
    place = f"{ctx.branch}/{ctx.node}" if ctx.branch else ctx.node
    match operation:
        case ("bump",):
            state["n"] = state.get("n", 0) + 1
        case ("set", key, value):
            state[key] = deepcopy(value)
        case ("drop", key):
            state.pop(key, None)
        case ("grow", key, value) if isinstance(state.get(key), list):
            state[key].append(deepcopy(value))
        case ("shrink", key) if isinstance(state.get(key), list):
            del state[key][-1:]
        case ("poke", key, value) if isinstance(state.get(key), dict):
            state[key]["k"] = deepcopy(value)
        case ("dig", key) if isinstance(state.get(key), tuple):
            for each in state[key]:
                if isinstance(each, list):
                    each.append(1)
        case ("share", key, other) if key in state:
            state[other] = state[key]
        case ("look",):
            assert {**state} == dict(state.items())
        case ("sign",):
            state["who"] = [ctx.branch, ctx.index, ctx.visit]
        case ("ask", key):
            state["told"] = ctx.pause(f"{key} {ctx.visit}", key=key)
        case ("once", key):
            kept = ctx.once(key, world.fetch, place, ctx.visit, key)
            state["kept"] = list(kept)
            kept.append("altered by the node")
        case ("stumble", times) if ctx.attempt <= times:
            raise Transient(place)
        case ("break",):
            world.use(place)
        case ("rescue",):
            state["new"] = [ctx.error.type.rpartition(".")[2], ctx.error.node, ctx.error.message]


def told_apart(state: Mapping[str, Any]) -> dict[str, str]:
    """A state, written so that 1 isn't True, a tuple isn't a list and {1: 2, 3: 4} isn't {3: 4, 1: 2}."""
    return {key: repr(value) for key, value in dict.items(state)}  # type: ignore[arg-type]


# The interpreter


class TooLarge(Exception):
    """The run would take too long."""


class Failure(Exception):
    """A branch can't go on. `nodes` are the places of nodes that raise: which is the first is another's affair."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes


@dataclass
class Result(dict[str, Any]):
    """What the interpreter hands a fan-in of a branch."""

    branch: str
    index: int
    error: tuple[str, ...]
    state: dict[str, Any]

    def __post_init__(self) -> None:
        dict.update(self, self.state)

    def told(self) -> tuple[Any, ...]:
        return self.branch, self.index, told_apart(self.state), self.error


@dataclass
class Call:
    """What the interpreter hands a node as `ctx`."""

    branch: str | None
    node: str
    index: int | None
    visit: int
    attempt: int = 99
    error: CaughtError | None = None

    def pause(self, prompt: str, key: str) -> Any:
        return answer_to(f"{self.branch}/{self.node}" if self.branch else self.node, prompt)

    def once(self, key: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


@dataclass
class Scope:
    """Where the interpreter is: in the graph itself, in a branch, or in a graph inside of a node."""

    graph: Graph
    state: dict[str, Any]
    chain: Occurrence = ()
    branch: str = ""
    collecting: bool = False
    visits: Counter[str] = field(default_factory=Counter)
    error: CaughtError | None = None

    def __post_init__(self) -> None:
        self.schema = read_schema(SCHEMAS[self.graph.schema])
        self.state = unshared(self.state)

    def place(self, name: str) -> str:
        return f"{self.branch}/{name}" if self.branch else name

    def inside(self, source: str, key: Key, label: str, **more: Any) -> Scope:
        chain = (*self.chain, (source, self.visits[source], key))
        more = {"graph": self.graph, "collecting": self.collecting, **more}
        return Scope(chain=chain, branch=self.place(label), **more)


class Interpreter:
    """Runs a sketch by recursion, one branch after the other. It saves nothing, shares nothing and is never cut.

    `sure` is what completes. `maybe` may: where a section fails inside of a branch whose error is collected, some
    of its branches may have completed more than others.
    """

    def __init__(self, graph: Graph, plain: bool = False) -> None:
        self.world = World(plain, gathered=self._see)
        self.sure: list[tuple[Occurrence, str, str]] = []
        self.maybe: list[tuple[Occurrence, str, str]] = []
        self.results: dict[Occurrence, list[tuple[Any, ...]]] = {}
        scope = Scope(graph, read_schema(SCHEMAS[graph.schema]).initial(INPUT))
        self._chain(graph.chain, scope)
        self.state = scope.state

    def _chain(self, chain: Chain, scope: Scope) -> None:
        for part in chain:
            match part:
                case Leaf():
                    self._leaf(part, scope)
                case Inner():
                    self._inner(part, scope)
                case Section():
                    self._section(part, scope)

    def _leaf(self, leaf: Leaf, scope: Scope, results: list[Result] | None = None) -> None:
        draft, self._at = deepcopy(scope.state), (*scope.chain, (leaf.name, scope.visits[leaf.name] + 1))
        key = scope.chain[-1][-1] if scope.chain else None
        index = key if isinstance(key, int) else None
        call = Call(scope.branch or None, leaf.name, index, scope.visits[leaf.name] + 1)
        call.error = scope.error
        with self._at_node(leaf.name, scope):
            try:
                returned = _function(leaf, self.world)(draft, call, results or [])
            except Odd as error:
                self._complete(leaf.name, scope)
                scope.error = CaughtError("Odd", str(error), scope.place(leaf.name), 0, 0.0)
                self._leaf(leaf.rescue, scope)
                return
        scope.error = None
        reducers = scope.schema.reducers
        kept = {key: value for key, value in scope.state.items() if key in reducers}
        self._update(
            scope, {key: value for key, value in draft.items() if key not in reducers} | kept, returned
        )
        self._complete(leaf.name, scope)

    def _inner(self, node: Inner, scope: Scope) -> None:
        inputs, outputs = passing(node.graph, node.passing, self.world)
        state = self._entered(node.graph, inputs, scope.state, {})
        inner = scope.inside(node.name, node.name, node.name, graph=node.graph, state=state)
        self._chain(node.graph.chain, inner)
        with self._at_node(node.name, scope):
            update = (
                self._came_out(state, inner.state, scope)
                if outputs is None
                else _passed(outputs, inner.state)
            )
        self._update(scope, scope.state, update)
        self._complete(node.name, scope)

    def _section(self, section: Section, scope: Scope) -> None:
        results: list[Result] = []
        while True:
            if isinstance(section.source, Leaf):
                self._leaf(section.source, scope, results)
            else:
                self._inner(section.source, scope)
            if section.fan_in is None and section.is_enough(scope.state):
                return
            results = self._branches(section, scope)
            if section.fan_in is not None:
                self._leaf(section.fan_in, scope, results)
                results = []
                if section.is_enough(scope.state):
                    return

    def _branches(self, section: Section, scope: Scope) -> list[Result]:
        """What the branches come to. They all run, also where one of them fails."""
        results, failures, before = [], [], len(self.sure)
        for index, (branch, chain, outputs) in enumerate(self._opened(section, scope)):
            error: tuple[str, ...] = ()
            try:
                self._chain(chain, branch)
            except Failure as failure:
                error = failure.nodes
                failures += error
            state = branch.state if outputs is None or error else _passed(outputs, branch.state)
            results.append(Result(branch.branch.rpartition("/")[2], index, error, state))
        if failures and not section.collects:
            self.maybe += self.sure[before:]
            del self.sure[before:]
            raise Failure(*failures)
        return results

    def _opened(self, section: Section, scope: Scope) -> Iterator[tuple[Scope, Chain, Any]]:
        source, collecting = section.source.name, scope.collecting or section.collects
        match section.opens:
            case Parallel(branches, tail):
                for branch in branches:
                    name = entry(branch)
                    made = scope.inside(source, name, name, state=scope.state, collecting=collecting)
                    yield made, (*branch, *tail), None
            case Each(each, item=item) as opens:
                with self._at_node(source, scope):
                    items = items_of(opens, f"{scope.graph.name} {source}", self.world)(scope.state)
                for number, value in enumerate(items):
                    if isinstance(each, Graph):
                        inputs, outputs = passing(each, opens.passing, self.world)
                        state = self._entered(each, inputs, scope.state, {item: value})
                        label, graph, chain = f"{each.name}[{number}]", each, each.chain
                    else:
                        outputs, state = None, {**scope.state, item: value}
                        label, graph, chain = f"{entry(each)}[{number}]", scope.graph, each
                    made = scope.inside(
                        source, number, label, graph=graph, state=state, collecting=collecting
                    )
                    yield made, chain, outputs

    def _entered(self, graph: Graph, inputs: Any, state: Any, item: dict[str, Any]) -> dict[str, Any]:
        schema = read_schema(SCHEMAS[graph.schema])
        if inputs is not None:
            given = _passed(inputs, {**state, **item})
        elif schema.keys or item:
            given = {key: value for key, value in state.items() if key in schema.keys} | item
        else:
            given = state
        return schema.initial(given)

    def _came_out(self, entered: dict[str, Any], final: dict[str, Any], outer: Scope) -> dict[str, Any]:
        """What passes out by default: what is known there and different. What has passed in, too, is whole."""
        known, reducers, state = outer.schema.keys or final, outer.schema.reducers, outer.state
        came = {key: final[key] for key in final if key in known and not _alike(key, final, state)}
        whole = [key for key in came if key in reducers and _alike(key, entered, state)]
        outer.state = unshared({**state, **{key: came.pop(key) for key in whole}})
        return came

    @contextmanager
    def _at_node(self, name: str, scope: Scope) -> Iterator[None]:
        """What is broken stays so where errors are collected; elsewhere it is repaired, and tried again."""
        self.world.sound = self.world.plain or not scope.collecting
        try:
            yield
        except Broken as broken:
            raise Failure(scope.place(name)) from broken

    def _update(self, scope: Scope, state: dict[str, Any], update: Mapping[str, Any]) -> None:
        reducers = scope.schema.reducers
        for key, value in update.items():
            reduced = key in reducers and key in state
            state = {**state, key: reducers[key](state[key], value) if reduced else value}
        scope.state = unshared(state)

    def _complete(self, name: str, scope: Scope) -> None:
        scope.visits[name] += 1
        self.sure.append(((*scope.chain, (name, scope.visits[name])), scope.branch, name))
        if len(self.sure) + len(self.maybe) > LARGEST:
            raise TooLarge

    def _see(self, ctx: Any, results: list[Any]) -> None:
        self.results[self._at] = [each.told() for each in results]


def _passed(how: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    return {new: state[old] for new, old in how.items()} if isinstance(how, Mapping) else how(state)


def _alike(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return key in one and key in other and repr(one[key]) == repr(other[key])


def unshared(value: Any) -> Any:
    """A copy in which no list or dict is in two places."""
    if isinstance(value, dict):
        return {key: unshared(item) for key, item in value.items()}
    return type(value)(map(unshared, value)) if isinstance(value, (list, tuple)) else value


# The bench: the real loop, with commands carried out by hand


def tree(progress: Progress, altered: Mapping[Any, Any], path: tuple[Key, ...] = ()) -> dict[Any, str]:
    """All of a progress as plain data. `altered` has the states of branches whose nodes are at work on them."""
    told = {(*path, name): repr(getattr(progress, name)) for name in PLAIN}
    told[*path, "path"] = repr([*progress.path])
    for key, value in altered.get(path, told_apart(full_state(progress))).items():
        told[*path, "state", key] = value
    section = progress.section
    if section is not None:
        names = ("source", "step", "each", "entry", "item", "items", "own_state", "inside")
        told |= {(*path, "section", name): repr(getattr(section, name)) for name in names}
        for key, child in section.children.items():
            told |= tree(child, altered, (*path, key))
    return told


@dataclass
class Bench(ModelBench):
    """One run of a sketch by the real loop, and all the claims that are checked while it runs."""

    graph: Graph
    seed: int = 0
    stops: Interrupts = field(default_factory=lambda: [NOWHERE])
    interval: int = 1
    limit: int = 32
    stream: bool = False
    watched: bool = False
    lives: Lives = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    whole: bool = False
    """Whether snapshots are taken at any moment."""

    def __post_init__(self) -> None:
        self.prepare()
        self.inputs = INPUT
        self.gifts = iter(self.updates)
        self.world = World(fetch=self._fetch, gathered=self._see, limits=self.limits_of)
        definition = define(self.graph, self.world)
        names = frozenset(nodes_of(self.graph))
        self.plans = cycle([definition.freeze(before & names, after & names) for before, after in self.stops])
        self._compile()
        self.results: dict[Occurrence, list[tuple[Any, ...]]] = {}
        self.shown: set[tuple[Occurrence, str]] = set()
        self.told: Counter[tuple[str | None, str]] = Counter()

    def limits_of(self, name: str) -> list[Limit]:
        """The limits of a node that calls a function."""
        return []

    def run(self) -> State:
        """Run it to the end, resuming after every stop and every kill; returns the final state."""
        self.live_to_the_end()
        return read_progress(STORE.read(self.run_id)).state

    def _compile(self) -> None:
        self.plan: Plan = next(self.plans)
        watch = (lambda kind, source, data: None) if self.watched else None
        self.compiled = CompiledGraph(
            self.plan, CLIENT, self.interval, True, watch, max_concurrency=self.limit
        )

    def again(self, step: int, back: bool) -> Bench:
        """A bench for a run that continues from a step of this one: a fork of it, or this one rolled back."""
        made = Bench(self.graph, self.seed + 1, interval=self.interval, limit=self.limit)
        made.continue_from(self, step, same_run=back)
        if back:
            rollback(self.compiled, self.run_id, step)
        else:
            fork(self.compiled, self.run_id, step, None, made.run_id, ())
        made.followed = read_progress(STORE.read(made.run_id))
        return made

    def forget_life(self) -> None:
        super().forget_life()
        self.over: list[NodeContext] = []
        self.events: list[dict[str, Any]] = []
        self.altered: dict[tuple[Key, ...], dict[str, str]] = {}

    def plain_tree(self, progress: Progress) -> dict[Any, Any]:
        return tree(progress, {})

    def resume_input(self, stored: Progress) -> ResumeInput:
        self._compile()
        answers = self._answers(stored)
        update = next(self.gifts, {}) if stored.status != RUNNING else {}
        self.expected = _updated(stored, update, self.plan)
        return ResumeInput(answers=answers, update=update)

    def check_resumed(self, brought: ResumeInput) -> None:
        assert _states(self.progress) == self.expected

    def _answers(self, stored: Progress) -> dict[str, Any]:
        """Answers to some of the open questions; to one at least, if nothing else could continue."""
        questions = stored.open_questions()
        waits = [branch for _, branch in stored.stopped_branches()] + [stored] * bool(stored.questions)
        least = stored.status == PAUSED and all(branch.questions for branch in waits)
        chosen = self.chance.sample(
            questions, self.chance.randint(min(least, len(questions)), len(questions))
        )
        return {each.id: answer_to(each.node, each.prompt) for each in chosen}

    def command_comes(self) -> None:
        for task in self.over:
            del self.altered[task.scope.path]
        self.over = []

    def handed_back(self, tasks: list[NodeContext]) -> None:
        self.over = tasks

    def may_snapshot(self) -> bool:
        """Not while the run's own node has its hands on the main state."""
        return self.session is not None and () not in self.altered

    # What is checked

    def check_task(self, task: NodeContext) -> None:
        """A call of a node: also, nothing passes an interrupt unseen."""
        scope = task.scope
        this = self.check_call(task)
        last = scope.progress.made_by
        if last is not None:
            before = occurrence(self.progress, scope.path, last, more=0)
            saved = self.interval != 1 or before not in self.keys or before in self.durable
            assert saved, f"{before} isn't saved"
            stops = last in scope.plan.interrupt_after and not scope.progress.caught
            assert not stops or (before, AFTER) in self.shown or self._varies
        assert task.node not in scope.plan.interrupt_before or (this, BEFORE) in self.shown or self._varies
        self.told[task.branch, task.node] += 0
        self.altered[scope.path] = told_apart(scope.progress.state)

    def check_stored(self) -> None:
        """What is stored is what is live, of all branches; and so is what a snapshot would store now."""
        live = tree(self.progress, self.altered)
        assert tree(self.followed, {}) == live
        if self.may_snapshot():
            whole = Progress("", "", "", "", {})
            apply_record(whole, decode(snapshot_record(self.progress)))
            assert tree(whole, {}) == live
        self.trees[self.followed.step] = live

    def check_event(self, event: dict[str, Any]) -> None:
        """A step is reported after it was saved, where it is to be saved by itself, and once."""
        self.events.append(event)
        step = event.get("branch"), event.get("node", "")
        if event["type"] == "state" and step in self.told:
            self.told[step] += 1
            steps = history(STORE.read(self.run_id, first=1))
            saved = [each for each in steps if (each.branch, each.node) == step]
            assert self.interval != 1 or self.told[step] <= len(saved), f"{step} isn't saved"

    def check_verdict(self, verdict: Verdict) -> None:
        """The verdict that the caller gets is what was saved."""
        stored = read_progress(STORE.read(self.run_id))
        self.verdicts.append(verdict.status)
        if self.fate in ("refused", "lost"):
            assert isinstance(verdict.error, ExecutionError)
            assert isinstance(verdict.error.cause, StoreUnavailable)
            return
        assert verdict.status == stored.status
        if verdict.status == PAUSED:
            assert [*verdict.questions] == stored.open_questions()
            stops = [(stored.path_name(path), branch.node) for path, branch in stored.stopped_branches()]
            events = [each for each in self.events if each["type"] in ("interrupt", "pause")]
            told = [(each.get("branch"), each["node"]) for each in events]
            assert told == (stops or [(None, stored.node)]) or self._varies
        elif verdict.status == FAILED:
            assert isinstance(verdict.error, ExecutionError)
            assert isinstance(verdict.error.cause, Broken), verdict.error
            failed = {
                _place(stored, path, each): each
                for path, each in [((), stored), *stored.stopped_branches()]
                if each.status == FAILED
            }
            assert told_apart(verdict.error.state) == told_apart(failed[verdict.error.node].state)
        elif verdict.status == CANCELLED:
            assert self.fate in (CANCEL, SIGNAL)
            assert self.left < 0

    def check_paused(self, stored: Progress) -> None:
        """There is a reason for each pause: a question, or an interrupt."""
        for path, branch in [*stored.stopped_branches()] or [((), stored)]:
            assert branch.status == PAUSED
            if branch.questions:
                self.check_questions(stored, path, branch)
                continue
            plan, _ = update_for_branch(self.plan, stored, path, {})
            stops = plan.interrupt_after if branch.phase == AFTER else plan.interrupt_before
            assert branch.node in stops or self._varies
            at = occurrence(stored, path, branch.node, branch.phase != AFTER)
            self.shown.add((at, branch.phase))

    def check_history(self) -> list[Checkpoint]:
        """Every step can be looked at, and is as it was then."""
        tail = STORE.read(self.run_id, first=1)
        steps = history(tail)
        assert [each.step for each in steps] == [*range(steps[0].step, steps[-1].step + 1)]
        for each in steps:
            found = progress_at(tail, each.step)
            assert found.step == each.step
            if each.step in self.trees:
                assert tree(found, {}) == self.trees[each.step], f"step {each.step}"
        return steps

    @property
    def _varies(self) -> bool:
        """Whether each life has other interrupts: what waits where there is none any more continues."""
        return len(self.stops) > 1

    def _fetch(self, place: str, visit: int, key: str) -> Any:
        assert self.inside is not None
        self.check_kept(self.at[self.inside.scope.path], key)
        return [place, visit, key]

    def _see(self, ctx: Any, results: list[Any]) -> None:
        """A fan-in runs: each time it is called, it sees the same."""
        this = self.at[ctx.scope.path]
        seen = [
            (each.branch, each.index, told_apart(dict(each)), each.error and each.error["node"])
            for each in results
        ]
        if self.results.setdefault(this, seen) != seen:
            self.wrong = AssertionError(f"{this} sees {seen}, and has seen {self.results[this]}")


SomeBench = TypeVar("SomeBench", bound=Bench)


def _place(root: Progress, path: tuple[Key, ...], branch: Progress) -> str:
    return f"{root.path_name(path)}/{branch.node}" if path else branch.node


def full_state(progress: Progress) -> dict[str, Any]:
    """The state of a run, or of a branch: also of one that hasn't begun, or is done."""
    return progress.branch_state() if progress.start is None else {**(progress.base or {}), **progress.start}


def _states(progress: Progress, path: tuple[Key, ...] = ()) -> dict[Any, dict[str, str]]:
    """The states of all branches, by the way there."""
    found = {path: told_apart(full_state(progress))}
    for key, child in progress.section.children.items() if progress.section is not None else ():
        found |= _states(child, (*path, key))
    return found


def _updated(root: Progress, update: Mapping[str, Any], plan: Plan) -> dict[Any, dict[str, str]]:
    """The same after a resume with an update: it reaches the main state, the branches under way, and those that are
    to begin from a state that it has reached."""
    found = _states(root)
    for path, branch in [((), root), *root.branches_under_way()] if update else ():
        inner, passed = update_for_branch(plan, root, path, update)
        reducers, state = inner.schema.reducers, full_state(branch)
        for key, value in passed.items():
            state[key] = reducers[key](state[key], value) if key in reducers and key in state else value
        found[path] = told_apart(state)
        for key, child in branch.section.children.items() if branch.section is not None else ():
            if child.start is not None and child.base is not None:
                found[(*path, key)] = told_apart({**state, **child.start})
    return found


# Strategies

VALUES = [7, True, "é", None, (), (1, [2]), [1, (2,)], [], {"k": [1]}, {1: "one"}]
LISTS = [[1], [], [None, (2, [3])], [[1], {"k": [2]}], [True]]
DICTS = [{"k": [0]}, {}, {"l": (1,), "k": 2}]
TODOS = [[[1], {"k": [2]}, 3, (4, [5])], [], [7], ([1], [1]), {"a": 1, "b": 2}, [[0], [0], [0]]]
OPERATIONS = [
    ("bump",),
    ("look",),
    ("sign",),
    *product(["set"], ["xs"], LISTS),
    *product(["set"], ["d"], DICTS),
    *product(["set"], ["t", "new"], VALUES[::2]),
    *product(["drop"], ["xs", "d", "t", "new", "item"]),
    *product(["grow"], ["xs", "item", "log"], VALUES[::3]),
    *product(["shrink"], ["xs", "item"]),
    *product(["poke"], ["d", "item"], VALUES[::4]),
    ("dig", "t"),
    ("dig", "item"),
    ("share", "xs", "new"),
]
TROUBLES = [*product(["ask"], "pq"), *product(["stumble"], [1, 2]), *product(["once"], "kl"), ("break",)]
RETURNED = [
    *product(["n"], range(3)),
    *product(["xs"], LISTS),
    *product(["d"], DICTS),
    *product(["new"], VALUES),
    *product(["log"], LISTS),
    *product(["book"], DICTS),
    *product(["total"], range(3)),
    *product(["window"], LISTS),
]

operations = st.lists(
    st.sampled_from(OPERATIONS) | st.sampled_from(OPERATIONS) | st.sampled_from(TROUBLES), max_size=3
).filter(lambda does: len({*map(repr, does)}) == len(does))
returned = st.lists(st.sampled_from(RETURNED), max_size=2).map(lambda pairs: tuple(dict(pairs).items()))


class Drawing:
    """A graph as it is drawn. Names are its own in each graph; `left` is how many nodes there may still be."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.left, self.graphs, self.sections = draw, 10, count(1), count(1)

    def graph(self, depth: int, schemas: list[str]) -> Graph:
        name, names = f"g{next(self.graphs)}", chained("abcdefgh", (f"n{number}" for number in count(1)))
        schema = self.one(schemas)
        return Graph(name, schema, self.chain(names, depth, 2))

    def chain(self, names: Iterator[str], depth: int, longest: int) -> Chain:
        return tuple(self.part(names, depth) for _ in range(self.number(1, longest)))

    def part(self, names: Iterator[str], depth: int) -> Part:
        nested = ["parallel", "each", "inner", "parallel"] if depth > 0 and self.left > 0 else []
        match self.one(["leaf", *nested]):
            case "leaf":
                return replace(
                    self.leaf(names), goes=self.one([False, True]), caught=self.one([False, False, True])
                )
            case "inner":
                return self.inner(names, depth)
            case kind:
                return self.section(names, depth, kind)

    def leaf(self, names: Iterator[str], gathers: str = "", todo: bool = False) -> Leaf:
        self.left -= 1
        does, returns = tuple(self.draw(operations)), self.draw(returned)
        stumbles = any(each[0] == "stumble" for each in does)
        if todo:
            returns = (*returns, ("todo", self.one(TODOS)))
        return Leaf(next(names), does, returns, gathers, stumbles or self.one([False, False, True]))

    def inner(self, names: Iterator[str], depth: int) -> Inner:
        name = next(names)
        graph = self.graph(depth - 1, [*SCHEMAS])
        return Inner(name, graph, self.one([*PASSINGS, "broken"]), self.one([False, False, True]))

    def section(self, names: Iterator[str], depth: int, kind: str) -> Section:
        collects, laps, todo = self.one([False, True]), self.one([1, 1, 2]), self.one([True, False])
        planner, counter = self.one([False, False, False, True]), f"laps {next(self.sections)}"
        source: Leaf | Inner = self.leaf(names, counter if planner else "", todo and kind == "each")
        if not planner and not todo and self.one([False, False, True]):
            source = self.inner(names, depth)
        opens = self.parallel(names, depth) if kind == "parallel" else self.each(names, depth, todo)
        return Section(source, opens, None if planner else self.leaf(names, counter), collects, laps)

    def parallel(self, names: Iterator[str], depth: int) -> Parallel:
        branches = tuple(self.chain(names, depth - 1, 2) for _ in range(self.one([2, 1, 3, 4])))
        tail = self.chain(names, depth - 2, 1) if self.one([False, False, True]) else ()
        return Parallel(branches, tail, self.one(["fan-in", "nowhere", "exit"]))

    def each(self, names: Iterator[str], depth: int, todo: bool) -> Each:
        over = "todo" if todo else self.one(["function", "function", "broken"])
        limit = self.one([None, None, 1, 2])
        if self.one([False, True]):
            graph = self.graph(depth - 1, [*SCHEMAS])
            how = self.one(PASSINGS[1:] if graph.schema == "none" else PASSINGS)
            return Each(graph, over, "item", how, limit)
        item, ends = self.one(["item", "item", "d", "todo"]), self.one(["fan-in", "nowhere", "exit"])
        return Each(self.chain(names, depth - 1, 2), over, item, "default", limit, ends)

    def one(self, choices: list[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, least: int, most: int) -> int:
        return int(self.draw(st.integers(least, most)))


@st.composite
def sketches(draw: Any) -> Graph:
    """A nesting of up to three levels, of a size that can be run."""
    graph = Drawing(draw).graph(3, ["rich", "rich", "none"])
    try:
        Interpreter(graph), Interpreter(graph, plain=True)
    except TooLarge:
        reject()
    return graph


seeds = st.integers(0, 2**16)
letters = "abcdefgh"
somewhere = [
    *letters,
    *map("/".join, product(letters[:4], repeat=2)),
    *map("/".join, product(["g2", "g3"], "ab")),
]
some_nodes = st.frozensets(st.sampled_from(somewhere), max_size=4)
interrupts = st.lists(st.tuples(some_nodes, some_nodes), min_size=1, max_size=2)
intervals = st.sampled_from([1, 1, 1, 0, 2, 3])
limits = st.sampled_from([32, 32, 1, 2])
fates = st.sampled_from([KILL, KILL, CANCEL, SIGNAL, LOSE, REFUSE])
lives = st.lists(st.tuples(fates, st.integers(0, 60)), max_size=5)
updates = st.lists(
    st.lists(st.sampled_from([*RETURNED, *product(["todo"], TODOS), ("item", [9])]), max_size=2).map(dict),
    max_size=6,
)


def benches_of(kind: type[SomeBench], **more: Any) -> st.SearchStrategy[SomeBench]:
    return st.builds(kind, sketches(), seeds, limit=limits, **more)


def benches(**more: Any) -> st.SearchStrategy[Bench]:
    return benches_of(Bench, **more)


def check(bench: Bench, expected: Interpreter) -> None:
    """What the run came to is what the interpreter says: the state, what fan-ins saw, what completed."""
    assert told_apart(bench.run()) == told_apart(expected.state)
    for at, results in bench.results.items():
        assert len(results) == len(expected.results[at])
        for (*found, node), (*result, nodes) in zip(results, expected.results[at], strict=True):
            assert found == result, f"what {at} sees"
            assert node in nodes if nodes else node is None, f"the errors that {at} sees"
    sure, maybe = ({each[0] for each in some} for some in (expected.sure, expected.maybe))
    assert sure <= bench.durable.keys() <= sure | maybe
    named = {(branch or None, node) for _, branch, node in expected.sure + expected.maybe}
    assert {(each.branch, each.node) for each in bench.check_history() if each.node} <= named


ITEMS = Each(
    (
        Leaf("b", (("grow", "item", 7), ("once", "k"), ("stumble", 1)), (("log", [2]),), retry=True),
        Leaf("c", (("grow", "xs", 5), ("ask", "p"))),
    )
)
ASKED = Each(
    Graph("g3", "none", (Leaf("a", (("sign",), ("ask", "q"), ("break",))),)), "function", passing="mapped"
)
WAYS = Parallel(
    (
        (Leaf("b", (("grow", "xs", 1), ("break",))),),
        (Section(Leaf("c"), ASKED, Leaf("d", gathers="laps of d"), collects=True),),
    )
)
INSIDE = Graph(
    "g2", "small", (Section(Leaf("a", (("shrink", "xs"),)), WAYS, Leaf("f", gathers="laps of f"), laps=2),)
)
RICH = Graph(
    "g1",
    "rich",
    (
        Section(
            Leaf("a", (("bump",),), (("todo", [[1], [2]]), ("log", [1]))),
            ITEMS,
            Leaf("d", (("poke", "d", 1), ("once", "k")), gathers="laps"),
        ),
        Inner("e", INSIDE),
    ),
)
"""A bit of everything: a map, a graph with parallel branches and a map over a graph in one of them, and a loop."""

RICH_STOPS: Interrupts = [(frozenset({"d", "e/b"}), frozenset({"b", "e/c"}))]


# The claims


@settings(lean, max_examples=30)
@given(benches(interval=intervals, stops=interrupts, stream=st.booleans(), watched=st.booleans()))
def test_nested_sections_do_what_a_plain_interpreter_does(bench: Bench) -> None:
    """F12, H8 (invariants 3, 8): whatever the order that nodes finish in, and that questions are answered in."""
    check(bench, Interpreter(bench.graph))


@settings(lean, max_examples=36)
@given(
    benches(interval=intervals, stops=interrupts, stream=st.booleans(), lives=lives, whole=st.booleans()),
    st.booleans(),
)
def test_sections_that_are_cut_anywhere_end_as_if_they_had_not_been(bench: Bench, eager: bool) -> None:
    """F12, H3 (invariants 2, 5, 8): killed, cancelled, refused by the store or never told that it had saved."""
    with eager_snapshots(eager):
        check(bench, Interpreter(bench.graph))


@settings(lean, max_examples=30)
@given(benches(stops=interrupts, lives=lives, updates=updates, whole=st.booleans()))
def test_an_update_at_a_resume_reaches_what_is_under_way_and_nothing_else(bench: Bench) -> None:
    """F12 (invariant 2): branches that are done keep what they came to."""
    bench.run()
    bench.check_history()


@settings(lean, max_examples=14)
@given(benches(), st.data(), st.booleans())
def test_from_any_step_a_fork_or_the_run_set_back_ends_the_same(
    bench: Bench, data: st.DataObject, back: bool
) -> None:
    """F12, H8: what branches had finished by then is kept, and nothing else; no key is used again."""
    expected = Interpreter(bench.graph)
    check(bench, expected)
    steps = history(STORE.read(bench.run_id, first=1))
    step = data.draw(st.integers(0, steps[-1].step - 1))
    check(bench.again(step, back), expected)


@settings(lean, max_examples=30)
@given(sketches(), seeds, limits)
def test_without_a_store_nested_sections_come_to_the_same(graph: Graph, seed: int, limit: int) -> None:
    """F12, H8 (invariant 3): for graphs that ask nothing, never break down and share nothing between keys."""
    expected, world = Interpreter(graph, plain=True), World(plain=True, sound=True)
    seen: list[Any] = []
    world.gathered = lambda ctx, results: seen.append(
        [sorted(told_apart(dict(each)).items()) for each in results]
    )
    plan, clock, chance = define(graph, world).freeze(), ManualClock(), Random(seed)
    progress = Progress("none", plan.name, "", plan.entry, plan.schema.initial(deepcopy(INPUT)))
    clocks = Clocks(now=clock, store=clock, random=lambda: 0.75)
    reporting = Reporting(SecretMasker(plan.secrets))
    core = RunLifecycle(
        plan, RunContext(progress, clocks, Saving(), reporting, Limits(max_concurrency=limit))
    )
    loop, running, answer = core.run(), [], None
    try:
        while True:
            match loop.send(answer):
                case NodeContext() as task:
                    answer = call_node(task)
                case Begin(tasks):
                    running += tasks
                    answer = None
                case Gather(seconds):
                    chance.shuffle(running)
                    done = [running.pop() for _ in range(chance.randint(1, len(running)))]
                    clock.advance(seconds or 0.0)
                    answer = [(task, call_node(task)) for task in done]
                case Wait(until):
                    answer = clock.advance(until - clock())
                case _:
                    answer = None
    except StopIteration as end:
        verdict = end.value
    assert verdict.status == COMPLETED, verdict
    assert told_apart(core.state) == told_apart(expected.state)
    results = [[sorted(each[2].items()) for each in results] for results in expected.results.values()]
    assert sorted(seen) == sorted(results)


@pytest.mark.parametrize(
    ("fate", "stride"),
    [
        (KILL, 6),
        (CANCEL, 19),
        (SIGNAL, 23),
        (LOSE, 23),
        (REFUSE, 19),
    ],
)
def test_a_cut_does_no_harm_at_any_point(fate: str, stride: int) -> None:
    """F12, H3: a nesting with a bit of everything, cut at its points in turn, and killed once more soon after."""
    expected, whole = Interpreter(RICH), Bench(RICH, stops=RICH_STOPS)
    check(whole, expected)
    assert whole.points > 250
    for point in range(0, whole.points, stride):
        lives = [(fate, point), (KILL, point % 13)]
        check(Bench(RICH, point, RICH_STOPS, lives=lives, whole=point % 3 == 0), expected)


@pytest.mark.parametrize("cut", [FAILED, CANCELLED])
def test_an_approval_that_was_never_asked_for_still_waits(cut: str) -> None:
    """F12, F5: a branch waits for one when another fails, or the run is cancelled; a resume asks for it."""
    other = Leaf("b", (("break",),) if cut == FAILED else ())
    graph = Graph(
        "g1", "none", (Section(Leaf("a"), Parallel(((Leaf("c"),), (other,))), Leaf("d", gathers="laps")),)
    )
    bench = Bench(
        graph, stops=[(frozenset("c"), frozenset())], lives=[(CANCEL, 12)] if cut == CANCELLED else []
    )
    bench.run()
    assert bench.verdicts == [cut, PAUSED, COMPLETED]


def test_a_stop_that_could_not_be_saved_doesnt_count() -> None:
    """F12, F5, G9: the run's head and its journal agree, and an approval that was never asked for still waits."""
    graph = Graph(
        "g1", "none", (Section(Leaf("a"), Parallel(((Leaf("b"),), (Leaf("c"),))), Leaf("d", gathers="laps")),)
    )
    for point in range(40):
        bench = Bench(graph, stops=[(frozenset("c"), frozenset())], lives=[(REFUSE, point), (KILL, 0)])
        bench.run()


def test_what_passes_out_of_a_graph_is_distinguished_by_type() -> None:
    """H8: a list of 1 that has become a list of True is different."""
    graph = Graph(
        "g1", "rich", (Inner("a", Graph("g2", "rich", (Leaf("a", returns=(("xs", [True, [2]]),)),))),)
    )
    check(Bench(graph), Interpreter(graph))
