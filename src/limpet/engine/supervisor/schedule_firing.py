"""The schedules of a store, as a supervisor looks after them: it fires those whose graphs it knows."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Final

from limpet.engine.leases.lease_client import client_for
from limpet.engine.schedules.firing import Firer
from limpet.engine.schedules.prepared_runs import settle
from limpet.engine.schedules.schedule import read_schedule
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.log import log
from limpet.errors import StoreUnavailable
from limpet.graphs.names import SCHEDULES
from limpet.journal.optional_calls import CLOCK_KNOWN
from limpet.journal.store import Document, Store

TIMES_LIST_INTERVAL: Final = 60.0
"""Seconds after which the store is asked again when its schedules are due. What is due is found at any look."""

SETTLE_INTERVAL: Final = 60.0
"""Seconds after which a worker looks again for runs that were prepared and never began."""

MAX_LOGGED: Final = 1000
"""How many problems are remembered as logged."""
LOOKS_WITHOUT_SCHEDULES: Final = 3
NEW_SCHEDULES_INTERVAL: Final = 15.0
"""In a store without schedules, one look of this many asks for those that another process has added; and each one, if
there are this many seconds between them."""


class ScheduleFiring:
    """Fires the schedules that are due; none, if it isn't `active`."""

    def __init__(self, store: Store, catalog: GraphCatalog, active: bool = True) -> None:
        self._is_active = active and store.abilities.takes_part
        self._store = store
        self._catalog = catalog
        self._clock = client_for(store)
        self._upcoming: dict[str, float] = {}
        """When schedules are due that aren't yet, by `monotonic`, as far as that is known."""
        self._next_list = 0.0
        self._next_settling = 0.0
        self._has_schedules = False
        self._looks = 0
        self._next_try = 0.0
        self._logged: set[str] = set()

    @property
    def wake_up(self) -> float:
        """When the next schedule is due, by `monotonic`: a look then fires it at once."""
        return min(list(self._upcoming.values()), default=inf)

    def list_soon(self) -> None:
        """Have the next look ask when schedules are due: one was added or changed in this process."""
        self._next_list = 0.0

    def look(self) -> None:
        """Fire what is due. Raises `StoreUnavailable`; whatever else is wrong with a schedule concerns no other."""
        if not self._is_active:
            return
        now = monotonic()
        if now >= self._next_settling:
            self._next_settling = now + SETTLE_INTERVAL
            self._settle()
        if now >= self._next_list:
            self._next_list = now + TIMES_LIST_INTERVAL
            self._upcoming = {}
            self._looks = 0
            documents = self._store.list_documents(SCHEDULES)
            self._has_schedules = bool(documents)
            for document in documents:
                self._note_due(document.name.removeprefix(SCHEDULES), document.due)
        self._upcoming = {name: due for name, due in list(self._upcoming.items()) if due > now}
        self._looks += 1
        is_time = self._looks % LOOKS_WITHOUT_SCHEDULES == 0 or now >= self._next_try
        if not self._has_schedules and not is_time:
            return
        self._next_try = now + NEW_SCHEDULES_INTERVAL
        for document in self._store.list_documents(SCHEDULES, due=True):
            self._has_schedules = True
            self._fire(document)

    def _settle(self) -> None:
        try:
            settle(self._clock)
        except StoreUnavailable:
            raise
        except Exception as problem:
            self._log_once("a prepared run couldn't be begun or removed", problem)

    def _fire(self, document: Document) -> None:
        name = document.name.removeprefix(SCHEDULES)
        try:
            graph = read_schedule(document).plan.start.graph
            # One that no worker knows stays due, and lists show it as overdue.
            if graph not in self._catalog.names:
                return
            compiled = self._catalog.graph(graph).compiled().on_store(self._store)
            fired = Firer(name, graph, compiled).fire(document.due or 0.0)
            if fired is not None:
                self._note_due(name, fired.place.due())
        except StoreUnavailable:
            raise
        except Exception as problem:
            self._log_once(f"schedule {name} couldn't be fired", problem)

    def _note_due(self, name: str, due: float | None) -> None:
        """Remember when a schedule is due, if that is later."""
        if due is not None and (remaining := due - self._clock.store_time(CLOCK_KNOWN)) > 0:
            self._upcoming[name] = monotonic() + remaining

    def _log_once(self, what: str, problem: Exception) -> None:
        """Log what is wrong, unless that was logged: a supervisor looks all the time."""
        text = f"{what}: {type(problem).__name__}: {problem}"
        if len(self._logged) > MAX_LOGGED:
            self._logged.clear()
        if text not in self._logged:
            self._logged.add(text)
            log().error("%s", text)
