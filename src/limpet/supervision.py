"""`supervise`: have the runs in a store gone on with, whoever began them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.defaults import CONCURRENCY, GRACE, LEASE, MAX_CRASHES, PATIENCE, POLL
from limpet.engine.supervisor.catalog import REGISTERED, GraphCatalog, Reference
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import UsageError
from limpet.observe.registry import resolve_observer
from limpet.stores.opening import open_default_store, open_store


def supervise(
    store: Any = None,
    graphs: Iterable[Reference] | Mapping[str, Reference] | None = None,
    *,
    lease: float = LEASE,
    concurrency: int = CONCURRENCY,
    per_graph: int | Mapping[str, int] | None = None,
    poll: float = POLL,
    max_crashes: int = MAX_CRASHES,
    patience: float = PATIENCE,
    grace: float = GRACE,
    observers: Iterable[Any] = (),
) -> Supervisor:
    """A supervisor of the runs in `store`: those that were queued, that slept, or whose process died.

    Use it with `with` (it works in threads) or `async with` (runs are tasks of the event loop); or call its `run()`.
    `store` is whatever `compile(store=…)` takes, and without one that of the environment. `graphs` are those whose
    runs it goes on with: graphs, `"package.module:attribute"`, or a dict of these by name; without any, all that
    were registered with `register_graph`.

    `lease` is for how many seconds it holds a run without renewing: after a crash, another supervisor has it within
    twice that. At most `concurrency` runs are under way, of each graph `per_graph` (a number, or a dict by name). The
    store is looked at every `poll` seconds. A run that takes its process down `max_crashes` times in a row is set
    aside as failed. One that sleeps longer than `patience` seconds is let go of until it is time. `grace` is how many
    seconds nodes have to finish when it is stopped. `observers`, by name or as objects, watch all its runs.

    A save that fails because the store can't be reached is tried again until it can, unless the graph was compiled
    with `on_save_error="continue"`. Raises `UsageError` and `DefinitionError` for what can't be.
    """
    opened = open_default_store() if store is None else open_store(store)
    if opened is None:
        raise UsageError("supervise() needs a store: supervise('sqlite:///runs.db', …), or LIMPET_STORE")
    catalog = REGISTERED if graphs is None else GraphCatalog(graphs)
    if graphs is None and not catalog.names:
        raise UsageError("supervise() needs graphs: give graphs=[…], or register_graph() them before")
    options = SupervisorOptions(lease, concurrency, per_graph, poll, max_crashes, patience, grace)
    return Supervisor(opened, catalog, options, [resolve_observer(each) for each in observers])
