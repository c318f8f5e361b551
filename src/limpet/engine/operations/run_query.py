"""Which runs are meant: `RunQuery`, the filters that lists, retries, cancels and deletes share, and `Search`.

Lists have finer statuses than stores: see `SHOWN_STATUSES`. A query becomes one `RunFilter` for each of those, and
one for all stored ones. What a store finds by it may be more than is meant: `RunQuery.accepts` decides. `Search` asks
the store page by page, newest runs first, so any number of runs may match.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple, Self, TypedDict

from limpet.durations import PastMoment, past_moment_of
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.workers import WorkerInfo, doubtful_lanes, list_workers, why_unserved
from limpet.engine.operations.run_info import (
    ABANDONED,
    LISTED_STATUSES,
    QUARANTINED,
    QUEUED,
    RETRYING,
    SHOWN_STATUSES,
    SLEEPING,
    THREAD,
    WAITING,
    RunInfo,
    RunList,
    cursor_text,
    expired_leases,
    list_all,
    listed_info,
    with_position,
)
from limpet.engine.sessions.start import tag_names
from limpet.errors import RunQuarantined, UsageError, did_you_mean
from limpet.journal.run_filter import UNHELD, Cursor, LeaseState, RunFilter
from limpet.journal.store import DAMAGED, FAILED, PAUSED, RUNNING, RunHead
from limpet.journal.threads.kinds import LANGGRAPH

_FREE: Final = RunFilter((RUNNING,), lease_states=(LeaseState.FREE,))

FILTER_BY_SHOWN_STATUS: Final = {
    QUEUED: _FREE._replace(is_due=True),
    SLEEPING: _FREE._replace(is_due=False, has_error=False),
    RETRYING: _FREE._replace(is_due=False, has_error=True),
    WAITING: _FREE._replace(is_waiting=True),
    # Also those whose lease is valid: its holder may be known to be dead.
    ABANDONED: RunFilter((RUNNING,), lease_states=(LeaseState.HELD, LeaseState.EXPIRED)),
    QUARANTINED: RunFilter((FAILED,), error=RunQuarantined.__name__),
    THREAD: RunFilter((PAUSED,), plan=LANGGRAPH),
}
"""What to ask a store for, to find all runs that are shown with a status."""

QUERY_STATUSES: Final = (*LISTED_STATUSES, *(shown.name for shown in SHOWN_STATUSES))
"""What a query can be restricted to. `running` are also queued, sleeping … ones, and `failed` quarantined ones."""

MAX_TAGS: Final = 100
"""How many tags a query can name: a database takes no condition of any size."""

MAX_LIMIT: Final = 1_000_000_000
"""The largest number of runs that a call can be limited to."""
PAGE_SIZE: Final = 1000
"""Runs that a store is asked for at once, at most, unless all are wanted at once."""

TEXT_SEARCH_BOUND: Final = 10_000
"""Runs whose errors a list looks through for a text, at most. The next page begins there."""


THREAD_SHARE: Final = 1 / 20
"""What a thread of another library counts of a run, where only some runs are looked through."""


class MoreFilters(TypedDict, total=False):
    """Filters that a list takes by name. All of those that are given have to match."""

    since: PastMoment | None
    """It last changed then, or later."""
    before: PastMoment | None
    """It last changed earlier."""
    created_since: PastMoment | None
    created_before: PastMoment | None
    error: str | None
    """The type of its last error, such as `ValueError`."""
    node: str | None
    """The node where it is: where it has stopped, or is next to run. A run under way is found only if it last stopped
    there, too, because the index has the node of the last stop."""
    parent: str | None
    """The id of the run that started it."""
    queue: str | None
    """The name of its queue."""
    unserved: bool
    """Whether it is due, and no live worker can continue it; False doesn't restrict."""
    text: str | None
    """A text in its last error, in capital or small letters: in the type, the message, or the traceback."""


class Filters(MoreFilters, total=False):
    """All filters."""

    status: str | Iterable[str] | None
    """One or several, stored or shown ones: the run has one of them."""
    graph: str | None
    """The name of its graph."""
    tag: str | Iterable[str] | None
    """One or several: the run has all of them."""


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are meant. What is None or empty doesn't restrict. Times are by the store's clock."""

    statuses: tuple[str, ...] = ()
    graph: str | None = None
    tags: tuple[str, ...] = ()
    error: str | None = None
    node: str | None = None
    parent: str | None = None
    queue: str | None = None
    unserved: bool = False
    text: str = ""
    times: tuple[float | None, ...] = (None, None, None, None)
    """Of the creation from and before, and of the last change from and before."""

    @classmethod
    def of(cls, now: float, **filters: Any) -> Self:
        """The query of what a user gave, of which times may be relative to `now`. Raises `UsageError`."""
        known = (*Filters.__annotations__, *MoreFilters.__annotations__)
        for name in filters:
            if name not in known:
                raise TypeError(f"runs have no filter {name!r}{did_you_mean(name, known)}")
        for name in ("graph", "error", "node", "parent", "queue", "text"):
            _check_text(name, filters.get(name))
        times = []
        for name in ("created_since", "created_before", "since", "before"):
            given = filters.get(name)
            if given is not None:
                given = past_moment_of(given, now, name)
            times.append(given)
        return cls(
            statuses=_statuses(filters.get("status")),
            graph=filters.get("graph"),
            tags=_tags(filters.get("tag")),
            error=filters.get("error"),
            node=filters.get("node"),
            parent=filters.get("parent"),
            queue=filters.get("queue"),
            unserved=bool(filters.get("unserved")),
            text=(filters.get("text") or "").casefold(),
            times=tuple(times),
        )

    @property
    def restricts(self) -> bool:
        """Whether there are runs that aren't meant."""
        return self != RunQuery()

    def filters(self) -> list[RunFilter]:
        """What to ask a store for. A run that is meant is found by one of them."""
        if not self.statuses or DAMAGED in self.statuses:
            # A head may turn out to be damaged when it is read, whatever its stored status is.
            return [self._restricted(RunFilter())]
        stored = tuple(status for status in self.statuses if status in LISTED_STATUSES)
        shown = [FILTER_BY_SHOWN_STATUS[status] for status in self.statuses if status not in stored]
        if stored:
            shown.append(RunFilter(stored))
        return [self._restricted(each) for each in shown if self.error in (None, each.error or self.error)]

    def accepts(self, info: RunInfo, now: float) -> bool:
        """Whether a run that a store found is meant, by what is known of it. A damaged one of an unknown graph is."""
        if self.statuses and not self.has_status(info, now):
            return False
        if self.parent is not None and info.parent != self.parent:
            return False  # it was forked from a file of that run
        if info.status != DAMAGED or not info.graph:
            return True
        return self.graph in (None, info.graph) and all(tag in info.tags for tag in self.tags)

    def has_status(self, info: RunInfo, now: float) -> bool:
        """Whether a run has one of the statuses, as stored or as shown."""
        return info.status in self.statuses or info.shown_at(now) in self.statuses

    def has_text(self, info: RunInfo) -> bool:
        """Whether the text is in what is known of the run's last error."""
        if not self.text:
            return True
        error = info.error or {}
        parts = (error.get("type"), error.get("message"), error.get("traceback"), info.reason)
        return any(self.text in part.casefold() for part in parts if isinstance(part, str))

    def _restricted(self, which: RunFilter) -> RunFilter:
        created_since, created_before, since, before = self.times
        has_error = which.has_error
        if self.text and has_error is None:
            has_error = True
        return which._replace(
            graph=self.graph,
            tags=self.tags,
            node=self.node,
            parent=self.parent,
            queue=self.queue,
            error=which.error or self.error,
            created_since=created_since,
            created_before=created_before,
            updated_since=since,
            updated_before=before,
            has_error=has_error,
        )


class Found(NamedTuple):
    """A run that was found, with its head as it was then."""

    head: RunHead
    info: RunInfo


class Search:
    """The runs of a query, newest first from a place on; to be iterated once.

    `bound` is how many runs are looked through at most.
    """

    def __init__(
        self,
        client: LeaseClient,
        query: RunQuery,
        after: Cursor | None = None,
        bound: float = math.inf,
    ) -> None:
        self._client = client
        self._query = query
        self._after = after
        self.page_size: int | None = PAGE_SIZE
        """How many runs the store is asked for first; None asks for all at once."""
        self._bound = bound
        self._workers: Sequence[WorkerInfo] = ()
        self.searched = 0
        """How many runs were looked at."""
        self._spent = 0.0
        """The same for the bound: threads of other libraries, which may be many, must not hide runs."""
        self.stopped_at: Cursor | None = None
        """Where the search ended because of its bound, if it did."""

    def __iter__(self) -> Iterator[Found]:
        now = self._client.now()
        last: Cursor | None = None
        for found in self._candidates():
            place = found.head.cursor
            if place == last:
                continue  # several filters have found it
            if self._spent >= self._bound:
                self.stopped_at = last
                return
            last = place
            self.searched += 1
            self._spent += THREAD_SHARE if found.info.kind else 1
            if self._is_meant(found, now):
                yield found

    def _is_meant(self, found: Found, now: float) -> bool:
        query = self._query
        if not (query.accepts(found.info, now) and query.has_text(found.info)):
            return False
        head = found.head
        if query.unserved and not why_unserved(head.lane, head.run_id, self._workers):
            return False
        if query.node is None:
            return True
        # A run that stopped at the node may be under way since.
        info = with_position(self._client, found.head, found.info)
        return info.problem is not None or info.node == query.node

    def _candidates(self) -> Iterator[Found]:
        filters = self._query.filters()
        if self._query.unserved:
            self._workers = list_workers(self._client)
            filters = list(self._due_in_doubtful_lanes(filters))
        streams = [self._pages(each) for each in filters]
        if len(streams) == 1:
            return streams[0]
        return merge(*streams, key=lambda found: found.head.cursor, reverse=True)

    def _due_in_doubtful_lanes(self, filters: Sequence[RunFilter]) -> Iterator[RunFilter]:
        """What to ask a store for, to find the due runs that no live worker can continue.

        By lane: so the runs that workers execute, which may be many, aren't looked at.
        """
        for lane in doubtful_lanes(self._client, self._workers):
            for each in filters:
                if each.graph not in (None, lane.graph) or each.queue not in (None, lane.queue):
                    continue
                if each.is_due is not False:
                    yield each._replace(
                        queue=lane.queue,
                        graph=lane.graph,
                        plan=lane.plan or None,
                        is_due=True,
                        lease_states=each.lease_states or UNHELD,
                    )

    def _pages(self, which: RunFilter) -> Iterator[Found]:
        after = self._after
        size = self.page_size
        while True:
            page = list_all(self._client.store, which._replace(after=after, limit=size))
            expired = expired_leases(self._client, [head for head, _ in page])
            for head, problem in page:
                info = listed_info(self._client.store, head, problem)
                yield Found(head, info._replace(lease_expired=head.run_id in expired))
            if size is None or len(page) < size:
                return
            after = page[-1][0].cursor
            size = min(size * 4, PAGE_SIZE)


def list_runs(client: LeaseClient, query: RunQuery, limit: int | None, after: str | None = None) -> RunList:
    """The runs of a query, newest first, at most `limit`, from a place on. Raises `UsageError`."""
    check_limit(limit, 0)
    search = Search(client, query, _cursor_of(after), bound=TEXT_SEARCH_BOUND if query.text else math.inf)
    if limit is None:
        search.page_size = None
        found = RunList(with_position(client, *each) for each in search)
    elif limit == 0:
        return RunList()
    else:
        # One more than is wanted says whether there is a next page.
        search.page_size = min(limit + 1, PAGE_SIZE)
        page = list(islice(search, limit + 1))
        found = RunList(with_position(client, *each) for each in page[:limit])
        if len(page) > limit:
            found.next = found[-1].cursor
            return found
    if search.stopped_at is not None:
        found.next = cursor_text(search.stopped_at)
        found.searched = search.searched
    return found


def check_limit(limit: Any, least: int) -> None:
    """Raise `UsageError` for a number of runs that nothing can be limited to."""
    if limit is None or (type(limit) is int and least <= limit <= MAX_LIMIT):
        return
    most = ""
    if type(limit) is int and limit > MAX_LIMIT:
        most = f" and at most {MAX_LIMIT:,}"
    raise UsageError(f"limit must be a whole number of at least {least}{most}, not {limit!r}")


def _cursor_of(text: str | None) -> Cursor | None:
    """The place in a list that `RunInfo.cursor` names. Raises `UsageError`."""
    if text is None:
        return None
    if isinstance(text, str):
        created, _, run_id = text.partition(":")
        with suppress(ValueError, OverflowError):
            moment = float.fromhex(created)
            if run_id and math.isfinite(moment):
                return Cursor(moment, run_id)
    raise UsageError(f"after={text!r} isn't a place in a list; RunList.next and RunInfo.cursor are")


def _check_text(name: str, given: Any) -> None:
    """Refuse what isn't a text, with the text that was meant: the name of a graph, or of a type of errors."""
    if given is None or (isinstance(given, str) and given):
        return
    meant = None
    if name == "graph":
        meant = getattr(given, "name", None)
    elif name == "error" and isinstance(given, (type, BaseException)):
        kind = given if isinstance(given, type) else type(given)
        meant = kind.__name__
    hint = f"; did you mean {meant!r}?" if isinstance(meant, str) else ""
    raise UsageError(f"{name} must be a non-empty str, not {given!r}{hint}")


def _tags(given: Any) -> tuple[str, ...]:
    names = () if given is None else tag_names(given)
    if len(names) > MAX_TAGS:
        raise UsageError(f"a query names at most {MAX_TAGS} tags, not {len(names):,}")
    return names


def _statuses(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    found: tuple[Any, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        found = tuple(given)
    if not found:
        raise UsageError("status has no status in it: leave it out to mean all runs")
    for status in found:
        if status not in QUERY_STATUSES:
            known = ", ".join(QUERY_STATUSES)
            near = did_you_mean(status, QUERY_STATUSES)
            raise UsageError(f"a run's status is one of {known}, not {status!r}{near}")
    return tuple(dict.fromkeys(found))
