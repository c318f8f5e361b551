"""Graphs by name, so that a process can resume a run that another process started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Protocol

from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import DefinitionError, UsageError, did_you_mean


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
