"""Lists of runs on a Redis server: which sorted set to read, and the runs in it that match.

Each status, graph, tag, … has a set of its runs, sorted by creation (`places` in `lua/index.lua`). Of the sets that a
filter names, the smallest is read, page by page, and the heads of its runs are looked at until enough of them match.
If few runs were updated since a time, those are looked up in a set that is sorted by that, and then ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from limpet.defaults import QUEUE
from limpet.errors import DamagedRecord
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import DAMAGED, ENDED, PAUSED, RUNNING, Lane, RunHead
from limpet.stores.heads import matches, unreadable
from limpet.stores.redis import scripts
from limpet.stores.redis.script_calls import ScriptCalls
from limpet.stores.redis.scripts import run_id_of, text, texts

PER_CALL = 256
"""Ids that are read together at most."""

FEWEST = 32
"""Heads that are read together at least."""

OLDER_PER_CALL = 1000
"""Runs of an earlier version that are listed together."""

COST_OF_ORDERING = 8
"""How much longer it takes to find a run by its last update than in a set that has it in the right order."""

ALL_RUNS = ""
UPDATED = "updated"
WITH_HOLDER = "with holder"
WITH_DUE_TIME = ("has due time", "with due time")
"""Where the runs with a due time are: those of processes of an earlier version are in the latter."""


POST_COUNT = "posted"
"""Not a set: how often something was posted to a run."""


class Entry(NamedTuple):
    """A run in a sorted set. Entries sort as runs in a list do."""

    created: float
    run_id: str


class RunLists:
    """The lists of a store's runs."""

    def __init__(self, calls: ScriptCalls) -> None:
        self._calls = calls
        self._lists_all = False
        """Whether all runs are known to be in the sets, those of earlier versions too."""

    def lanes(self, clock: bytes) -> list[Lane]:
        """The lanes in which runs wait."""
        while not isinstance(
            names := self._calls.all([self._calls.command(scripts.LANES, "", clock)])[0], list
        ):
            if names == 0:
                self._lists_all = False
                self._list_older(clock)
        return [scripts.lane_of(name) for name in names]

    def matching(self, which: RunFilter, now: Callable[[], float], clock: bytes) -> list[RunHead]:
        """The runs that match, in order."""
        if which.limit == 0:
            return []
        moment = 0.0
        if which.is_due is not None or which.lease_states:
            moment = now()
        sets = self._smallest(which, clock)
        if sets == [UPDATED]:
            entries = iter(self._updated(which))
        else:
            entries = merge(*[self._entries(name, which) for name in sets], reverse=True)
        found = (head for head in self._heads(entries, sets, which.limit) if matches(head, which, moment))
        return [*islice(found, which.limit)]

    def change_mark(self) -> object:
        """When a run was last updated, how many there are in all and of some kinds, and how often one was posted to.

        A release leaves the time of its run alone, a status does if the clock of the server was set back, and a post.
        """
        newest = (b"ZREVRANGE", self._set(UPDATED), b"0", b"0", b"WITHSCORES")
        sizes = [(b"ZCARD", self._set(name)) for name in (ALL_RUNS, WITH_HOLDER, RUNNING, PAUSED, *ENDED)]
        return tuple(map(str, self._calls.all([newest, *sizes, (b"GET", self._set(POST_COUNT))])))

    def _smallest(self, which: RunFilter, clock: bytes) -> Sequence[str]:
        """The sets, the runs of which are all that can match: of several choices, those with the fewest runs."""
        choices: list[Sequence[str]] = [[ALL_RUNS]]
        # No set has the damaged runs: all are read to find them.
        if DAMAGED not in which.statuses:
            named = _named_sets(which)
            if which.updated_since is not None:
                named.append([UPDATED])
            if named:
                self._list_older(clock)
            choices += named
            if which.statuses:
                choices.append(list(dict.fromkeys(which.statuses)))
        if len(choices) == 1:
            return choices[0]
        bounds = {UPDATED: _update_bounds(which)}
        names = [name for choice in choices for name in choice]
        commands = [(b"ZCOUNT", self._set(name), *bounds.get(name, _bounds(which))) for name in names]
        sizes = dict(zip(names, self._calls.all(commands), strict=True))
        if UPDATED in sizes:
            sizes[UPDATED] *= COST_OF_ORDERING
        return min(choices, key=lambda choice: sum(sizes[name] for name in choice))

    def _list_older(self, clock: bytes) -> None:
        """List runs of earlier versions in the sets, once."""
        if self._lists_all:
            return
        flag = self._set("indexed")
        is_done, count = self._calls.all([(b"EXISTS", flag), (b"ZCARD", self._calls.index)])
        if not is_done and count:
            (run_ids,) = self._calls.all([(b"ZRANGE", self._calls.index, b"0", b"-1")])
            for start in range(0, len(run_ids), OLDER_PER_CALL):
                part = run_ids[start : start + OLDER_PER_CALL]
                self._calls.all([self._calls.command(scripts.INDEX_OLDER, "", clock, *part)])
            self._calls.all([(b"SET", flag, b"1")])
        self._lists_all = bool(is_done or count)

    def _entries(self, name: str, which: RunFilter) -> Iterator[Entry]:
        """The runs in a set, newest first, from the filter's cursor on."""
        lowest, highest = _bounds(which)
        last = None if which.after is None else Entry(*which.after)
        size = min(which.limit or PER_CALL, PER_CALL)
        while True:
            command = (b"ZREVRANGEBYSCORE", self._set(name), highest, lowest, b"WITHSCORES", b"LIMIT")
            (reply,) = self._calls.all([(*command, b"0", b"%d" % size)])
            page = [
                Entry(float(created), run_id_of(run))
                for run, created in zip(reply[::2], reply[1::2], strict=True)
            ]
            fresh = [entry for entry in page if last is None or entry < last]
            yield from fresh
            if len(page) < size:
                return
            # Runs that were created at one moment come again with the next page, which must reach beyond them.
            if page[0].created == page[-1].created:
                size *= 2
            size = max(size, PER_CALL)
            if fresh:
                last = fresh[-1]
            highest = b"%r" % page[-1].created

    def _updated(self, which: RunFilter) -> list[Entry]:
        """The runs that were updated between the filter's times, newest first by creation."""
        lowest, highest = _update_bounds(which)
        (run_ids,) = self._calls.all([(b"ZRANGEBYSCORE", self._set(UPDATED), lowest, highest)])
        if not run_ids:
            return []
        (created,) = self._calls.all([(b"ZMSCORE", self._calls.index, *run_ids)])
        pairs = zip(run_ids, created, strict=True)
        return sorted((Entry(float(at), run_id_of(run)) for run, at in pairs if at is not None), reverse=True)

    def _heads(self, entries: Iterator[Entry], sets: Sequence[str], limit: int | None) -> Iterator[RunHead]:
        """The heads of the runs that exist. One that is damaged says so."""
        size = min(limit or PER_CALL, PER_CALL)
        previous = ""
        while part := [*islice(entries, size)]:
            size = min(max(size * 2, FEWEST), PER_CALL)
            heads = self._calls.heads([entry.run_id for entry in part])
            for entry, found in zip(part, heads, strict=True):
                head = self._listed(entry, found, sets)
                # A run whose status changes meanwhile may be found twice.
                if head is not None and entry.run_id != previous:
                    yield head
                previous = entry.run_id

    def _listed(
        self, entry: Entry, found: RunHead | DamagedRecord | None, sets: Sequence[str]
    ) -> RunHead | None:
        """The head of a run in a list, which says so if it is damaged; None for a run that was deleted."""
        run_id = entry.run_id
        if found is None:
            # The server deleted the run when its ttl had passed, but can't know of the index.
            names = texts([*ENDED, UPDATED, *filter(None, sets)])
            self._calls.run(scripts.REMOVE_FROM_INDEX, run_id, text(run_id), *names)
            return None
        if isinstance(found, RunHead):
            return found
        import logging

        logging.getLogger("limpet.stores").warning("a run is listed as damaged: %s", found)
        return unreadable(run_id, entry.created)

    def _set(self, name: str) -> bytes:
        if name == ALL_RUNS:
            return self._calls.index
        return self._calls.index + b":" + text(name)


def _named_sets(which: RunFilter) -> list[Sequence[str]]:
    """The sets that have all runs that match, beside those of statuses. Where there are several, each has some."""
    names: list[Sequence[str]] = [[f"tag:{tag}"] for tag in which.tags]
    for kind, value in (("graph", which.graph), ("parent", which.parent)):
        if value is not None:
            names.append([f"{kind}:{value}"])
    for kind, label in (("node", which.node), ("error", which.error)):
        if label:
            names.append([f"{kind}:{label}"])
    if which.queue not in (None, QUEUE):
        names.append([f"queue:{which.queue}"])
    for sets, is_wanted in (
        (["with error"], which.has_error),
        (["waiting"], which.is_waiting),
        (WITH_DUE_TIME, which.is_due is not None),
        ([WITH_HOLDER], which.lease_states and LeaseState.FREE not in which.lease_states),
    ):
        if is_wanted:
            names.append(sets)
    return names


def _bounds(which: RunFilter) -> tuple[bytes, bytes]:
    """Between which times of creation the runs are, both included. No run is created after it was last updated."""
    limits = [which.created_before, which.updated_before, which.after and which.after.created]
    highest = min((limit for limit in limits if limit is not None), default=None)
    return _score(which.created_since, b"-inf"), _score(highest, b"+inf")


def _update_bounds(which: RunFilter) -> tuple[bytes, bytes]:
    """Between which times the runs were last updated, both included."""
    return _score(which.updated_since, b"-inf"), _score(which.updated_before, b"+inf")


def _score(moment: float | None, otherwise: bytes) -> bytes:
    if moment is None:
        return otherwise
    return b"%r" % float(moment)
