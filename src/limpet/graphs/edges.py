"""Edges: the possible transitions out of a node, and how the next node is chosen.

A node's edges are tried in the order in which they were added. Each says by which function it is decided, if any, and
which node the function's result leads to. A `Section` is an edge, too: it opens branches (see `parallel.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.graphs.parallel import Section
from limpet.graphs.parameters import Function
from limpet.graphs.predicates import describe
from limpet.journal.progress import DONE

START = "__start__"
END = DONE


class Edge(NamedTuple):
    """A possible transition: taken if its predicate holds, or always if it has none."""

    source: str
    target: str
    predicate: Function | None = None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def unconditional(self) -> bool:
        return self.predicate is None

    @property
    def decided_by(self) -> Function | None:
        return self.predicate

    def target_for(self, result: Any, nodes: Mapping[str, Any]) -> str | None:
        """The next node if the predicate returned `result`; None if the edge isn't taken."""
        return self.target if result else None

    def bound(self, resources: Mapping[str, Any]) -> Edge:
        """This edge with the resources that its predicate takes."""
        if self.predicate is None:
            return self
        return self._replace(predicate=self.predicate.bound(resources))

    def describe(self) -> list[Any]:
        label = describe(self.predicate.call) if self.predicate else ""
        return [self.source, self.target, label]


class Choice(NamedTuple):
    """Several possible transitions, of which a function picks one by its result."""

    source: str
    choose: Function
    outcomes: Mapping[Any, str] | None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        if self.outcomes is None:
            return ()
        return tuple(self.outcomes.values())

    @property
    def unconditional(self) -> bool:
        return True

    @property
    def decided_by(self) -> Function:
        return self.choose

    def target_for(self, result: Any, nodes: Mapping[str, Any]) -> str:
        """The next node if the function returned `result`. Raises `LookupError` if that isn't an outcome."""
        if self.outcomes is None:
            if result != END and result not in nodes:
                raise LookupError(f"the choice after {self.source!r} was {result!r}, which isn't a node")
            return str(result)
        if result not in self.outcomes:
            listed = ", ".join(map(repr, self.outcomes))
            raise LookupError(f"the choice after {self.source!r} was {result!r}, not one of {listed}")
        return self.outcomes[result]

    def bound(self, resources: Mapping[str, Any]) -> Choice:
        """This choice with the resources that its function takes."""
        return self._replace(choose=self.choose.bound(resources))

    def describe(self) -> list[Any]:
        if self.outcomes is None:
            return [self.source, "any", "choice"]
        return [self.source, sorted((str(key), value) for key, value in self.outcomes.items()), "choice"]


OutEdge = Edge | Choice | Section
"""Any kind of edge out of a node."""
