"""The graphs whose runs the nodes of a file start, as children of theirs.

A graph may start runs of itself, or of a graph that starts runs of it. So a node refers to a `ChildGraph`, which is
complete when all files are read, and each file is read once. The graphs of one load know each other by name: by the
name in a child's record, a process that joins the child finds the graph with which it can execute it.
"""

from __future__ import annotations

from typing import Any

from limpet.errors import UsageError
from limpet.graph_methods import GraphMethods
from limpet.yaml_files.build.from_checkpoint import ResumesFromCheckpoint
from limpet.yaml_files.build.node_code import CodeSource, ImportedCode


class ChildGraph:
    """A graph that nodes start runs of. `graph` is None until it is built, and stays so if nothing is imported."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graph: GraphMethods[Any] | None = None


class ChildGraphs:
    """All such graphs of one load, and the graph that is loaded, by where they are."""

    def __init__(self) -> None:
        self._by_place: dict[str, ChildGraph] = {}

    def get(self, place: str) -> ChildGraph | None:
        """The graph at a place, if it is known; it may not be complete yet."""
        return self._by_place.get(place)

    def add(self, place: str, name: str) -> ChildGraph:
        """A graph that is about to be built."""
        child = self._by_place[place] = ChildGraph(name)
        return child

    def in_module(self, reference: str, code: CodeSource) -> ChildGraph:
        """The graph that `module:graph` names. Raises `UsageError` if that isn't one."""
        known = self.get(reference)
        if known is not None:
            return known
        found = code.object_at(reference)
        if not isinstance(code, ImportedCode):
            return self.add(reference, "")
        if not isinstance(found, GraphMethods):
            raise UsageError(f"{reference!r} is {type(found).__name__}, not a StateGraph or a Workflow")
        child = self.add(reference, found.name)
        child.graph = found
        return child

    def check_name(self, child: ChildGraph) -> None:
        """Raise `UsageError` if another graph has the same name: stored runs know their graphs by name."""
        for place, other in self._by_place.items():
            if child.name and other is not child and other.name == child.name:
                where = f" ({place})" if place else ""
                raise UsageError(
                    f"there are two graphs called {child.name!r}{where}: runs find their graphs by name"
                )

    def make_known(self) -> None:
        """Let every graph that was built know all of them, and its file."""
        graphs = {
            child.graph.name: child.graph for child in self._by_place.values() if child.graph is not None
        }
        for place, child in self._by_place.items():
            # One that a module has loaded from a file of its own knows its own.
            if isinstance(child.graph, ResumesFromCheckpoint) and not child.graph._child_graphs:
                child.graph._child_graphs = graphs
                child.graph._declared_in = place
