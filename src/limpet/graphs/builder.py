"""Defining a state graph: nodes, edges and their order, checked as a whole when it is frozen into a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from limpet.defaults import MAX_ITERATIONS
from limpet.errors import DefinitionError
from limpet.graphs.parallel import COLLECT, FAIL, OnError, Section, SubPlan
from limpet.graphs.parameters import Function, examine, examine_choice
from limpet.graphs.plan import (
    END,
    START,
    Choice,
    Edge,
    Plan,
    PlanNode,
    fingerprint,
    plan_node,
    secrets_among,
)
from limpet.graphs.predicates import Predicate
from limpet.graphs.retry import Retry, read_delay, read_retry, read_timeout
from limpet.graphs.schema import read_schema
from limpet.graphs.validation import Draft, NodeSpec, SubSpec, mistakes_in, no_node

Passing = Mapping[str, str] | Callable[..., Any] | None
"""What passes in or out of a graph inside of another: `{new key: old key}`, or a function of the state."""


class GraphBuilder:
    """The nodes and edges of a state graph, while it is being written.

    Adding never fails for a name that isn't there yet, so the order of the calls is free; `validate()`
    says everything that is wrong at once.
    """

    def __init__(
        self, schema: Any = None, *, name: str = "graph", max_iterations: int = MAX_ITERATIONS
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a graph's name is a non-empty str, not {name!r}")
        if type(max_iterations) is not int or max_iterations < 1:
            raise DefinitionError(f"max_iterations is a whole number from 1, not {max_iterations!r}", name)
        self.name = name
        self.max_iterations = max_iterations
        self.schema = read_schema(schema)
        self._draft = Draft()
        self._freezing = False

    def add_node(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | GraphBuilder | None = None,
        *,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        inputs: Passing = None,
        outputs: Passing = None,
    ) -> Self:
        """Add a node that calls `run` with whatever of `state`, `config`, `node`, `graph`, `ctx` it names.

        `run` returns a dict of updates, or None. A node without one just passes on. `add_node(fn)` names
        the node after the function. `retry` and `timeout` (seconds) are its policy.

        `run` may be another graph, which then runs inside this one, with a state of its own: `inputs` says what it
        starts with, `{its key: our key}` or a function of our state, and `outputs` what it gives back,
        `{our key: its key}` or a function of its state. Without them, the keys that both know pass.
        Raises `DefinitionError` for a name that is taken or a function that asks for something else.
        """
        if not isinstance(name, str) and callable(name):
            run = name
            name = str(getattr(run, "__name__", ""))
        if not isinstance(name, str) or not name or not name.isprintable() or name in (START, END):
            raise DefinitionError(f"a node's name is a printable str, not START or END: {name!r}", self.name)
        if "/" in name:
            raise DefinitionError(f"a node's name has no '/', which leads into graphs: {name!r}", self.name)
        if name in self._draft.nodes:
            raise DefinitionError(f"there is a node {name!r} already", self.name)
        what = f"node {name!r}"
        timeout = read_timeout(timeout, what)
        sub = self._sub(what, run, inputs, outputs)
        if sub is not None and timeout is not None:
            raise DefinitionError(f"{what} is a graph; give its own nodes the timeout", self.name)
        function = examine(run, what) if run is not None and sub is None else None  # type: ignore[arg-type]  # checked there
        self._draft.nodes[name] = NodeSpec(name, function, read_retry(retry), timeout, sub)
        return self._changed()

    def add_fanin_node(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        retry: Retry | int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Add a node that comes after parallel branches; it may also take `parallel_results`, one entry a branch."""
        return self.add_node(name, run, retry=retry, timeout=timeout)

    def add_edge(
        self, source: str, target: str, predicate: Predicate | None = None, *, delay: Any = 0.0
    ) -> Self:
        """Let `target` follow `source` when `predicate` holds, or always. They are tried in order of addition.

        `add_edge(START, n)` makes n the entry point; `add_edge(n, END)` lets the run end after n. `delay` is how long
        the way takes, in seconds or as a `timedelta`: `source` is saved, and `target` runs when the time has come.
        """
        delay = read_delay(delay, f"the edge {source!r} → {target!r}")
        if delay and (source == START or target == END):
            raise DefinitionError("an edge from START or to END can't have a delay", self.name)
        if source == START:
            return self.set_entry_point(target)
        if target == END and predicate is None:
            return self.set_finish_point(source)
        what = f"the predicate of {source!r} → {target!r}"
        asked = None if predicate is None else examine_choice(predicate, what)
        self._draft.ways.append(Edge(source, target, asked, delay))
        return self._changed()

    def add_conditional_edges(
        self,
        source: str,
        choose: Callable[..., Any],
        outcomes: Mapping[Any, str] | Iterable[str] | None = None,
        *,
        delay: Any = 0.0,
    ) -> Self:
        """Let `choose(state)` pick what follows `source`: its result is looked up in `outcomes`.

        Without `outcomes`, or with a list of names, the result is itself the name of the next node. `delay` is how
        long the way takes, unless it leads to the end.
        """
        delay = read_delay(delay, f"the choice after {source!r}")
        if outcomes is not None and not isinstance(outcomes, Mapping):
            outcomes = {name: name for name in outcomes}
        asked = examine_choice(choose, f"the choice after {source!r}")
        ways = None if outcomes is None else dict(outcomes)
        self._draft.ways.append(Choice(source, asked, ways, delay))
        return self._changed()

    def add_parallel_edge(self, source: str, branch: str, fan_in: str, *, on_error: OnError = FAIL) -> Self:
        """Let a branch begin at node `branch` when `source` is done, beside those of its other parallel edges.

        Each branch has a private copy of the state, follows its own edges, and ends where it comes to `fan_in`, to
        END or to a node that leads nowhere. `fan_in` runs when all have ended, and changes the state by what it makes
        of their `parallel_results`. `on_error` says what a branch that fails does: "fail" the run, once the
        others that had begun are done, or "collect" the error for the fan-in to see.
        """
        self._check_on_error(on_error, f"the parallel edge {source!r} → {branch!r}")
        for place, way in enumerate(self._draft.ways):
            if (
                isinstance(way, Section)
                and way.source == source
                and way.each is None
                and way.fan_in == fan_in
            ):
                if branch in way.branches:
                    raise DefinitionError(f"{source!r} has a parallel edge to {branch!r} already", self.name)
                if way.on_error != on_error:
                    raise DefinitionError(f"the parallel edges of {source!r} differ in on_error", self.name)
                self._draft.ways[place] = way._replace(branches=(*way.branches, branch))
                return self._changed()
        self._draft.ways.append(Section(source, fan_in, (branch,), on_error=on_error))
        return self._changed()

    def add_map(
        self,
        source: str,
        each: str | Callable[..., Any] | GraphBuilder,
        over: str | Callable[..., Any],
        fan_in: str,
        *,
        item: str = "item",
        inputs: Passing = None,
        outputs: Passing = None,
        max_concurrency: int | None = None,
        on_error: OnError = FAIL,
    ) -> Self:
        """Let a branch begin for each item, of the state's key `over` or of `over(state)`, when `source` is done.

        `each` is a node (or a function, which becomes one) that a branch of this graph begins at, with a private copy
        of the state that has the item under the key `item`; or a graph of its own, with `inputs` and `outputs` as in
        `add_node`, of a state that has the item. At most `max_concurrency` branches run at once. `fan_in` and
        `on_error` are as in `add_parallel_edge`; `parallel_results` are in the order of the items.
        """
        what = f"the map after {source!r}"
        self._check_on_error(on_error, what)
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise DefinitionError(f"{what}: max_concurrency is a whole number from 1", self.name)
        if not isinstance(item, str) or not item:
            raise DefinitionError(f"{what}: item is the name of a key, not {item!r}", self.name)
        sub = self._sub(what, each, inputs, outputs)
        if sub is not None:
            each = sub.graph.name
        elif not isinstance(each, str) and callable(each):
            function, each = each, str(getattr(each, "__name__", ""))
            there = self._draft.nodes.get(each)
            if there is None or there.function is None or there.function.call is not function:
                self.add_node(function)
        if not isinstance(each, str):
            raise DefinitionError(f"{what}: each is a node, a function or a graph, not {each!r}", self.name)
        asked: str | Function = (
            over if isinstance(over, str) else self._function_of_state(over, f"what {what} goes over")
        )
        way = Section(source, fan_in, (), each, sub is not None, None, asked, item, on_error, max_concurrency)
        if sub is not None:
            self._draft.maps[len(self._draft.ways)] = sub
        self._draft.ways.append(way)
        return self._changed()

    def set_entry_point(self, node: str) -> Self:
        """Make `node` the one that runs first."""
        if node not in self._draft.entries:
            self._draft.entries.append(node)
        return self._changed()

    def set_finish_point(self, node: str) -> Self:
        """Let the run end after `node`, unless one of its edges is taken. There may be several such nodes."""
        self._draft.exits[node] = None
        return self._changed()

    set_exit_point = set_finish_point

    def validate(self) -> None:
        """Raise a `DefinitionError` that lists every mistake, or return if there is none."""
        mistakes = mistakes_in(self._draft)
        if mistakes:
            raise DefinitionError(mistakes, self.name)

    def freeze(self, interrupt_before: Iterable[str] = (), interrupt_after: Iterable[str] = ()) -> Plan:
        """Validate and return the plan. Raises `DefinitionError`.

        An interrupt inside of a graph that a node runs is named by the way there: `"review/check"`.
        """
        if self._freezing:
            raise DefinitionError("the graph contains itself", self.name)
        before = stop_names("interrupt_before", interrupt_before)
        after = stop_names("interrupt_after", interrupt_after)
        self.validate()
        unknown = [
            f"{kind}: {self._no_stop(name)}"
            for kind, names in (("interrupt_before", before), ("interrupt_after", after))
            for name in names
            if not self._may_stop(name)
        ]
        if unknown:
            raise DefinitionError(unknown, self.name)
        self._warn_of_idle_edges()
        self._freezing = True
        try:
            nodes = {name: self._frozen_node(name, before, after) for name in self._draft.nodes}
        finally:
            self._freezing = False
        entry = self._draft.entries[0]
        return Plan(
            name=self.name,
            nodes=nodes,
            entry=entry,
            schema=self.schema,
            max_iterations=self.max_iterations,
            interrupt_before=frozenset(name for name in before if "/" not in name),
            interrupt_after=frozenset(name for name in after if "/" not in name),
            fingerprint=fingerprint("state", entry, nodes, self.schema),
            graph=self,
            secrets=secrets_among(self.schema.secrets, nodes),
        )

    def _plan_inside(self, interrupt_before: list[str], interrupt_after: list[str]) -> Plan:
        """The plan of this graph where it runs inside another one, which stops it at these nodes as well."""
        return self.freeze(interrupt_before, interrupt_after)

    def _changed(self) -> Self:
        return self

    def _frozen_node(self, name: str, before: list[str], after: list[str]) -> PlanNode:
        def inside(spec: SubSpec, name: str) -> SubPlan:
            prefix = f"{name}/"
            stops = (
                [each.removeprefix(prefix) for each in names if each.startswith(prefix)]
                for names in (before, after)
            )
            return SubPlan(spec.graph._plan_inside(*stops), spec.inputs, spec.outputs)

        draft, spec = self._draft, self._draft.nodes[name]
        ways = [
            way._replace(sub=inside(draft.maps[place], str(way.each)))
            if isinstance(way, Section) and place in draft.maps
            else way
            for place, way in enumerate(draft.ways)
            if way.source == name
        ]
        exits = name in draft.exits or not ways
        sub = None if spec.sub is None else inside(spec.sub, name)
        return plan_node(name, spec.function, spec.retry, spec.timeout, ways, exits, sub, draft.nodes)

    def _sub(self, what: str, run: Any, inputs: Passing, outputs: Passing) -> SubSpec | None:
        """What was given as a graph that runs inside this one; None if it isn't a graph."""
        if not hasattr(run, "_plan_inside"):
            if inputs is not None or outputs is not None:
                raise DefinitionError(f"{what}: inputs and outputs are for a graph that it runs", self.name)
            return None
        if "/" in run.name:
            raise DefinitionError(
                f"{what}: a graph inside of another has no '/' in its name: {run.name!r}", self.name
            )
        passing = [
            given
            if given is None or isinstance(given, Mapping)
            else self._function_of_state(given, f"the {side} of {what}")
            for side, given in (("inputs", inputs), ("outputs", outputs))
        ]
        return SubSpec(run, *passing)

    def _function_of_state(self, call: Callable[..., Any], what: str) -> Function:
        function = examine_choice(call, what)
        if not function.plain:
            raise DefinitionError(f"{what}: a function that takes the state, and nothing else", self.name)
        return function

    def _check_on_error(self, on_error: str, what: str) -> None:
        if on_error not in (FAIL, COLLECT):
            raise DefinitionError(f"{what}: on_error is {FAIL!r} or {COLLECT!r}, not {on_error!r}", self.name)

    def _may_stop(self, name: Any) -> bool:
        """Whether there is such a node. What is beyond a graph's name is that graph's to say."""
        inner, deeper, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
        graphs = {spec.name for spec in self._draft.nodes.values() if spec.sub is not None}
        graphs |= {spec.graph.name for spec in self._draft.maps.values()}
        return inner in graphs if deeper else name in self._draft.nodes

    def _no_stop(self, name: Any) -> str:
        if isinstance(name, str) and "/" in name:
            return f"{name!r} leads into {name.partition('/')[0]!r}, which is no node that runs a graph"
        return no_node(name, self._draft)

    def _warn_of_idle_edges(self) -> None:
        """Two edges from a node don't make two nodes run: say so where the second can never be taken."""
        for name in self._draft.nodes:
            ways = self._draft.ways_from(name)
            certain = next((place for place, way in enumerate(ways) if way.unconditional), len(ways))
            for way in ways[certain + 1 :]:
                from logging import getLogger

                getLogger("limpet.graph").warning(
                    "graph %s: the edge from %r to %s is never taken, as one added before it always is",
                    self.name, name, " or ".join(map(repr, way.targets)),
                )  # fmt: skip


def stop_names(kind: str, given: Iterable[str] | None) -> list[str]:
    """The nodes of `interrupt_before` or `interrupt_after`, whatever they were given as."""
    if isinstance(given, str):
        raise DefinitionError(f"{kind} is a list of node names, not one str: write [{given!r}]")
    return list(given or ())
