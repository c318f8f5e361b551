"""Do the same with many runs: those of several ids, or all that match a query; each has an outcome of its own.

Runs are found page by page and changed a few at a time, so their number doesn't matter, and a run that fails doesn't
stop the others. A run that changed between being found and its turn is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.cancel import CANCELLED_ALREADY, ended_already
from limpet.engine.operations.run_info import (
    ABANDONED,
    RunInfo,
    info_at_last_stop,
    run_info,
    unfit_as_thread,
)
from limpet.engine.operations.run_query import RunQuery, Search, check_limit
from limpet.errors import AlreadyCompleted, Conflict, KeyMissing, LimpetError, RunNotFound, UsageError
from limpet.journal.store import CANCELLED, DAMAGED, ENDED, RUNNING
from limpet.stores.heads import unreadable

T = TypeVar("T")

DONE: Final = "done"
PLANNED: Final = "planned"
SKIPPED: Final = "skipped"
FAILED_TO: Final = "failed"

AT_ONCE: Final = 8
"""Runs that are changed at the same time: most of the time is spent on waiting for the store."""

BATCH: Final = 8 * AT_ONCE
"""Runs that are dealt with before the next ones are looked for."""


class Outcome(NamedTuple):
    """The outcome for one run, where something was to be done with many.

    `result` is `done`, `skipped`, `failed`, or in a dry run `planned`; `reason` says why it was skipped, or what the
    error said. `status` is how the run was shown before; `graph` and `status` are empty for a run that isn't there.
    """

    run_id: str
    graph: str
    status: str
    result: str
    reason: str = ""
    error: Exception | None = None


class Outcomes(list[Outcome]):
    """The outcome for each run, in the order in which they were dealt with."""

    __slots__ = ()

    @property
    def done(self) -> int:
        """How many it was done with."""
        return self._count(DONE)

    @property
    def planned(self) -> int:
        """In a dry run, how many it would be done with."""
        return self._count(PLANNED)

    @property
    def skipped(self) -> int:
        """How many were left as they are, because there was nothing to do, or because they changed meanwhile."""
        return self._count(SKIPPED)

    @property
    def failed(self) -> int:
        """How many it failed for."""
        return self._count(FAILED_TO)

    def _count(self, result: str) -> int:
        return sum(outcome.result == result for outcome in self)


class Change(NamedTuple):
    """What is to be done with each run: `do` does it, and `unfit` says why a run isn't one to do it with, if so.

    `do` returns why there was nothing to do, if so. In a dry run, `check` says why `do` would fail, or raises that.
    """

    name: str
    do: Callable[[str], str | None]
    unfit: Callable[[RunInfo], str]
    check: Callable[[RunInfo], str] | None = None


class Chosen(NamedTuple):
    """Which runs a call is about: `run_ids`, or else those of the query, at most `limit`."""

    run_ids: Sequence[str] | None
    query: RunQuery
    limit: int | None = None


def chosen_runs(
    client: LeaseClient, run_ids: Any, filters: dict[str, Any], all_runs: bool, limit: int | None, call: str
) -> Chosen:
    """The runs that a user chose. Raises `UsageError` if that isn't clear: all are never meant by accident."""
    query = RunQuery.of(client.now(), **filters)
    check_limit(limit, 1)
    if run_ids is not None:
        if query.restricts or all_runs or limit is not None:
            raise UsageError(f"{call}() takes the ids of runs, or filters; not both")
        return Chosen(_ids(run_ids, call), query)
    if query.restricts == all_runs:
        unclear = UsageError(f"{call}() needs ids of runs, filters, or all_runs=True")
        if all_runs:
            unclear = UsageError(f"{call}(all_runs=True) takes no filters")
        raise unclear.with_advice(f'{call}(status="failed", since="2h") means those that match')
    return Chosen(None, query, limit)


def change_chosen(
    client: LeaseClient,
    change: Change,
    chosen: Chosen,
    one: str | None,
    dry_run: bool,
    progress: Callable[[Outcome], object] | None,
) -> Outcomes:
    """Change the chosen runs, or the `one` that the caller named, and return the outcome for each.

    `progress` is called with each outcome as it comes.
    """
    found = change_runs(client, chosen, change, dry_run)
    if one is not None:
        found = iter([change_one(client, change, one)])
    outcomes = Outcomes()
    for outcome in found:
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome)
    return outcomes


def change_one(client: LeaseClient, change: Change, run_id: str) -> Outcome:
    """Change one run. Unlike with several, what goes wrong is raised."""
    info = _info_of_named(client, run_id)
    reason = change.do(run_id) or ""
    result = DONE
    if reason:
        result = SKIPPED
    return _outcome(info, result, reason)


def change_runs(client: LeaseClient, chosen: Chosen, change: Change, dry_run: bool) -> Iterator[Outcome]:
    """Change the chosen runs, and give the outcome of each when it is known."""
    waits = not dry_run or change.check is not None
    if chosen.run_ids is not None:
        named = iter(dict.fromkeys(chosen.run_ids))
        work = partial(_change_named, client, change, dry_run)
        yield from _map(work, named, waits)
        return
    found = (each.info for each in islice(Search(client, chosen.query), chosen.limit))
    yield from _map(partial(_change_found, client, chosen.query, change, dry_run), found, waits)


def _map(work: Callable[[T], Outcome], items: Iterator[T], waits: bool) -> Iterator[Outcome]:
    """The outcomes for these runs, in their order. In several threads, if each waits for the store."""
    if not waits:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(AT_ONCE, "limpet-bulk") as threads:
        while batch := list(islice(items, BATCH)):
            yield from threads.map(work, batch)


def refuse_unknown_graphs(planned: Outcomes, is_known: Callable[[str], bool]) -> None:
    """Raise `UsageError` if the graph of a run that would be changed with an update isn't known."""
    graphs = {each.graph for each in planned if each.result == PLANNED}
    unknown = sorted(graph for graph in graphs if not is_known(graph))
    if unknown:
        names = ", ".join(map(repr, unknown))
        refused = UsageError(
            f"an update is merged by the code of each run's graph, which isn't known here for {names}; "
            "nothing was changed"
        )
        raise refused.with_advice("give it with Runs(store, graphs=[…]), or choose other runs by graph=…")


def unfit_to_cancel(info: RunInfo) -> str:
    """Why a run can't be cancelled; empty if it can."""
    if info.kind:
        return unfit_as_thread(info)
    if info.status == CANCELLED:
        return CANCELLED_ALREADY
    if info.status in ENDED:
        return f"it {ended_already(info.shown_status)}"
    return ""


def unfit_to_delete(info: RunInfo) -> str:
    """Why a run can't be deleted; empty if it can."""
    if info.status != RUNNING or info.holder is None or info.lease_expired:
        return ""
    crashed = ""
    if info.shown_status == ABANDONED:
        crashed = ", which crashed"
    return f"held by {info.held_by}{crashed}; cancel it first"


def _ids(given: Any, call: str) -> list[str]:
    found = [given]
    if isinstance(given, Iterable) and not isinstance(given, str):
        found = list(given)
    for each in found:
        if not isinstance(each, str):
            raise UsageError(f"{call}() takes the ids of runs, strs, not {each!r}; of a Run, that is .id")
    return found


def _change_named(client: LeaseClient, change: Change, dry_run: bool, run_id: str) -> Outcome:
    try:
        info = _info_of_named(client, run_id)
    except LimpetError as error:
        return _failed(Outcome(run_id, "", "", FAILED_TO), error)
    return _changed(client, info, change, dry_run)


def _info_of_named(client: LeaseClient, run_id: str) -> RunInfo:
    try:
        return info_at_last_stop(client, run_id)
    except KeyMissing:
        return run_info(unreadable(run_id, 0.0))  # it is there, and needs no key to be deleted


def _change_found(
    client: LeaseClient, query: RunQuery, change: Change, dry_run: bool, found: RunInfo
) -> Outcome:
    if dry_run:
        return _changed(client, found, change, dry_run)
    try:
        info = info_at_last_stop(client, found.run_id)
    except RunNotFound:
        return _outcome(found, SKIPPED, "it was deleted meanwhile")
    except KeyMissing:
        info = found
    except LimpetError as error:
        return _failed(_outcome(found, FAILED_TO), error)
    if _has_changed(client, query, found, info):
        return _outcome(info, SKIPPED, f"it changed meanwhile: it is {info.shown_status}")
    return _changed(client, info, change, dry_run)


def _has_changed(client: LeaseClient, query: RunQuery, found: RunInfo, info: RunInfo) -> bool:
    """Whether a run is no longer the one that was found. One that runs may advance, as long as it is still meant."""
    if info.status != found.status:
        return True
    if info.status == DAMAGED:
        return False  # when it last changed can't be known
    if info.status != RUNNING:
        return info.updated != found.updated
    return bool(query.statuses) and not query.has_status(info, client.now())


def _changed(client: LeaseClient, info: RunInfo, change: Change, dry_run: bool) -> Outcome:
    reason = change.unfit(info)
    if reason:
        return _outcome(info, SKIPPED, reason)
    if dry_run:
        return _planned(info, change)
    try:
        reason = change.do(info.run_id) or ""
    except LimpetError as error:
        if _other_was_quicker(client, info, change, error):
            return _outcome(info, SKIPPED, error.message)
        return _failed(_outcome(info, FAILED_TO), error)
    if reason:
        return _outcome(info, SKIPPED, reason)
    return _outcome(info, DONE)


def _planned(info: RunInfo, change: Change) -> Outcome:
    try:
        reason = change.check(info) if change.check is not None else ""
    except LimpetError as error:
        reason = error.message
    if reason:
        return _outcome(info, SKIPPED, reason)
    return _outcome(info, PLANNED)


def _other_was_quicker(client: LeaseClient, info: RunInfo, change: Change, error: LimpetError) -> bool:
    """Whether a run was refused because another process does something with it, or has done so."""
    if isinstance(error, Conflict | AlreadyCompleted | RunNotFound):
        return True
    try:
        return bool(change.unfit(info_at_last_stop(client, info.run_id)))
    except LimpetError:
        return False


def _outcome(info: RunInfo, result: str, reason: str = "") -> Outcome:
    return Outcome(info.run_id, info.graph, info.shown_status, result, reason)


def _failed(outcome: Outcome, error: LimpetError) -> Outcome:
    # Without its traceback, which would keep all that the failed call had in memory.
    return outcome._replace(reason=error.message, error=error.with_traceback(None))
