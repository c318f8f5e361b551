"""What a server serves: graphs, and their runs in a store.

One rule says which runs its clients reach: those of the graphs that it was given, in every call. A run of another
graph is, to them, not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.operations.run_info import RunInfo
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import LimpetError, RunNotFound, did_you_mean
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.shown_runs import ShownRuns
from limpet.graph_methods import GraphMethods
from limpet.graphs.plan import Plan
from limpet.handle import RunHandle
from limpet.journal.store import Store
from limpet.runs import Runs


class ServerOptions(NamedTuple):
    """What clients of a server may do, how long a call follows its run, and how long a person may take to reply."""

    wait: float
    state_lasts: float
    read_only: bool = False
    allow_inline: bool = False
    workflow_tools: bool = False


class UnknownGraph(LimpetError):
    """No graph of this name is served. Nothing was started."""

    code = "graph-not-found"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        listed = list(known)
        near = did_you_mean(name[:200], listed)
        super().__init__(
            f"there is no graph {name[:200]!r} here{near}; there are: {', '.join(sorted(listed))}"
        )


class RunPage(NamedTuple):
    """Some runs, newest first, and where the next page begins."""

    runs: list[RunInfo]
    next: str | None


class ServedRuns:
    """The graphs of a server, and the runs of these graphs in its store."""

    def __init__(
        self,
        store: Store,
        graphs: Iterable[GraphMethods[Any]],
        options: ServerOptions,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.store = store
        self.options = options
        self.graphs: Mapping[str, GraphOnStore] = {graph.name: GraphOnStore(graph, store) for graph in graphs}
        self.runs = Runs(store, self.graphs.values())
        self.adding = Lock()
        """To be held by a caller that looks whether a graph is served, and else adds it."""
        self._supervisor = supervisor

    @property
    def client(self) -> LeaseClient:
        """The store, as this process uses it."""
        return client_for(self.store)

    @property
    def shown(self) -> ShownRuns:
        """The runs as clients may see them."""
        return ShownRuns(self.store, self.graphs)

    @property
    def executes(self) -> bool:
        """Whether runs are executed in this process."""
        return self._supervisor is not None

    def graph(self, name: str) -> GraphOnStore:
        """The graph of this name. Raises `UnknownGraph`."""
        if name not in self.graphs:
            raise UnknownGraph(name, self.graphs)
        return self.graphs[name]

    def plan_of(self, run: RunInfo) -> Plan:
        """The plan of a run's graph."""
        return self.graph(run.graph).compiled().plan

    def run(self, run_id: str, created: float | None = None) -> RunInfo:
        """What is known of a run of these graphs; of the one that was created then, if that is given.

        Raises `RunNotFound`, also for a run of another graph.
        """
        try:
            info = self.runs.get(run_id).info
        except RunNotFound:
            raise RunNotFound(run_id) from None  # in the same words, and without the place of the store
        if info.graph not in self.graphs or created not in (None, info.created):
            raise RunNotFound(run_id)
        return info

    def handle(self, run_id: str) -> RunHandle[Any]:
        """The handle of such a run. Raises `RunNotFound`."""
        self.run(run_id)
        return self.runs.get(run_id)

    def list(self, limit: int, graph: str | None = None, after: str | None = None, **filters: Any) -> RunPage:
        """The newest runs of one graph, or of all. Raises `UnknownGraph`."""
        names = list(self.graphs) if graph is None else [self.graph(graph).name]
        found: dict[str, RunInfo] = {}
        for name in names:
            # A damaged run of which the graph isn't known is among those of every graph.
            page = self.runs.list(graph=name, limit=limit + 1, after=after, **filters)
            found |= {info.run_id: info for info in page if info.graph in self.graphs}
        newest = sorted(found.values(), key=lambda info: (info.created, info.run_id), reverse=True)
        shown = newest[:limit]
        return RunPage(shown, shown[-1].cursor if len(newest) > limit else None)

    def add(self, graph: GraphMethods[Any]) -> GraphOnStore:
        """Serve one more graph from now on, and execute its runs. Raises `DefinitionError` if its name is taken."""
        if self._supervisor is not None:
            self._supervisor.add(graph)
        added = GraphOnStore(graph, self.store)
        self.graphs = {**self.graphs, graph.name: added}
        self.runs = Runs(self.store, self.graphs.values())
        return added
