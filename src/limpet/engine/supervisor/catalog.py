"""Graphs by name, so that a process can resume a run that another process started; and as they run on its store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.supervisor.skipped_runs import RETRY_INTERVAL
from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.observe.hub import Emit, both

if TYPE_CHECKING:
    from limpet.engine.leases.waiting_runs import WaitingRuns
    from limpet.observe.opentelemetry.telemetry import Telemetry


class Graph(Protocol):
    """What can be supervised: a `StateGraph` or a `Workflow`."""

    name: str

    def compiled(self) -> CompiledGraph:
        """The plan and its settings."""
        ...


Reference = Graph | str
"""A graph, or where to find one: `"package.module:attribute"`."""


MAX_SHOWN = 200
"""How long the text of a value is at most that a message shows."""


class GraphCatalog:
    """The graphs whose runs a supervisor resumes, by name. A reference is imported when its graph is first needed."""

    def __init__(self, graphs: Iterable[Reference] | Mapping[str, Reference] = ()) -> None:
        self._graphs: dict[str, Reference] = {}
        self._implied: set[str] = set()
        """The names of graphs that are here because another starts their runs. A graph that is added replaces one."""
        self._lock = Lock()
        if isinstance(graphs, Mapping):
            for name, graph in graphs.items():
                self.add(graph, name)
        elif isinstance(graphs, str) or not isinstance(graphs, Iterable):
            raise UsageError(f"graphs must be a list of graphs or references to them, not {graphs!r}")
        else:
            for graph in graphs:
                self.add(graph)

    @property
    def names(self) -> list[str]:
        """The names of the graphs."""
        return list(self._graphs)

    def __contains__(self, name: str) -> bool:
        return name in self._graphs

    def add(self, graph: Reference, name: str | None = None) -> str:
        """Add a graph, and return its name. A reference that has a name isn't imported yet.

        Raises `DefinitionError` for another graph of the same name, and for a reference that leads to no graph.
        """
        if name is None:
            if isinstance(graph, str):
                graph = find_graph(graph)
            name = _checked(graph, "graphs").name
        with self._lock:
            if name in self._implied:
                self._implied.discard(name)
                del self._graphs[name]
            known = self._graphs.setdefault(name, graph)
        if known is not graph and known != graph:
            raise DefinitionError(f"there are two graphs called {name!r}: give one of them another name")
        self._add_children(graph)
        return name

    def _add_children(self, graph: Reference) -> None:
        """Add the graphs whose runs this one starts, if it knows them and there are no others of their names."""
        with self._lock:
            for name, child in getattr(graph, "_child_graphs", {}).items():
                if name not in self._graphs:
                    self._graphs[name] = child
                    self._implied.add(name)

    def is_imported(self, name: str) -> bool:
        """Whether the graph of this name is at hand: its reference was followed, or it was given as a graph."""
        return not isinstance(self._graphs.get(name, ""), str)

    def graph(self, name: str) -> Graph:
        """The graph of this name. Raises `DefinitionError` for a reference that leads elsewhere."""
        found = self._graphs[name]
        if isinstance(found, str):
            reference = found
            found = find_graph(reference)
            if found.name != name:
                raise DefinitionError(f"{reference!r} leads to graph {found.name!r}, not {name!r}")
            self._graphs[name] = found
            self._add_children(found)
        return found


class GraphsOnStore:
    """The graphs of a catalog, each with the settings by which a supervisor runs it on its store."""

    def __init__(self, catalog: GraphCatalog, client: LeaseClient, emit: Emit | None) -> None:
        self.catalog = catalog
        self.store_numbers: WaitingRuns | None = None
        """What graphs with telemetry report of the store."""
        self._client = client
        self._emit = emit
        self._compiled: dict[str, CompiledGraph] = {}
        self._retries: dict[str, float] = {}
        """When a graph that couldn't be had is tried again, by the monotonic clock."""

    def compiled(self, name: str) -> CompiledGraph:
        """The graph of this name. Raises `DefinitionError`, and whatever its module raises."""
        if name not in self._compiled:
            compiled = self.catalog.graph(name).compiled()
            on_save_error = compiled.on_save_error
            # A worker waits for a store that is unavailable: failing its runs would help no caller.
            if on_save_error == "fail":
                on_save_error = "wait"
            self._compiled[name] = compiled._replace(
                client=self._client,
                interval=compiled.interval or 1,
                checkpointer=None,
                scratch_store=False,
                on_save_error=on_save_error,
                emit=both(compiled.emit, self._emit),
            )
            if compiled.telemetry is not None:
                self._report_store(compiled.telemetry)
        return self._compiled[name]

    def _report_store(self, telemetry: Telemetry) -> None:
        """Have telemetry report what waits in the store, for as long as there is this supervisor."""
        from limpet.engine.leases.waiting_runs import WaitingRuns

        if self.store_numbers is None:
            self.store_numbers = WaitingRuns(self._client.store)
        telemetry.observe_store(self.store_numbers)

    def plan_of(self, name: str) -> str | None:
        """The fingerprint of a graph's plan, for which it may be imported; None if it can't be had."""
        if name not in self._compiled and monotonic() < self._retries.get(name, 0.0):
            return None
        try:
            return self.compiled(name).plan.fingerprint
        except (Exception, SystemExit):
            # A run of it says what is wrong, when it is resumed. Not here, where others wait for the next look.
            self._retries[name] = monotonic() + RETRY_INTERVAL
            return None

    def known_plans(self) -> dict[str, str | None]:
        """The fingerprints of all plans by the names of their graphs; None for those that aren't imported yet."""
        return {
            name: self.plan_of(name) if self.catalog.is_imported(name) else None
            for name in self.catalog.names
        }


def find_graph(reference: str) -> Graph:
    """The graph at `"package.module:attribute"`, or what a function there returns. Raises `DefinitionError`."""
    from importlib import import_module
    from inspect import isfunction

    module, _, path = reference.partition(":")
    if not module or not path:
        raise DefinitionError(f"{reference!r} isn't a reference to a graph: write 'package.module:attribute'")
    try:
        found = import_module(module)
    except ImportError as problem:
        raise DefinitionError(f"{reference!r}: can't import {module!r}: {problem}") from problem
    for part in path.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [name for name in vars(found) if not name.startswith("_")])
            raise DefinitionError(f"{reference!r}: {module!r} has no {part!r}{near}")
        found = getattr(found, part)
    if isfunction(found):
        found = found()
    return _checked(found, reference)


REGISTERED = GraphCatalog()
"""The graphs that every supervisor of this process knows."""


def register_graph(graph: Reference, name: str | None = None) -> str:
    """Make a graph known to the supervisors of this process, and return its name.

    `graph` is a graph or `"package.module:attribute"`; with a `name`, that is imported when a run of it is found.
    """
    return REGISTERED.add(graph, name)


def _checked(found: object, where: str) -> Graph:
    if isinstance(found, type) or not callable(getattr(found, "compiled", None)):
        shown = repr(found)
        if len(shown) > MAX_SHOWN:
            shown = f"a {type(found).__name__}"
        raise DefinitionError(f"{where}: {shown} isn't a graph: give a StateGraph or a Workflow")
    return found  # type: ignore[return-value]  # it has what the protocol asks for
