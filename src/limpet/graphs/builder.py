"""Defining a state graph: nodes and edges, which are validated as a whole when the graph is frozen into a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self

from limpet.defaults import MAX_ITERATIONS
from limpet.errors import DefinitionError
from limpet.graphs.edges import (
    END,
    START,
    Choice,
    Edge,
    ErrorEdge,
    GotoEdge,
    OutEdge,
    read_error_kinds,
    read_goto,
)
from limpet.graphs.node_options import (
    InnerGraphSpec,
    LimitLike,
    NodeOptions,
    check_node_name,
    interrupt_names,
    limits_of_all,
    names_inside,
    names_of_limits,
    read_limits,
)
from limpet.graphs.parallel import FAIL, InnerGraph, OnError, Section, check_on_error
from limpet.graphs.parameters import Function, read_node_function, read_sync_function
from limpet.graphs.plan import Freezing, Plan, PlanNode, all_secret_keys, fingerprint, inner_graphs, plan_node
from limpet.graphs.retry import Retry, read_delay, read_retry, read_timeout
from limpet.graphs.schema import read_schema
from limpet.graphs.typed_state.typed_functions import typed_edge, typed_function
from limpet.graphs.validation import (
    Draft,
    mistakes_in,
    unfilled_parameters,
    warn_of_unused_edges,
    wrong_interrupts,
)

Passing = Mapping[str, str] | Callable[..., Any] | None
"""What passes into or out of a graph inside of another: `{new key: old key}`, or a function of the state."""


NO_RESOURCES: Final[Mapping[str, Any]] = {}


class GraphBuilder:
    """The nodes and edges of a state graph, while it is being defined.

    The order of the calls is free. A change counts for runs that begin after it, not for those under way.
    """

    def __init__(
        self, schema: Any = None, *, name: str = "graph", max_iterations: int | None = MAX_ITERATIONS
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a graph's name must be a non-empty str, not {name!r}")
        if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 1):
            raise DefinitionError(
                f"max_iterations must be a whole number of at least 1, or None, not {max_iterations!r}", name
            )
        self.name = name
        self.max_iterations = max_iterations
        self.schema = read_schema(schema)
        self._draft = Draft()
        self._freezing = Freezing()

    def add_node(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | GraphBuilder | None = None,
        *,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        inputs: Passing = None,
        outputs: Passing = None,
        goto: Iterable[str] | None = None,
        limits: Iterable[LimitLike] = (),
    ) -> Self:
        """Add a node that calls `run` with those of `state`, `config`, `node`, `graph`, `ctx` that it names.

        It may name `error`, where an error edge leads here, and resources that `compile(resources=…)` gives. A first
        parameter of any other name is the state. `run` may be async, and returns a dict of updates, or None. A node
        without `run` does nothing. `add_node(fn)` names the node after the function; a name can't contain `/`.
        `retry` and `timeout` (seconds) are its policy.

        `run` may be another graph, which then runs inside this one, with a state of its own: `inputs` is what it
        starts with, `{its key: our key}` or a function of our state, and `outputs` is what it returns,
        `{our key: its key}` or a function of its state. Without them, the keys that both graphs know pass.

        `goto` names the nodes that `run` may go to by a `Goto`, END included. `limits`, by name or as a `Limit`, are
        those that each call needs a slot of, over all processes. Raises `DefinitionError` for a name that is taken;
        `compile` does for a parameter that nothing fills.
        """
        if not isinstance(name, str) and callable(name):
            run = name
            name = str(getattr(run, "__name__", ""))
        name = check_node_name(name, self.name)
        if name in self._draft.nodes:
            raise DefinitionError(f"a node named {name!r} already exists", self.name)
        what = f"node {name!r}"
        timeout = read_timeout(timeout, what)
        inner = self._inner_graph(what, run, inputs, outputs)
        if inner is not None and timeout is not None:
            raise DefinitionError(f"{what} is a graph; give its own nodes the timeout", self.name)
        function = None
        if run is not None and inner is None:
            function = read_node_function(run, what)  # type: ignore[arg-type]  # checked there
        targets = read_goto(goto, function, what)
        if targets:
            if function is None:
                raise DefinitionError(f"{what} has a goto, and no function that could return one", self.name)
            self._draft.jumps.append(GotoEdge(name, targets))
        shared = read_limits(limits, what)
        self._draft.nodes[name] = NodeOptions(name, function, read_retry(retry), timeout, inner, shared)
        return self._changed()

    def add_fanin_node(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        goto: Iterable[str] | None = None,
        limits: Iterable[LimitLike] = (),
    ) -> Self:
        """Add a node where branches join: it takes `parallel_results`, a `BranchResult` of each, in their order."""
        return self.add_node(name, run, retry=retry, timeout=timeout, goto=goto, limits=limits)

    def add_edge(
        self, source: str, target: str, predicate: Callable[..., Any] | None = None, *, delay: Any = 0.0
    ) -> Self:
        """Let `target` follow `source` if `predicate` holds, or always. The first added edge that holds is taken.

        `add_edge(START, n)` makes n the entry point; `add_edge(n, END)` lets the run end after n. With a `delay`, in
        seconds or as a `timedelta`, `source` is saved and `target` runs after that time.
        """
        what = f"the edge {source!r} → {target!r}"
        self._check_ends(what, source, target)
        delay = read_delay(delay, what)
        if delay and (source == START or target == END):
            raise DefinitionError("an edge from START or to END can't have a delay", self.name)
        if source == START:
            return self.set_entry_point(target)
        if target == END and predicate is None:
            return self.set_finish_point(source)
        what = f"the predicate of {source!r} → {target!r}"
        function = None if predicate is None else read_sync_function(predicate, what)
        self._draft.edges.append(Edge(source, target, function, delay))
        return self._changed()

    def add_conditional_edges(
        self,
        source: str,
        choose: Callable[..., Any],
        outcomes: Mapping[Any, str] | Iterable[str] | None = None,
        *,
        delay: Any = 0.0,
    ) -> Self:
        """Let `choose(state)` pick the node after `source`: its result is looked up in `outcomes`.

        Without `outcomes`, or with a list of names, the result is itself the name of the next node. `delay` is as in
        `add_edge`; the edge to the end has none.
        """
        delay = read_delay(delay, f"the choice after {source!r}")
        if outcomes is not None and not isinstance(outcomes, Mapping):
            outcomes = {name: name for name in outcomes}
        function = read_sync_function(choose, f"the choice after {source!r}")
        targets = None if outcomes is None else dict(outcomes)
        self._draft.edges.append(Choice(source, function, targets, delay))
        return self._changed()

    def add_error_edge(
        self, source: str, handler: str, on: type[Exception] | tuple[type[Exception], ...] = Exception
    ) -> Self:
        """Let `handler` follow `source` when that fails with one of the exceptions `on`, and isn't retried any more.

        `handler` is a node as any other, with edges of its own. It finds the error as its parameter `error`, or as
        `ctx.error`: a `CaughtError`. What the failed call changed is discarded. Error edges are tried in the order
        in which they were added.
        """
        kinds = read_error_kinds(on, f"the error edge {source!r} → {handler!r}")
        self._draft.jumps.append(ErrorEdge(source, handler, kinds))
        return self._changed()

    def add_parallel_edge(self, source: str, branch: str, fan_in: str, *, on_error: OnError = FAIL) -> Self:
        """Let a branch begin at node `branch` when `source` is done, in parallel with its other parallel edges.

        Each branch has a private copy of the state, follows its own edges, and ends where it reaches `fan_in`,
        END or a node without edges. `fan_in` runs when all branches have ended, and returns an update made from their
        `parallel_results`. `on_error` is what happens if the branch fails: "fail" fails the run, once the
        branches that had begun are done; "collect" passes the error to the fan-in.
        """
        self._check_ends(f"the parallel edge {source!r} → {branch!r}", source, branch, fan_in)
        check_on_error(on_error, f"the parallel edge {source!r} → {branch!r}", self.name)
        index = self._parallel_section(source, fan_in)
        if index is None:
            self._draft.edges.append(Section(source, fan_in, (branch,), on_error=on_error))
            return self._changed()
        section = self._draft.edges[index]
        assert isinstance(section, Section)
        if branch in section.branches:
            raise DefinitionError(f"node {source!r} already has a parallel edge to {branch!r}", self.name)
        if section.on_error != on_error:
            raise DefinitionError(f"the parallel edges of {source!r} differ in on_error", self.name)
        self._draft.edges[index] = section._replace(branches=(*section.branches, branch))
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

        `each` is a node (or a function, which becomes one) where each branch begins, with a private copy
        of the state that has the item under the key `item`. Or it is a graph, with `inputs` and `outputs` as in
        `add_node`, of a state that has the item. At most `max_concurrency` branches run at once. `fan_in` and
        `on_error` are as in `add_parallel_edge`; `parallel_results` are in the order of the items.
        """
        what = f"the map after {source!r}"
        check_on_error(on_error, what, self.name)
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise DefinitionError(f"{what}: max_concurrency must be a whole number of at least 1", self.name)
        if not isinstance(item, str) or not item:
            raise DefinitionError(f"{what}: item must be the name of a key, not {item!r}", self.name)
        inner = self._inner_graph(what, each, inputs, outputs)
        if inner is not None:
            each = inner.graph.name
        elif not isinstance(each, str) and callable(each):
            each = self._node_of(each)
        if not isinstance(each, str):
            raise DefinitionError(
                f"{what}: each must be a node, a function or a graph, not {each!r}", self.name
            )
        items: str | Function
        if isinstance(over, str):
            items = over
        else:
            items = self._function_of_state(over, f"the items of {what}")
        if inner is not None:
            self._draft.maps[len(self._draft.edges)] = inner
        self._draft.edges.append(
            Section(
                source,
                fan_in,
                each=each,
                own_state=inner is not None,
                over=items,
                item=item,
                on_error=on_error,
                max_concurrency=max_concurrency,
            )
        )
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
        """Raise a `DefinitionError` that lists all mistakes, if there are any."""
        mistakes = mistakes_in(self._draft)
        if mistakes:
            raise DefinitionError(mistakes, self.name)

    def freeze(
        self,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
        outer_resources: Mapping[str, Any] = NO_RESOURCES,
    ) -> Plan:
        """Validate and return the plan. Raises `DefinitionError`.

        An interrupt inside of a graph that a node runs is named by its path: `"review/check"`. Nodes can take the
        resources of this graph and `outer_resources`, those of the graph that it is inside of.
        """
        if self._freezing.is_under_way:
            raise DefinitionError("the graph contains itself", self.name)
        before = interrupt_names("interrupt_before", interrupt_before)
        after = interrupt_names("interrupt_after", interrupt_after)
        resources = {**outer_resources, **self._resources()}
        mistakes = [*mistakes_in(self._draft), *unfilled_parameters(self._draft, resources)]
        if mistakes:
            raise DefinitionError(mistakes, self.name)
        unknown = [
            *wrong_interrupts(self._draft, "interrupt_before", before),
            *wrong_interrupts(self._draft, "interrupt_after", after),
        ]
        if unknown:
            raise DefinitionError(unknown, self.name)
        warn_of_unused_edges(self._draft, self.name)
        try:
            with self._freezing:
                nodes = {
                    name: self._frozen_node(name, before, after, resources) for name in self._draft.nodes
                }
        except DefinitionError as problem:
            if problem.graph:
                raise
            raise DefinitionError(problem.mistakes, self.name) from None
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
            secrets=all_secret_keys(self.schema.secrets, nodes),
            limits=limits_of_all(self._draft.nodes.values(), inner_graphs(nodes)),
        )

    def _plan_inside(
        self, interrupt_before: list[str], interrupt_after: list[str], resources: Mapping[str, Any]
    ) -> Plan:
        """The plan of this graph inside of another one, which has these interrupts and resources for it."""
        return self.freeze(interrupt_before, interrupt_after, resources)

    def _resources(self) -> Mapping[str, Any]:
        """The resources that it was compiled with, by name."""
        return NO_RESOURCES

    def _changed(self) -> Self:
        return self

    def _frozen_node(
        self, name: str, before: list[str], after: list[str], resources: Mapping[str, Any]
    ) -> PlanNode:
        draft = self._draft
        spec = draft.nodes[name]
        edges: list[OutEdge] = []
        for index, edge in enumerate(draft.edges):
            if edge.source != name:
                continue
            if isinstance(edge, Section) and index in draft.maps:
                mapped = self._frozen_inner(draft.maps[index], str(edge.each), before, after, resources)
                edge = edge._replace(inner=mapped)
            edge = typed_edge(edge, self.schema, resources)
            edges.append(edge.bound(resources) if resources else edge)
        jumps = draft.jumps_from(name)
        exits = name in draft.exits or not (edges or draft.has_goto(name))
        inner = None
        if spec.inner is not None:
            inner = self._frozen_inner(spec.inner, name, before, after, resources)
        function = spec.function
        if function is not None:
            function = typed_function(function, self.schema, f"node {name!r}", resources, updates=True)
            function = function.bound(resources)
        limits = names_of_limits(spec.limits, inner, f"node {name!r}")
        node = plan_node(
            name, function, spec.retry, spec.timeout, edges, exits, inner, draft.nodes, limits=limits
        )
        return node._replace(jumps=tuple(jumps)) if jumps else node

    def _frozen_inner(
        self,
        spec: InnerGraphSpec,
        name: str,
        before: list[str],
        after: list[str],
        resources: Mapping[str, Any],
    ) -> InnerGraph:
        """A graph inside of this one, with the interrupts that are named by the path `name/…`, and its resources."""
        plan = spec.graph._plan_inside(names_inside(name, before), names_inside(name, after), resources)
        inputs = spec.inputs
        if isinstance(inputs, Function):
            inputs = typed_function(inputs, self.schema, f"the inputs of {name!r}")
        outputs = spec.outputs
        if isinstance(outputs, Function):
            outputs = typed_function(outputs, plan.schema, f"the outputs of {name!r}")
        return InnerGraph(plan, inputs, outputs)

    def _parallel_section(self, source: str, fan_in: str) -> int | None:
        """The index of the section that has the parallel edges from `source` to `fan_in`, if any."""
        for index, edge in enumerate(self._draft.edges):
            if (
                isinstance(edge, Section)
                and edge.each is None
                and (edge.source, edge.fan_in) == (source, fan_in)
            ):
                return index
        return None

    def _node_of(self, function: Callable[..., Any]) -> str:
        """The name of the node that calls the function, which is added unless it exists."""
        name = str(getattr(function, "__name__", ""))
        existing = self._draft.nodes.get(name)
        if existing is None or existing.function is None or existing.function.call is not function:
            self.add_node(function)
        return name

    def _inner_graph(self, what: str, run: Any, inputs: Passing, outputs: Passing) -> InnerGraphSpec | None:
        """A graph that was given to run inside this one; None if `run` isn't a graph."""
        if not hasattr(run, "_plan_inside"):
            if inputs is not None or outputs is not None:
                raise DefinitionError(f"{what}: inputs and outputs are for a graph that it runs", self.name)
            return None
        if "/" in run.name:
            raise DefinitionError(
                f"{what}: a graph inside of another can't have '/' in its name: {run.name!r}", self.name
            )
        return InnerGraphSpec(
            run,
            self._passing(inputs, f"the inputs of {what}"),
            self._passing(outputs, f"the outputs of {what}"),
        )

    def _passing(self, given: Passing, what: str) -> Mapping[str, str] | Function | None:
        if given is None or isinstance(given, Mapping):
            return given
        return self._function_of_state(given, what)

    def _function_of_state(self, call: Callable[..., Any], what: str) -> Function:
        function = read_sync_function(call, what)
        if not function.plain:
            raise DefinitionError(f"{what}: the function takes the state, and nothing else", self.name)
        return function

    def _check_ends(self, what: str, *nodes: object) -> None:
        if not all(isinstance(node, str) for node in nodes):
            what += " must lead from one node to another: add an edge for each"
            raise DefinitionError(what, self.name)
