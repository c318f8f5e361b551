"""Lanes: where steps follow one another, and how far they have come: the run itself, its branches, and tasks.

Lanes make a tree: a lane has those of the branches and tasks that are open there. A graph inside of a node is a
branch with the name of the node, and one inside of a task is in the lane of the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from limpet.server.timeline.rows import (
    BRANCH,
    CANCELLED,
    DONE,
    FAILED,
    MARK,
    PAUSED,
    RUNNING,
    STEP,
    TASK,
    Row,
    RowLog,
)

Event = dict[str, Any]


class Lane:
    """A lane. `row` is that of the branch or task; the run itself has none."""

    __slots__ = (
        "children",
        "each",
        "has_begun",
        "is_over",
        "last",
        "next",
        "open",
        "outer",
        "path",
        "ready",
        "row",
    )

    def __init__(
        self, ready: float = 0.0, name: str = "", outer: Lane | None = None, row: Row | None = None
    ) -> None:
        self.outer = outer
        self.path = name
        """The name of the branch, as events have it."""
        if outer is not None and outer.path:
            self.path = f"{outer.path}/{name}"
        self.row = row
        self.open: Row | None = None
        """The row of the step under way, if it is known that something has happened in it."""
        self.last: Row | None = None
        """The row of the step that completed last."""
        self.next: str | None = None
        """The node that comes next, if that is known."""
        self.ready = ready
        """When the next step can have begun."""
        self.children: dict[str, Lane] = {}
        self.each = ""
        """What the branches of an open map run: how many there are isn't known."""
        self.has_begun = False
        """Whether anything has happened here."""
        self.is_over = False
        """Whether no step comes after the last one."""

    @property
    def is_task(self) -> bool:
        """Whether it is that of a task."""
        return self.row is not None and self.row.kind == TASK

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of what is under way here, without those inside of it."""
        if self.open is not None:
            yield self.open
        if self.row is not None:
            yield self.row

    def current(self, event: Event) -> Row | None:
        """The row of the step under way that an event is about: of a task its own, even if it runs a graph."""
        return self.row if event.get("task") else self.open

    def begin(self, at: float | None) -> None:
        """Something has happened here. If that is known, the lane began at this time, and not when it was opened."""
        lane: Lane | None = self
        while lane is not None and not lane.has_begun:
            lane.has_begun = True
            if lane.row is not None and at is not None:
                lane.row.move_start(at)
            lane = lane.outer

    def walk(self) -> Iterator[Lane]:
        """This lane and those inside of it, the inner ones first."""
        for child in list(self.children.values()):
            yield from child.walk()
        yield self

    def active(self) -> Iterator[dict[str, Any]]:
        """The steps that are under way, as far as is known, and have no row."""
        inner = [child for child in self.children.values() if not child.is_over]
        for child in inner:
            yield from child.active()
        if self.each:
            yield {"branch": self.path, "label": self.each, "since": self.ready}
        if self.is_over or self.each or self.open is not None or self.next is None:
            return
        # If the lane of its graph is over, the node is about to complete.
        if self.next not in self.children and all(child.is_task for child in inner):
            yield {"branch": self.path, "label": self.next, "since": self.ready}


class Lanes:
    """The lanes of a run that are open. What it does to rows is noted in `log`."""

    def __init__(self, log: RowLog) -> None:
        self.root = Lane()
        self._log = log

    def of(self, event: Event) -> Lane:
        """The lane that an event is about. It is opened, if it isn't open."""
        lane = self.root
        branch = event.get("branch")
        if branch:
            for name in branch.split("/"):
                lane = lane.children.get(name) or self.enter(lane, BRANCH, name, event["at"])
        task = event.get("task")
        if task:
            return lane.children.get(task) or self.enter(lane, TASK, task, event["at"])
        return lane

    def find(self, event: Event) -> Lane | None:
        """The same, if it is open."""
        names = (event.get("branch") or "").split("/") if event.get("branch") else []
        if event.get("task"):
            names.append(event["task"])
        lane: Lane | None = self.root
        for name in names:
            lane = None if lane is None else lane.children.get(name)
        return lane

    def of_node(self, path: str) -> Lane:
        """The open lane where a node is, by the node's name with the path to it; or that around it."""
        *branches, node = path.split("/")
        lane = self.root
        for name in branches:
            if name not in lane.children:
                return lane
            lane = lane.children[name]
        inner = lane.children.get(node)
        return inner if inner is not None and inner.is_task else lane

    def enter(self, outer: Lane, kind: str, name: str, at: float) -> Lane:
        """Open a lane, with its row."""
        row = outer.open
        if row is not None and row.label == name and kind == BRANCH:
            # A graph inside of a node, at which the run had stopped.
            row.kind = BRANCH
            outer.open = None
            self._log.touch(row)
        else:
            start = at
            if kind == BRANCH:
                start = min(outer.ready or at, at)
            row = self._log.add(Row(kind, name, start, outer.row, outer.path))
        lane = outer.children[name] = Lane(row.start, name, outer, row)
        return lane

    def row_of(self, event: Event, node: str | None) -> Row:
        """The row of what an event is about: a task, or a node in its lane."""
        lane = self.of(event)
        lane.begin(None)
        if event.get("task") and lane.row is not None:
            return lane.row
        return self.row_in(lane, node, event)

    def row_at_stop(self, lane: Lane, node: str, event: Event) -> Row:
        """The row of the node where a lane has stopped, by its name with or without the path to it."""
        lane.begin(None)
        if (
            lane.is_task
            and lane.row is not None
            and lane.open is None
            and lane.row.label == node.rpartition("/")[2]
        ):
            return lane.row
        return self.row_in(lane, node, event)

    def row_in(self, lane: Lane, node: str | None, event: Event) -> Row:
        """The row of the step under way in a lane. Without a node, and if none comes next, it is that of a stop."""
        name = (node or lane.next or "").rpartition("/")[2]
        inner = lane.children.get(name)
        if inner is not None and inner.row is not None:
            return inner.row
        if lane.open is None:
            self.end_branches(lane)
            kind = STEP if name else MARK
            lane.open = self.add_row(lane, kind, name or "between steps", event)
        return lane.open

    def new_step(self, lane: Lane, node: str, event: Event) -> Row:
        """The row of a step that wasn't known to be under way."""
        self.end_branches(lane)
        return self.add_row(lane, STEP, node, event)

    def close_task(self, event: Event) -> None:
        """A task has ended."""
        outer = self.find({**event, "task": None})
        if outer is not None:
            outer.children.pop(event["task"], None)

    def has_failed(self, lane: Lane) -> bool:
        """Whether a step in a lane, or inside of it, has failed."""
        return any(row.status == FAILED for each in lane.walk() for row in each.rows)

    def add_row(self, lane: Lane, kind: str, label: str, event: Event) -> Row:
        """A new row in a lane, of what began when the lane was ready."""
        at = event["at"]
        start = at
        if kind == STEP:
            start = min(lane.ready or at, at)
        row = Row(kind, label, start, lane.row, lane.path)
        row.step = event.get("step")
        return self._log.add(row)

    def end_branches(self, lane: Lane) -> None:
        """What comes next in a lane joins its branches: it began when the last of them ended."""
        lane.each = ""
        branches = [(name, child) for name, child in lane.children.items() if not child.is_task]
        for name, branch in branches:
            self.end(branch, branch.ready, DONE)
            lane.ready = max(lane.ready, branch.ready)
            del lane.children[name]

    def end(self, lane: Lane, at: float, status: str) -> None:
        """A lane has ended, with all that is under way there and inside of it."""
        for each in lane.walk():
            lane.ready = max(lane.ready, each.ready)
            for row in each.rows:
                if row.end is None:
                    row.stop(max(at, each.ready), status)
                    self._log.touch(row)

    def stop(self, at: float, keeps_questions: bool) -> None:
        """The run has failed or was cancelled: nothing is under way any longer, and some of it may still ask."""
        for lane in self.root.walk():
            failed = any(
                child.row is not None and child.row.status == FAILED for child in lane.children.values()
            )
            for row in lane.rows:
                if row.end is not None or (row.status == PAUSED and keeps_questions):
                    failed = failed or row.status == FAILED
                    continue
                row.stop(at, FAILED if failed else CANCELLED)
                self._log.touch(row)

    def resume(self, at: float, approved: Collection[Row]) -> None:
        """What has failed, or was stopped, is under way again; and what is approved."""
        for lane in self.root.walk():
            if lane.is_over:
                continue
            if lane.open is None:
                lane.ready = max(lane.ready, at)
            for row in list(lane.rows):
                if row.status in (FAILED, CANCELLED) or row in approved:
                    self._resume_row(lane, row, at)

    def _resume_row(self, lane: Lane, row: Row, at: float) -> None:
        if row.kind != MARK:
            self.continue_row(row, at)
            return
        # It stopped between two steps, and the next one gets a row of its own.
        lane.open = None
        lane.ready = at
        if row.end is None:
            row.stop(at, DONE)
            self._log.touch(row)

    def continue_row(self, row: Row, at: float) -> None:
        """What a row waited for has come, or it is called again."""
        if row.end is not None:
            row.add_wait(row.end, max(row.end, at), "stopped")
            row.end = None
        row.close_waits(at)
        row.asked = ()
        row.status = RUNNING
        self._log.touch(row)
