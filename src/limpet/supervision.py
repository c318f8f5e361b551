"""`supervise`: have the runs in a store executed, whichever process started them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.defaults import LEASE, MAX_CRASHES, MAX_RUNS_AT_ONCE, MAX_SLEEP, POLL_INTERVAL, STOP_GRACE
from limpet.engine.supervisor.catalog import REGISTERED, GraphCatalog, Reference
from limpet.engine.supervisor.options import SupervisorOptions, queue_names
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import UsageError, did_you_mean
from limpet.observe.observer_registry import resolve_observer
from limpet.stores.opening import open_default_store, open_store


def supervise(
    store: Any = None,
    graphs: Iterable[Reference] | Mapping[str, Reference] | None = None,
    *,
    lease: float = LEASE,
    concurrency: int = MAX_RUNS_AT_ONCE,
    per_graph: int | Mapping[str, int] | None = None,
    poll: float = POLL_INTERVAL,
    max_crashes: int = MAX_CRASHES,
    max_sleep: float = MAX_SLEEP,
    grace: float = STOP_GRACE,
    queues: str | Iterable[str] | None = None,
    observers: Iterable[Any] = (),
) -> Supervisor:
    """A supervisor of the runs in `store`: it resumes runs that are queued, that slept, or whose process crashed.

    Use it with `with` (it works in threads) or `async with` (runs are tasks of the event loop), or call its `run()`.
    `store` is whatever `compile(store=…)` takes, by default that of the environment. `graphs` are the graphs whose
    runs it resumes: graphs, `"package.module:attribute"`, or a dict of these by name; by default all that were
    registered with `register_graph`. `queues` are those whose runs it resumes, by default all.

    `lease` is for how many seconds it holds a run without renewing: after a crash, another supervisor resumes the run
    within twice that. At most `concurrency` runs are executed at once, of each graph `per_graph` (a number, or a dict
    by name). Graphs take turns: the one with the fewest runs in progress comes first, and of its runs the most
    urgent. The store is read every `poll` seconds. A run that crashes its process `max_crashes` times in a row, while
    it executes alone, is quarantined: it counts as failed. A run that sleeps longer than `max_sleep` seconds is
    released until it is due. `grace` is how many seconds nodes have to finish when the supervisor is stopped.
    `observers`, by name or as objects, watch all its runs.

    A save that fails because the store can't be reached is tried again until it can, unless the graph was compiled
    with `on_save_error="continue"`. Raises `UsageError` and `DefinitionError` for wrong arguments.
    """
    opened = open_default_store() if store is None else open_store(store)
    if opened is None:
        raise UsageError("supervise() needs a store: supervise('sqlite:///runs.db', …), or LIMPET_STORE")
    if graphs is not None:
        catalog = GraphCatalog(graphs)
        _check_names(per_graph, catalog)
    elif REGISTERED.names:
        catalog = REGISTERED
    else:
        raise UsageError("supervise() needs graphs: give graphs=[…], or register_graph() them first")
    options = SupervisorOptions(
        lease=lease,
        concurrency=concurrency,
        per_graph=per_graph,
        poll=poll,
        max_crashes=max_crashes,
        max_sleep=max_sleep,
        grace=grace,
        queues=queue_names(queues),
    )
    return Supervisor(opened, catalog, options, [resolve_observer(each) for each in observers])


def _check_names(per_graph: int | Mapping[str, int] | None, catalog: GraphCatalog) -> None:
    """Refuse a limit for a graph that isn't among those to be supervised: it would never take effect."""
    if not isinstance(per_graph, Mapping):
        return
    for name in per_graph:
        if name not in catalog.names:
            near = did_you_mean(name, catalog.names)
            raise UsageError(f"per_graph names {name!r}, which isn't one of the graphs{near}")
