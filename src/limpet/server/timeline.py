"""The timeline of a run: a row for each step, branch and task, with its attempts and waits, made from its events.

A `Timeline` reads what is new when it is asked, and remembers the rows that it has made, so a run of many steps is
read once. Each row has the version at which it last changed: who knows a version gets only what changed since.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.errors import UsageError
from limpet.graphs.plan import PLANNER
from limpet.journal.encoding.json_values import to_json_value
from limpet.journal.store import Store

MAX_ROWS: Final = 5000
"""Rows in one answer, at most."""

KEPT_TIMELINES: Final = 8
"""How many runs' timelines are remembered."""

LONGEST_NOTE: Final = 300
"""Characters of an error or a question that a row has. The events have all of it."""

RUNNING: Final = "running"
PAUSED: Final = "paused"
FAILED: Final = "failed"
DONE: Final = "done"


class Row:
    """One line of the timeline."""

    __slots__ = (
        "attempts",
        "branch",
        "end",
        "id",
        "kind",
        "label",
        "note",
        "output",
        "parent",
        "progress",
        "start",
        "status",
        "step",
        "version",
        "waits",
    )

    def __init__(self, id: int, kind: str, label: str, start: float, parent: int | None, branch: str) -> None:
        self.id = id
        self.kind = kind
        self.label = label
        self.start = start
        self.parent = parent
        self.branch = branch
        self.step: int | None = None
        self.end: float | None = None
        self.status = RUNNING
        self.note = ""
        self.attempts: list[list[Any]] = []
        """Of each attempt that failed: when it began and ended, and its error."""
        self.waits: list[list[Any]] = []
        """Of each wait: when it began, when it ended if it has, and what for."""
        self.output = 0
        self.progress: dict[str, Any] | None = None
        self.version = 0

    def attempt_start(self) -> float:
        """When the attempt under way began: after the last wait, and after the last attempt that failed."""
        ends: list[float] = [wait[1] for wait in self.waits if wait[1] is not None]
        ends += [attempt[1] for attempt in self.attempts]
        return max([self.start, *ends])

    def close_waits(self, at: float) -> None:
        """What it waits for has come."""
        for wait in self.waits:
            if wait[1] is None or wait[1] > at:
                wait[1] = at

    def facts(self) -> dict[str, Any]:
        """The row as data, without what is empty."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "version"}
        return {
            name: value for name, value in facts.items() if value not in (None, "", [], 0) or name == "id"
        }


class Timeline:
    """The rows of one run, as far as they were read."""

    def __init__(self, store: Store, run_id: str, known_secrets: frozenset[str]) -> None:
        self._feed = EventFeed(store, run_id, EventCursor(), known_secrets)
        self._lock = Lock()
        self._epoch = secrets.token_hex(4)
        """Tells the versions of this timeline from those of another one that was made of the same run."""
        self._rows: list[Row] = []
        self._changed: OrderedDict[int, None] = OrderedDict()
        """The ids of all rows, those that changed last at the end."""
        self._version = 0
        self._open: dict[str, Row] = {}
        """What is under way, by lane: the branch, and in a workflow the task."""
        self._ready: dict[str, float] = {}
        """When the next step of a lane can have begun."""
        self._groups: dict[str, Row] = {}
        """The rows of branches that are under way, by their paths."""

    def changes(self, version: str, limit: int) -> dict[str, Any]:
        """The rows that changed since a version, oldest change first, and the version after them."""
        with self._lock:
            since = self._known_version(version)
            is_behind = self._read(since + limit)
            ids: list[int] = []
            for id in reversed(self._changed):
                if self._rows[id].version <= since:
                    break
                ids.append(id)
            ids.reverse()
            has_more = len(ids) > limit or is_behind
            ids = ids[:limit]
            reached = self._rows[ids[-1]].version if len(ids) == limit else self._version
            return {
                "version": f"{self._epoch}.{reached}",
                "reset": since == 0,
                "rows": [self._rows[id].facts() for id in ids],
                "total": len(self._rows),
                "more": has_more,
                "ready": self._ready.get("", 0.0),
            }

    def _known_version(self, version: str) -> int:
        epoch, _, number = version.partition(".")
        if epoch != self._epoch or not number.isdecimal():
            return 0
        return int(number[:12])

    def _read(self, enough: int) -> bool:
        """Read new events, until there are enough changes for an answer; True if there are more."""
        while True:
            batch = self._feed.read()
            for entry in batch.entries:
                self._take(entry.event)
            if not batch.has_more:
                return False
            if self._version > enough:
                return True

    def _touch(self, row: Row) -> None:
        self._version += 1
        row.version = self._version
        self._changed[row.id] = None
        self._changed.move_to_end(row.id)

    def _add(self, kind: str, label: str, start: float, branch: str) -> Row:
        group = self._groups.get(branch)
        row = Row(len(self._rows), kind, label, start, None if group is None else group.id, branch)
        self._rows.append(row)
        self._touch(row)
        return row

    def _row(self, event: dict[str, Any], node: str = "") -> Row:
        """The row of what is under way in the lane of an event."""
        lane = _lane(event)
        row = self._open.get(lane)
        if row is None:
            branch = event.get("branch") or ""
            self._enter(branch, event["at"])
            row = self._add("step", node or event.get("node") or "", self._start(branch, event["at"]), branch)
            row.step = event.get("step")
            self._open[lane] = row
        if node and not row.label:
            row.label = node
        return row

    def _start(self, branch: str, at: float) -> float:
        return min(self._ready.get(branch, at), at)

    def _enter(self, branch: str, at: float) -> None:
        """Have a row for a branch, and for those around it."""
        if not branch or branch in self._groups:
            return
        outer, _, name = branch.rpartition("/")
        self._enter(outer, at)
        row = self._add("branch", name, self._start(outer, at), outer)
        self._groups[branch] = row
        self._ready.setdefault(branch, row.start)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        take = getattr(self, f"_take_{kind}", None)
        if take is not None:
            take(event)

    def _take_start(self, event: dict[str, Any]) -> None:
        self._ready[""] = event["at"]

    def _take_branches(self, event: dict[str, Any]) -> None:
        outer = event.get("branch") or ""
        self._ready[outer] = event["at"]
        names = event.get("branches") or ()
        for name in names if isinstance(names, (list, tuple, dict)) else ():
            path = f"{outer}/{name}".lstrip("/")
            self._groups.pop(path, None)
            self._ready.pop(path, None)
            self._enter(path, event["at"])

    def _take_step(self, event: dict[str, Any]) -> None:
        branch = event.get("branch") or ""
        at = event["at"]
        if event.get("node") == PLANNER:
            return
        inner = self._groups.get(f"{branch}/{event.get('node')}".lstrip("/"))
        if inner is not None and _lane(event) not in self._open and inner.end is None:
            row = inner  # a graph inside of a node has ended with the node
            self._close_branches(f"{branch}/{event.get('node')}".lstrip("/"), at)
        else:
            self._end_joined(branch, at, event)
            row = self._row(event, event.get("node") or "")
        self._open.pop(_lane(event), None)
        row.step = event.get("step")
        row.label = event.get("task") or event.get("node") or row.label
        row.close_waits(at)
        row.end = at
        row.status = DONE
        row.progress = None
        self._ready[branch] = at
        self._touch(row)

    def _end_joined(self, branch: str, at: float, event: dict[str, Any]) -> None:
        """A step of a lane ends the branches inside of it: what joins them began when the last of them ended."""
        prefix = f"{branch}/" if branch else ""
        inner = [path for path in self._groups if path.startswith(prefix) and path != branch]
        if event.get("task"):
            return
        last = self._ready.get(branch, at)
        for path in inner:
            last = max(last, self._ready.get(path, last))
            self._close_branches(path, self._ready.get(path, at))
        if inner:
            self._ready[branch] = last

    def _close_branches(self, path: str, at: float) -> None:
        row = self._groups.pop(path, None)
        if row is None:
            return
        if row.end is None:
            row.end = at
        if row.status != FAILED:
            row.status = DONE
        self._touch(row)

    def _take_task_start(self, event: dict[str, Any]) -> None:
        lane = _lane(event)
        if lane not in self._open:
            branch = event.get("branch") or ""
            self._enter(branch, event["at"])
            row = self._add("task", event.get("task") or "", event["at"], branch)
            row.step = event.get("step")
            self._open[lane] = row

    def _take_task_skipped(self, event: dict[str, Any]) -> None:
        row = self._add("task", event.get("task") or "", event["at"], event.get("branch") or "")
        row.end = event["at"]
        row.status = "skipped"
        row.note = _short(event.get("reason"))

    def _take_retry(self, event: dict[str, Any]) -> None:
        row = self._row(event, event.get("node") or "")
        error = _short(event.get("error"))
        row.attempts.append([row.attempt_start(), event["at"], error])
        due = event.get("due")
        if due:
            row.waits.append([event["at"], due, "retry"])
        row.status = "retrying"
        row.note = error
        self._touch(row)

    def _take_sleep(self, event: dict[str, Any]) -> None:
        row = self._row(event)
        row.waits.append([event["at"], event.get("until"), "sleep"])
        row.status = "sleeping"
        self._touch(row)

    def _take_wait(self, event: dict[str, Any]) -> None:
        waits = event.get("waits") or ()
        row = self._row(event, waits[0].get("node", "") if waits else "")
        row.waits.append([event["at"], None, "message"])
        row.status = "waiting"
        row.note = _short(", ".join(str(each.get("name")) for each in waits))
        self._touch(row)

    def _take_receive(self, event: dict[str, Any]) -> None:
        self._continue(event, ("waiting",))

    def _take_question(self, event: dict[str, Any]) -> None:
        asked = event.get("questions") or ()
        row = self._row(event, asked[0].get("node", "") if asked else "")
        row.waits.append([event["at"], None, "question"])
        row.status = PAUSED
        row.note = _short(" · ".join(str(each.get("prompt")) for each in asked) or event.get("reason"))
        self._touch(row)

    def _take_pause(self, event: dict[str, Any]) -> None:
        if any(row.status == PAUSED for row in self._open.values()):
            return  # its branches have asked before
        self._take_question(event)

    def _take_answer(self, event: dict[str, Any]) -> None:
        self._continue(event, (PAUSED,))

    _take_deadline = _take_answer

    def _take_resume(self, event: dict[str, Any]) -> None:
        self._continue(event, (PAUSED, FAILED, "cancelled"))

    def _continue(self, event: dict[str, Any], statuses: Iterable[str]) -> None:
        at = event["at"]
        for row in self._open.values():
            if row.status not in statuses:
                continue
            if row.end is not None:
                row.waits.append([row.end, at, "stopped"])
            row.close_waits(at)
            row.end = None
            row.status = RUNNING
            self._touch(row)

    def _take_error(self, event: dict[str, Any]) -> None:
        error = event.get("error") or {}
        row = self._row(event, error.get("node") or "")
        at = event["at"]
        row.attempts.append([row.attempt_start(), at, _short(error)])
        row.end = at
        row.status = FAILED
        row.note = _short(error) or _short(event.get("reason"))
        self._touch(row)

    def _take_fail(self, event: dict[str, Any]) -> None:
        if not any(row.status == FAILED for row in self._open.values()):
            self._take_error(event)

    def _take_caught(self, event: dict[str, Any]) -> None:
        self._take_error(event)
        self._open.pop(_lane(event), None)
        self._ready[event.get("branch") or ""] = event["at"]

    def _take_cancel(self, event: dict[str, Any]) -> None:
        for row in self._open.values():
            if row.status != FAILED:
                row.close_waits(event["at"])
                row.end = event["at"]
                row.status = "cancelled"
                self._touch(row)

    def _take_complete(self, event: dict[str, Any]) -> None:
        for path in list(self._groups):
            self._close_branches(path, self._ready.get(path, event["at"]))
        for row in self._open.values():
            row.end = event["at"]
            row.status = DONE
            self._touch(row)
        self._open.clear()

    def _take_rollback(self, event: dict[str, Any]) -> None:
        self._open.clear()
        self._groups.clear()
        row = self._add("mark", "rolled back", event["at"], "")
        row.step = event.get("step")
        row.end = event["at"]
        row.status = "skipped"
        row.note = _short(event.get("reason"))
        self._ready = {"": event["at"]}

    def _take_update(self, event: dict[str, Any]) -> None:
        row = self._add("mark", "state changed from outside", event["at"], "")
        row.step = event.get("step")
        row.end = event["at"]
        row.status = DONE

    def _take_output(self, event: dict[str, Any]) -> None:
        row = self._open.get(_lane(event))
        if row is not None:
            row.output += 1
            self._touch(row)

    def _take_progress(self, event: dict[str, Any]) -> None:
        row = self._row(event, event.get("node") or "")
        row.progress = {name: event[name] for name in ("done", "total", "message") if event.get(name)}
        self._touch(row)


class Timelines:
    """The timelines of the runs that were looked at last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, float], Timeline] = OrderedDict()

    def changes(
        self, run_id: str, created: float, known_secrets: frozenset[str], version: str, limit: int
    ) -> dict[str, Any]:
        """What changed in a run's timeline since a version. `created` tells it from an earlier run of this id."""
        if not 1 <= limit <= MAX_ROWS:
            raise UsageError(f"limit must be from 1 to {MAX_ROWS}, not {limit}")
        with self._lock:
            timeline = self._kept.pop((run_id, created), None)
            if timeline is None:
                timeline = Timeline(self._store, run_id, known_secrets)
            self._kept[run_id, created] = timeline
            while len(self._kept) > KEPT_TIMELINES:
                self._kept.popitem(last=False)
        changes: dict[str, Any] = to_json_value(timeline.changes(version, limit))
        return changes


def _lane(event: dict[str, Any]) -> str:
    task = event.get("task")
    branch = event.get("branch") or ""
    return f"{branch}\0{task}" if task else branch


def _short(text: Any) -> str:
    """An error or a reason in a line."""
    if isinstance(text, dict):
        text = f"{text.get('type', 'error')}: {text.get('message', '')}"
    return str(text or "")[:LONGEST_NOTE]
