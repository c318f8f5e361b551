"""What the log of workers under fire has to prove: see `under_fire.py`.

Only what is certain counts. A call has its slots for certain from its first line to its last, unless its process is
killed, or its lease has expired for good: a suspended process past its lease doesn't count, unless the store lets it
renew that.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from e2e.crash_graphs import fire_graphs
from limpet import Schedules
from limpet.engine.schedules.schedule import find_schedule
from limpet.engine.schedules.timetable import stamp
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import ENDED
from support.under_fire import BACKLOG, LEASE, SCHEDULES, WAIT_BOUND, Fire, Planned, result_of

Line = dict[str, Any]
Hold = tuple[str, int]
"""A run, and a fence of it."""

TOLERANCE = 1.0
"""Seconds between a grant and the line of its call, at most, in a process that isn't suspended."""
SLOT_MARGIN = float(os.environ.get("FIRE_MARGIN") or 10.0)
"""Seconds for which a slot may be of no use, at most, once the lease of its holder has ended."""
MOST_OVERTAKING = 4 * BACKLOG
"""How many runs, at most, that were started later in the same lane may begin before a run does.

Of those that wait, each worker has some in hand, and may be suspended with them. But those that come later still are
behind them.
"""


class Call(NamedTuple):
    """A call of a node, for as long as it has its slots for certain."""

    run: str
    fence: int
    key: str
    pid: int
    began: float
    ended: float
    limits: tuple[str, ...]


class History:
    """What the log says, put together."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = sorted(lines, key=lambda line: line["at"])
        self.queues: dict[int, list[str] | None] = {}
        """Those that each worker serves; None for all."""
        self.killed: dict[int, float] = {}
        self.holders: dict[Hold, int] = {}
        self.suspended: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.valid_until: dict[Hold, float] = {}
        """Until when each lease was valid for certain."""
        self.revived: set[Hold] = set()
        """Leases that may have expired, and were renewed after that."""
        self._released: set[Hold] = set()
        for line in self.lines:
            self._take_in(line)
        self.calls = list(self._calls())

    def of(self, did: str) -> list[Line]:
        return [line for line in self.lines if line["did"] == did]

    def _take_in(self, line: Line) -> None:
        match line["did"]:
            case "worker":
                self.queues[line["pid"]] = line["queues"]
            case "kill":
                self.killed[line["victim"]] = line["at"]
            case "freeze":
                self.suspended[line["victim"]].append((line["at"], inf))
            case "thaw":
                since, _ = self.suspended[line["victim"]].pop()
                self.suspended[line["victim"]].append((since, line["at"]))
            case "claim":
                hold = (line["run"], line["fence"])
                assert hold not in self.holders, line
                self.holders[hold] = line["pid"]
                self.valid_until[hold] = line["until"]
            case "renew":
                for run, fence in line["leases"]:
                    self._renew((run, fence), line)
            case "release":
                self._end((line["run"], line["fence"]), line["at"])
            case "status" if line["status"] != "running":
                self._end((line["run"], line["fence"]), line["began"])

    def _renew(self, hold: Hold, line: Line) -> None:
        if hold in self._released:
            return  # by another thread, before that
        if line["at"] >= self.valid_until.get(hold, 0.0):
            self.revived.add(hold)
        # One that has expired can be renewed as long as none of its slots has passed on, so it counts as well.
        self.valid_until[hold] = line["until"]

    def _end(self, hold: Hold, at: float) -> None:
        self._released.add(hold)
        self.valid_until[hold] = min(self.valid_until.get(hold, 0.0), at)

    def _calls(self) -> Iterable[Call]:
        ended = {_call_id(line): line["at"] for line in self.of("end")}
        for line in self.of("begin"):
            hold = (line["run"], line["fence"])
            end = min(
                ended.get(_call_id(line), inf),
                self.killed.get(line["pid"], inf),
                self.valid_until[hold],
            )
            if end > line["at"]:
                yield Call(*hold, line["key"], line["pid"], line["at"], end, tuple(line["limits"]))


def check(fire: Fire) -> dict[str, Any]:
    """Check all that must be so after a fire, and return what can be said of it."""
    history = History(fire.lines())
    heads = {head.run_id: head for head in fire.store.list(RunFilter())}
    check_results(fire, heads)
    served = check_queues(fire, heads, history)
    live = check_concurrency(fire, heads, history)
    check_documents(history)
    assert fire.watcher.longest_lost < SLOT_MARGIN, (fire.seed, fire.watcher.report())
    assert fire.watcher.oldest < WAIT_BOUND, (fire.seed, fire.watcher.report())
    overtaking = check_order(fire, heads, history)
    fastest = check_rate(history)
    fired = {each.name: check_schedule(fire, each, heads, history) for each in SCHEDULES}
    return {
        "seed": fire.seed,
        "harm": fire.harm,
        "runs": len(heads),
        "calls": len(history.of("begin")),
        "claims": len(history.of("claim")),
        "most at once": live,
        "most begun in a period": fastest,
        "most overtaking": overtaking,
        "revived leases": len(history.revived),
        "workers": served,
        "schedules": fired,
        "watcher": fire.watcher.report(),
    }


def check_results(fire: Fire, heads: dict[str, Any]) -> None:
    """No run is lost, and each has come to what it should."""
    assert set(fire.started) <= set(heads), (fire.seed, set(fire.started) - set(heads))
    wrong = {run_id: heads[run_id].status for run_id in fire.started if heads[run_id].status != "completed"}
    assert wrong == {}, fire.seed
    for run_id, (graph, number, queue) in fire.started.items():
        assert heads[run_id].queue == queue
        assert result_of(fire, graph, run_id) == fire_graphs.expected(graph, number), (fire.seed, run_id)


def check_queues(fire: Fire, heads: dict[str, Any], history: History) -> int:
    """No worker has executed a run of a queue that it doesn't serve; return how many workers there were."""
    for line in history.of("begin"):
        serves = history.queues[line["pid"]]
        assert serves is None or heads[line["run"]].queue in serves, (fire.seed, line)
    return len(history.queues)


def check_concurrency(fire: Fire, heads: dict[str, Any], history: History) -> dict[str, int]:
    """There were never more live slots than a limit allows; return how many there were at most."""
    intervals: dict[str, list[tuple[float, float, Any]]] = defaultdict(list)
    spans: dict[Hold, list[Call]] = defaultdict(list)
    for call in history.calls:
        for limit in call.limits if "calls" in fire_graphs.LIMITED else ():
            intervals[limit].append((call.began, call.ended, call))
        spans[call.run, call.fence].append(call)
    for (run, _), calls in spans.items():
        span = (min(call.began for call in calls), max(call.ended for call in calls), calls)
        for limit in ("whole", "gpu"):
            if fire_graphs.limits_run(limit, heads[run].graph, heads[run].queue):
                intervals[limit].append(span)
    most = {limit: most_at_once(each) for limit, each in intervals.items()}
    for limit, (count, which) in most.items():
        assert count <= fire_graphs.CONCURRENCY[limit], (fire.seed, limit, which)
    for limit, count in fire.watcher.most_live.items():
        assert count <= fire_graphs.CONCURRENCY[limit], (fire.seed, limit, count)
    return {limit: count for limit, (count, _) in most.items()}


def check_order(fire: Fire, heads: dict[str, Any], history: History) -> int:
    """No run is overtaken by others of its lane without end; return by how many it was at most."""
    began: dict[str, float] = {}
    for line in history.of("begin"):
        began.setdefault(line["run"], line["at"])
    lanes: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for run_id, started in fire.started.items():
        lanes[started.graph, started.queue, heads[run_id].priority].append(run_id)
    most = 0
    for lane in lanes.values():
        for place, run_id in enumerate(lane):
            overtaking = [each for each in lane[place + 1 :] if began[each] < began[run_id]]
            assert len(overtaking) <= MOST_OVERTAKING, (fire.seed, run_id, overtaking)
            most = max(most, len(overtaking))
    return most


def check_documents(history: History) -> None:
    """No version of a limit's document had more slots than the limit allows."""
    for line in history.of("limit"):
        assert len(line["slots"]) <= fire_graphs.CONCURRENCY[line["limit"]], line


def check_rate(history: History) -> int:
    """In no period more calls have begun than the rate allows; return how many it were at most.

    A grant counts before its call begins, by up to `TOLERANCE`. So that many begin in a period that is shorter by as
    much. A call whose process was suspended between its grant and its begin doesn't count.
    """
    granted: dict[tuple[int, str, int, str], float] = {}
    for line in history.of("limit"):
        if line["limit"] == "paced":
            for run, fence, call, state in line["slots"]:
                if state == "held":
                    granted.setdefault((line["pid"], run, fence, call), line["began"])
    begun: list[tuple[float, Line]] = []
    for line in history.of("begin"):
        if "paced" in line["limits"]:
            at = granted.get((line["pid"], line["run"], line["fence"], line["key"]))
            if at is not None and line["at"] - at < TOLERANCE and not _was_suspended(history, line, at):
                begun.append((line["at"], line))
    most = 0
    first = 0
    for last, (at, line) in enumerate(begun):
        while begun[first][0] <= at - (fire_graphs.PERIOD - TOLERANCE):
            first += 1
        most = max(most, last - first + 1)
        assert last - first < fire_graphs.PER_PERIOD, (begun[first], line)
    return most


def check_schedule(fire: Fire, planned: Planned, heads: dict[str, Any], history: History) -> dict[str, Any]:
    """Each planned time was fired once or skipped by policy; return how many of each."""
    info = Schedules(fire.store).get(planned.name)
    found = find_schedule(fire.store, planned.name)
    assert found is not None
    place, timetable = found[0].place, found[0].plan.timetable
    assert (info.status, place.starting, place.waiting, info.failed) == ("ended", (), (), 0), info
    assert timetable.ends is not None
    times = list(timetable.times_from(timetable.origin, timetable.ends))
    by_id = {f"{planned.name}:{stamp(time)}": time for time in times}
    runs = {run_id: head for run_id, head in heads.items() if f"schedule:{planned.name}" in head.tags}
    assert set(runs) <= set(by_id), (fire.seed, set(runs) - set(by_id))
    assert info.fired == len(runs), (fire.seed, info)
    assert info.fired + info.skipped == len(times), (fire.seed, info, times, place)
    if planned.catch_up == "all" and planned.overlap in ("queue", "allow"):
        assert info.skipped == 0, (fire.seed, info)
    reasons = [firing.detail for firing in info.recent if firing.outcome == "skipped"]
    assert all("hadn't ended" in each or "missed" in each for each in reasons), (fire.seed, reasons)
    created = Counter(line["run"] for line in history.of("create"))
    assert all(created[run_id] <= 1 for run_id in runs), (fire.seed, created)
    check_scheduled_runs(fire, planned, runs)
    if planned.overlap in ("skip", "queue"):
        # Not by the heads: a worker that listed a run may claim it once more after it has ended, and release it.
        ended = {line["run"]: line["began"] for line in history.of("status") if line["status"] in ENDED}
        in_order = sorted(runs.values(), key=lambda head: by_id[head.run_id])
        for before, after in pairwise(in_order):
            # A process that was killed may not have logged the end.
            assert ended.get(before.run_id, 0.0) <= after.created, (fire.seed, before, after)
    return {"fired": info.fired, "skipped": info.skipped}


def check_scheduled_runs(fire: Fire, planned: Planned, runs: dict[str, Any]) -> None:
    """Runs that were fired have come to what they should, or were cancelled by policy: never the newest one."""
    number = SCHEDULES.index(planned)
    for run_id, head in runs.items():
        if head.status == "cancelled" and planned.overlap == "cancel_old":
            assert head.created < max(each.created for each in runs.values()), (fire.seed, runs)
            continue
        assert head.status == "completed", (fire.seed, head)
        assert result_of(fire, "turns", run_id) == fire_graphs.expected("turns", number), run_id


def most_at_once(intervals: list[tuple[float, float, Any]]) -> tuple[int, list[Any]]:
    """How many intervals overlap at most, and which."""
    steps = sorted(
        step for began, ended, _ in intervals for step in ((began, 1), (ended, -1))
    )  # ends come first at the same time
    at_once = most = 0
    when = 0.0
    for at, change in steps:
        at_once += change
        if at_once > most:
            most, when = at_once, at
    return most, [which for began, ended, which in intervals if began <= when < ended]


def _call_id(line: Line) -> tuple[Any, ...]:
    return line["pid"], line["run"], line["fence"], line["key"], line["call"]


def _was_suspended(history: History, line: Line, since: float) -> bool:
    return any(
        began - LEASE < line["at"] and ended > since - LEASE
        for began, ended in history.suspended[line["pid"]]
    )
