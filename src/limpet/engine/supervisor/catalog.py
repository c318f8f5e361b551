"""Graphs by name, so that a process can go on with a run that it didn't start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Protocol

from limpet.engine.sessions.session import CompiledGraph
from limpet.errors import DefinitionError, UsageError, did_you_mean


class Graph(Protocol):
    """What can be supervised: a `StateGraph` or a `Workflow`."""

    name: str

    def compiled(self) -> CompiledGraph:
        """The plan and its settings."""
        ...


Reference = Graph | str
"""A graph, or where to find one: `"package.module:attribute"`."""


class GraphCatalog:
    """The graphs that a supervisor can go on with, by name. References are followed when a graph is first needed."""

    def __init__(self, graphs: Iterable[Reference] | Mapping[str, Reference] = ()) -> None:
        self._graphs: dict[str, Reference] = {}
        self._lock = Lock()
        if isinstance(graphs, Mapping):
            for name, graph in graphs.items():
                self.add(graph, name)
        elif isinstance(graphs, str) or not isinstance(graphs, Iterable):
            raise UsageError(f"graphs is a list of graphs or references to them, not {graphs!r}")
        else:
            for graph in graphs:
                self.add(graph)

    @property
    def names(self) -> list[str]:
        """The names of the graphs."""
        return list(self._graphs)

    def add(self, graph: Reference, name: str | None = None) -> str:
        """Add a graph, and return its name. A reference that comes with a name isn't followed yet.

        Raises `DefinitionError` for another graph of the same name, and where there is no graph.
        """
        if isinstance(graph, str) and name is None:
            graph = find(graph)
        named = name if name is not None else _checked(graph, "graphs").name
        with self._lock:
            there = self._graphs.setdefault(named, graph)
        if there is not graph and there != graph:
            raise DefinitionError(f"there are two graphs called {named!r}: give one of them another name")
        return named

    def graph(self, name: str) -> Graph:
        """The graph of this name. Raises `DefinitionError` where the reference to it leads nowhere."""
        found = self._graphs[name]
        if isinstance(found, str):
            reference, found = found, find(found)
            if found.name != name:
                raise DefinitionError(f"{reference!r} leads to graph {found.name!r}, not {name!r}")
            self._graphs[name] = found
        return found


def find(reference: str) -> Graph:
    """The graph at `"package.module:attribute"`, or what a function there makes. Raises `DefinitionError`."""
    from importlib import import_module
    from inspect import isfunction

    module, _, path = reference.partition(":")
    if not module or not path:
        raise DefinitionError(f"{reference!r} is no reference to a graph: write 'package.module:attribute'")
    try:
        found = import_module(module)
    except ImportError as problem:
        raise DefinitionError(f"{reference!r}: can't import {module!r}: {problem}") from problem
    for part in path.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [name for name in vars(found) if not name.startswith("_")])
            raise DefinitionError(f"{reference!r}: {module!r} has no {part!r}{near}")
        found = getattr(found, part)
    return _checked(found() if isfunction(found) else found, reference)


REGISTERED = GraphCatalog()
"""The graphs that any supervisor of this process knows."""


def register_graph(graph: Reference, name: str | None = None) -> str:
    """Have supervisors of this process know a graph, and return its name.

    `graph` is one, or `"package.module:attribute"`; with a `name`, that is followed when a run of it turns up.
    """
    return REGISTERED.add(graph, name)


def _checked(found: object, where: str) -> Graph:
    if isinstance(found, type) or not callable(getattr(found, "compiled", None)):
        raise DefinitionError(f"{where}: {found!r} is no graph")
    return found  # type: ignore[return-value]  # it has what is asked of one
