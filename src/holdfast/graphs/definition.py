"""Defining a state graph: nodes, edges and their order, checked as a whole when it is frozen into a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from holdfast.errors import DefinitionError, did_you_mean
from holdfast.graphs.functions import Function, examine, examine_choice
from holdfast.graphs.plan import END, START, Choice, Edge, Plan, fingerprint, plan_node
from holdfast.graphs.policy import Retry, read_retry
from holdfast.graphs.predicates import Predicate
from holdfast.graphs.schema import read_schema

KINDS_OF_STOP = ("interrupt_before", "interrupt_after")


class NodeSpec(NamedTuple):
    """What `add_node` was told."""

    name: str
    function: Function | None
    retry: Retry | None
    timeout: float | None


class Definition:
    """The nodes and edges of a state graph, while it is being written.

    Adding never fails for a name that isn't there yet, so the order of the calls is free; `validate()`
    says everything that is wrong at once.
    """

    def __init__(self, schema: Any = None, *, name: str = "graph", max_iterations: int = 1000) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a graph's name is a non-empty str, not {name!r}")
        if type(max_iterations) is not int or max_iterations < 1:
            raise DefinitionError(f"max_iterations is a whole number from 1, not {max_iterations!r}", name)
        self.name = name
        self.max_iterations = max_iterations
        self.schema = read_schema(schema)
        self._nodes: dict[str, NodeSpec] = {}
        self._ways: list[Edge | Choice] = []
        self._entries: list[str] = []
        self._exits: dict[str, None] = {}

    def add_node(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        retry: Retry | int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Add a node that calls `run` with whatever of `state`, `config`, `node`, `graph`, `ctx` it names.

        `run` returns a dict of updates, or None. A node without one just passes on. `add_node(fn)` names
        the node after the function. `retry` and `timeout` (seconds) are its policy.
        Raises `DefinitionError` for a name that is taken or a function that asks for something else.
        """
        if not isinstance(name, str) and callable(name):
            run = name
            name = str(getattr(run, "__name__", ""))
        if not isinstance(name, str) or not name or not name.isprintable() or name in (START, END):
            raise DefinitionError(f"a node's name is a printable str, not START or END: {name!r}", self.name)
        if name in self._nodes:
            raise DefinitionError(f"there is a node {name!r} already", self.name)
        if timeout is not None and not timeout > 0:
            raise DefinitionError(
                f"node {name!r}: timeout is a number of seconds above 0, not {timeout!r}", self.name
            )
        function = None if run is None else examine(run, f"node {name!r}")
        self._nodes[name] = NodeSpec(name, function, read_retry(retry), timeout)
        return self._changed()

    def add_edge(self, source: str, target: str, predicate: Predicate | None = None) -> Self:
        """Let `target` follow `source` when `predicate` holds, or always. They are tried in order of addition.

        `add_edge(START, n)` makes n the entry point; `add_edge(n, END)` lets the run end after n.
        """
        if source == START:
            return self.set_entry_point(target)
        if target == END and predicate is None:
            return self.set_finish_point(source)
        what = f"the predicate of {source!r} → {target!r}"
        asked = None if predicate is None else examine_choice(predicate, what)
        self._ways.append(Edge(source, target, asked))
        return self._changed()

    def add_conditional_edges(
        self,
        source: str,
        choose: Callable[..., Any],
        outcomes: Mapping[Any, str] | Iterable[str] | None = None,
    ) -> Self:
        """Let `choose(state)` pick what follows `source`: its result is looked up in `outcomes`.

        Without `outcomes`, or with a list of names, the result is itself the name of the next node.
        """
        if outcomes is not None and not isinstance(outcomes, Mapping):
            outcomes = {name: name for name in outcomes}
        asked = examine_choice(choose, f"the choice after {source!r}")
        self._ways.append(Choice(source, asked, None if outcomes is None else dict(outcomes)))
        return self._changed()

    def set_entry_point(self, node: str) -> Self:
        """Make `node` the one that runs first."""
        if node not in self._entries:
            self._entries.append(node)
        return self._changed()

    def set_finish_point(self, node: str) -> Self:
        """Let the run end after `node`, unless one of its edges is taken. There may be several such nodes."""
        self._exits[node] = None
        return self._changed()

    set_exit_point = set_finish_point

    def validate(self) -> None:
        """Raise a `DefinitionError` that lists every mistake, or return if there is none."""
        mistakes = [*self._wrong_names(), *self._wrong_ends(), *self._unreachable()]
        if mistakes:
            raise DefinitionError(mistakes, self.name)

    def freeze(self, interrupt_before: Iterable[str] = (), interrupt_after: Iterable[str] = ()) -> Plan:
        """Validate and return the plan. Raises `DefinitionError`."""
        stops = [
            stop_names(kind, given)
            for kind, given in zip(KINDS_OF_STOP, (interrupt_before, interrupt_after), strict=True)
        ]
        self.validate()
        unknown = [
            f"{kind}: {self._no_node(name)}"
            for kind, names in zip(KINDS_OF_STOP, stops, strict=True)
            for name in names
            if name not in self._nodes
        ]
        if unknown:
            raise DefinitionError(unknown, self.name)
        self._warn_of_idle_edges()
        nodes = {
            spec.name: plan_node(
                spec.name,
                spec.function,
                spec.retry,
                spec.timeout,
                self._ways_from(spec.name),
                spec.name in self._exits,
            )
            for spec in self._nodes.values()
        }
        entry = self._entries[0]
        return Plan(
            name=self.name,
            nodes=nodes,
            entry=entry,
            schema=self.schema,
            max_iterations=self.max_iterations,
            interrupt_before=frozenset(stops[0]),
            interrupt_after=frozenset(stops[1]),
            fingerprint=fingerprint("state", entry, nodes, self.schema),
            graph=self,
        )

    def _changed(self) -> Self:
        return self

    def _ways_from(self, name: str) -> list[Edge | Choice]:
        return [way for way in self._ways if way.source == name]

    def _wrong_names(self) -> list[str]:
        mistakes = [
            f"the entry point: {self._no_node(name)}" for name in self._entries if name not in self._nodes
        ]
        mistakes += [
            f"an exit point: {self._no_node(name)}" for name in self._exits if name not in self._nodes
        ]
        for way in self._ways:
            if way.source not in self._nodes:
                mistakes.append(f"an edge from nowhere: {self._no_node(way.source)}")
            mistakes += [
                f"an edge from {way.source!r}: {self._no_node(target)}"
                for target in way.targets
                if target not in self._nodes and target != END
            ]
        return mistakes

    def _wrong_ends(self) -> list[str]:
        mistakes = []
        if not self._entries:
            mistakes.append("no entry point: say which node runs first with set_entry_point(name)")
        elif len(self._entries) > 1:
            mistakes.append(f"several entry points ({', '.join(map(repr, self._entries))}); a graph has one")
        open_choice = any(isinstance(way, Choice) and way.outcomes is None for way in self._ways)
        if not self._exits and not open_choice and not any(END in way.targets for way in self._ways):
            mistakes.append("no exit point: say where the run may end with set_finish_point(name)")
        for name in self._nodes:
            ways = self._ways_from(name)
            if not ways and name not in self._exits:
                mistakes.append(
                    f"node {name!r} leads nowhere: add an edge from it, or set_finish_point({name!r})"
                )
            if name in self._exits and any(way.unconditional for way in ways):
                mistakes.append(
                    f"node {name!r} is an exit point, but it has an edge that is always taken, "
                    "so the run would never end there"
                )
        return mistakes

    def _unreachable(self) -> list[str]:
        if not self._entries or any(isinstance(way, Choice) and way.outcomes is None for way in self._ways):
            return []
        reached, ahead = set(self._entries), list(self._entries)
        while ahead:
            for way in self._ways_from(ahead.pop()):
                fresh = [target for target in way.targets if target not in reached]
                reached.update(fresh)
                ahead += fresh
        return [
            f"node {name!r} can't be reached from the entry point"
            for name in self._nodes
            if name not in reached
        ]

    def _warn_of_idle_edges(self) -> None:
        """Two edges from a node don't make two nodes run: say so where the second can never be taken."""
        for name in self._nodes:
            ways = self._ways_from(name)
            certain = next((place for place, way in enumerate(ways) if way.unconditional), len(ways))
            for way in ways[certain + 1 :]:
                from logging import getLogger

                getLogger("holdfast.graph").warning(
                    "graph %s: the edge from %r to %s is never taken, as one added before it always is",
                    self.name, name, " or ".join(map(repr, way.targets)),
                )  # fmt: skip

    def _no_node(self, name: Hashable) -> str:
        return f"there is no node {name!r}" + did_you_mean(name, self._nodes)


def stop_names(kind: str, given: Iterable[str] | None) -> list[str]:
    """The nodes of `interrupt_before` or `interrupt_after`, whatever they were given as."""
    if isinstance(given, str):
        raise DefinitionError(f"{kind} is a list of node names, not one str: write [{given!r}]")
    return list(given or ())
