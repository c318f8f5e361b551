"""`GraphOnStore`: a graph whose runs are in another store than the one that it was compiled with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import time
from typing import Any

from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State
from limpet.journal.store import Store
from limpet.observe.events import Event
from limpet.observe.hub import both, gather
from limpet.run import Run


class GraphOnStore(GraphMethods[State]):
    """A graph that runs on the store that a command or a server chose. Its completed runs are kept.

    `observer` gets the events of its runs, besides the observers that the graph has.
    """

    def __init__(self, graph: GraphMethods[Any], store: Store) -> None:
        self.graph = graph
        self.name = graph.name
        self.observer: Callable[[Event], None] | None = None
        self._store = store

    def compiled(self) -> CompiledGraph:
        compiled = self.graph.compiled().on_store(self._store)
        if self.observer is None:
            return compiled
        return compiled._replace(emit=both(compiled.emit, gather([self.observer], time)))

    @property
    def secrets(self) -> frozenset[str]:
        """The keys of the state that are masked."""
        return self.compiled().plan.secrets

    def stream_resumed(
        self,
        run_id: str,
        *,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        deadline: str | None = None,
        wait: float | None = None,
    ) -> Run[State]:
        """Resume a run as `resume` does, and return it, to be iterated for its events."""
        given = ResumeInput(answers=answers, update=update, deadline=deadline)
        return self._stream_resumed(run_id, given, wait)

    @property
    def declared_checkpoint(self) -> str | os.PathLike[str] | None:
        """The checkpoint that a YAML file says its runs resume from."""
        return getattr(self.graph, "default_checkpoint", None)
